//! Work on two CPUs at once.

use std::thread;

/// From this number of rows on, a second thread saves more time than its start costs (some 50 us).
pub const MIN_ROWS: usize = 4000;

/// Runs `second` on this thread and `first` on another one meanwhile, and returns both results.
///
/// Runs `first` on this thread, after `second`, if `is_large` is false or the system starts no
/// thread.
pub fn both<A: Send, B>(
    is_large: bool,
    first: impl Fn() -> A + Sync,
    second: impl FnOnce() -> B,
) -> (A, B) {
    thread::scope(|scope| {
        let other = is_large.then(|| thread::Builder::new().spawn_scoped(scope, &first));
        let second = second();
        let first = match other {
            Some(Ok(thread)) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            Some(Err(_)) | None => first(),
        };
        (first, second)
    })
}

/// Maps the two halves of `items`, each on a thread if `is_large`, and returns the results in
/// order.
pub fn halves<T: Sync, R: Send>(
    is_large: bool,
    items: &[T],
    map: impl Fn(&[T]) -> Vec<R> + Sync,
) -> Vec<R> {
    let (first, second) = items.split_at(items.len() / 2);
    let (mut all, rest) = both(is_large, || map(first), || map(second));
    all.extend(rest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_results_are_returned_with_one_thread_or_two() {
        for is_large in [false, true] {
            let here = thread::current().id();
            let id = || thread::current().id();
            let (first, second) = both(is_large, id, id);
            assert_eq!((first == here, second), (!is_large, here));
        }
    }

    #[test]
    fn halves_keep_their_order() {
        for (is_large, count) in [(false, 5), (true, 5), (true, 1), (true, 0)] {
            let items: Vec<usize> = (0..count).collect();
            let double = |items: &[usize]| items.iter().map(|item| item * 2).collect();
            let expected: Vec<usize> = (0..count).map(|item| item * 2).collect();
            assert_eq!(halves(is_large, &items, double), expected);
        }
    }
}

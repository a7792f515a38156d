//! Execution of two functions at once, on two CPUs.

use std::thread;

/// Minimum number of rows for which a second thread saves more time than its start costs (about 50
/// µs).
pub const MIN_ROWS: usize = 4000;

/// Runs `second` on this thread and `first` on another thread at the same time, and returns both
/// results.
///
/// If `is_large` is false or the system cannot start a thread, it runs both on this thread: first
/// `second`, then `first`.
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

/// Applies `map` to the two halves of `items` and returns the results in order. The halves run on
/// two threads if `is_large` is true.
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

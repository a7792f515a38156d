//! Two computations at once, for reports of many rows.

use std::thread;

/// From this number of rows on, a second thread saves more time than its start costs (some 50 us).
pub const MIN_ROWS: usize = 4000;

/// Runs `first` on another thread and `second` on this one, and returns both results.
///
/// Runs one after the other on this thread if `rows` is below [`MIN_ROWS`] or the system starts no thread.
pub fn both<A: Send, B>(
    rows: usize,
    first: impl Fn() -> A + Sync,
    second: impl FnOnce() -> B,
) -> (A, B) {
    if rows < MIN_ROWS {
        return (first(), second());
    }
    thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, &first);
        let second = second();
        let first = match other {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => first(),
        };
        (first, second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_results_are_returned_with_one_thread_or_two() {
        for rows in [0, MIN_ROWS] {
            let here = thread::current().id();
            let (first, second) = both(rows, || thread::current().id(), || thread::current().id());
            assert_eq!((first == here, second), (rows == 0, here));
        }
    }
}

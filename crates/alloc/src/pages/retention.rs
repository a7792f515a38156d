//! Retention: limits the free memory that a pool of pages keeps, based on the recent needs of its
//! users.
//!
//! Time is counted in operations: allocations and frees of runs. A window consists of [`WINDOW`]
//! operations.
//!
//! - At any time, the sum of pages in use and kept pages is at most the maximum number of pages in
//!   use during this window and the one before, plus [`PERCENT`] of that maximum or 2 MiB,
//!   whichever is more.
//! - Pages that were free during a whole window were not needed. At the end of the window the pool
//!   releases them, except for half of [`PERCENT`] of the pages in use or 2 MiB, whichever is more.
//!
//! The pool reads no clock: an unused pool keeps its memory until it is trimmed.

/// Number of operations in a window.
pub(super) const WINDOW: usize = 1 << 14;
/// Default number of free pages that are kept, in percent of the recent maximum number of pages in
/// use.
const PERCENT: usize = 20;
/// Number of free pages that may be kept whatever the percentage: `KEPT` (1 MiB) in the caches of
/// threads, `ALWAYS` (2 MiB) in the caches and the heap together.
pub(super) const KEPT: usize = (1 << 20) / super::PAGE;
const ALWAYS: usize = 2 * KEPT;

/// Recent needs of a pool's users, in pages.
#[derive(Debug)]
pub(super) struct Retention {
    percent: usize,
    /// Number of operations until the window ends.
    left: usize,
    /// Maximum number of pages in use during this window, and during the one before.
    peak: usize,
    last_peak: usize,
    /// Minimum number of free pages during this window.
    least_free: usize,
    /// Number of free pages that must be released although the limits permit them.
    surplus: usize,
}

impl Retention {
    pub(super) const fn new() -> Retention {
        Retention {
            percent: PERCENT,
            left: WINDOW,
            peak: 0,
            last_peak: 0,
            least_free: usize::MAX,
            surplus: 0,
        }
    }

    /// Sets the number of free pages that are kept, in percent of the recent maximum in use.
    pub(super) const fn keep(&mut self, percent: usize) {
        self.percent = percent;
    }

    /// Maximum number of pages in use during this window and the one before.
    const fn most(&self) -> usize {
        if self.peak > self.last_peak { self.peak } else { self.last_peak }
    }

    /// Maximum number of pages in the caches of threads.
    pub(super) fn cached(&self) -> usize {
        (self.most() * self.percent / 200).max(KEPT)
    }

    /// Maximum number of idle pages in the heap while `out` pages are in use or in caches.
    pub(super) fn idle(&self, out: usize) -> usize {
        let most = self.most();
        (most * (100 + self.percent) / 100).max(most + ALWAYS).saturating_sub(out)
    }

    /// Counts operations. `used`, `cached` and `idle` are the numbers of pages after these
    /// operations.
    pub(super) fn passed(&mut self, operations: usize, [used, cached, idle]: [usize; 3]) {
        self.peak = self.peak.max(used);
        self.least_free = self.least_free.min(idle);
        self.left = self.left.saturating_sub(operations);
        if self.left > 0 {
            return;
        }
        let wanted = (used * self.percent / 200).max(ALWAYS).saturating_sub(cached);
        self.surplus = self.least_free.saturating_sub(wanted);
        self.last_peak = self.peak;
        (self.left, self.peak, self.least_free) = (WINDOW, used, usize::MAX);
    }

    /// Number of free pages that must be released although the limits permit them.
    pub(super) const fn surplus(&self) -> usize {
        self.surplus
    }

    /// Subtracts released pages from the surplus.
    pub(super) const fn released(&mut self, pages: usize) {
        self.surplus = self.surplus.saturating_sub(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_until_a_whole_window_has_passed_without_it() {
        let mut need = Retention::new();
        need.passed(1, [10_000, 0, 0]);
        need.passed(WINDOW - 1, [100, 0, 5_000]);
        assert_eq!(need.idle(100), 12_000 - 100);
        need.passed(WINDOW, [100, 0, 5_000]);
        assert_eq!(need.idle(100), ALWAYS);
    }

    #[test]
    fn free_pages_that_were_not_needed_in_a_window_are_surplus() {
        let mut need = Retention::new();
        need.passed(1, [100_000, 0, 20_000]);
        assert_eq!(need.surplus(), 0);
        need.passed(WINDOW, [100_000, 4_000, 19_000]);
        assert_eq!(need.surplus, 19_000 - (10_000 - 4_000));
        need.released(20_000);
        assert_eq!(need.surplus(), 0);
    }
}

//! Policies of a FIFO pool for pages that are empty or nearly empty. A benchmark can select the old
//! policies, to measure the gain.

use super::page::{CAPACITY, PAGE};

/// Policies of a pool. All are on, unless a benchmark with the feature `ablation` switches one off.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct FifoPolicy {
    /// Keeps some empty pages.
    pub spare: bool,
    /// Makes a page that becomes empty the current one, if less than an eighth of the current one
    /// is free.
    pub replace: bool,
    /// Fills holes where blocks are freed in no order.
    pub holes: bool,
    /// Keeps blocks that are freed in no order on a shelf, for requests of their size.
    pub shelf: bool,
}

/// All policies are on.
impl Default for FifoPolicy {
    fn default() -> FifoPolicy {
        FifoPolicy { spare: true, replace: true, holes: true, shelf: true }
    }
}

impl FifoPolicy {
    /// Constant at compile time, except in benchmarks.
    fn chosen(self) -> FifoPolicy {
        if cfg!(feature = "ablation") { self } else { FifoPolicy::default() }
    }

    pub(super) fn keeps_spare(self) -> bool {
        self.chosen().spare
    }

    /// Free bytes of the current page below which a page that becomes empty replaces it.
    pub(super) fn little_room(self) -> usize {
        if self.chosen().replace { PAGE / 8 } else { 0 }
    }

    pub(super) fn fills_holes(self) -> bool {
        self.chosen().holes
    }

    pub(super) fn has_shelf(self) -> bool {
        self.chosen().shelf
    }
}

/// Maximum number of live bytes of a page that is searched for holes: three quarters.
pub(super) const SPARSE: usize = CAPACITY / 4 * 3;

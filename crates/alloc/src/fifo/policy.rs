//! Policies of a FIFO pool for pages that are empty or nearly empty. A benchmark can select the old
//! policies, to measure the gain.

use super::page::{CAPACITY, PAGE};

/// Which of a pool's policies are in force: all, unless a benchmark chooses, for which it needs the
/// feature `ablation`.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct FifoPolicy {
    /// Keeps some empty pages.
    pub spare: bool,
    /// Goes over to a page that becomes empty, if the current one has less than an eighth left.
    pub replace: bool,
    /// Fills holes where blocks are freed in no order.
    pub holes: bool,
    /// Has blocks that are freed in no order wait for requests of their size.
    pub shelf: bool,
}

/// All of them.
impl Default for FifoPolicy {
    fn default() -> FifoPolicy {
        FifoPolicy { spare: true, replace: true, holes: true, shelf: true }
    }
}

impl FifoPolicy {
    /// Known when it is compiled, but for benchmarks.
    fn chosen(self) -> FifoPolicy {
        if cfg!(feature = "ablation") { self } else { FifoPolicy::default() }
    }

    pub(super) fn keeps_spare(self) -> bool {
        self.chosen().spare
    }

    /// Below how many bytes the current page is left for an empty one.
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

/// Up to how many live bytes a page is worth a search for holes: three quarters.
pub(super) const SPARSE: usize = CAPACITY / 4 * 3;

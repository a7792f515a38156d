//! Policies of a FIFO pool for pages that are empty or nearly empty. A benchmark can switch each
//! policy off, to measure its effect.

use super::page::{CAPACITY, PAGE};

/// Policies of a pool. All are on, unless a benchmark with the feature `ablation` switches one off.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct FifoPolicy {
    /// The pool keeps some empty pages.
    pub spare: bool,
    /// A page that becomes empty replaces the current page, if less than an eighth of the current
    /// page is free.
    pub replace: bool,
    /// The pool fills holes while blocks are freed in an order other than that of age.
    pub holes: bool,
    /// While blocks are freed in an order other than that of age, the pool caches freed blocks by
    /// size on a shelf, for requests of the same size.
    pub shelf: bool,
}

/// All policies are on.
impl Default for FifoPolicy {
    fn default() -> FifoPolicy {
        FifoPolicy { spare: true, replace: true, holes: true, shelf: true }
    }
}

impl FifoPolicy {
    /// With the feature `ablation`, returns these policies. Otherwise returns the default, which is
    /// a constant at compile time.
    fn chosen(self) -> FifoPolicy {
        if cfg!(feature = "ablation") { self } else { FifoPolicy::default() }
    }

    pub(super) fn keeps_spare(self) -> bool {
        self.chosen().spare
    }

    /// Returns the number of free bytes of the current page below which a page that becomes empty
    /// replaces the current page.
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

/// Maximum number of live bytes of a page that is searched for holes: three quarters of its
/// capacity.
pub(super) const SPARSE: usize = CAPACITY / 4 * 3;

//! Placement of frames in a ring. A benchmark can select the old placement, to measure the gain.

use super::block::LINE;

/// Policies of a ring. All are on, unless a benchmark with the feature `ablation` switches one off.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct RingPolicy {
    /// Frames begin at cache lines, so that writes to one do not wait for reads of the one before.
    pub apart: bool,
    /// The counter of a block is touched when the ring leaves it, not for each frame.
    pub late: bool,
    /// Blocks grow with the ring, up to 1 MiB.
    pub grow: bool,
}

/// All policies are on.
impl Default for RingPolicy {
    fn default() -> RingPolicy {
        RingPolicy { apart: true, late: true, grow: true }
    }
}

impl RingPolicy {
    /// Constant at compile time, except in benchmarks.
    #[inline(always)]
    fn chosen(self) -> RingPolicy {
        if cfg!(feature = "ablation") { self } else { RingPolicy::default() }
    }

    /// Alignment of a frame's address.
    #[inline(always)]
    pub(super) fn frame_align(self) -> usize {
        if self.chosen().apart { LINE } else { align_of::<usize>() }
    }

    #[inline(always)]
    pub(super) fn counts_late(self) -> bool {
        self.chosen().late
    }

    pub(super) fn grows(self) -> bool {
        self.chosen().grow
    }
}

//! Policies of a ring for its frames and blocks. A benchmark can switch each policy off, to measure
//! its effect.

use super::block::LINE;

/// Policies of a ring. All are on, unless a benchmark with the feature `ablation` switches one off.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct RingPolicy {
    /// Each frame begins at a cache line, so that two frames share no cache line. Writes to a frame
    /// then do not wait for another thread that reads the preceding frame.
    pub apart: bool,
    /// The ring updates the counter of a block once, when it leaves the block, not for each frame.
    pub late: bool,
    /// The size of new blocks grows with the ring, up to 1 MiB.
    pub grow: bool,
}

/// All policies are on.
impl Default for RingPolicy {
    fn default() -> RingPolicy {
        RingPolicy { apart: true, late: true, grow: true }
    }
}

impl RingPolicy {
    /// With the feature `ablation`, returns these policies. Otherwise returns the default, which is
    /// a constant at compile time.
    #[inline(always)]
    fn chosen(self) -> RingPolicy {
        if cfg!(feature = "ablation") { self } else { RingPolicy::default() }
    }

    /// Returns the alignment of a frame's address in bytes.
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

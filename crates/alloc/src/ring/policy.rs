//! Placement of frames in a ring. A benchmark can select the old placement, to measure the gain.

use super::block::LINE;

/// Which of a ring's policies are in force: all, unless a benchmark chooses, for which it needs the
/// feature `ablation`.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct RingPolicy {
    /// Frames begin at lines of the cache, so that who fills one does not wait for who reads the
    /// one before.
    pub apart: bool,
    /// The counter of a block is touched when the ring leaves it, not for each frame.
    pub late: bool,
    /// Blocks grow with the ring, up to 1 MiB.
    pub grow: bool,
}

/// All of them.
impl Default for RingPolicy {
    fn default() -> RingPolicy {
        RingPolicy { apart: true, late: true, grow: true }
    }
}

impl RingPolicy {
    /// Known when it is compiled, but for benchmarks.
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

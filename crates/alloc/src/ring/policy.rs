//! How a ring places frames. A benchmark can have it the old way, to show the gain.

use super::block::LINE;

/// Which of a ring's policies are in force: all, unless a benchmark chooses, for which it needs the feature `ablation`.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Frames begin at lines of the cache, so that who fills one does not wait for who reads the one before.
    pub apart: bool,
}

/// All of them.
impl Default for Policy {
    fn default() -> Policy {
        Policy { apart: true }
    }
}

impl Policy {
    /// What a frame's address is a multiple of.
    #[inline(always)]
    pub(super) fn frame_align(self) -> usize {
        let chosen = if cfg!(feature = "ablation") { self } else { Policy::default() };
        if chosen.apart { LINE } else { align_of::<usize>() }
    }
}

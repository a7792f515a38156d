//! Generations, after Linux's multi-generational LRU (`lru_gen`).
//!
//! ```text
//!   fault ───────────────────────────────► youngest
//!   oldest ── not accessed: reclaimed         ▲ ▲
//!      └───── accessed after all ─────────────┘ │
//!   aging: what was accessed ───────────────────┘, and a new youngest generation begins
//! ```
//!
//! Aging walks the page tables; it happens when only two generations are left. Left out: tiers of
//! file pages, the Bloom filter that spares walks, and looking around a page that was accessed.

use super::lists::FrameLists;
use super::{FrameNumber, Reclaim, at};

/// `MAX_NR_GENS`: maximum number of generations.
const MAX_GENERATIONS: usize = 4;

/// `MIN_NR_GENS`: number of the youngest generations, from which no page is reclaimed.
const MIN_GENERATIONS: usize = 2;

#[derive(Debug)]
pub(super) struct Generations {
    /// A list for each generation, by its number modulo [`MAX_GENERATIONS`].
    lists: FrameLists<MAX_GENERATIONS>,
    oldest: usize,
    youngest: usize,
    /// The CPU's accessed bits.
    accessed: Vec<bool>,
}

impl Generations {
    pub(super) fn new() -> Generations {
        let lists = FrameLists::new();
        Generations { lists, oldest: 0, youngest: MIN_GENERATIONS - 1, accessed: Vec::new() }
    }

    /// Skips empty generations at the old end, and ages if too few generations are left to reclaim
    /// from.
    fn make_reclaimable(&mut self) {
        while self.oldest + MIN_GENERATIONS > self.youngest
            || self.lists.length(self.oldest % MAX_GENERATIONS) == 0
        {
            if self.oldest + MIN_GENERATIONS > self.youngest {
                self.age();
            } else {
                self.oldest += 1;
            }
        }
    }

    /// `walk_mm` and `inc_max_seq`.
    fn age(&mut self) {
        for frame in 0..self.accessed.len() {
            if std::mem::take(&mut self.accessed[frame]) {
                self.lists.move_to(self.youngest % MAX_GENERATIONS, frame);
            }
        }
        self.youngest += 1;
    }
}

impl Reclaim for Generations {
    fn used(&mut self, frame: FrameNumber) {
        self.accessed[frame] = true;
    }

    fn filled(&mut self, frame: FrameNumber) {
        *at(&mut self.accessed, frame) = true;
        self.lists.push(self.youngest % MAX_GENERATIONS, frame);
    }

    fn reclaim(&mut self) -> FrameNumber {
        loop {
            self.make_reclaimable();
            let Some(frame) = self.lists.pop(self.oldest % MAX_GENERATIONS) else { continue };
            if !std::mem::take(&mut self.accessed[frame]) {
                return frame;
            }
            self.lists.push(self.youngest % MAX_GENERATIONS, frame);
        }
    }
}

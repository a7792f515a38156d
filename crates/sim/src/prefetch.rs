//! The page walker's prefetcher: an assumption, to be stated with every result.
//!
//! CPUs have one, and their makers say little of it. This one looks at what misses the first level
//! of TLB. After enough misses of pages each of which follows the one before, it puts the next page
//! into the second level in time, or, where it has not the luck that its share says, not at all.

/// Parameters and state of the prefetcher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextPagePrefetcher {
    /// Number of misses on consecutive pages before it prefetches the next; with 0 it always does.
    pub after: u32,
    /// The share of its prefetches that are in time, from 0 to 1.
    pub share: f64,
}

/// One at work.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    model: NextPagePrefetcher,
    /// The page that missed last.
    missed: u64,
    /// Number of preceding misses, each one page before the next.
    steps: u32,
    chance: fastrand::Rng,
    /// Number of prefetched pages.
    pub(crate) made: u64,
}

/// No page, nor the one before any.
const NONE: u64 = u64::MAX - 1;

impl Prefetcher {
    pub(crate) fn new(model: NextPagePrefetcher) -> Prefetcher {
        let chance = fastrand::Rng::with_seed(0);
        Prefetcher { model, missed: NONE, steps: 0, chance, made: 0 }
    }

    /// The page to put in, now that this one has missed.
    #[inline(always)]
    pub(crate) fn foresee(&mut self, page: u64) -> Option<u64> {
        let follows = page == self.missed + 1;
        self.missed = page;
        self.steps = if follows { self.steps.saturating_add(1) } else { 0 };
        let in_time = self.steps >= self.model.after && self.chance.f64() < self.model.share;
        self.made += u64::from(in_time);
        in_time.then(|| page + 1)
    }
}

//! The page walker's prefetcher: an assumption, which must be stated with every result.
//!
//! CPUs have such a prefetcher, but vendors document little about it. This model observes the
//! misses of the first-level TLB. After a number of misses on consecutive pages, it inserts the
//! next page into the second level: in time with the probability `share`, or else not at all.

/// Parameters of the prefetcher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextPagePrefetcher {
    /// Number of misses on consecutive pages before the next page is prefetched. If 0, every miss
    /// prefetches the next page.
    pub after: u32,
    /// Share of prefetches that are in time, from 0 to 1.
    pub share: f64,
}

/// A prefetcher with its state.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    model: NextPagePrefetcher,
    /// Number of the page that missed last.
    missed: u64,
    /// Number of preceding misses on consecutive pages.
    steps: u32,
    chance: fastrand::Rng,
    /// Number of prefetched pages.
    pub(crate) made: u64,
}

/// Initial value of `missed`: neither a page number nor the number before a page number.
const NONE: u64 = u64::MAX - 1;

impl Prefetcher {
    pub(crate) fn new(model: NextPagePrefetcher) -> Prefetcher {
        let chance = fastrand::Rng::with_seed(0);
        Prefetcher { model, missed: NONE, steps: 0, chance, made: 0 }
    }

    /// Returns the page to insert after a miss of `page`, if the model prefetches one.
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

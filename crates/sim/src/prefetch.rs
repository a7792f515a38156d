//! The page walker's prefetcher: an assumption, to be stated with every result.
//!
//! CPUs have such a prefetcher, but their vendors document little of it. This model observes the
//! misses of the first-level TLB. After enough misses on consecutive pages, it inserts the next
//! page into the second level: in time with the probability `share`, or else not at all.

/// Parameters of the prefetcher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextPagePrefetcher {
    /// Number of misses on consecutive pages before it prefetches the next; with 0 it always does.
    pub after: u32,
    /// The share of its prefetches that are in time, from 0 to 1.
    pub share: f64,
}

/// A prefetcher with its state.
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

/// A number that is not that of a page, nor one below that of a page.
const NONE: u64 = u64::MAX - 1;

impl Prefetcher {
    pub(crate) fn new(model: NextPagePrefetcher) -> Prefetcher {
        let chance = fastrand::Rng::with_seed(0);
        Prefetcher { model, missed: NONE, steps: 0, chance, made: 0 }
    }

    /// The page to insert after a miss of `page`, if any.
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

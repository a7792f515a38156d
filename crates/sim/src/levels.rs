//! Two levels, of caches or of TLBs: what misses the first asks the second.
//!
//! The model of caches: writes allocate a line as reads do, and what is written back is not followed. Neither level
//! prefetches, neither empties the other, and nothing else runs on the CPU: no kernel, no page walks, no instructions.
//!
//! The model of TLBs: all memory is in pages of one size. What misses both levels costs a page walk, and is in both
//! afterwards. Walks are not timed and leave the caches alone. The access that comes first in the program's order walks,
//! although a CPU that reorders may let a load overtake a store.

use crate::geometry::{CacheShapes, TlbShape, Unfit};
use crate::prefetch::{NextPage, Prefetcher};
use crate::table::{Level, Request};
use crate::{Access, Policy, Split};

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that missed the first level. One that lies in several lines or pages counts once.
    pub first: Split,
    /// Lines or pages that no level held, by the access that asked: what memory or the page walker has to give.
    pub last: Split,
    /// Pages put into the second level before they were asked for.
    pub prefetched: u64,
}

/// Levels of cache or of TLB, empty at first.
#[derive(Debug)]
pub struct Levels {
    first: Box<dyn Level>,
    second: Option<Box<dyn Level>>,
    prefetcher: Option<Prefetcher>,
    counts: Counts,
    /// What the first level missed of a block of accesses.
    missed: Vec<Request>,
}

impl Levels {
    /// Caches of data.
    ///
    /// # Errors
    /// Of shapes that cannot be simulated.
    pub fn caches(shapes: &CacheShapes, policy: Policy) -> Result<Levels, Unfit> {
        let first = shapes.l1d.table(policy)?;
        Ok(Levels::of(first, shapes.l2.map(|shape| shape.table(policy)).transpose()?))
    }

    /// A TLB of data without a prefetcher.
    ///
    /// # Errors
    /// Of shapes that cannot be simulated.
    pub fn tlb(shape: &TlbShape, policy: Policy) -> Result<Levels, Unfit> {
        let first = shape.first.table(policy, shape.page)?;
        let second = shape.second.map(|level| level.table(policy, shape.page)).transpose()?;
        Ok(Levels::of(first, second))
    }

    fn of(first: Box<dyn Level>, second: Option<Box<dyn Level>>) -> Levels {
        let counts = Counts::default();
        Levels { first, second, prefetcher: None, counts, missed: Vec::new() }
    }

    /// The same with a prefetcher into the second level.
    #[must_use]
    pub fn prefetching(self, model: NextPage) -> Levels {
        Levels { prefetcher: Some(Prefetcher::new(model)), ..self }
    }

    /// Makes these accesses, one after the other.
    pub fn play(&mut self, block: &[Access]) {
        self.missed.clear();
        self.counts.first += self.first.filter(block, &mut self.missed);
        self.counts.last += match &mut self.second {
            Some(second) => second.ask(&self.missed, self.prefetcher.as_mut()),
            None => self.missed.iter().map(|request| Split::one(request.write)).sum(),
        };
    }

    /// Whether there is a second level.
    pub fn has_second(&self) -> bool {
        self.second.is_some()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let prefetched = self.prefetcher.as_ref().map_or(0, |prefetcher| prefetcher.made);
        Counts { prefetched, ..self.counts }
    }
}

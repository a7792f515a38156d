//! Two levels of caches or of TLBs: an access that misses the first level goes to the second.
//!
//! The model of caches: writes allocate a line as reads do, and write-backs are not simulated.
//! Neither level prefetches, and an eviction from one level does not change the other. Nothing else
//! runs on the CPU: no kernel, no page walks, no instructions.
//!
//! The model of TLBs: all memory is in pages of one size. A miss in both levels costs a page walk,
//! and fills both. Walks take no time and do not touch the caches. The first access in program
//! order walks, although a CPU with out-of-order execution may let a load overtake a store.

use crate::geometry::{CacheShapes, TlbShape, Unfit};
use crate::prefetch::{NextPagePrefetcher, Prefetcher};
use crate::table::{LookupLevel, MissRequest};
use crate::{MemoryAccess, ReadWriteCounts, RecencyPolicy};

/// Counts of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounts {
    /// Accesses that missed the first level. An access to several lines or pages counts once.
    pub first: ReadWriteCounts,
    /// Lines or pages that missed all levels, by the kind of the access: they cost a read of memory
    /// or a page walk.
    pub last: ReadWriteCounts,
    /// Pages that were inserted into the second level before an access to them.
    pub prefetched: u64,
}

/// Levels of cache or of TLB, empty at first.
#[derive(Debug)]
pub struct Levels {
    first: Box<dyn LookupLevel>,
    second: Option<Box<dyn LookupLevel>>,
    prefetcher: Option<Prefetcher>,
    counts: LevelCounts,
    /// Misses of the first level in a block of accesses.
    missed: Vec<MissRequest>,
}

impl Levels {
    /// Caches of data.
    ///
    /// # Errors
    /// Returns an error for shapes that cannot be simulated.
    pub fn caches(shapes: &CacheShapes, policy: RecencyPolicy) -> Result<Levels, Unfit> {
        let first = shapes.l1d.table(policy)?;
        Ok(Levels::new(first, shapes.l2.map(|shape| shape.table(policy)).transpose()?))
    }

    /// A TLB of data without a prefetcher.
    ///
    /// # Errors
    /// Returns an error for shapes that cannot be simulated.
    pub fn tlb(shape: &TlbShape, policy: RecencyPolicy) -> Result<Levels, Unfit> {
        let first = shape.first.table(policy, shape.page)?;
        let second = shape.second.map(|level| level.table(policy, shape.page)).transpose()?;
        Ok(Levels::new(first, second))
    }

    fn new(first: Box<dyn LookupLevel>, second: Option<Box<dyn LookupLevel>>) -> Levels {
        let counts = LevelCounts::default();
        Levels { first, second, prefetcher: None, counts, missed: Vec::new() }
    }

    /// The same with a prefetcher into the second level.
    #[must_use]
    pub fn prefetching(self, model: NextPagePrefetcher) -> Levels {
        Levels { prefetcher: Some(Prefetcher::new(model)), ..self }
    }

    /// Makes these accesses, one after the other.
    pub fn play(&mut self, block: &[MemoryAccess]) {
        self.missed.clear();
        self.counts.first += self.first.filter(block, &mut self.missed);
        self.counts.last += match &mut self.second {
            Some(second) => second.ask(&self.missed, self.prefetcher.as_mut()),
            None => self.missed.iter().map(|request| ReadWriteCounts::one(request.write)).sum(),
        };
    }

    /// True if there is a second level.
    pub fn has_second(&self) -> bool {
        self.second.is_some()
    }

    /// Counts so far.
    pub fn counts(&self) -> LevelCounts {
        let prefetched = self.prefetcher.as_ref().map_or(0, |prefetcher| prefetcher.made);
        LevelCounts { prefetched, ..self.counts }
    }
}

//! Two levels of caches or of TLBs: an access that misses the first level is looked up in the
//! second level.
//!
//! The model of caches: writes allocate a line as reads do, and write-backs are not simulated.
//! Neither level prefetches, and an eviction from one level does not change the other. Accesses by
//! the kernel, page walks and instruction fetches are not simulated.
//!
//! The model of TLBs: all memory is in pages of one size. A miss in both levels causes a page walk,
//! which fills both levels. Walks take no time and do not access the caches. The first access to a
//! page in program order causes the walk, although a CPU with out-of-order execution may execute a
//! later load before a store.

use crate::geometry::{CacheShapes, TlbShape, Unfit};
use crate::prefetch::{NextPagePrefetcher, Prefetcher};
use crate::table::{LookupLevel, MissRequest};
use crate::{MemoryAccess, ReadWriteCounts, RecencyPolicy};

/// Counts of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounts {
    /// Number of accesses that missed the first level. An access to several lines or pages counts
    /// once.
    pub first: ReadWriteCounts,
    /// Number of lines or pages that missed all levels, by reads and by writes. Each costs a read
    /// of memory or a page walk.
    pub last: ReadWriteCounts,
    /// Number of pages that the prefetcher inserted into the second level.
    pub prefetched: u64,
}

/// Levels of caches or of TLBs, empty at first.
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
    /// Creates data caches.
    ///
    /// # Errors
    /// Returns an error for shapes that cannot be simulated.
    pub fn caches(shapes: &CacheShapes, policy: RecencyPolicy) -> Result<Levels, Unfit> {
        let first = shapes.l1d.table(policy)?;
        Ok(Levels::new(first, shapes.l2.map(|shape| shape.table(policy)).transpose()?))
    }

    /// Creates a data TLB without a prefetcher.
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

    /// Adds a prefetcher into the second level.
    #[must_use]
    pub fn prefetching(self, model: NextPagePrefetcher) -> Levels {
        Levels { prefetcher: Some(Prefetcher::new(model)), ..self }
    }

    /// Simulates accesses in their order.
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

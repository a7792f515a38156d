//! What simulators counted, with what they assumed.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// Counts of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Of accesses that read.
    pub reads: u64,
    /// Of accesses that write.
    pub writes: u64,
}

impl Split {
    /// Both.
    pub const fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// The accesses that simulators were fed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// A command, a file, a workload.
    pub subject: Name,
    /// How many there were.
    pub accesses: Split,
    /// Lines of a trace that said nothing that is known.
    pub unknown_lines: u64,
    /// Whether there would have been more.
    pub cut_off: bool,
}

/// A level of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// How much it holds.
    pub size: Bytes,
    /// How many lines of a set.
    pub ways: u64,
    /// How much it moves at once.
    pub line: Bytes,
}

/// A level of TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbLevel {
    /// How many pages it holds.
    pub entries: u64,
    /// How many of a set.
    pub ways: u64,
}

/// The page walker's prefetcher.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextPage {
    /// How many misses one page further it takes.
    pub after: u64,
    /// The share of its prefetches that are in time.
    pub share: f64,
}

/// Which CPU was simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// What it is called, and where its sizes come from.
    pub name: String,
    /// The replacement policy of the headline.
    pub policy: String,
    /// The first level.
    pub l1d: Cache,
    /// The second.
    #[serde(with = "plain")]
    pub l2: Reading<Cache>,
}

/// Caches of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRun {
    /// The policy.
    pub policy: String,
    /// Accesses that missed the first level.
    pub l1d: Split,
    /// Lines that the second level did not have either.
    #[serde(with = "plain")]
    pub l2: Reading<Split>,
}

/// A TLB for pages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlbRun {
    /// The first level.
    pub first: TlbLevel,
    /// The second.
    #[serde(with = "plain")]
    pub second: Reading<TlbLevel>,
    /// Accesses that missed the first level.
    pub dtlb: Split,
    /// Pages that no level had: page walks.
    pub stlb: Split,
    /// The prefetcher, and how many pages it put in; `None` without one.
    pub prefetcher: Option<(NextPage, u64)>,
}

/// What became of pages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Translation {
    /// The size.
    pub page: Bytes,
    /// The TLB for them; absent where the CPU is not known to have one.
    #[serde(with = "plain")]
    pub tlb: Reading<TlbRun>,
}

/// Caches and TLBs, fed with the same accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// The accesses.
    pub stream: Stream,
    /// The CPU.
    pub cpu: Cpu,
    /// The caches, those of the headline's policy first.
    pub caches: Vec<CacheRun>,
    /// By size of page, the smallest first.
    pub translations: Vec<Translation>,
}

/// Memory of so many bytes, fed with the same accesses once for each policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The accesses.
    pub stream: Stream,
    /// How much memory there is.
    pub memory: Bytes,
    /// In pages of this size.
    pub page: Bytes,
    /// How many different pages were used.
    pub pages: u64,
    /// By policy.
    pub policies: Vec<ReplacementRun>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementRun {
    /// What it is called.
    pub policy: String,
    /// Faults on pages that were reclaimed.
    pub back: Split,
    /// Pages that had to be written before they could be reclaimed.
    pub written: u64,
}

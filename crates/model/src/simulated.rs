//! Counts of simulators, with their assumptions.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// Counts of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessSplit {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
}

impl AccessSplit {
    /// Both.
    pub const fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// The accesses that simulators were fed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessStream {
    /// A command, a file, a workload.
    pub subject: Name,
    /// Number of accesses.
    pub accesses: AccessSplit,
    /// Number of lines of the trace that could not be parsed.
    pub unknown_lines: u64,
    /// True if the stream ended at the limit of accesses.
    pub cut_off: bool,
}

/// A level of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheResult {
    /// Capacity.
    pub size: Bytes,
    /// Number of lines of a set.
    pub ways: u64,
    /// Size of a line.
    pub line: Bytes,
}

/// A level of TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbResult {
    /// Number of pages that it holds.
    pub entries: u64,
    /// Number of entries of a set.
    pub ways: u64,
}

/// The page walker's prefetcher.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextPageResult {
    /// Number of misses on consecutive pages before it starts.
    pub after: u64,
    /// The share of its prefetches that are in time.
    pub share: f64,
}

/// The simulated CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedCpu {
    /// Name, and source of the sizes.
    pub name: String,
    /// The replacement policy of the headline.
    pub policy: String,
    /// The first level.
    pub l1d: CacheResult,
    /// The second.
    #[serde(with = "plain")]
    pub l2: Reading<CacheResult>,
}

/// Caches of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRun {
    /// The policy.
    pub policy: String,
    /// Accesses that missed the first level.
    pub l1d: AccessSplit,
    /// Lines that the second level did not have either.
    #[serde(with = "plain")]
    pub l2: Reading<AccessSplit>,
}

/// A TLB for pages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlbRun {
    /// The first level.
    pub first: TlbResult,
    /// The second.
    #[serde(with = "plain")]
    pub second: Reading<TlbResult>,
    /// Accesses that missed the first level.
    pub dtlb: AccessSplit,
    /// Pages that no level had: page walks.
    pub stlb: AccessSplit,
    /// The prefetcher, and the number of entries that it inserted; `None` without one.
    pub prefetcher: Option<(NextPageResult, u64)>,
}

/// Simulated translations of pages of one size.
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
    pub stream: AccessStream,
    /// The CPU.
    pub cpu: SimulatedCpu,
    /// The caches, those of the headline's policy first.
    pub caches: Vec<CacheRun>,
    /// By size of page, the smallest first.
    pub translations: Vec<Translation>,
}

/// Replacement simulated for one memory size, fed with the same accesses once for each policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementResult {
    /// The accesses.
    pub stream: AccessStream,
    /// Size of the memory.
    pub memory: Bytes,
    /// Page size.
    pub page: Bytes,
    /// Number of distinct pages.
    pub pages: u64,
    /// By policy.
    pub policies: Vec<ReplacementRun>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementRun {
    /// Name of the policy.
    pub policy: String,
    /// Faults on pages that were reclaimed.
    pub back: AccessSplit,
    /// Pages that had to be written before they could be reclaimed.
    pub written: u64,
}

//! Results of simulators of caches, TLBs and page replacement, with the simulated sizes.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// Number of reads and number of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessSplit {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
}

impl AccessSplit {
    /// Sum of reads and writes.
    pub const fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// Accesses that the simulators processed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessStream {
    /// Source of the accesses: a command, a file, a workload.
    pub subject: Name,
    /// Number of accesses.
    pub accesses: AccessSplit,
    /// Number of lines of the trace that could not be parsed.
    pub unknown_lines: u64,
    /// True if the stream was cut off at the maximum number of accesses.
    pub cut_off: bool,
}

/// Geometry of a cache level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheResult {
    /// Capacity in bytes.
    pub size: Bytes,
    /// Associativity: number of lines in a set.
    pub ways: u64,
    /// Line size in bytes.
    pub line: Bytes,
}

/// Geometry of a TLB level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbResult {
    /// Number of entries.
    pub entries: u64,
    /// Associativity: number of entries in a set.
    pub ways: u64,
}

/// Prefetcher of the page walker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextPageResult {
    /// Number of misses on consecutive pages after which the prefetcher starts.
    pub after: u64,
    /// Share of prefetches that arrive in time, from 0 to 1.
    pub share: f64,
}

/// The CPU that is simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedCpu {
    /// Name of the CPU, and source of its sizes.
    pub name: String,
    /// Replacement policy whose results reports show first.
    pub policy: String,
    /// First-level data cache.
    pub l1d: CacheResult,
    /// Second-level cache.
    #[serde(with = "plain")]
    pub l2: Reading<CacheResult>,
}

/// Results of the caches with one replacement policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRun {
    /// Name of the replacement policy.
    pub policy: String,
    /// Number of accesses that missed the first level.
    pub l1d: AccessSplit,
    /// Number of lines that missed the second level too.
    #[serde(with = "plain")]
    pub l2: Reading<AccessSplit>,
}

/// Results of the TLBs for pages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlbRun {
    /// Geometry of the first level.
    pub first: TlbResult,
    /// Geometry of the second level.
    #[serde(with = "plain")]
    pub second: Reading<TlbResult>,
    /// Number of accesses that missed the first level.
    pub dtlb: AccessSplit,
    /// Number of accesses that missed all levels, so that the page walker was used.
    pub stlb: AccessSplit,
    /// The prefetcher, and the number of entries that it inserted; `None` if the CPU has none.
    pub prefetcher: Option<(NextPageResult, u64)>,
}

/// Simulated address translation with pages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Translation {
    /// Page size in bytes.
    pub page: Bytes,
    /// Results of the TLBs for these pages; absent if the CPU is not known to have TLBs for them.
    #[serde(with = "plain")]
    pub tlb: Reading<TlbRun>,
}

/// Results of caches and TLBs for the same accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// The accesses.
    pub stream: AccessStream,
    /// The simulated CPU.
    pub cpu: SimulatedCpu,
    /// Results of the caches by replacement policy. The results of [`SimulatedCpu::policy`] are the
    /// first.
    pub caches: Vec<CacheRun>,
    /// Results of the TLBs by page size, smallest first.
    pub translations: Vec<Translation>,
}

/// Page replacement in a memory of one size, simulated with the same accesses for each policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementResult {
    /// The accesses.
    pub stream: AccessStream,
    /// Size of the simulated memory.
    pub memory: Bytes,
    /// Page size in bytes.
    pub page: Bytes,
    /// Number of distinct pages that were accessed.
    pub pages: u64,
    /// Results by replacement policy.
    pub policies: Vec<ReplacementRun>,
}

/// Result of one replacement policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementRun {
    /// Name of the policy.
    pub policy: String,
    /// Number of faults on pages that had been reclaimed.
    pub back: AccessSplit,
    /// Number of pages that had to be written to storage before they could be reclaimed.
    pub written: u64,
}

//! Memory of a running process that can be released without a restart, and the results of releasing
//! it.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::thp::Repair;
use crate::{AddrRange, Breakdown, Bytes, Name, Pid, Reading};

/// Part of a process's memory, by the method that releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrimPart {
    /// Pages of an allocator without a live block, which the allocator itself releases.
    Heap,
    /// Pages of thread stacks below the stack pointer.
    Stacks,
    /// Zero-filled base pages of sparse huge pages.
    Huge,
    /// Memory that was not accessed for some time, which is moved to swap.
    Cold,
}

impl TrimPart {
    /// All parts, in the order in which they are released.
    pub const ALL: [TrimPart; 4] =
        [TrimPart::Heap, TrimPart::Stacks, TrimPart::Huge, TrimPart::Cold];

    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            TrimPart::Heap => "heap",
            TrimPart::Stacks => "stacks",
            TrimPart::Huge => "huge",
            TrimPart::Cold => "cold",
        }
    }
}

/// The unused part of a thread's stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedStack {
    /// Thread ID.
    pub tid: Pid,
    /// Name of the thread.
    pub name: Name,
    /// Address range from the start of the stack to a margin below the stack pointer.
    pub range: AddrRange,
    /// Resident bytes in the range.
    pub resident: Bytes,
}

/// Unused parts of the stacks of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedStacks {
    /// Threads with known stack pointers.
    pub threads: Vec<UnusedStack>,
    /// Number of threads whose stack pointers are unknown because they were running.
    pub running: u64,
}

impl UnusedStacks {
    /// Sum of the resident bytes of all stacks.
    pub fn resident(&self) -> Bytes {
        self.threads.iter().map(|thread| thread.resident).sum()
    }
}

/// A function by which an allocator releases memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseFunction {
    /// Name of the function.
    pub name: String,
    /// The program or library that contains the function.
    pub file: Name,
}

/// Memory that can be released, estimated before the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimEstimate {
    /// Resident bytes in pages of the allocator without a live block.
    #[serde(with = "plain")]
    pub heap: Reading<Bytes>,
    /// Functions by which the allocator can release these pages.
    pub functions: Vec<ReleaseFunction>,
    /// Unused pages of stacks.
    #[serde(with = "plain")]
    pub stacks: Reading<UnusedStacks>,
    /// Zero-filled base pages of sparse huge pages.
    #[serde(with = "plain")]
    pub huge: Reading<Bytes>,
    /// Memory that was not accessed for the requested time.
    #[serde(with = "plain")]
    pub cold: Reading<Bytes>,
    /// The longest time for which the estimate stopped the process, in nanoseconds.
    #[serde(with = "plain")]
    pub longest_stop_ns: Reading<u64>,
    /// Number of contradictions in the data of the allocator; 0 if its heap was not walked.
    pub corrupted: u64,
}

impl TrimEstimate {
    /// Bytes of one part of the estimate.
    pub fn of_part(&self, part: TrimPart) -> Reading<Bytes> {
        match part {
            TrimPart::Heap => self.heap.clone(),
            TrimPart::Stacks => {
                self.stacks.as_ref().map(UnusedStacks::resident).map_err(Clone::clone)
            }
            TrimPart::Huge => self.huge.clone(),
            TrimPart::Cold => self.cold.clone(),
        }
    }
}

/// Resident memory of a process by kind, and its page tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryByKind {
    /// Resident and swapped memory by page kind.
    pub breakdown: Breakdown,
    /// Memory of page tables (`VmPTE`).
    #[serde(with = "plain")]
    pub page_tables: Reading<Bytes>,
}

/// Result of the release of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOutcome {
    /// Resident memory of the process before the release.
    pub rss_before: Bytes,
    /// Resident memory of the process after the release.
    pub rss_after: Bytes,
    /// Number of called functions, released stacks or released ranges, according to the part.
    pub done: u64,
    /// Number of functions, stacks or ranges whose release failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub why: Option<String>,
    /// Functions that were called.
    pub functions: Vec<ReleaseFunction>,
    /// The longest time for which a thread was stopped, in nanoseconds.
    pub longest_stop_ns: u64,
}

impl PartOutcome {
    /// Decrease of the resident memory; negative if the process allocated more meanwhile.
    pub fn returned(&self) -> i64 {
        self.rss_before.0.cast_signed().wrapping_sub(self.rss_after.0.cast_signed())
    }

    /// Increments the number of failures, and stores the reason of the first one.
    pub fn fail(&mut self, why: impl ToString) {
        self.failed += 1;
        self.why.get_or_insert_with(|| why.to_string());
    }
}

impl From<Repair> for PartOutcome {
    fn from(repair: Repair) -> PartOutcome {
        PartOutcome {
            rss_before: repair.rss_before,
            rss_after: repair.rss_after,
            done: repair.done,
            failed: repair.failed,
            why: repair.why,
            functions: Vec::new(),
            longest_stop_ns: repair.longest_stop_ns,
        }
    }
}

/// State of a process some time after the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledProcess {
    /// Time since the release, in nanoseconds.
    pub waited_ns: u64,
    /// Number of minor page faults of the process since the release.
    pub minor_faults: u64,
    /// Number of major page faults of the process since the release.
    pub major_faults: u64,
    /// Memory of the process at the end of that time.
    pub memory: MemoryByKind,
}

/// Result of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimResult {
    /// Result of each requested part, or the reason why the part was not released.
    pub parts: Vec<(TrimPart, Reading<PartOutcome>)>,
    /// Memory before the release of the first part.
    pub before: MemoryByKind,
    /// Memory after the release of the last part.
    pub after: MemoryByKind,
    /// The process some time after the release.
    #[serde(with = "plain")]
    pub settled: Reading<SettledProcess>,
}

impl TrimResult {
    /// The longest time for which a thread was stopped, in nanoseconds.
    pub fn longest_stop_ns(&self) -> u64 {
        let outcomes = self.parts.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
        outcomes.map(|outcome| outcome.longest_stop_ns).max().unwrap_or(0)
    }
}

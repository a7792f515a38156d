//! Memory of a running process that can be released without a restart, and the effect of its
//! release.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::thp::Repair;
use crate::{AddrRange, Breakdown, Bytes, Name, Pid, Reading};

/// A kind of memory that is released by a method of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrimPart {
    /// Pages of an allocator without a live block: the allocator releases them itself.
    Heap,
    /// Pages of thread stacks below the stack pointer.
    Stacks,
    /// Zero-filled base pages of sparse huge pages.
    Huge,
    /// Memory that was not accessed for some time: moved to swap.
    Cold,
}

impl TrimPart {
    /// All, in the order of their release.
    pub const ALL: [TrimPart; 4] =
        [TrimPart::Heap, TrimPart::Stacks, TrimPart::Huge, TrimPart::Cold];

    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            TrimPart::Heap => "heap",
            TrimPart::Stacks => "stacks",
            TrimPart::Huge => "huge",
            TrimPart::Cold => "cold",
        }
    }
}

/// The part of a thread's stack that the thread does not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedStack {
    /// The thread.
    pub tid: Pid,
    /// Its name.
    pub name: Name,
    /// From the start of the stack to a margin below the stack pointer.
    pub range: AddrRange,
    /// Resident pages in that range.
    pub resident: Bytes,
}

/// Unused parts of the stacks of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedStacks {
    /// The threads with known stack pointers.
    pub threads: Vec<UnusedStack>,
    /// Number of threads that were running: their stack pointers are unknown.
    pub running: u64,
}

impl UnusedStacks {
    /// Resident pages of all.
    pub fn resident(&self) -> Bytes {
        self.threads.iter().map(|thread| thread.resident).sum()
    }
}

/// A function by which an allocator releases memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseFunction {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: Name,
}

/// Memory that can be released, before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimEstimate {
    /// Pages of the allocator without a live block.
    #[serde(with = "plain")]
    pub heap: Reading<Bytes>,
    /// Functions that release them.
    pub functions: Vec<ReleaseFunction>,
    /// Unused pages of stacks.
    #[serde(with = "plain")]
    pub stacks: Reading<UnusedStacks>,
    /// Zero-filled base pages of sparse huge pages.
    #[serde(with = "plain")]
    pub huge: Reading<Bytes>,
    /// Memory that was not accessed.
    #[serde(with = "plain")]
    pub cold: Reading<Bytes>,
    /// The longest time for which the process was stopped for the estimate, in nanoseconds.
    #[serde(with = "plain")]
    pub longest_stop_ns: Reading<u64>,
    /// Number of contradictions in the data of the allocator, if it was walked.
    pub corrupted: u64,
}

impl TrimEstimate {
    /// Bytes of one part.
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
    /// Pages by kind.
    pub breakdown: Breakdown,
    /// Page tables (`VmPTE`).
    #[serde(with = "plain")]
    pub page_tables: Reading<Bytes>,
}

/// Result of the release of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOutcome {
    /// Resident memory of the process before.
    pub rss_before: Bytes,
    /// Resident memory of the process after.
    pub rss_after: Bytes,
    /// Number of functions, stacks or ranges that were treated.
    pub done: u64,
    /// Number of those that failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub why: Option<String>,
    /// Functions that were called.
    pub functions: Vec<ReleaseFunction>,
    /// The longest time for which a thread was stopped, in nanoseconds.
    pub longest_stop_ns: u64,
}

impl PartOutcome {
    /// Decrease of resident memory; negative if the process used more meanwhile.
    pub fn returned(&self) -> i64 {
        self.rss_before.0.cast_signed().wrapping_sub(self.rss_after.0.cast_signed())
    }

    /// Counts a failure, and keeps the first reason.
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

/// A process some time after its memory was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledProcess {
    /// The time, in nanoseconds.
    pub waited_ns: u64,
    /// Page faults of the process in this time that needed no disk.
    pub minor_faults: u64,
    /// Page faults of the process in this time that needed one.
    pub major_faults: u64,
    /// Its memory at the end.
    pub memory: MemoryByKind,
}

/// Result of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimResult {
    /// Result of each requested part, or the reason why the process was left as it was.
    pub parts: Vec<(TrimPart, Reading<PartOutcome>)>,
    /// Memory before the first.
    pub before: MemoryByKind,
    /// Memory after the last.
    pub after: MemoryByKind,
    /// The process some time later.
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

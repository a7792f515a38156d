//! The machine on which a snapshot was read, and the method of the reading.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Absent, Bytes, Name, PageSize, Reading};

/// Method and conditions of a snapshot: the privileges of the reading process, and the possible
/// cost to the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// `uname -r` of the machine.
    pub kernel: Name,
    /// The base page size of the machine.
    pub page_size: PageSize,
    /// Effective user ID of the reading process.
    pub euid: u32,
    /// True if page-frame numbers and mapping counts of page frames could be read (CAP_SYS_ADMIN).
    pub sees_frames: bool,
    /// Method of the reading.
    pub method: ReadMethod,
    /// Time at which the reading began, in seconds since 1970.
    pub unix_seconds: u64,
    /// Duration of the reading in nanoseconds.
    pub took_ns: u64,
    /// Longest duration of a single system call that may have held the target's mmap lock, in
    /// nanoseconds.
    #[serde(with = "plain")]
    pub longest_hold_ns: Reading<u64>,
    /// The directory that was read: `/proc`, or a copy of it.
    pub root: Name,
    /// Time of the reading in the life of the target.
    pub moment: ProcessMoment,
    /// Parts that could not be read, or that changed during the reading.
    pub gaps: Vec<Gap>,
}

/// Method by which memory was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMethod {
    /// `smaps`: all counters. The kernel holds the target's mmap lock while it walks a mapping.
    Full,
    /// `maps` and `pagemap`, at full speed.
    Fast,
    /// Like `Fast`, with pauses between chunks, so that the mmap lock is held for a short time at
    /// once.
    Polite,
    /// A core file. The process itself is not read.
    CoreFile,
}

impl ReadMethod {
    /// The name used in options and keys.
    pub const fn key(self) -> &'static str {
        match self {
            ReadMethod::Full => "full",
            ReadMethod::Fast => "fast",
            ReadMethod::Polite => "polite",
            ReadMethod::CoreFile => "core file",
        }
    }
}

/// Time of a snapshot in the life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessMoment {
    /// While the process was running.
    Running,
    /// While the process exited, before the kernel released its memory.
    AtExit,
    /// This number of nanoseconds after the start of the process.
    After(u64),
    /// Near the highest RES of the process. The number is the highest RES; the RES of the snapshot
    /// is in `statm`.
    AtPeak(Bytes),
    /// When the core file of the process was written.
    CoreDumped,
}

/// A part that is missing from a snapshot or whose values are doubtful.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The file or part: `task/17/syscall`.
    pub what: Name,
    /// Reason why the part is missing or doubtful.
    pub why: Absent,
}

/// Settings and sizes of the machine that findings need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSettings {
    /// `MemTotal`.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// `MemAvailable`.
    #[serde(with = "plain")]
    pub mem_available: Reading<Bytes>,
    /// `SwapTotal`.
    #[serde(with = "plain")]
    pub swap_total: Reading<Bytes>,
    /// `SwapFree`.
    #[serde(with = "plain")]
    pub swap_free: Reading<Bytes>,
    /// `vm.max_map_count`.
    #[serde(with = "plain")]
    pub max_map_count: Reading<u64>,
    /// Number of online NUMA nodes.
    #[serde(with = "plain")]
    pub nodes: Reading<u64>,
    /// The selected word of `transparent_hugepage/enabled`.
    #[serde(with = "plain")]
    pub thp_enabled: Reading<Name>,
}

//! The machine a snapshot was read on, and how it was read.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Absent, Bytes, Name, PageSize, Reading};

/// Method and conditions of a snapshot: the rights of the reader, and the possible cost to the
/// target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// `uname -r` of the machine.
    pub kernel: Name,
    /// Its base page size.
    pub page_size: PageSize,
    /// The reader's effective user id.
    pub euid: u32,
    /// True if page-frame numbers and page counts could be read (CAP_SYS_ADMIN).
    pub sees_frames: bool,
    /// Method of the reading.
    pub method: ReadMethod,
    /// Seconds since 1970, when the reading began.
    pub unix_seconds: u64,
    /// Duration of the reading.
    pub took_ns: u64,
    /// The longest single system call that may have held the target's mmap lock.
    #[serde(with = "plain")]
    pub longest_hold_ns: Reading<u64>,
    /// The tree that was read: `/proc`, or a copy of one.
    pub root: Name,
    /// When in the target's life it was read.
    pub moment: ProcessMoment,
    /// Parts that could not be read or changed during the reading, one line each.
    pub gaps: Vec<Gap>,
}

/// Method by which memory was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMethod {
    /// `smaps`: every counter; holds the target's mmap lock while it walks a mapping.
    Full,
    /// `maps` and `pagemap`, at full speed.
    Fast,
    /// As `Fast`, with pauses between chunks that limit the time for which the mmap lock is held.
    Polite,
    /// A core file: no process is read.
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
    /// While it ran.
    Running,
    /// As it exited, before its memory was torn down.
    AtExit,
    /// This long after its start, in nanoseconds.
    After(u64),
    /// Near its highest RES; the number is the highest, the snapshot's own RES is in `statm`.
    AtPeak(Bytes),
    /// When its core file was written.
    CoreDumped,
}

/// Something that is missing from a snapshot, or doubtful in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The file or part: `task/17/syscall`.
    pub what: Name,
    /// Why.
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
    /// Number of NUMA nodes online.
    #[serde(with = "plain")]
    pub nodes: Reading<u64>,
    /// The selected word of `transparent_hugepage/enabled`.
    #[serde(with = "plain")]
    pub thp_enabled: Reading<Name>,
}

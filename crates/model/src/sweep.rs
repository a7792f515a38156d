//! One reading of all processes and memory cgroups of a machine (a sweep), the differences between
//! two sweeps, and the events between them.

mod category;
mod delta;
mod event;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::settings::PressureFigures;
use crate::{Absent, Bytes, Name, Pid, Reading};

pub use category::{CategoryBytes, CategorySample};
pub use delta::{CgroupDelta, CounterRate, MachineDelta, ProcessDelta, SweepDelta};
pub use event::{
    GapReason, PostMortemKind, SweepEvent, SweepEventKind, SweepTrigger, TriggerTarget,
};

/// All processes and memory cgroups of a machine at one time.
///
/// Not atomic: processes are read one after the other. A page that moves from one process to
/// another during the sweep can count twice or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Time at which the sweep began.
    pub time: SweepTime,
    /// Cost of the sweep.
    pub cost: SweepCost,
    /// The processes that have memory of their own, and zombies, in order of PID.
    pub processes: Vec<SweepProcess>,
    /// Number of kernel threads, which the sweep omits.
    pub kernel_threads: u64,
    /// Number of processes that ended while they were read.
    pub vanished: u64,
    /// Number of processes that are hidden because `/proc` is mounted with `hidepid`.
    pub hidden: u64,
    /// The memory cgroups, in order of path.
    #[serde(with = "plain")]
    pub cgroups: Reading<Vec<SweepCgroup>>,
    /// The machine.
    pub machine: SweepMachine,
}

impl Sweep {
    /// Returns the process with this key; `None` if the sweep does not contain it.
    pub fn process(&self, key: ProcessKey) -> Option<&SweepProcess> {
        let at = self.processes.binary_search_by_key(&key.pid, |it| it.key.pid).ok()?;
        self.processes.get(at).filter(|it| it.key == key)
    }

    /// Returns the cgroup with this path; `None` if the sweep does not contain it.
    pub fn cgroup(&self, path: &Name) -> Option<&SweepCgroup> {
        let cgroups = self.cgroups.as_ref().ok()?;
        let at = cgroups.binary_search_by(|it| it.path.cmp(path)).ok()?;
        cgroups.get(at)
    }
}

/// A point in time by two clocks. Users and programs can set the first clock; the second clock
/// never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SweepTime {
    /// Nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub unix_ns: u64,
    /// Nanoseconds since boot, including the time for which the machine was suspended
    /// (`CLOCK_BOOTTIME`).
    pub boot_ns: u64,
}

/// Cost of a sweep, to the machine and to the processes that it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCost {
    /// Duration of the sweep in nanoseconds.
    pub took_ns: u64,
    /// CPU time of the reading process in nanoseconds.
    pub cpu_ns: u64,
    /// Longest duration of a single system call that may have held the mmap lock of a process, in
    /// nanoseconds.
    pub longest_hold_ns: u64,
    /// Number of processes whose PSS and USS were read.
    pub pages_read: u64,
    /// Number of processes whose memory changed but whose PSS and USS were not read, to stay within
    /// the budget of CPU time.
    pub postponed: u64,
}

/// Identity of a process. The kernel reuses PIDs, but not a PID together with its start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessKey {
    /// PID of the process.
    pub pid: Pid,
    /// Start of the process in clock ticks since boot.
    pub start_ticks: u64,
}

/// Properties of a process that seldom change. Consecutive sweeps share the value while it is
/// unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// PID of the parent.
    pub parent: Pid,
    /// `cmdline`, one name for each argument; empty for a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/PID/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Real user ID.
    #[serde(with = "plain")]
    pub uid: Reading<u32>,
    /// Name of the user; `None` if the machine has no name for the user ID.
    pub user: Option<Name>,
    /// Path of the process's cgroup in the hierarchy of the memory cgroups.
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Start of the process in nanoseconds since 1970, by the clock at the time of the first sweep
    /// that contains the process.
    pub started_unix_ns: u64,
}

/// A process at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepProcess {
    /// Identity of the process.
    pub key: ProcessKey,
    /// Name, command, user and cgroup of the process.
    pub identity: Arc<ProcessIdentity>,
    /// State letter of `stat`: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Number of threads.
    pub threads: u64,
    /// Size of the address space: VIRT.
    pub virt: Bytes,
    /// Resident bytes (`stat`), which each sweep reads.
    pub rss: Bytes,
    /// Resident bytes by page kind (`RssAnon`, `RssFile`, `RssShmem`).
    #[serde(with = "plain")]
    pub rss_by_kind: Reading<BytesByPageKind>,
    /// The highest number of resident bytes so far (`VmHWM`).
    #[serde(with = "plain")]
    pub peak_rss: Reading<Bytes>,
    /// Proportional set size by page kind.
    #[serde(with = "plain")]
    pub pss: Reading<BytesByPageKind>,
    /// Unique set size: bytes that only this process maps.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// Anonymous part of `uss`.
    #[serde(with = "plain")]
    pub uss_anonymous: Reading<Bytes>,
    /// Age of `pss`, `uss`, `uss_anonymous` and `swap_shmem`.
    pub pages: PagesReading,
    /// Bytes of anonymous memory in swap (`VmSwap`), which each sweep reads.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Swapped bytes of the tmpfs files and shared memory that the process maps. Each process that
    /// maps them counts them. The value is as old as `pss`.
    #[serde(with = "plain")]
    pub swap_shmem: Reading<Bytes>,
    /// Number of minor page faults since the process began.
    pub minor_faults: u64,
    /// Number of major page faults since the process began.
    pub major_faults: u64,
    /// CPU time since the process began, in nanoseconds.
    pub cpu_ns: u64,
    /// `oom_score`: the kernel's badness of the process. The OOM killer selects the process with
    /// the highest value.
    #[serde(with = "plain")]
    pub oom_score: Reading<u64>,
    /// `oom_score_adj`.
    #[serde(with = "plain")]
    pub oom_score_adj: Reading<i64>,
}

impl SweepProcess {
    /// Time since PSS and USS were read, in nanoseconds; `None` if the process has not changed
    /// since. `now_ns` is the `boot_ns` of the sweep.
    pub fn outdated_ns(&self, now_ns: u64) -> Option<u64> {
        match self.pages {
            PagesReading::Postponed(at) => Some(now_ns.saturating_sub(at)),
            PagesReading::Now | PagesReading::Unchanged(_) | PagesReading::Never => None,
        }
    }

    /// True if the process has ended and waits for its parent.
    pub const fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// True if the process has ended and its memory is gone. A process whose main thread has ended
    /// is a zombie too, but keeps its memory until its other threads end.
    pub fn has_lost_memory(&self) -> bool {
        self.is_zombie() && self.rss.is_zero()
    }

    /// Proportional set size: the sum of all page kinds.
    pub fn pss_total(&self) -> Reading<Bytes> {
        self.pss.as_ref().map(BytesByPageKind::total).map_err(Absent::clone)
    }
}

/// Bytes by page kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesByPageKind {
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Pages of files.
    pub file: Bytes,
    /// Pages of tmpfs and other shared memory.
    pub shmem: Bytes,
}

impl BytesByPageKind {
    /// Sum of all page kinds.
    pub fn total(&self) -> Bytes {
        self.anonymous + self.file + self.shmem
    }
}

/// Age of the PSS and USS of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PagesReading {
    /// PSS and USS were read in this sweep.
    Now,
    /// PSS and USS were read in an earlier sweep, at this `boot_ns`. The process has not changed
    /// since; the number of other processes that share its pages may have changed.
    Unchanged(u64),
    /// PSS and USS were read in an earlier sweep, at this `boot_ns`. The process has changed since,
    /// or has not been checked for a long time; another reading would exceed the budget of CPU
    /// time.
    Postponed(u64),
    /// PSS and USS were never read. Their readings contain the reason.
    Never,
}

/// A memory cgroup at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCgroup {
    /// Path of the cgroup in the hierarchy.
    pub path: Name,
    /// Charged bytes.
    #[serde(with = "plain")]
    pub current: Reading<Bytes>,
    /// The highest number of charged bytes so far.
    #[serde(with = "plain")]
    pub peak: Reading<Bytes>,
    /// Limit of the cgroup itself, without its ancestors; `None` is unlimited.
    #[serde(with = "plain")]
    pub limit: Reading<Option<Bytes>>,
    /// Charged bytes in swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Charged memory by use.
    #[serde(with = "plain")]
    pub usage: Reading<CgroupUsage>,
    /// Number of times that the limit was reached, since the cgroup was created.
    #[serde(with = "plain")]
    pub limit_hits: Reading<u64>,
    /// Number of OOM kills in the cgroup, since the cgroup was created.
    #[serde(with = "plain")]
    pub oom_kills: Reading<u64>,
    /// Memory pressure of the cgroup.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
}

/// Charged memory by use (`memory.stat`), descendants included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupUsage {
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Page cache, tmpfs included.
    pub file: Bytes,
    /// Pages of tmpfs and other shared memory.
    pub shmem: Bytes,
    /// Page cache that was not accessed recently: the kernel reclaims it first.
    pub inactive_file: Bytes,
    /// Slab objects; `None` for v1, whose `memory.stat` does not contain them.
    pub slab: Option<Bytes>,
}

/// The machine at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepMachine {
    /// Counters of `meminfo`. Counters in kB are converted to bytes.
    #[serde(with = "plain")]
    pub meminfo: Reading<Vec<BootCounter>>,
    /// Counters of `vmstat` since boot that concern paging, reclaim, swap and OOM kills.
    #[serde(with = "plain")]
    pub vmstat: Reading<Vec<BootCounter>>,
    /// Memory pressure of the machine.
    #[serde(with = "plain")]
    pub memory_pressure: Reading<PressureFigures>,
    /// I/O pressure of the machine.
    #[serde(with = "plain")]
    pub io_pressure: Reading<PressureFigures>,
    /// Number of processes and threads created since boot.
    #[serde(with = "plain")]
    pub forks: Reading<u64>,
}

impl SweepMachine {
    /// Value of the `meminfo` counter `name`.
    pub fn memory(&self, name: &str) -> Reading<Bytes> {
        value(&self.meminfo, name).map(Bytes)
    }

    /// Value of the `vmstat` counter `name`.
    pub fn counter(&self, name: &str) -> Reading<u64> {
        value(&self.vmstat, name)
    }
}

fn value(list: &Reading<Vec<BootCounter>>, name: &str) -> Reading<u64> {
    let list = list.as_ref().map_err(Clone::clone)?;
    crate::evidence::counter(list, name).ok_or_else(|| Absent::NotInThisKernel("".into()))
}

#[cfg(test)]
mod tests;

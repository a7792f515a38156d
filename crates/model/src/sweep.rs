//! One reading of all processes and memory cgroups of a machine at one time, the differences
//! between two such readings, and the events between them.

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
/// Not atomic: processes are read one after the other, so a page that one process hands to another
/// meanwhile can count twice or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// When the sweep began.
    pub time: SweepTime,
    /// Cost of the sweep.
    pub cost: SweepCost,
    /// The processes that have memory of their own, in order of PID; zombies are among them.
    pub processes: Vec<SweepProcess>,
    /// Number of kernel threads, which are left out.
    pub kernel_threads: u64,
    /// Number of processes that ended while they were read.
    pub vanished: u64,
    /// Number of processes that are hidden: `/proc` is mounted with `hidepid`.
    pub hidden: u64,
    /// The memory cgroups, in order of their path.
    #[serde(with = "plain")]
    pub cgroups: Reading<Vec<SweepCgroup>>,
    /// The machine.
    pub machine: SweepMachine,
}

impl Sweep {
    /// A process of the sweep.
    pub fn process(&self, key: ProcessKey) -> Option<&SweepProcess> {
        let at = self.processes.binary_search_by_key(&key.pid, |it| it.key.pid).ok()?;
        self.processes.get(at).filter(|it| it.key == key)
    }

    /// A cgroup of the sweep.
    pub fn cgroup(&self, path: &Name) -> Option<&SweepCgroup> {
        let cgroups = self.cgroups.as_ref().ok()?;
        let at = cgroups.binary_search_by(|it| it.path.cmp(path)).ok()?;
        cgroups.get(at)
    }
}

/// A point in time by two clocks: the first one is set by people and programs, the second one only
/// goes forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SweepTime {
    /// Nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub unix_ns: u64,
    /// Nanoseconds since boot, with the time of suspension (`CLOCK_BOOTTIME`).
    pub boot_ns: u64,
}

/// Cost of a sweep, to the machine and to the processes that it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCost {
    /// Duration.
    pub took_ns: u64,
    /// CPU time of the reader.
    pub cpu_ns: u64,
    /// The longest single system call that may have held the mmap lock of a process.
    pub longest_hold_ns: u64,
    /// Number of processes whose pages were read.
    pub pages_read: u64,
    /// Number of processes whose pages changed and were not read, to keep to the budget.
    pub postponed: u64,
}

/// Identity of a process: PIDs are used again, the pair is not.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessKey {
    /// The process ID.
    pub pid: Pid,
    /// Start in clock ticks since boot.
    pub start_ticks: u64,
}

/// Properties of a process that seldom change. Successive sweeps share the value as long as it is
/// the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// The parent's PID.
    pub parent: Pid,
    /// `cmdline`, one name for an argument; empty for a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/PID/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Real user ID.
    #[serde(with = "plain")]
    pub uid: Reading<u32>,
    /// The user's name, if the machine has one for the ID.
    pub user: Option<Name>,
    /// Path in the hierarchy of the memory cgroups.
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Start in nanoseconds since 1970, by the clock at the time of the first sweep with it.
    pub started_unix_ns: u64,
}

/// A process at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepProcess {
    /// Its identity.
    pub key: ProcessKey,
    /// Name, command, user, cgroup.
    pub identity: Arc<ProcessIdentity>,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Number of threads.
    pub threads: u64,
    /// Size of the address space.
    pub virt: Bytes,
    /// Resident bytes (`stat`): read in every sweep.
    pub rss: Bytes,
    /// Resident bytes by page kind (`RssAnon`, `RssFile`, `RssShmem`).
    #[serde(with = "plain")]
    pub rss_by_kind: Reading<BytesByPageKind>,
    /// The highest number of resident bytes so far (`VmHWM`).
    #[serde(with = "plain")]
    pub peak_rss: Reading<Bytes>,
    /// Proportional share of the resident pages.
    #[serde(with = "plain")]
    pub pss: Reading<BytesByPageKind>,
    /// Bytes that only this process maps.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// The part of `uss` that are anonymous pages.
    #[serde(with = "plain")]
    pub uss_anonymous: Reading<Bytes>,
    /// Age of `pss`, `uss`, `uss_anonymous` and `swap_shmem`.
    pub pages: PagesReading,
    /// Bytes of anonymous memory in swap (`VmSwap`): read in every sweep.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Bytes in swap of the tmpfs files and shared memory that it maps; each process that maps
    /// them counts them. As old as `pss`.
    #[serde(with = "plain")]
    pub swap_shmem: Reading<Bytes>,
    /// Minor page faults since the process began.
    pub minor_faults: u64,
    /// Major page faults since the process began.
    pub major_faults: u64,
    /// CPU time since the process began, in nanoseconds.
    pub cpu_ns: u64,
    /// `oom_score`: the kernel's rank among the victims of an OOM kill.
    #[serde(with = "plain")]
    pub oom_score: Reading<u64>,
    /// `oom_score_adj`.
    #[serde(with = "plain")]
    pub oom_score_adj: Reading<i64>,
}

impl SweepProcess {
    /// The time since PSS and USS were read, in nanoseconds, if they are outdated: the process has
    /// changed since. `now_ns` is the `boot_ns` of the sweep.
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

    /// True if the process has ended and its memory is gone. A process whose first thread has ended
    /// is a zombie too, with the memory of its other threads.
    pub fn has_lost_memory(&self) -> bool {
        self.is_zombie() && self.rss.is_zero()
    }

    /// The proportional share, all page kinds together.
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
    /// All kinds together.
    pub fn total(&self) -> Bytes {
        self.anonymous + self.file + self.shmem
    }
}

/// When the pages of a process were read, from which PSS and USS follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PagesReading {
    /// In this sweep.
    Now,
    /// In an earlier sweep, at this `boot_ns`. The process has not changed since; the number of
    /// other processes with which it shares pages may have.
    Unchanged(u64),
    /// In an earlier sweep, at this `boot_ns`. The process has changed since, or has not been
    /// checked for a long time: reading it again exceeds the budget.
    Postponed(u64),
    /// Never: the readings have the reason.
    Never,
}

/// A memory cgroup at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCgroup {
    /// Path in the hierarchy.
    pub path: Name,
    /// Charged bytes.
    #[serde(with = "plain")]
    pub current: Reading<Bytes>,
    /// The highest number of charged bytes so far.
    #[serde(with = "plain")]
    pub peak: Reading<Bytes>,
    /// The limit of the cgroup itself; `None` is unlimited.
    #[serde(with = "plain")]
    pub limit: Reading<Option<Bytes>>,
    /// Charged bytes in swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Charged memory by use.
    #[serde(with = "plain")]
    pub usage: Reading<CgroupUsage>,
    /// Number of times that the limit was reached.
    #[serde(with = "plain")]
    pub limit_hits: Reading<u64>,
    /// Number of OOM kills of processes of the cgroup.
    #[serde(with = "plain")]
    pub oom_kills: Reading<u64>,
    /// Memory pressure.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
}

/// Charged memory by use (`memory.stat`), children included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupUsage {
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Page cache, tmpfs included.
    pub file: Bytes,
    /// Pages of tmpfs and other shared memory.
    pub shmem: Bytes,
    /// Page cache that was not used lately: the kernel reclaims it first.
    pub inactive_file: Bytes,
    /// Slab objects; `None` in v1, which does not count them here.
    pub slab: Option<Bytes>,
}

/// The machine at the time of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepMachine {
    /// `meminfo`, sizes in bytes.
    #[serde(with = "plain")]
    pub meminfo: Reading<Vec<BootCounter>>,
    /// Counters of `vmstat` since boot that concern paging, reclaim, swap and OOM kills.
    #[serde(with = "plain")]
    pub vmstat: Reading<Vec<BootCounter>>,
    /// Pressure of memory.
    #[serde(with = "plain")]
    pub memory_pressure: Reading<PressureFigures>,
    /// Pressure of I/O.
    #[serde(with = "plain")]
    pub io_pressure: Reading<PressureFigures>,
    /// Processes and threads created since boot.
    #[serde(with = "plain")]
    pub forks: Reading<u64>,
}

impl SweepMachine {
    /// A line of `meminfo`.
    pub fn memory(&self, name: &str) -> Reading<Bytes> {
        value(&self.meminfo, name).map(Bytes)
    }

    /// A counter of `vmstat`.
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

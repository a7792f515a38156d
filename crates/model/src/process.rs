//! A process as a whole: its identity, its threads, its limits, its memory cgroup.

use serde::{Deserialize, Serialize};

pub use crate::fields::ProcessStatus;
use crate::reading::plain;
use crate::{Bytes, Name, Pid, Reading};

/// Identity and properties of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id in the `/proc` that was read.
    pub pid: Pid,
    /// Its ids from the outermost to its own pid namespace (`NSpid`); one entry if it is in the
    /// namespace of the `/proc`.
    pub ns_pids: Vec<Pid>,
    /// Its parent.
    pub parent: Pid,
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// `cmdline`, one name an argument; empty for a kernel thread or a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/<pid>/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Real user id.
    pub uid: u32,
    /// The user's name, where the reader's machine knows it.
    pub user: Option<Name>,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Number of threads.
    pub threads: u64,
    /// Nanoseconds since it was started, at the time of reading.
    #[serde(with = "plain")]
    pub age_ns: Reading<u64>,
    /// `starttime` of `stat`, in clock ticks since boot: with the pid it names one process.
    pub start_ticks: u64,
    /// True if it is a kernel thread, which has no memory of its own.
    pub kernel_thread: bool,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id.
    pub tid: Pid,
    /// Its name.
    pub name: Name,
    /// Stack pointer from `/proc/<pid>/task/<tid>/syscall`; absent for a running thread.
    #[serde(with = "plain")]
    pub stack_pointer: Reading<u64>,
}

/// `/proc/<pid>/statm`, in bytes. `lib` and `dt` are left out: they have been 0 since 2.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statm {
    /// All mappings: VIRT.
    pub size: Bytes,
    /// Resident anonymous, file and shmem pages: RES.
    pub resident: Bytes,
    /// Resident file and shmem pages: SHR.
    pub shared: Bytes,
    /// The program's text: CODE.
    pub text: Bytes,
    /// Private writable memory that is reserved, resident or not: DATA.
    pub data: Bytes,
}

/// One resource limit: `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// The soft limit, which applies.
    pub soft: Option<u64>,
    /// Hard limit: upper bound of the soft limit.
    pub hard: Option<u64>,
}

/// The limits of `/proc/<pid>/limits` that concern memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// RLIMIT_STACK.
    pub stack: ResourceLimit,
    /// RLIMIT_AS.
    pub address_space: ResourceLimit,
    /// RLIMIT_DATA.
    pub data: ResourceLimit,
    /// RLIMIT_MEMLOCK.
    pub locked: ResourceLimit,
    /// True if CAP_IPC_LOCK exempts the process from RLIMIT_MEMLOCK; `None` if its capabilities are
    /// unknown.
    #[serde(default)]
    pub locks_freely: Option<bool>,
}

/// The memory cgroup a process is in, v1 or v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// Its path below the mount.
    pub path: Name,
    /// 1 or 2.
    pub version: u8,
    /// The lowest limit from it up to the root that we can see; `None` is unlimited.
    pub limit: Option<Bytes>,
    /// Memory charged to the cgroup with that limit, page cache included.
    #[serde(with = "plain")]
    pub usage: Reading<Bytes>,
}

/// `/proc/<pid>/ksm_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmStat {
    /// Pages of this process that map a merged page.
    pub merging_pages: u64,
    /// Pages that KSM has scanned, merged or not: each costs the kernel 64 bytes.
    pub rmap_items: u64,
    /// Bytes saved according to the kernel; negative if the metadata costs more than merging saves.
    pub profit: Option<i64>,
}

/// Resident bytes of a process on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    /// The node.
    pub node: u32,
    /// Resident memory of the process on the node.
    pub resident: Bytes,
}

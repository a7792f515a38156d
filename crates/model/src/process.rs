//! A process as a whole: its identity, its threads, its limits and its memory cgroup.

use serde::{Deserialize, Serialize};

pub use crate::fields::ProcessStatus;
use crate::reading::plain;
use crate::{Bytes, Name, Pid, Reading};

/// Identity and properties of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// PID in the PID namespace of the `/proc` that was read.
    pub pid: Pid,
    /// PIDs of the process from the namespace of the `/proc` to its own PID namespace (`NSpid`);
    /// one entry if both are the same.
    pub ns_pids: Vec<Pid>,
    /// PID of the parent.
    pub parent: Pid,
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// `cmdline`, one name for each argument; empty for a kernel thread or a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/<pid>/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Real user ID.
    pub uid: u32,
    /// Name of the user; `None` if the machine of the reading has no name for the user ID.
    pub user: Option<Name>,
    /// State letter of `stat`: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Number of threads.
    pub threads: u64,
    /// Nanoseconds from the start of the process to the reading.
    #[serde(with = "plain")]
    pub age_ns: Reading<u64>,
    /// `starttime` of `stat`, in clock ticks since boot. Together with the PID it identifies the
    /// process.
    pub start_ticks: u64,
    /// True if the process is a kernel thread, which has no memory of its own.
    pub kernel_thread: bool,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread ID.
    pub tid: Pid,
    /// Name of the thread.
    pub name: Name,
    /// Stack pointer from `/proc/<pid>/task/<tid>/syscall`; absent for a running thread.
    #[serde(with = "plain")]
    pub stack_pointer: Reading<u64>,
}

/// `/proc/<pid>/statm`, converted to bytes, without `lib` and `dt`, which have been 0 since 2.6.
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
    /// Private writable address space, resident or not: DATA.
    pub data: Bytes,
}

/// One resource limit: `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// The soft limit, which the kernel enforces; `None` if it is unlimited.
    pub soft: Option<u64>,
    /// The hard limit, which is the upper bound of the soft limit; `None` if it is unlimited.
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

/// Memory cgroup of a process, v1 or v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// Path of the cgroup below the mount.
    pub path: Name,
    /// Version of the cgroup hierarchy: 1 or 2.
    pub version: u8,
    /// The lowest limit of the cgroup and its visible ancestors; `None` if all are unlimited.
    pub limit: Option<Bytes>,
    /// Memory that is charged to the cgroup with the lowest limit, page cache included.
    #[serde(with = "plain")]
    pub usage: Reading<Bytes>,
}

/// `/proc/<pid>/ksm_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmStat {
    /// Number of pages of this process that are mapped to a merged page.
    pub merging_pages: u64,
    /// Number of pages that KSM has scanned, merged or not. Each costs the kernel 64 bytes.
    pub rmap_items: u64,
    /// Bytes saved according to the kernel; negative if the metadata costs more than merging saves.
    pub profit: Option<i64>,
}

/// Resident bytes of a process on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    /// ID of the node.
    pub node: u32,
    /// Resident memory of the process on the node.
    pub resident: Bytes,
}

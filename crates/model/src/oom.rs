//! Processes as the OOM killer compares them, and reports of the OOM killer in the kernel log.

use serde::{Deserialize, Serialize};

use crate::cgroup_tree::CgroupTree;
use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::{Bytes, Name, PageSize, Pid, Reading};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const OOM_VERSION: u32 = 1;

/// `oom_score_adj` of a process that the OOM killer never selects.
pub const NEVER_KILLED: i64 = -1000;

/// The processes and limits of a machine at two times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OomReading {
    /// [`OOM_VERSION`] of the writer.
    pub pagewise_oom: u32,
    /// The base page size.
    pub page_size: PageSize,
    /// The machine at the beginning and at the end.
    pub machine: [OomMachine; 2],
    /// The processes at the end, in the order in which the kernel visits them.
    pub processes: Vec<OomProcess>,
    /// Processes that could not be read.
    pub unreadable: u64,
    /// The memory cgroups at the beginning and at the end.
    #[serde(with = "plain")]
    pub cgroups: Reading<[CgroupTree; 2]>,
    /// `vm.oom_kill_allocating_task`: a value other than 0 kills the process that asks for memory.
    #[serde(with = "plain")]
    pub kills_allocating_task: Reading<bool>,
    /// `vm.panic_on_oom`: 1 panics if the whole machine is out of memory, 2 always.
    #[serde(with = "plain")]
    pub panics: Reading<u64>,
    /// Number of NUMA nodes online.
    #[serde(with = "plain")]
    pub nodes: Reading<u64>,
}

/// The memory of a machine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomMachine {
    /// Nanoseconds since the beginning of the reading.
    pub at_ns: u64,
    /// `/proc/meminfo`.
    pub meminfo: Vec<BootCounter>,
    /// Free pages that the kernel keeps back: the sum of the `min` watermarks.
    pub kept_back: u64,
}

/// A process as the OOM killer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomProcess {
    /// Its ID.
    pub pid: Pid,
    /// `comm`.
    pub name: Name,
    /// Its command line.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// The user ID.
    pub uid: u32,
    /// Its memory cgroup.
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Resident memory.
    pub rss: Bytes,
    /// Memory in swap.
    pub swap: Bytes,
    /// Memory of its page tables.
    pub page_tables: Bytes,
    /// `oom_score_adj`.
    #[serde(with = "plain")]
    pub adj: Reading<i64>,
    /// `oom_score`, the kernel's own computation for the whole machine.
    #[serde(with = "plain")]
    pub score: Reading<u64>,
    /// True if it has memory: it has not ended.
    pub has_memory: bool,
    /// Memory that only this process maps: its end frees it.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// The anonymous part of `uss`.
    #[serde(with = "plain")]
    pub uss_anonymous: Reading<Bytes>,
    /// Resident memory at the beginning; `None` if the process did not run then.
    pub rss_before: Option<Bytes>,
    /// Other processes that use the same memory (`vfork`, `CLONE_VM`): they are killed together.
    pub same_memory: Vec<Pid>,
}

/// A report of the OOM killer in the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OomReport {
    /// Time of the report in seconds since boot, if the log has it.
    pub at_seconds: Option<f64>,
    /// Seconds from the report to the reading of the log, if the log is of the running kernel.
    #[serde(default)]
    pub age_seconds: Option<f64>,
    /// The process that asked for memory.
    pub asker: Option<OomAsker>,
    /// `CONSTRAINT_NONE`, `CONSTRAINT_MEMCG`, `CONSTRAINT_CPUSET`, `CONSTRAINT_MEMORY_POLICY`.
    pub constraint: Option<Name>,
    /// NUMA nodes that the request could use: `0-1`.
    pub nodes: Option<Name>,
    /// The memory cgroup that reached its limit.
    pub limited: Option<Name>,
    /// The memory cgroup of the killed process.
    pub victim_cgroup: Option<Name>,
    /// Usage, limit and number of failed charges of the cgroup.
    pub memory: Option<OomUsage>,
    /// The same of swap (v2), or of memory and swap (v1).
    pub swap: Option<OomUsage>,
    /// True if `swap` is memory and swap together (v1).
    pub swap_is_total: bool,
    /// Counters of the machine or of the cgroup: names as in the log, values in bytes.
    pub counters: Vec<BootCounter>,
    /// Zones with their free pages and watermarks, in bytes.
    pub zones: Vec<OomZone>,
    /// Swap of the machine, the free part included.
    pub swap_total: Option<Bytes>,
    /// Free swap of the machine.
    pub swap_free: Option<Bytes>,
    /// The table of processes.
    pub table: Vec<OomTableRow>,
    /// The killed processes: the victim, then those that share its memory or its cgroup.
    pub victims: Vec<OomVictim>,
    /// The base page size of the machine, if the report shows it.
    pub page_size: Option<PageSize>,
    /// `Out of memory and no killable processes`: the kernel found no process to kill.
    pub no_victim: bool,
    /// True if the whole cgroup was to be killed (`memory.oom.group`).
    pub kills_all: bool,
    /// Lines of the report that could not be understood, or that contradict others.
    pub damaged: u64,
    /// True if the log begins after the beginning of the report, or ends before its end.
    pub truncated: bool,
}

/// The process whose request invoked the OOM killer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomAsker {
    /// Its `comm`.
    pub name: Name,
    /// Its ID, from the line `CPU: .. PID: ..`.
    pub pid: Option<Pid>,
    /// The flags of the request: `0xcc0(GFP_KERNEL)`.
    pub gfp: Name,
    /// The request was for 2^order pages; -1 for a request by sysrq.
    pub order: i64,
    /// Its `oom_score_adj`.
    pub adj: i64,
}

/// Usage of a counter of a cgroup in an OOM report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomUsage {
    /// Charged bytes.
    pub usage: Bytes,
    /// Limit; `None` without one.
    pub limit: Option<Bytes>,
    /// Failed charges.
    pub failures: u64,
}

/// A zone in an OOM report, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomZone {
    /// The NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: Name,
    /// Free memory.
    pub free: Bytes,
    /// The watermark below which only urgent requests are served.
    pub min: Bytes,
    /// Memory that the page allocator manages.
    pub managed: Bytes,
}

/// A row of the table of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomTableRow {
    /// The process.
    pub pid: Pid,
    /// The user ID.
    pub uid: u32,
    /// Resident pages.
    pub rss: u64,
    /// Anonymous, file and tmpfs pages of it, which kernels since 6.8 print.
    pub rss_kinds: Option<[u64; 3]>,
    /// Bytes of page tables.
    pub page_tables: Bytes,
    /// Pages in swap.
    pub swap: u64,
    /// `oom_score_adj`.
    pub adj: i64,
    /// `comm`.
    pub name: Name,
}

/// A killed process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomVictim {
    /// Its ID.
    pub pid: Pid,
    /// `comm`.
    pub name: Name,
    /// Its anonymous, file and tmpfs memory, if the log has the line.
    pub memory: Option<[Bytes; 3]>,
    /// Its memory of page tables.
    pub page_tables: Option<Bytes>,
    /// Its `oom_score_adj`.
    pub adj: Option<i64>,
    /// Its user ID.
    pub uid: Option<u32>,
    /// Memory that was left when the OOM reaper had finished; `None` if it did not report.
    pub left_after_reaper: Option<[Bytes; 3]>,
}

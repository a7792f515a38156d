//! Processes with the values that the OOM killer compares, and reports of the OOM killer in the
//! kernel log.

use serde::{Deserialize, Serialize};

use crate::cgroup_tree::CgroupTree;
use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::{Bytes, Name, PageSize, Pid, Reading};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const OOM_VERSION: u32 = 1;

/// `oom_score_adj` of a process that the OOM killer never selects.
pub const NEVER_KILLED: i64 = -1000;

/// The processes and limits of a machine at two times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OomReading {
    /// [`OOM_VERSION`] of the program that wrote the file.
    pub pagewise_oom: u32,
    /// The base page size.
    pub page_size: PageSize,
    /// The machine at the beginning and at the end.
    pub machine: [OomMachine; 2],
    /// The processes at the end, in the order in which the OOM killer visits them.
    pub processes: Vec<OomProcess>,
    /// Number of processes that could not be read.
    pub unreadable: u64,
    /// The memory cgroups at the beginning and at the end.
    #[serde(with = "plain")]
    pub cgroups: Reading<[CgroupTree; 2]>,
    /// `vm.oom_kill_allocating_task`: true if the OOM killer kills the process that requested
    /// memory.
    #[serde(with = "plain")]
    pub kills_allocating_task: Reading<bool>,
    /// `vm.panic_on_oom`: with 1 the kernel panics if the whole machine is out of memory, with 2 on
    /// each OOM.
    #[serde(with = "plain")]
    pub panics: Reading<u64>,
    /// Number of online NUMA nodes.
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
    /// Number of free pages that the kernel reserves: the sum of the zones' `min` watermarks.
    pub kept_back: u64,
}

/// A process with the values that the OOM killer compares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomProcess {
    /// PID of the process.
    pub pid: Pid,
    /// `comm` of the process.
    pub name: Name,
    /// Command line of the process.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// The user ID.
    pub uid: u32,
    /// Memory cgroup of the process.
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Resident memory of the process.
    pub rss: Bytes,
    /// Memory in swap.
    pub swap: Bytes,
    /// Memory of the process's page tables.
    pub page_tables: Bytes,
    /// `oom_score_adj`.
    #[serde(with = "plain")]
    pub adj: Reading<i64>,
    /// `oom_score`: the kernel's result for an OOM of the whole machine.
    #[serde(with = "plain")]
    pub score: Reading<u64>,
    /// True if the process has memory: it has not ended.
    pub has_memory: bool,
    /// Memory that only this process maps, so that its end frees the memory.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// The anonymous part of `uss`.
    #[serde(with = "plain")]
    pub uss_anonymous: Reading<Bytes>,
    /// Resident memory at the beginning of the reading; `None` if the process did not exist then.
    pub rss_before: Option<Bytes>,
    /// Other processes that use the same memory (`vfork`, `CLONE_VM`). The OOM killer kills them
    /// with the process.
    pub same_memory: Vec<Pid>,
}

/// A report of the OOM killer in the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OomReport {
    /// Time of the report in seconds since boot; `None` if the log has no times.
    pub at_seconds: Option<f64>,
    /// Seconds from the report to the reading of the log; `None` if the log is not from the running
    /// kernel.
    #[serde(default)]
    pub age_seconds: Option<f64>,
    /// The process whose memory request invoked the OOM killer.
    pub asker: Option<OomAsker>,
    /// `CONSTRAINT_NONE`, `CONSTRAINT_MEMCG`, `CONSTRAINT_CPUSET`, `CONSTRAINT_MEMORY_POLICY`.
    pub constraint: Option<Name>,
    /// NUMA nodes that the request could use: `0-1`.
    pub nodes: Option<Name>,
    /// The memory cgroup that reached its limit.
    pub limited: Option<Name>,
    /// Memory cgroup of the killed process.
    pub victim_cgroup: Option<Name>,
    /// Memory usage and limit of the cgroup in `limited`, and the number of failed charges.
    pub memory: Option<OomUsage>,
    /// Usage, limit and failed charges of swap (v2), or of memory and swap together (v1), in the
    /// same cgroup.
    pub swap: Option<OomUsage>,
    /// True if `swap` covers memory and swap together (v1).
    pub swap_is_total: bool,
    /// Counters of the machine or of the cgroup: names as in the log, values in bytes.
    pub counters: Vec<BootCounter>,
    /// Zones with their free pages and watermarks, converted to bytes.
    pub zones: Vec<OomZone>,
    /// Total swap of the machine.
    pub swap_total: Option<Bytes>,
    /// Free swap of the machine.
    pub swap_free: Option<Bytes>,
    /// The table of processes in the report.
    pub table: Vec<OomTableRow>,
    /// The killed processes: first the selected process, then the processes that share its memory
    /// or its cgroup.
    pub victims: Vec<OomVictim>,
    /// The base page size of the machine; `None` if the report does not show it.
    pub page_size: Option<PageSize>,
    /// True if the kernel found no process to kill: `Out of memory and no killable processes`.
    pub no_victim: bool,
    /// True if the kernel was to kill all processes of the cgroup (`memory.oom.group`).
    pub kills_all: bool,
    /// Number of lines of the report that could not be parsed or that contradict other lines.
    pub damaged: u64,
    /// True if the log begins after the first line of the report or ends before its last line.
    pub truncated: bool,
}

/// The process whose memory request invoked the OOM killer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomAsker {
    /// `comm` of the process.
    pub name: Name,
    /// PID of the process, from the line `CPU: .. PID: ..`.
    pub pid: Option<Pid>,
    /// GFP flags of the request: `0xcc0(GFP_KERNEL)`.
    pub gfp: Name,
    /// Order of the request, which was for 2^order pages; -1 for an OOM kill that sysrq requested.
    pub order: i64,
    /// `oom_score_adj` of the process.
    pub adj: i64,
}

/// Usage of memory or swap of a cgroup in an OOM report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomUsage {
    /// Charged bytes.
    pub usage: Bytes,
    /// Limit; `None` if it is unlimited.
    pub limit: Option<Bytes>,
    /// Number of failed charges.
    pub failures: u64,
}

/// A zone in an OOM report. Sizes are converted to bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomZone {
    /// ID of the NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: Name,
    /// Free memory.
    pub free: Bytes,
    /// The `min` watermark: below it, only urgent requests get pages.
    pub min: Bytes,
    /// Memory that the page allocator manages.
    pub managed: Bytes,
}

/// A row of the table of processes in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomTableRow {
    /// PID of the process, as in the kernel log.
    pub pid: Pid,
    /// The user ID.
    pub uid: u32,
    /// Number of resident pages.
    pub rss: u64,
    /// Number of resident anonymous, file and tmpfs pages; `None` for kernels before 6.8, which do
    /// not print them.
    pub rss_kinds: Option<[u64; 3]>,
    /// Bytes of page tables.
    pub page_tables: Bytes,
    /// Number of pages in swap.
    pub swap: u64,
    /// `oom_score_adj`.
    pub adj: i64,
    /// `comm` of the process.
    pub name: Name,
}

/// A killed process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomVictim {
    /// PID of the process.
    pub pid: Pid,
    /// `comm` of the process.
    pub name: Name,
    /// Anonymous, file and tmpfs memory of the process; `None` if the log does not have the line.
    pub memory: Option<[Bytes; 3]>,
    /// Memory of the process's page tables.
    pub page_tables: Option<Bytes>,
    /// `oom_score_adj` of the process.
    pub adj: Option<i64>,
    /// User ID of the process.
    pub uid: Option<u32>,
    /// Anonymous, file and tmpfs memory that the process still had when the OOM reaper had
    /// finished; `None` if the OOM reaper reported nothing.
    pub left_after_reaper: Option<[Bytes; 3]>,
}

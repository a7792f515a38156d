//! The settings of a machine that cost latency or memory, and the settings of one process.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// The settings of a machine at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemSettings {
    /// `uname -r`.
    pub kernel: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// Size of a PMD-mapped huge page.
    #[serde(with = "plain")]
    pub huge_size: Reading<Bytes>,
    /// Files that contain one setting each.
    pub files: Vec<SettingFile>,
    /// `transparent_hugepage/hugepages-*kB/enabled`, by page size.
    #[serde(with = "plain")]
    pub sizes: Reading<Vec<SizeSetting>>,
    /// `MemTotal`.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// `CommitLimit`: upper bound of committed memory if `vm.overcommit_memory` is 2.
    #[serde(with = "plain")]
    pub commit_limit: Reading<Bytes>,
    /// `Committed_AS`: committed memory.
    #[serde(with = "plain")]
    pub committed: Reading<Bytes>,
    /// `/proc/swaps`.
    #[serde(with = "plain")]
    pub swaps: Reading<Vec<SwapArea>>,
    /// Number of online NUMA nodes.
    #[serde(with = "plain")]
    pub nodes: Reading<u64>,
    /// True if page tables have five levels: `/proc/cpuinfo` has the flag `la57`, which the kernel
    /// removes if it was started with `no5lvl`.
    #[serde(with = "plain")]
    pub five_levels: Reading<bool>,
    /// `/proc/pressure/memory`.
    #[serde(with = "plain")]
    pub pressure: Reading<Pressure>,
    /// Number of TLB shootdowns in a short interval.
    #[serde(with = "plain")]
    pub shootdowns: Reading<ShootdownCount>,
    /// Capabilities of the pagewise process; absent if the settings are of another machine.
    #[serde(with = "plain")]
    pub ours: Reading<Capabilities>,
    /// Settings of the examined process, or of the pagewise process if the user named no process.
    #[serde(with = "plain")]
    pub process: Reading<ProcessSettings>,
}

impl SystemSettings {
    /// Content of a file, by its path on a live system: `/proc/sys/vm/swappiness`.
    ///
    /// `None` if `files` does not contain the file.
    pub fn file(&self, path: &str) -> Option<&Reading<Name>> {
        self.files.iter().find(|file| file.path.as_bytes() == path.as_bytes()).map(|f| &f.value)
    }
}

/// A file with one setting, and its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingFile {
    /// Path of the file on a live system.
    pub path: Name,
    /// Value without the newline. For a choice such as `always [madvise] never`, the word in
    /// brackets.
    #[serde(with = "plain")]
    pub value: Reading<Name>,
}

/// Setting for transparent huge pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeSetting {
    /// Page size in bytes.
    pub size: Bytes,
    /// `always`, `inherit`, `madvise`, `never`.
    pub enabled: Name,
}

/// A swap device or swap file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapArea {
    /// Path of the area as the kernel writes it: `\040` for a space.
    pub path: Name,
    /// Size of the area.
    pub size: Bytes,
    /// Used part of the area.
    pub used: Bytes,
    /// Priority of the area: the kernel fills areas with a higher priority first. Priorities that
    /// the kernel assigned are negative.
    pub priority: i64,
}

/// Memory pressure (PSI): share of time in which tasks waited for memory, in hundredths of a
/// percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Share of time in which at least one task waited.
    pub some: u64,
    /// Share of time in which all non-idle tasks waited at once.
    pub full: u64,
}

/// A pressure file (PSI) of one resource: `/proc/pressure/memory`, or `memory.pressure` of a
/// cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureFigures {
    /// Averages over the last 10 seconds.
    pub avg10: Pressure,
    /// Averages over the last 60 and the last 300 seconds; `None` in a sweep, which stores only the
    /// counters.
    pub longer: Option<[Pressure; 2]>,
    /// Time since boot, or since the cgroup was created, in which at least one task waited, in
    /// microseconds.
    pub some_us: u64,
    /// Time since boot, or since the cgroup was created, in which all non-idle tasks waited at
    /// once, in microseconds.
    pub full_us: u64,
}

/// Number of TLB shootdowns in an interval. A shootdown is an interrupt with which a CPU makes
/// another CPU flush its TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShootdownCount {
    /// Number of shootdowns over all CPUs.
    pub count: u64,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
}

/// Capabilities of the pagewise process that readings need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// CAP_SYS_PTRACE: read processes of other users.
    pub ptrace: bool,
    /// CAP_SYS_ADMIN: read page-frame numbers.
    pub admin: bool,
    /// CAP_SYS_NICE: apply `process_madvise` to other processes.
    pub nice: bool,
    /// CAP_PERFMON, or CAP_SYS_ADMIN, which includes it: use counters with any value of
    /// `perf_event_paranoid`.
    pub perfmon: bool,
}

/// Settings of one process that a [`crate::Snapshot`] does not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The process.
    pub pid: Pid,
    /// Variables of the process's initial environment that configure malloc. Other variables are
    /// not stored.
    #[serde(with = "plain")]
    pub environment: Reading<Vec<EnvVariable>>,
    /// Memory cgroup of the process.
    #[serde(with = "plain")]
    pub cgroup: Reading<CgroupSettings>,
}

/// A variable of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVariable {
    /// Name of the variable.
    pub name: Name,
    /// Value of the variable.
    pub value: Name,
}

/// Value of a field that saved settings lack, because an older version of pagewise saved them.
fn not_saved<T>() -> Reading<T> {
    Err(Absent::NotCollected("save it with this version of pagewise".into()))
}

/// Limits of a memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupSettings {
    /// Path of the file with the lowest limit of the process's cgroup and its visible ancestors.
    pub limit_file: Name,
    /// The lowest limit; `None` if all cgroups are unlimited.
    pub limit: Option<Bytes>,
    /// Memory that is charged to the cgroup with the lowest limit, page cache included.
    #[serde(with = "plain")]
    pub usage: Reading<Bytes>,
    /// Swapped memory of the cgroup with the lowest limit. A higher limit must be large enough for
    /// this memory too.
    #[serde(with = "plain", default = "not_saved")]
    pub swapped: Reading<Bytes>,
    /// Path of the file with the limit of memory and swap together, and this limit. Cgroup v1
    /// refuses a memory limit above it. `None` if it is unlimited, and for cgroup v2.
    #[serde(default)]
    pub with_swap: Option<(Name, Bytes)>,
    /// `memory.pressure` of the process's own cgroup (v2 only).
    #[serde(with = "plain")]
    pub pressure: Reading<Pressure>,
}

//! The settings of a machine that cost latency or memory, and the settings of one process.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// The settings of a machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemSettings {
    /// `uname -r`.
    pub kernel: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// Size that one PMD page-table entry maps.
    #[serde(with = "plain")]
    pub huge_size: Reading<Bytes>,
    /// Files that hold one setting each.
    pub files: Vec<SettingFile>,
    /// `transparent_hugepage/hugepages-*kB/enabled`, by size.
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
    /// Number of NUMA nodes online.
    #[serde(with = "plain")]
    pub nodes: Reading<u64>,
    /// True if page tables have five levels: `la57` among the flags of `/proc/cpuinfo`, which the
    /// kernel takes out where it was started with `no5lvl`.
    #[serde(with = "plain")]
    pub five_levels: Reading<bool>,
    /// `/proc/pressure/memory`.
    #[serde(with = "plain")]
    pub pressure: Reading<Pressure>,
    /// TLB shootdowns over a short time.
    #[serde(with = "plain")]
    pub shootdowns: Reading<ShootdownCount>,
    /// Capabilities of pagewise itself; absent if the settings are of another machine.
    #[serde(with = "plain")]
    pub ours: Reading<Capabilities>,
    /// Settings of the process in question, or of pagewise itself.
    #[serde(with = "plain")]
    pub process: Reading<ProcessSettings>,
}

impl SystemSettings {
    /// Content of a file, by its path on a live system: `/proc/sys/vm/swappiness`.
    ///
    /// `None` where it was not asked for.
    pub fn file(&self, path: &str) -> Option<&Reading<Name>> {
        self.files.iter().find(|file| file.path.as_bytes() == path.as_bytes()).map(|f| &f.value)
    }
}

/// A file with one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingFile {
    /// Its path on a live system.
    pub path: Name,
    /// Value without the newline; of `always [madvise] never` the word in brackets.
    #[serde(with = "plain")]
    pub value: Reading<Name>,
}

/// Setting of transparent huge pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeSetting {
    /// The size.
    pub size: Bytes,
    /// `always`, `inherit`, `madvise`, `never`.
    pub enabled: Name,
}

/// One swap device or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapArea {
    /// Its path as the kernel writes it: blanks are `\040`.
    pub path: Name,
    /// Size of the area.
    pub size: Bytes,
    /// Used part.
    pub used: Bytes,
    /// Areas of a higher priority are filled first; the kernel itself assigns negative priorities.
    pub priority: i64,
}

/// Memory pressure (PSI): share of the last ten seconds in which tasks waited for memory, in
/// hundredths of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some: u64,
    /// All tasks that had something to do waited.
    pub full: u64,
}

/// A pressure file (PSI) of one resource: `/proc/pressure/memory`, or `memory.pressure` of a
/// cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureFigures {
    /// Averages over 10 seconds.
    pub avg10: Pressure,
    /// Averages over 60 and over 300 seconds. `None` in a sweep: its counters are enough.
    pub longer: Option<[Pressure; 2]>,
    /// Time since boot, or since the cgroup was created, in which at least one task waited, in
    /// microseconds.
    pub some_us: u64,
    /// Time since the same point in which all tasks waited, in microseconds.
    pub full_us: u64,
}

/// Number of TLB shootdowns in a time: interrupts with which a CPU makes another flush its TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShootdownCount {
    /// Number over all CPUs.
    pub count: u64,
    /// Length of the time in nanoseconds.
    pub interval_ns: u64,
}

/// Capabilities of pagewise that its readings need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// CAP_SYS_PTRACE: other users' processes.
    pub ptrace: bool,
    /// CAP_SYS_ADMIN: page frames.
    pub admin: bool,
    /// CAP_SYS_NICE: `process_madvise` on others.
    pub nice: bool,
    /// CAP_PERFMON, or CAP_SYS_ADMIN which includes it: counters with any value of
    /// `perf_event_paranoid`.
    pub perfmon: bool,
}

/// Settings of one process that a [`crate::Snapshot`] does not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The process.
    pub pid: Pid,
    /// The variables of its environment that steer malloc, as it was started. No other variable is
    /// kept.
    #[serde(with = "plain")]
    pub environment: Reading<Vec<EnvVariable>>,
    /// Its memory cgroup.
    #[serde(with = "plain")]
    pub cgroup: Reading<CgroupSettings>,
}

/// One variable of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVariable {
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: Name,
}

/// Value of a field that the pagewise version of saved settings did not read.
fn not_saved<T>() -> Reading<T> {
    Err(Absent::NotCollected("save it with this version of pagewise".into()))
}

/// The limits of a memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupSettings {
    /// The file with the lowest limit from the process's cgroup up to the root that we can see.
    pub limit_file: Name,
    /// That limit; `None` is unlimited.
    pub limit: Option<Bytes>,
    /// Memory charged to the cgroup with that limit, page cache included.
    #[serde(with = "plain")]
    pub usage: Reading<Bytes>,
    /// Memory of that cgroup in swap, which a higher limit has to hold as well.
    #[serde(with = "plain", default = "not_saved")]
    pub swapped: Reading<Bytes>,
    /// File with the limit of memory and swap together, and that limit: cgroup v1 refuses a limit
    /// of memory above it. `None` if it is unlimited, and for cgroup v2.
    #[serde(default)]
    pub with_swap: Option<(Name, Bytes)>,
    /// `memory.pressure` of the process's own cgroup; v2 only.
    #[serde(with = "plain")]
    pub pressure: Reading<Pressure>,
}

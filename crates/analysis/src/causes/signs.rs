//! Signs that several rules derive from the evidence: growth, waits for I/O, a full cgroup, and a
//! machine that is short of memory.

use std::collections::HashMap;

use pagewise_model::evidence::{ActivityPoint, CgroupActivity, CgroupPoint, OtherProcess, counter};
use pagewise_model::faults::{FaultKind, FaultMapping, FaultRow};
use pagewise_model::report::{CellValue, Fact};
use pagewise_model::{Bytes, Name, Quadrant};

use super::CauseEvidence;
use super::trend::{MemoryTrend, trend};
use crate::cells::{float, ratio};
use crate::explain::fact;

/// Minimum number of major faults per second that costs notable time: 0.5 % of the time with 0.2 ms
/// each.
pub(super) const MANY_MAJOR: f64 = 25.0;
/// Wait for one major fault in seconds: the fastest disks need 0.1 ms, swap files and network disks
/// more.
const MAJOR_FAULT_SECONDS: f64 = 0.000_2;
/// Minimum used share of the limit for which the kernel reclaims memory of the cgroup.
const FULL_CGROUP: f64 = 0.9;
/// Share of available memory below which the kernel reclaims memory of the machine.
const LITTLE_AVAILABLE: f64 = 0.1;
/// Minimum share of the machine's memory with which another process is a reason for a shortage.
const LARGE_OTHER: f64 = 0.25;

/// Private memory of the process in bytes, resident or in swap.
pub(super) fn private_memory(point: &ActivityPoint) -> Option<Bytes> {
    Some(*point.anonymous.as_ref().ok()? + point.swap.clone().unwrap_or_default())
}

/// Growth of the private memory in bytes per second; `None` if it does not grow steadily.
pub(super) fn steady_growth(evidence: &CauseEvidence<'_>) -> Option<f64> {
    match trend(evidence) {
        MemoryTrend::Steady(growth) => Some(growth.rate()),
        MemoryTrend::Bounded(..) | MemoryTrend::Unknown => None,
    }
}

/// Factor for the cost of trouble that growth can cause. It is below 1 if the private memory grows
/// steadily, because the leak or the cache that grows is then the cause.
pub(super) fn behind_growth(evidence: &CauseEvidence<'_>) -> f64 {
    if steady_growth(evidence).is_some() { 0.2 } else { 1.0 }
}

/// Number of resident anonymous bytes at the end.
pub(super) fn anonymous(evidence: &CauseEvidence<'_>) -> Option<Bytes> {
    evidence.all.activity.last()?.anonymous.clone().ok()
}

/// CPU time of the process as shares of one CPU: first in total, then in the kernel.
pub(super) fn cpu_shares(evidence: &CauseEvidence<'_>) -> Option<(f64, f64)> {
    let system = evidence.rate(|point| point.system_ns)? / 1e9;
    let user = evidence.rate(|point| point.user_ns)? / 1e9;
    Some((user + system, system))
}

/// Converts lost time to a share of the time that the process ran, or would have run on free CPUs.
/// The run time counts as at least 5 % of a CPU, so the share of a process that hardly runs is
/// small.
pub(super) fn share_of_run_time(evidence: &CauseEvidence<'_>, lost: f64) -> f64 {
    const BUSY: f64 = 0.05;
    let (all, _) = cpu_shares(evidence).unwrap_or((1.0, 1.0));
    let demand = evidence.demand();
    (lost * demand / (all * demand).max(BUSY)).min(1.0)
}

/// Major faults of the process, for which it waited for I/O.
pub(super) struct MajorFaults {
    /// Number of major faults per second.
    pub(super) rate: f64,
    /// Share of the major faults in mappings of files; `None` if faults were not recorded.
    pub(super) in_files: Option<f64>,
    /// The file with the most major faults.
    pub(super) file: Option<Name>,
}

impl MajorFaults {
    pub(super) fn of(evidence: &CauseEvidence<'_>) -> Option<MajorFaults> {
        let rate = evidence.rate(|point| point.major_faults)?;
        let Some(recording) = evidence.faults() else {
            return Some(MajorFaults { rate, in_files: None, file: None });
        };
        let mut all = 0;
        let mut files: HashMap<&Name, u64> = HashMap::new();
        for row in recording.rows.iter().filter(|row| row.kind == FaultKind::Major) {
            all += row.count;
            let mapping = recording.mappings.get(row.mapping as usize);
            if let Some(mapping) = mapping.filter(|it| is_of_file(it)) {
                *files.entry(&mapping.name).or_default() += row.count;
            }
        }
        let most = files.iter().max_by_key(|(name, count)| (**count, **name));
        let file = most.map(|(name, _)| (*name).clone());
        Some(MajorFaults { rate, in_files: ratio(files.values().sum(), all), file })
    }

    /// Share of the time that the process waits for major faults.
    pub(super) fn waited(&self) -> f64 {
        (self.rate * MAJOR_FAULT_SECONDS).min(0.9)
    }

    pub(super) fn are_many(&self) -> bool {
        self.rate >= MANY_MAJOR
    }
}

/// True if a mapping shows a file with a path, rather than anonymous or shared memory.
fn is_of_file(mapping: &FaultMapping) -> bool {
    let is_file = matches!(mapping.quadrant, Some(Quadrant::PrivateFile | Quadrant::SharedFile));
    is_file && mapping.name.as_bytes().starts_with(b"/")
}

/// Returns a filter for the faults of the diagnosed process itself, without the faults of its
/// children.
pub(super) fn is_own<'a>(evidence: &CauseEvidence<'a>) -> impl Fn(&FaultRow) -> bool + use<'a> {
    let pid = evidence.now.process.pid;
    let threads = evidence.faults().map_or(&[][..], |recording| &recording.threads);
    // Faults that were merged for lack of memory in the recorder have no thread, and count as own
    // faults.
    move |row| {
        threads.get(row.thread as usize).is_none_or(|thread| thread.pid == pid || thread.tid.0 == 0)
    }
}

/// The lowest memory limit of the process's cgroups, and the charge against this limit.
pub(super) struct CgroupLoad<'a> {
    pub(super) path: &'a Name,
    pub(super) limit: Bytes,
    pub(super) usage: Bytes,
    /// Limit of memory and swap together (v1).
    pub(super) with_swap: Option<Bytes>,
    pub(super) version: u8,
    /// Readings of the counters over time; `None` if only the snapshot contains the cgroup.
    pub(super) activity: Option<&'a CgroupActivity>,
}

impl<'a> CgroupLoad<'a> {
    /// Finds the limit and its charge; `None` without a limit, or if the cgroup is unknown.
    pub(super) fn of(evidence: &CauseEvidence<'a>) -> Option<CgroupLoad<'a>> {
        if let Ok(activity) = &evidence.all.cgroup {
            let [_, last] = &activity.points;
            return Some(CgroupLoad {
                path: &activity.limited,
                limit: activity.limit?,
                usage: last.usage?,
                with_swap: activity.swap_limit.filter(|_| activity.version == 1),
                version: activity.version,
                activity: Some(activity),
            });
        }
        let cgroup = evidence.now.cgroup.as_ref().ok()?;
        Some(CgroupLoad {
            path: &cgroup.path,
            limit: cgroup.limit?,
            usage: *cgroup.usage.as_ref().ok()?,
            with_swap: None,
            version: cgroup.version,
            activity: None,
        })
    }

    pub(super) fn used(&self) -> f64 {
        self.usage.fraction_of(self.limit).unwrap_or(0.0)
    }

    /// Increase of a counter during the observation; `None` if the counter was not read twice.
    fn increase(&self, value: impl Fn(&CgroupPoint) -> Option<u64>) -> Option<u64> {
        let [first, last] = &self.activity?.points;
        Some(value(last)?.saturating_sub(value(first)?))
    }

    /// Number of times that the limit was hit during the observation.
    pub(super) fn hits(&self) -> Option<u64> {
        self.increase(|point| point.limit_hits)
    }

    /// Number of processes that the kernel killed during the observation; 0 if it is unknown.
    pub(super) fn kills(&self) -> u64 {
        self.increase(|point| point.oom_kills).unwrap_or(0)
    }

    /// Number of pages per second that the cgroup read again after they were reclaimed.
    pub(super) fn refaults_per_second(&self, evidence: &CauseEvidence<'_>) -> Option<f64> {
        let count = |point: &CgroupPoint| {
            REFAULTS
                .iter()
                .filter_map(|names| stat(point, names))
                .map(|it| it.0)
                .reduce(u64::saturating_add)
        };
        Some(float(self.increase(count)?) / evidence.seconds()?)
    }

    /// Value of a line of `memory.stat` at the end. Includes the children of the cgroup if
    /// possible.
    pub(super) fn stat(&self, names: &[&str]) -> Option<Bytes> {
        self.activity.and_then(|activity| stat(&activity.points[1], names))
    }

    /// Number of bytes of the cgroup in swap.
    pub(super) fn swapped(&self) -> Option<Bytes> {
        self.stat(SWAP)
    }

    /// True if the cgroup is nearly full or hit its limit, so that the kernel reclaims.
    pub(super) fn is_tight(&self) -> bool {
        self.used() >= FULL_CGROUP || self.hits().is_some_and(|hits| hits > 0)
    }

    /// Path of the file that sets the limit.
    pub(super) fn limit_file(&self) -> Option<String> {
        let path = std::str::from_utf8(self.path.as_bytes()).ok().filter(|it| is_plain_path(it))?;
        Some(match self.version {
            1 => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
            _ => format!("/sys/fs/cgroup{path}/memory.max"),
        })
    }
}

/// True if the path needs no quotes in a shell.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-@:".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain)
}

/// Names of the line of anonymous memory in `memory.stat`: v1 with children, then v1 without
/// children, then v2.
pub(super) const ANON: &[&str] = &["total_rss", "rss", "anon"];
/// Names of the line of shared memory in `memory.stat`: v1 with children, then v1 without children
/// or v2.
pub(super) const SHMEM: &[&str] = &["total_shmem", "shmem"];
/// Names of the line of page cache in `memory.stat`: v1 with children, then v1 without children,
/// then v2.
pub(super) const CACHE: &[&str] = &["total_cache", "cache", "file"];
/// Names of the line of reclaimable slab in `memory.stat`: v2, then v1.
pub(super) const SLAB: &[&str] = &["slab_reclaimable", "total_slab_reclaimable"];
/// Names of the lines that count pages which were reclaimed and needed again: of files, and of
/// anonymous memory.
const REFAULTS: [&[&str]; 2] = [
    &["total_workingset_refault_file", "workingset_refault_file", "total_workingset_refault"],
    &["total_workingset_refault_anon", "workingset_refault_anon"],
];
/// Names of the line of swapped memory in `memory.stat`: v1 with children, then v1 without
/// children.
const SWAP: &[&str] = &["total_swap", "swap"];

/// Value of the first line among `names` that `memory.stat` contains.
pub(super) fn stat(point: &CgroupPoint, names: &[&str]) -> Option<Bytes> {
    names.iter().find_map(|name| counter(&point.stat, name)).map(Bytes)
}

/// Returns the load of the process's cgroup, if the cgroup has a limit and is nearly full.
pub(super) fn tight_cgroup<'a>(evidence: &CauseEvidence<'a>) -> Option<CgroupLoad<'a>> {
    CgroupLoad::of(evidence).filter(CgroupLoad::is_tight)
}

/// Total and available memory of the machine at the end.
pub(super) struct MachineMemory {
    pub(super) total: Bytes,
    pub(super) available: Bytes,
}

impl MachineMemory {
    pub(super) fn of(evidence: &CauseEvidence<'_>) -> Option<MachineMemory> {
        let [_, last] = &evidence.all.machine;
        let value = |name| counter(&last.meminfo, name).map(Bytes);
        let machine = &evidence.now.machine;
        let total = value("MemTotal").or_else(|| machine.mem_total.clone().ok())?;
        let available = value("MemAvailable").or_else(|| machine.mem_available.clone().ok())?;
        Some(MachineMemory { total, available })
    }

    pub(super) fn available_share(&self) -> f64 {
        self.available.fraction_of(self.total).unwrap_or(1.0)
    }

    pub(super) fn is_short(&self) -> bool {
        self.available_share() < LITTLE_AVAILABLE
    }
}

/// Returns the largest other process, if it holds a large part of the machine's memory and more
/// than the diagnosed process.
pub(super) fn large_other<'a>(
    evidence: &CauseEvidence<'a>,
    memory: &MachineMemory,
) -> Option<&'a OtherProcess> {
    let own = evidence.resident()?;
    let largest = evidence.all.others.iter().max_by_key(|other| other.resident)?;
    let share = largest.resident.fraction_of(memory.total)?;
    (largest.resident > own && share >= LARGE_OTHER).then_some(largest)
}

pub(super) fn bytes(bytes: Bytes) -> CellValue {
    CellValue::Bytes(bytes.0)
}

pub(super) fn bytes_fact(key: &'static str, label: &'static str, size: Bytes) -> Fact {
    fact(key, label, bytes(size), "")
}

pub(super) fn rate_fact(key: &'static str, label: &'static str, rate: f64) -> Fact {
    fact(key, label, CellValue::Rate(rate), "")
}

/// Creates a fact with a rate; `None` if the rate is unknown.
pub(super) fn known_rate_fact(
    key: &'static str,
    label: &'static str,
    rate: Option<f64>,
) -> Option<Fact> {
    rate.map(|rate| rate_fact(key, label, rate))
}

pub(super) fn count_fact(key: &'static str, label: &'static str, count: u64) -> Fact {
    fact(key, label, CellValue::Count(count), "")
}

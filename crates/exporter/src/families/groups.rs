//! Metrics of groups of processes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Add;
use std::sync::Arc;

use pagewise_model::sweep::{BytesByPageKind, PagesReading, Sweep, SweepProcess};
use pagewise_model::{Bytes, Reading};

use super::{RowMetric, RowValues, append, counter, empty, gauge, series, values};
use crate::exposition::{LabelSet, MetricFamily, MetricValue};
use crate::groups::{GroupAssignment, GroupName};
use crate::headroom::Headroom;
use crate::limits::SeriesBudget;

/// Name of the group that sums all groups without their own series.
const OTHER: &str = "other";

/// Counters of each exported group since the exporter first found the group.
///
/// A sum over existing processes would decrease when a process ends. Therefore the growth of each
/// process is added to its current group.
#[derive(Debug, Default)]
pub(crate) struct GroupTotals(HashMap<GroupName, GroupCounters>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct GroupCounters {
    minor_faults: u64,
    major_faults: u64,
    cpu_ns: u64,
}

/// The families of all groups.
pub(crate) struct GroupFamilies {
    pub(crate) families: Vec<MetricFamily>,
    /// Number of groups that were merged into the group `other`.
    pub(crate) merged: u64,
}

/// Sums over the processes of a group.
#[derive(Clone, Debug, Default)]
struct GroupSums {
    processes: u64,
    threads: u64,
    virt: Bytes,
    rss: Bytes,
    rss_by_kind: PartialSum<BytesByPageKind>,
    pss: PartialSum<BytesByPageKind>,
    pss_age_ns: u64,
    uss: PartialSum<Bytes>,
    uss_anonymous: PartialSum<Bytes>,
    swap: PartialSum<Bytes>,
    swap_shmem: PartialSum<Bytes>,
    max_rss: Bytes,
    growth: Option<f64>,
    oom_score: Option<u64>,
    oom_score_adj: Option<i64>,
    headroom: Option<u64>,
    oldest_unix_ns: Option<u64>,
    counters: GroupCounters,
}

/// Sum over the processes that have memory and a known value. Zombies have no memory. If their
/// zeros were added, a sum would look known even if the values of all other processes are unknown.
#[derive(Clone, Copy, Debug, Default)]
struct PartialSum<T> {
    /// The sum; `None` if no process has a known value.
    known: Option<T>,
    /// Number of processes that have memory but no known value.
    without: u64,
}

const METRICS: [RowMetric<GroupSums>; 20] = [
    gauge("pagewise_group_processes", "", "Number of processes.", |it, out| {
        out.one(Some(it.processes));
    }),
    gauge("pagewise_group_threads", "", "Number of threads.", |it, out| out.one(Some(it.threads))),
    gauge(
        "pagewise_group_pss_bytes",
        "bytes",
        "Proportional share of the resident pages, by kind of page.",
        |it, out| kinds(out, it.pss.known),
    ),
    gauge(
        "pagewise_group_processes_without_pss",
        "",
        "Number of processes whose PSS and USS are not in the sums, because they could not be read.",
        |it, out| out.one(Some(it.pss.without)),
    ),
    gauge(
        "pagewise_group_processes_without_value",
        "",
        "Number of processes that are not in a sum, because their value is not known.",
        |it, out| {
            let mut lacking = |value, without: u64| {
                out.each("value", value, Some(without).filter(|it| *it > 0));
            };
            lacking("rss", it.rss_by_kind.without);
            lacking("uss", it.uss.without);
            lacking("uss_anonymous", it.uss_anonymous.without);
            lacking("swap_anonymous", it.swap.without);
            lacking("swap_shmem", it.swap_shmem.without);
        },
    ),
    gauge(
        "pagewise_group_pss_age_seconds",
        "seconds",
        "Age of the oldest PSS in the sum that was not read again because of the budget.",
        |it, out| out.one(it.pss.known.map(|_| MetricValue::seconds(it.pss_age_ns))),
    ),
    gauge(
        "pagewise_group_uss_bytes",
        "bytes",
        "Resident bytes that a single process maps.",
        |it, out| bytes(out, it.uss.known),
    ),
    gauge(
        "pagewise_group_uss_anonymous_bytes",
        "bytes",
        "Anonymous part of the USS.",
        |it, out| bytes(out, it.uss_anonymous.known),
    ),
    gauge(
        "pagewise_group_rss_bytes",
        "bytes",
        "Resident bytes by kind of page. Pages that processes share count once for each process.",
        |it, out| kinds(out, it.rss_by_kind.known),
    ),
    gauge(
        "pagewise_group_max_process_rss_bytes",
        "bytes",
        "Resident bytes of the largest process.",
        |it, out| bytes(out, Some(it.max_rss)),
    ),
    gauge(
        "pagewise_group_swap_bytes",
        "bytes",
        "Bytes in swap, by kind of page. Shared memory counts once for each process that maps it.",
        |it, out| {
            out.each("kind", "anonymous", it.swap.known.map(|it| it.0));
            out.each("kind", "shmem", it.swap_shmem.known.map(|it| it.0));
        },
    ),
    gauge("pagewise_group_virtual_bytes", "bytes", "Size of the address spaces.", |it, out| {
        bytes(out, Some(it.virt))
    }),
    gauge(
        "pagewise_group_growth_bytes_per_second",
        "bytes_per_second",
        "Growth of the RSS of the processes that the last two sweeps have in common.",
        |it, out| out.one(it.growth),
    ),
    gauge(
        "pagewise_group_limit_headroom_bytes",
        "bytes",
        "Bytes until the nearest memory limit of a cgroup of a process; +Inf without a limit.",
        |it, out| headroom(out, it.headroom),
    ),
    gauge(
        "pagewise_group_oom_score",
        "",
        "Highest oom_score of a process: the kernel kills the process with the highest one first.",
        |it, out| out.one(it.oom_score),
    ),
    gauge(
        "pagewise_group_oom_score_adj",
        "",
        "Highest oom_score_adj of a process, from -1000 to 1000.",
        |it, out| out.one(it.oom_score_adj.map(signed)),
    ),
    gauge(
        "pagewise_group_oldest_start_timestamp_seconds",
        "seconds",
        "Start of the oldest process, in seconds since 1970.",
        |it, out| out.one(it.oldest_unix_ns.map(MetricValue::seconds)),
    ),
    counter("pagewise_group_minor_faults", "", "Minor page faults.", |it, out| {
        out.one(Some(it.counters.minor_faults));
    }),
    counter("pagewise_group_major_faults", "", "Major page faults.", |it, out| {
        out.one(Some(it.counters.major_faults));
    }),
    counter("pagewise_group_cpu_seconds", "seconds", "CPU time.", |it, out| {
        out.one(Some(MetricValue::seconds(it.counters.cpu_ns)));
    }),
];

fn bytes(out: &mut RowValues, value: Option<Bytes>) {
    out.one(value.map(|it| it.0));
}

fn kinds(out: &mut RowValues, value: Option<BytesByPageKind>) {
    out.each("kind", "anonymous", value.map(|it| it.anonymous.0));
    out.each("kind", "file", value.map(|it| it.file.0));
    out.each("kind", "shmem", value.map(|it| it.shmem.0));
}

/// Adds a headroom; `u64::MAX` represents an unlimited one, which is exported as infinity.
pub(super) fn headroom(out: &mut RowValues, value: Option<u64>) {
    out.one(value.map(|it| match it {
        u64::MAX => MetricValue::Real(f64::INFINITY),
        limited => MetricValue::Whole(limited),
    }));
}

#[expect(clippy::cast_precision_loss, reason = "from -1000 to 1000")]
fn signed(value: i64) -> f64 {
    value as f64
}

/// Computes the families of the groups of a sweep. The largest groups get series first.
pub(crate) fn group_families(
    sweep: &Sweep,
    previous: Option<&Sweep>,
    assignment: &GroupAssignment,
    totals: &mut GroupTotals,
    max_groups: usize,
    budget: &mut SeriesBudget,
) -> GroupFamilies {
    let headroom = Headroom::of(sweep);
    let mut members: HashMap<GroupName, Vec<&SweepProcess>> = HashMap::new();
    for process in &sweep.processes {
        if let Some(group) = assignment.group(process.key) {
            members.entry(group.clone()).or_default().push(process);
        }
    }
    let mut ranked: Vec<(GroupName, Vec<&SweepProcess>)> = members.into_iter().collect();
    ranked.sort_by_cached_key(|(name, members)| (Reverse(size(members)), name.clone()));

    let mut exported = Vec::new();
    let mut others: Vec<&SweepProcess> = Vec::new();
    let mut merged = 0;
    // Series are reserved for the group `other`.
    let mut room = SeriesBudget::new(budget.left().saturating_sub(MAX_ROW_SERIES));
    for (name, members) in ranked {
        let sums = GroupSums::of(&members, sweep, previous, &headroom);
        let count = series(&values(&METRICS, &sums));
        if &*name != OTHER && room.take(count, exported.len() < max_groups) {
            exported.push((name, members, sums));
        } else {
            merged += u64::from(&*name != OTHER);
            others.extend(members);
        }
    }
    if !others.is_empty() {
        let sums = GroupSums::of(&others, sweep, previous, &headroom);
        exported.push((OTHER.into(), others, sums));
    }
    budget.dropped += room.dropped;

    let mut next = HashMap::with_capacity(exported.len());
    let mut families = empty(&METRICS);
    for (name, members, mut sums) in exported {
        sums.counters = totals.0.get(&name).copied().unwrap_or_default();
        members.iter().for_each(|process| sums.counters.add(process, previous));
        next.insert(name.clone(), sums.counters);
        let labels = Arc::new(LabelSet::new().with("groupname", name.as_bytes()));
        let values = values(&METRICS, &sums);
        budget.take(series(&values), true);
        append(&mut families, &labels, values);
    }
    // Totals of groups without processes are removed, so that the memory of the exporter is
    // limited.
    totals.0 = next;
    GroupFamilies { families, merged }
}

/// Maximum number of series of one group.
const MAX_ROW_SERIES: usize = METRICS.len() + 9;

/// Bytes by which groups are ranked.
fn size(members: &[&SweepProcess]) -> u64 {
    let size = |it: &&SweepProcess| {
        let resident = it.pss_total().unwrap_or(it.rss).0;
        resident.saturating_add(it.swap.as_ref().map_or(0, |it| it.0))
    };
    members.iter().map(size).fold(0, u64::saturating_add)
}

impl GroupCounters {
    /// Adds the growth of a process's counters since the previous sweep; for a new process, since
    /// its start.
    fn add(&mut self, process: &SweepProcess, previous: Option<&Sweep>) {
        let before = previous.and_then(|it| it.process(process.key));
        let add = |sum: &mut u64, of: fn(&SweepProcess) -> u64| {
            *sum = sum.saturating_add(of(process).saturating_sub(before.map_or(0, of)));
        };
        add(&mut self.minor_faults, |it| it.minor_faults);
        add(&mut self.major_faults, |it| it.major_faults);
        add(&mut self.cpu_ns, |it| it.cpu_ns);
    }
}

impl<T: Copy> PartialSum<T> {
    fn add(&mut self, value: &Reading<T>, plus: fn(T, T) -> T) {
        match value {
            Ok(value) => self.known = Some(self.known.map_or(*value, |sum| plus(sum, *value))),
            Err(_) => self.without += 1,
        }
    }
}

impl GroupSums {
    fn of(
        members: &[&SweepProcess],
        sweep: &Sweep,
        previous: Option<&Sweep>,
        headroom: &Headroom<'_>,
    ) -> GroupSums {
        let mut sums = GroupSums::default();
        for process in members {
            sums.add(process, sweep);
            let before = previous.and_then(|it| it.process(process.key));
            let per_second = before.and_then(|before| growth(before, process, previous, sweep));
            sums.growth = match (sums.growth, per_second) {
                (None, added) | (added, None) => added,
                (Some(sum), Some(added)) => Some(sum + added),
            };
            let left = process.identity.cgroup.as_ref().ok().and_then(|it| headroom.at(it));
            sums.headroom = least(sums.headroom, left);
        }
        sums
    }

    fn add(&mut self, process: &SweepProcess, sweep: &Sweep) {
        self.processes += 1;
        self.threads += process.threads;
        self.virt += process.virt;
        self.rss += process.rss;
        self.max_rss = self.max_rss.max(process.rss);
        if !process.has_lost_memory() {
            self.add_memory(process);
        }
        if let PagesReading::Postponed(read_ns) = process.pages {
            self.pss_age_ns = self.pss_age_ns.max(sweep.time.boot_ns.saturating_sub(read_ns));
        }
        self.oom_score = self.oom_score.max(process.oom_score.as_ref().ok().copied());
        self.oom_score_adj = self.oom_score_adj.max(process.oom_score_adj.as_ref().ok().copied());
        let started = process.identity.started_unix_ns;
        self.oldest_unix_ns = least(self.oldest_unix_ns, Some(started));
    }

    fn add_memory(&mut self, process: &SweepProcess) {
        self.rss_by_kind.add(&process.rss_by_kind, add_kinds);
        self.pss.add(&process.pss, add_kinds);
        self.uss.add(&process.uss, Bytes::add);
        self.uss_anonymous.add(&process.uss_anonymous, Bytes::add);
        self.swap.add(&process.swap, Bytes::add);
        self.swap_shmem.add(&process.swap_shmem, Bytes::add);
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes below 2^53 bytes, rates of few digits")]
fn growth(
    before: &SweepProcess,
    after: &SweepProcess,
    previous: Option<&Sweep>,
    sweep: &Sweep,
) -> Option<f64> {
    let passed = sweep.time.boot_ns.checked_sub(previous?.time.boot_ns).filter(|it| *it > 0)?;
    Some((after.rss.0 as f64 - before.rss.0 as f64) * 1e9 / passed as f64)
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn add_kinds(a: BytesByPageKind, b: BytesByPageKind) -> BytesByPageKind {
    BytesByPageKind {
        anonymous: a.anonymous + b.anonymous,
        file: a.file + b.file,
        shmem: a.shmem + b.shmem,
    }
}

/// The families of groups, without series.
pub(super) fn catalogue() -> Vec<MetricFamily> {
    empty(&METRICS)
}

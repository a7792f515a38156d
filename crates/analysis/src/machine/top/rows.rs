//! Rows of processes, of groups of processes, and of cgroups.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::{ProcessDelta, ProcessKey, Sweep, SweepCgroup, SweepProcess};
use pagewise_model::top::{TopGrouping, TopKey, TopQuery, TopRow};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};

use super::history::{MemorySeries, TopHistory};
use super::members::{group, is_inside, user};
use crate::cells::float;

/// Maximum number of values in a trend: more would not fit into the widest column.
const TREND: usize = 30;

/// Returns a row for each process.
pub(super) fn of_processes(
    history: &TopHistory,
    sweep: &Sweep,
    members: &[&SweepProcess],
) -> Vec<TopRow> {
    let ranks = oom_ranks(&sweep.processes);
    members.iter().map(|process| of_process(history, sweep, process, &ranks)).collect()
}

fn of_process(
    history: &TopHistory,
    sweep: &Sweep,
    process: &SweepProcess,
    ranks: &HashMap<ProcessKey, u64>,
) -> TopRow {
    let series = history.process(process.key);
    let memory = series.map(|series| &series.memory);
    let delta = delta_of(history, process.key);
    let pressure = process.identity.cgroup.clone().and_then(|path| {
        let cgroup = sweep.cgroup(&path).ok_or(Absent::Vanished)?;
        cgroup.pressure.clone().map(|it| share_of(&it))
    });
    let score = process.oom_score.clone();
    TopRow {
        key: TopKey::Process(process.key),
        branches: Vec::new(),
        name: series.map(|it| it.shown.name.clone()).unwrap_or_default(),
        arguments: series.map(|it| it.shown.arguments.clone()).unwrap_or_default(),
        user: user(&process.identity),
        processes: 1,
        pss: process.pss_total(),
        uss: process.uss.clone(),
        outdated_ns: process.outdated_ns(sweep.time.boot_ns),
        rss: Ok(process.rss),
        swap: process.swap.clone(),
        current: Err(not_a_cgroup()),
        limit: Err(not_a_cgroup()),
        growth: memory.map_or_else(|| Err(no_delta()), |memory| history.growth(memory)),
        trend: memory.map(|memory| memory.last(TREND)).unwrap_or_default(),
        minor: delta.clone().map(|it| it.minor_faults_per_second),
        major: delta.map(|it| it.major_faults_per_second),
        pressure,
        oom_rank: score.and_then(|_| {
            let exempt = || Absent::NotSupported("the kernel never kills this process".into());
            ranks.get(&process.key).copied().ok_or_else(exempt)
        }),
    }
}

fn delta_of(history: &TopHistory, key: ProcessKey) -> Reading<&ProcessDelta> {
    history.delta().and_then(|delta| delta.process(key)).ok_or_else(no_delta)
}

fn no_delta() -> Absent {
    Absent::NotCollected("rates need two samples".into())
}

fn not_a_cgroup() -> Absent {
    Absent::NotSupported("a process has no charge of its own".into())
}

/// Share of the last ten seconds in which at least one task waited.
fn share_of(pressure: &PressureFigures) -> f64 {
    float(pressure.avg10.some) / 10_000.0
}

/// Returns the positions of processes in the order of the kernel's badness. The first process of
/// the machine and processes with `oom_score_adj` -1000 have no position.
fn oom_ranks(processes: &[SweepProcess]) -> HashMap<ProcessKey, u64> {
    let mut scored: Vec<(u64, Bytes, ProcessKey)> = processes
        .iter()
        .filter(|it| !it.is_zombie() && it.key.pid != Pid(1) && it.oom_score_adj != Ok(-1000))
        .filter_map(|it| Some((*it.oom_score.as_ref().ok()?, it.rss, it.key)))
        .collect();
    scored.sort_unstable_by_key(|&(score, rss, key)| (Reverse(score), Reverse(rss), key));
    scored.into_iter().zip(1..).map(|((_, _, key), rank)| (key, rank)).collect()
}

/// Returns a row for each group of processes.
pub(super) fn of_groups(
    history: &TopHistory,
    sweep: &Sweep,
    members: &[&SweepProcess],
    grouping: TopGrouping,
) -> Vec<TopRow> {
    let mut groups: HashMap<Name, GroupSums> = HashMap::new();
    let ranks = oom_ranks(&sweep.processes);
    for process in members {
        let sums = groups.entry(group(&process.identity, grouping)).or_default();
        sums.add(history, sweep, process, &ranks);
    }
    for series in history.processes() {
        if let Some(sums) = groups.get_mut(&group(&series.identity, grouping)) {
            sums.memory.add(&series.memory);
        }
    }
    groups.into_iter().map(|(name, sums)| sums.row(history, name)).collect()
}

/// Sums over the processes of a group; unknown values are not included.
#[derive(Default)]
struct GroupSums {
    processes: u64,
    pss: KnownSum,
    uss: KnownSum,
    outdated_ns: Option<u64>,
    rss: Bytes,
    swap: KnownSum,
    minor: Option<f64>,
    major: Option<f64>,
    /// Rank of the process of the group that the kernel would kill first.
    oom_rank: Option<u64>,
    memory: MemorySeries,
}

impl GroupSums {
    fn add(
        &mut self,
        history: &TopHistory,
        sweep: &Sweep,
        process: &SweepProcess,
        ranks: &HashMap<ProcessKey, u64>,
    ) {
        self.processes += 1;
        let rank = ranks.get(&process.key).copied();
        self.oom_rank = self.oom_rank.into_iter().chain(rank).min();
        self.pss.add(process.pss_total());
        self.uss.add(process.uss.clone());
        self.outdated_ns = self.outdated_ns.max(process.outdated_ns(sweep.time.boot_ns));
        self.rss += process.rss;
        self.swap.add(process.swap.clone());
        if let Ok(delta) = delta_of(history, process.key) {
            *self.minor.get_or_insert(0.0) += delta.minor_faults_per_second;
            *self.major.get_or_insert(0.0) += delta.major_faults_per_second;
        }
    }

    fn row(self, history: &TopHistory, name: Name) -> TopRow {
        TopRow {
            key: TopKey::Group(name.clone()),
            branches: Vec::new(),
            name,
            arguments: Name::default(),
            user: Name::default(),
            processes: self.processes,
            pss: self.pss.reading(),
            uss: self.uss.reading(),
            outdated_ns: self.outdated_ns,
            rss: Ok(self.rss),
            swap: self.swap.reading(),
            current: Err(not_a_cgroup()),
            limit: Err(not_a_cgroup()),
            growth: history.growth(&self.memory),
            trend: self.memory.last(TREND),
            minor: self.minor.ok_or_else(no_delta),
            major: self.major.ok_or_else(no_delta),
            pressure: Err(Absent::NotSupported("a group is not one process".into())),
            oom_rank: self.oom_rank.ok_or_else(|| {
                Absent::NotSupported("the kernel kills none of these processes".into())
            }),
        }
    }
}

/// Sum of the known readings; absent if all readings are unknown.
#[derive(Default)]
struct KnownSum {
    bytes: Option<Bytes>,
    why: Option<Absent>,
}

impl KnownSum {
    fn add(&mut self, reading: Reading<Bytes>) {
        match reading {
            Ok(bytes) => *self.bytes.get_or_insert(Bytes::ZERO) += bytes,
            Err(why) => self.why = Some(why),
        }
    }

    fn reading(self) -> Reading<Bytes> {
        self.bytes.ok_or_else(|| {
            self.why.unwrap_or_else(|| Absent::NotSupported("no process is in it".into()))
        })
    }
}

/// Returns a row for each memory cgroup, and the reason if the sweep has no cgroups.
pub(super) fn of_cgroups(
    history: &TopHistory,
    sweep: &Sweep,
    query: &TopQuery,
) -> (Vec<TopRow>, Option<Absent>) {
    let cgroups = match &sweep.cgroups {
        Ok(cgroups) => cgroups,
        Err(why) => return (Vec::new(), Some(why.clone())),
    };
    let mut members = members_by_cgroup(history, sweep);
    let is_wanted =
        |it: &&SweepCgroup| query.cgroup.as_ref().is_none_or(|cgroup| is_inside(&it.path, cgroup));
    let rows = cgroups.iter().filter(is_wanted).map(|cgroup| {
        let sums = members.remove(cgroup.path.as_bytes()).unwrap_or_default();
        of_cgroup(history, cgroup, sums)
    });
    (rows.collect(), None)
}

/// Sums over the processes of each cgroup, including the cgroups below it.
fn members_by_cgroup<'s>(history: &TopHistory, sweep: &'s Sweep) -> HashMap<&'s [u8], GroupSums> {
    let mut members: HashMap<&[u8], GroupSums> = HashMap::new();
    let ranks = oom_ranks(&sweep.processes);
    for process in &sweep.processes {
        let Ok(path) = &process.identity.cgroup else { continue };
        let mut folder = path.as_bytes();
        loop {
            members.entry(folder).or_default().add(history, sweep, process, &ranks);
            match folder.iter().rposition(|&b| b == b'/') {
                Some(0) if folder.len() > 1 => folder = b"/",
                Some(at) if at > 0 => folder = &folder[..at],
                _ => break,
            }
        }
    }
    members
}

fn of_cgroup(history: &TopHistory, cgroup: &SweepCgroup, sums: GroupSums) -> TopRow {
    let series = history.cgroup(&cgroup.path);
    let swap = cgroup.swap.clone();
    TopRow {
        key: TopKey::Cgroup(cgroup.path.clone()),
        name: cgroup.path.clone(),
        current: cgroup.current.clone(),
        limit: cgroup.limit.clone(),
        swap,
        growth: series.map_or_else(|| Err(no_delta()), |series| history.growth(series)),
        trend: series.map(|series| series.last(TREND)).unwrap_or_default(),
        pressure: cgroup.pressure.clone().map(|it| share_of(&it)),
        ..sums.row(history, cgroup.path.clone())
    }
}

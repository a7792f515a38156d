//! All processes at one time of a recording.

use std::cmp::Reverse;

use pagewise_model::report::{
    CellValue, ColumnCells, FactsShape, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::sweep::{
    CategorySample, MachineDelta, ProcessDelta, Sweep, SweepCgroup, SweepDelta, SweepEvent,
    SweepEventKind, SweepProcess,
};
use pagewise_model::{Absent, Bytes, Name, Reading};

use super::{
    RecordOptions, account, events, line, list_table, named, per_minute, pids, share_of, user,
    values, weight,
};
use crate::blocks::{facts_of, for_people, for_programs};
use crate::cells::text;
use crate::explain::fact;
use crate::pools::PoolKind;

/// Values of a recording at one time.
#[derive(Clone, Debug)]
pub struct RecordedMoment<'a> {
    /// The requested time, in nanoseconds since 1970.
    pub asked_ns: u64,
    /// The last sweep at that time or before.
    pub sweep: &'a Sweep,
    /// An earlier sweep, from which rates follow.
    pub before: Option<&'a Sweep>,
    /// Events around the time of the sweep.
    pub events: &'a [SweepEvent],
    /// Categories of processes, the latest before the sweep.
    pub categories: &'a [CategorySample],
}

/// The machine, its processes and its cgroups at one time.
pub fn moment(recorded: &RecordedMoment<'_>, options: RecordOptions) -> Report {
    let sweep = recorded.sweep;
    let delta = recorded.before.map(|before| SweepDelta::between(before, sweep));
    let mut blocks = vec![header(recorded, options), machine(sweep, delta.as_ref())];
    blocks.extend(account::owners(sweep).into_iter().flatten().map(ReportBlock::Table));
    blocks.push(ReportBlock::Table(processes(sweep, delta.as_ref(), options)));
    blocks.extend(categories(recorded, options).map(ReportBlock::Table));
    if let Ok(cgroups) = &sweep.cgroups {
        blocks.push(ReportBlock::Table(cgroup_table(cgroups, delta.as_ref(), options)));
    }
    let is_shown = |it: &&SweepEvent| !matches!(it.event, SweepEventKind::ShortLived { .. });
    let all: Vec<&SweepEvent> = recorded.events.iter().filter(is_shown).collect();
    if !all.is_empty() {
        blocks.push(ReportBlock::Table(events::table("Events around this time", &all, options)));
    }
    Report {
        schema: "pagewise.replay/1",
        title: vec![text("Recorded processes at "), options.time(sweep.time.unix_ns)],
        blocks,
    }
}

fn header(recorded: &RecordedMoment<'_>, options: RecordOptions) -> ReportBlock {
    let sweep = recorded.sweep;
    let earlier = recorded.asked_ns.saturating_sub(sweep.time.unix_ns);
    let count = |number: usize| CellValue::Count(number as u64);
    let mut facts: Vec<_> = options.time_facts("time", "recorded at", sweep.time).into();
    facts.extend([
        fact("earlier_ns", "earlier than asked", CellValue::Nanos(earlier), "")
            .hidden_if(earlier < 60_000_000_000),
        fact("processes", "processes", count(sweep.processes.len()), ""),
        fact("kernel_threads", "kernel threads", CellValue::Count(sweep.kernel_threads), "")
            .for_programs(),
        fact("cgroups", "cgroups", count(sweep.cgroups.as_ref().map_or(0, Vec::len)), ""),
        fact("sweep_cpu_ns", "CPU time of the sweep", CellValue::Nanos(sweep.cost.cpu_ns), ""),
    ]);
    line("moment", "", facts)
}

fn machine(sweep: &Sweep, delta: Option<&SweepDelta>) -> ReportBlock {
    let machine = &sweep.machine;
    let memory = |name| CellValue::bytes(machine.memory(name));
    let swap_used = (|| Ok(machine.memory("SwapTotal")? - machine.memory("SwapFree")?))();
    let pressure = |full: bool| {
        let pressure = machine.memory_pressure.clone();
        CellValue::from_reading(pressure, |it| {
            let hundredths = if full { it.avg10.full } else { it.avg10.some };
            CellValue::Share(crate::cells::float(hundredths) / 10_000.0)
        })
    };
    let no_rate = || Absent::NotRecorded("a recording without an earlier sweep".into());
    let rate = |names: &[&str]| match delta {
        Some(delta) => rate_of(&delta.machine, names),
        None => CellValue::Absent(no_rate()),
    };
    let facts = vec![
        fact("total", "RAM", memory("MemTotal"), ""),
        fact("available", "available", memory("MemAvailable"), ""),
        fact("free", "free", memory("MemFree"), ""),
        fact("cached", "page cache", memory("Cached"), ""),
        fact("shmem", "tmpfs", memory("Shmem"), ""),
        fact("slab", "slab", memory("Slab"), ""),
        fact("swap_used", "swap used", CellValue::bytes(swap_used), ""),
        fact("pressure_some", "memory pressure", pressure(false), ""),
        fact("pressure_full", "full", pressure(true), ""),
        fact("major_faults", "major faults/s", rate(&["pgmajfault"]), ""),
        fact("swap_in", "swap in/s", rate(&["pswpin"]), ""),
        fact("swap_out", "swap out/s", rate(&["pswpout"]), ""),
        fact("reclaim", "scanned/s", rate(&["pgscan_kswapd", "pgscan_direct"]), ""),
    ];
    ReportBlock::Facts(facts_of("machine", "Machine", FactsShape::Columns, facts))
}

fn rate_of(machine: &MachineDelta, names: &[&str]) -> CellValue {
    let rates: Vec<f64> = machine
        .vmstat
        .iter()
        .filter(|it| names.iter().any(|name| name.as_bytes() == it.name.as_bytes()))
        .map(|it| it.per_second)
        .collect();
    match rates.is_empty() {
        true => CellValue::Absent(Absent::NotInThisKernel("".into())),
        false => CellValue::Rate(rates.iter().sum()),
    }
}

/// Index of the age of PSS and USS among the columns of a process.
const AFTER_USS: usize = 4;

fn processes(sweep: &Sweep, delta: Option<&SweepDelta>, options: RecordOptions) -> ReportTable {
    let mut all: Vec<&SweepProcess> = sweep.processes.iter().collect();
    all.sort_by_key(|it| (Reverse(weight(it)), it.key));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let each = || all.iter().copied();
    let change = |it: &SweepProcess| delta.and_then(|delta| delta.process(it.key));
    let rate = |it: &SweepProcess, pick: fn(&ProcessDelta) -> CellValue| {
        change(it).map_or(CellValue::None, pick)
    };
    let bytes = |key, label, pick: &dyn Fn(&SweepProcess) -> Reading<Bytes>| {
        TableColumn::bytes(key, label, each().map(pick))
    };
    let mut columns = vec![
        pids(each().map(|it| it.key.pid)),
        values("user", "USER", each().map(|it| user(&it.identity))),
        bytes("pss", "PSS", &SweepProcess::pss_total),
        bytes("uss", "USS", &|it| it.uss.clone()),
        bytes("rss", "RSS", &|it| Ok(it.rss)),
        bytes("peak_rss", "PEAK", &|it| it.peak_rss.clone()),
        bytes("swap", "SWAP", &|it| it.swap.clone()),
        values(
            "rss_per_minute",
            "RSS/MIN",
            each().map(|it| rate(it, |it| per_minute(Ok(it.rss_per_minute)))),
        ),
        values(
            "minor_faults_per_second",
            "MINFLT/S",
            each().map(|it| rate(it, |it| CellValue::Rate(it.minor_faults_per_second))),
        ),
        values(
            "major_faults_per_second",
            "MAJFLT/S",
            each().map(|it| rate(it, |it| CellValue::Rate(it.major_faults_per_second))),
        ),
        values("cpu", "CPU", each().map(|it| rate(it, |it| CellValue::Share(it.cpu)))),
        values(
            "oom_score",
            "OOM",
            each().map(|it| CellValue::from_reading(it.oom_score.clone(), CellValue::Count)),
        ),
        for_programs(bytes("pss_anonymous", "", &|it| it.pss.clone().map(|it| it.anonymous))),
        for_programs(bytes("pss_file", "", &|it| it.pss.clone().map(|it| it.file))),
        for_programs(bytes("pss_shmem", "", &|it| it.pss.clone().map(|it| it.shmem))),
        for_programs(bytes("uss_anonymous", "", &|it| it.uss_anonymous.clone())),
        for_programs(values("threads", "", each().map(|it| CellValue::Count(it.threads)))),
        for_programs(values(
            "cgroup",
            "",
            each().map(|it| CellValue::from_reading(it.identity.cgroup.clone(), CellValue::Name)),
        )),
    ];
    let outdated_ns = |it: &SweepProcess| it.outdated_ns(sweep.time.boot_ns);
    let ages = values(
        "outdated_ns",
        "PSS AGE",
        each().map(|it| outdated_ns(it).map_or(CellValue::None, CellValue::Nanos)),
    );
    let has_outdated = each().any(|it| outdated_ns(it).is_some());
    columns.insert(AFTER_USS, if has_outdated { ages } else { for_programs(ages) });
    columns.extend(named(each().map(|it| &*it.identity)));
    list_table("processes", "Processes", columns, note)
}

/// Columns of categories for people: the label, and the size.
const SHOWN_CATEGORIES: [(&str, &str); 2] = [("LARGEST CATEGORY", "RSS"), ("SECOND", "RSS")];

/// The words for a category; its key if a later version has recorded it.
pub(crate) fn category_label(key: &Name) -> CellValue {
    let kind = PoolKind::ALL.iter().find(|it| it.id().as_bytes() == key.as_bytes());
    kind.map_or(CellValue::Name(key.clone()), |it| text(it.label()))
}

/// Categories of the processes of the sweep, the latest of each.
fn categories(recorded: &RecordedMoment<'_>, options: RecordOptions) -> Option<ReportTable> {
    let mut latest: Vec<(&SweepProcess, &CategorySample)> = Vec::new();
    for sample in recorded.categories {
        if let Some(process) = recorded.sweep.process(sample.process) {
            latest.retain(|(other, _)| other.key != process.key);
            latest.push((process, sample));
        }
    }
    if latest.is_empty() {
        return None;
    }
    latest.sort_by_key(|(process, _)| (Reverse(weight(process)), process.key));
    let (shown, note) = options.shown(latest.len());
    latest.truncate(shown);
    let of = |sample: &CategorySample| {
        let named = sample.categories.iter().map(|it| {
            let label = it.category.escaped().into_owned();
            (label.into(), CellValue::bytes(it.rss.clone()))
        });
        named.collect::<Vec<_>>()
    };
    let all = latest.iter().map(|(_, sample)| CellValue::Record(of(sample)));
    let mut columns = vec![pids(latest.iter().map(|(process, _)| process.key.pid))];
    for (at, (label, size)) in SHOWN_CATEGORIES.into_iter().enumerate() {
        let nth = || latest.iter().map(move |(_, sample)| sample.categories.get(at));
        let labels = nth().map(|it| it.map_or(CellValue::None, |it| category_label(&it.category)));
        let sizes =
            nth().map(|it| it.map_or(CellValue::None, |it| CellValue::bytes(it.rss.clone())));
        columns.push(for_people(values("largest", label, labels)));
        columns.push(for_people(values("largest_rss", size, sizes)));
    }
    columns.push(for_programs(values("categories", "", all)));
    columns.extend(named(latest.iter().map(|(process, _)| &*process.identity)));
    Some(list_table("categories", "Memory by category", columns, note))
}

fn cgroup_table(
    cgroups: &[SweepCgroup],
    delta: Option<&SweepDelta>,
    options: RecordOptions,
) -> ReportTable {
    let mut all: Vec<&SweepCgroup> = cgroups.iter().collect();
    all.sort_by_key(|it| Reverse(it.current.clone().unwrap_or_default()));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let each = || all.iter().copied();
    let growth = |it: &SweepCgroup| {
        let found = delta.and_then(|delta| delta.cgroups.iter().find(|d| d.path == it.path));
        found.map_or(CellValue::None, |it| per_minute(it.current_per_minute.clone()))
    };
    let columns = vec![
        TableColumn::bytes("current", "CHARGED", each().map(|it| it.current.clone())),
        values("limit", "LIMIT", each().map(|it| limit(&it.limit))),
        values("used", "USED", each().map(used)),
        TableColumn::bytes("swap", "SWAP", each().map(|it| it.swap.clone())),
        values("current_per_minute", "PER MIN", each().map(growth)),
        values("limit_hits", "HITS", each().map(|it| count(&it.limit_hits))),
        values("oom_kills", "OOM KILLS", each().map(|it| count(&it.oom_kills))),
        TableColumn::new(
            "path",
            "CGROUP",
            ColumnCells::Names(each().map(|it| it.path.clone()).collect()),
        ),
    ];
    list_table("cgroups", "Memory cgroups", columns, note)
}

pub(super) fn limit(limit: &Reading<Option<Bytes>>) -> CellValue {
    match limit {
        Ok(Some(limit)) => CellValue::Bytes(limit.0),
        Ok(None) => CellValue::None,
        Err(why) => CellValue::Absent(why.clone()),
    }
}

/// The charged memory as a share of the limit.
fn used(cgroup: &SweepCgroup) -> CellValue {
    match (&cgroup.current, &cgroup.limit) {
        (Ok(current), Ok(Some(limit))) => {
            share_of(current.0, limit.0).map_or(CellValue::None, CellValue::Share)
        }
        _ => CellValue::None,
    }
}

pub(super) fn count(count: &Reading<u64>) -> CellValue {
    CellValue::from_reading(count.clone(), CellValue::Count)
}

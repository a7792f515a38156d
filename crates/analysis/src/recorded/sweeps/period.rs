//! A period of a recording: growth, peaks, limits, OOM kills.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pagewise_model::report::{
    Audience, Axis, AxisUnit, CellValue, Chart, ChartLine, ColumnCells, Paragraph, Report,
    ReportBlock, ReportTable, Scale, TableColumn,
};
use pagewise_model::sweep::{
    CategorySample, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepEvent, SweepEventKind,
    SweepProcess, SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Reading};

use super::moment::{count, limit};
use super::{
    RecordOptions, change, events, line, list_table, named, per_minute, pids, share_of, user,
    values, weight,
};
use crate::blocks::for_programs;
use crate::cells::{float, text};
use crate::explain::fact;

/// Maximum number of points of a line in the chart.
const CHART_POINTS: usize = 240;
/// Maximum number of processes that are listed for an OOM kill.
const SUSPECTS: usize = 5;
/// Minimum growth in bytes of a process that is listed as growing.
const MIN_GROWTH: Bytes = Bytes::mib(1);
/// Minimum number of seconds for a growth per minute: most processes allocate more memory in their
/// first seconds than in any later minute.
const MIN_RATE_SECONDS: f64 = 30.0;

/// Sums over the sweeps of a period. Sweeps are added one after the other, so that they need not be
/// in memory at the same time.
#[derive(Debug)]
pub struct PeriodSummary {
    first: Option<SweepTime>,
    last: Option<SweepTime>,
    sweeps: u64,
    cpu_ns: u64,
    longest_hold_ns: u64,
    processes: HashMap<ProcessKey, ProcessHistory>,
    cgroups: BTreeMap<Name, CgroupHistory>,
    machine: Vec<MachineSample>,
    /// Number of sweeps for each point of the chart.
    machine_step: u64,
    least_available: Option<(u64, Bytes)>,
    highest_pressure: Option<(u64, u64)>,
    events: Vec<SweepEvent>,
    suspects: Vec<OomSuspects>,
    /// The largest processes of the previous sweep.
    largest: Vec<OomSuspect>,
    kills: BTreeMap<SweepTime, Vec<usize>>,
}

/// Values of a process over the period.
#[derive(Debug)]
struct ProcessHistory {
    identity: Arc<ProcessIdentity>,
    first: ProcessSample,
    last: ProcessSample,
    peak: (u64, Bytes),
    vm_peak: Reading<Bytes>,
}

#[derive(Clone, Debug)]
struct ProcessSample {
    at_ns: u64,
    boot_ns: u64,
    rss: Bytes,
    pss: Reading<Bytes>,
    /// Time since boot at which `pss` was read.
    pss_boot_ns: u64,
    swap: Reading<Bytes>,
    minor_faults: u64,
    major_faults: u64,
    cpu_ns: u64,
}

#[derive(Debug)]
struct CgroupHistory {
    first: Reading<Bytes>,
    last: Reading<Bytes>,
    peak: Option<(u64, Bytes)>,
    limit: Reading<Option<Bytes>>,
    hits: (Reading<u64>, Reading<u64>),
    kills: (Reading<u64>, Reading<u64>),
}

#[derive(Clone, Copy, Debug)]
struct MachineSample {
    at_ns: u64,
    available: Option<u64>,
    pss: u64,
    swap_used: Option<u64>,
}

/// The largest processes before an OOM kill, and the processes among them that ended with the kill.
#[derive(Debug)]
struct OomSuspects {
    time: SweepTime,
    event: SweepEventKind,
    before: Vec<OomSuspect>,
    ended: Vec<ProcessKey>,
}

#[derive(Clone, Debug)]
struct OomSuspect {
    key: ProcessKey,
    identity: Arc<ProcessIdentity>,
    rss: Bytes,
    swap: Reading<Bytes>,
    oom_score: Reading<u64>,
}

impl ProcessSample {
    fn of(process: &SweepProcess, time: SweepTime) -> ProcessSample {
        ProcessSample {
            at_ns: time.unix_ns,
            boot_ns: time.boot_ns,
            rss: process.rss,
            pss: process.pss_total(),
            pss_boot_ns: match process.pages {
                PagesReading::Postponed(at) => at.min(time.boot_ns),
                PagesReading::Now | PagesReading::Unchanged(_) | PagesReading::Never => {
                    time.boot_ns
                }
            },
            swap: process.swap.clone(),
            minor_faults: process.minor_faults,
            major_faults: process.major_faults,
            cpu_ns: process.cpu_ns,
        }
    }
}

impl PeriodSummary {
    /// Creates a summary without sweeps, with all events of the period. `sweeps` is the approximate
    /// number of sweeps that will be added.
    pub fn new(events: Vec<SweepEvent>, sweeps: u64) -> PeriodSummary {
        let mut kills: BTreeMap<SweepTime, Vec<usize>> = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            if matches!(event.event, SweepEventKind::OomKill { .. }) {
                kills.entry(event.time).or_default().push(at);
            }
        }
        PeriodSummary {
            first: None,
            last: None,
            sweeps: 0,
            cpu_ns: 0,
            longest_hold_ns: 0,
            processes: HashMap::new(),
            cgroups: BTreeMap::new(),
            machine: Vec::new(),
            machine_step: (sweeps / CHART_POINTS as u64).max(1),
            least_available: None,
            highest_pressure: None,
            events,
            suspects: Vec::new(),
            largest: Vec::new(),
            kills,
        }
    }

    /// Adds the next sweep.
    pub fn add(&mut self, sweep: &Sweep) {
        self.first.get_or_insert(sweep.time);
        self.last = Some(sweep.time);
        self.cpu_ns += sweep.cost.cpu_ns;
        self.longest_hold_ns = self.longest_hold_ns.max(sweep.cost.longest_hold_ns);
        for process in &sweep.processes {
            self.add_process(process, sweep.time);
        }
        self.add_cgroups(sweep);
        self.add_machine(sweep);
        self.add_kills(sweep);
        self.sweeps += 1;
    }

    /// Adds gaps that were found while the recording was read.
    pub fn add_gaps(&mut self, gaps: &[SweepEvent]) {
        self.events.extend_from_slice(gaps);
        self.events.sort_by_key(|it| it.time);
    }

    fn add_process(&mut self, process: &SweepProcess, time: SweepTime) {
        // The memory of an ending process is already freed, so its last values are those of the
        // previous sweep.
        if process.has_lost_memory() && self.processes.contains_key(&process.key) {
            return;
        }
        let sample = ProcessSample::of(process, time);
        match self.processes.get_mut(&process.key) {
            Some(history) => {
                history.last = sample;
                history.vm_peak = process.peak_rss.clone();
                if process.rss > history.peak.1 {
                    history.peak = (time.unix_ns, process.rss);
                }
                if !Arc::ptr_eq(&history.identity, &process.identity) {
                    history.identity = Arc::clone(&process.identity);
                }
            }
            None => {
                let history = ProcessHistory {
                    identity: Arc::clone(&process.identity),
                    first: sample.clone(),
                    last: sample,
                    peak: (time.unix_ns, process.rss),
                    vm_peak: process.peak_rss.clone(),
                };
                self.processes.insert(process.key, history);
            }
        }
    }

    fn add_cgroups(&mut self, sweep: &Sweep) {
        for cgroup in sweep.cgroups.iter().flatten() {
            let history =
                self.cgroups.entry(cgroup.path.clone()).or_insert_with(|| CgroupHistory {
                    first: cgroup.current.clone(),
                    last: cgroup.current.clone(),
                    peak: None,
                    limit: cgroup.limit.clone(),
                    hits: (cgroup.limit_hits.clone(), cgroup.limit_hits.clone()),
                    kills: (cgroup.oom_kills.clone(), cgroup.oom_kills.clone()),
                });
            history.last = cgroup.current.clone();
            history.limit = cgroup.limit.clone();
            history.hits.1 = cgroup.limit_hits.clone();
            history.kills.1 = cgroup.oom_kills.clone();
            if let Ok(current) = cgroup.current
                && history.peak.is_none_or(|(_, peak)| current > peak)
            {
                history.peak = Some((sweep.time.unix_ns, current));
            }
        }
    }

    fn add_machine(&mut self, sweep: &Sweep) {
        let machine = &sweep.machine;
        let at_ns = sweep.time.unix_ns;
        let available = machine.memory("MemAvailable").ok();
        if let Some(available) = available
            && self.least_available.is_none_or(|(_, least)| available < least)
        {
            self.least_available = Some((at_ns, available));
        }
        if let Ok(pressure) = &machine.memory_pressure
            && self.highest_pressure.is_none_or(|(_, most)| pressure.avg10.some > most)
        {
            self.highest_pressure = Some((at_ns, pressure.avg10.some));
        }
        if self.sweeps.is_multiple_of(self.machine_step) {
            let pss: Bytes = sweep.processes.iter().map(weight).sum();
            let swap = (|| Ok(machine.memory("SwapTotal")? - machine.memory("SwapFree")?))();
            let swap: Reading<Bytes> = swap;
            self.machine.push(MachineSample {
                at_ns,
                available: available.map(|it| it.0),
                pss: pss.0,
                swap_used: swap.ok().map(|it| it.0),
            });
        }
    }

    fn add_kills(&mut self, sweep: &Sweep) {
        if let Some(kills) = self.kills.get(&sweep.time) {
            let ended = self.events.iter().filter(|it| it.time == sweep.time);
            let ended: Vec<ProcessKey> = ended
                .filter_map(|it| match it.event {
                    SweepEventKind::Exited { process, .. } => Some(process),
                    _ => None,
                })
                .collect();
            for at in kills {
                self.suspects.push(OomSuspects {
                    time: sweep.time,
                    event: self.events[*at].event.clone(),
                    before: self.largest.clone(),
                    ended: ended.clone(),
                });
            }
        }
        if !self.kills.is_empty() {
            self.largest = largest(sweep);
        }
    }
}

fn largest(sweep: &Sweep) -> Vec<OomSuspect> {
    let mut all: Vec<&SweepProcess> = sweep.processes.iter().collect();
    let size = |it: &SweepProcess| it.rss + it.swap.clone().unwrap_or_default();
    all.sort_by_key(|it| Reverse(size(it)));
    all.truncate(SUSPECTS);
    let suspect = |it: &SweepProcess| OomSuspect {
        key: it.key,
        identity: Arc::clone(&it.identity),
        rss: it.rss,
        swap: it.swap.clone(),
        oom_score: it.oom_score.clone(),
    };
    all.into_iter().map(suspect).collect()
}

/// Reports a period. `categories` are the samples of its processes, in the order of their times.
pub fn period(
    summary: &PeriodSummary,
    categories: &[CategorySample],
    saved: &[(SweepTime, String, Name)],
    options: RecordOptions,
) -> Report {
    let mut blocks = vec![header(summary, options)];
    blocks.extend(chart(summary, options).map(ReportBlock::Chart));
    blocks.push(ReportBlock::Table(growing(summary, categories, options)));
    blocks.push(ReportBlock::Table(peaks(summary, options)));
    if !summary.cgroups.is_empty() {
        blocks.push(ReportBlock::Table(cgroup_table(summary, options)));
    }
    blocks.extend(post_mortem(summary, options).map(ReportBlock::Table));
    blocks.extend(kernel_reports(summary, options).map(ReportBlock::Text));
    let notable: Vec<&SweepEvent> =
        summary.events.iter().filter(|it| events::is_notable(&it.event)).collect();
    let mut listed = events::table("Events", &notable, options);
    if notable.is_empty() {
        let others = summary.events.len();
        listed.note = format!(
            "No OOM kill, reached limit, gap or trigger. Starts and ends of processes are left \
             out ({others})."
        )
        .into();
    }
    blocks.push(ReportBlock::Table(listed));
    if !saved.is_empty() {
        blocks.push(ReportBlock::Table(saved_table(saved, options)));
    }
    Report {
        schema: "pagewise.record-report/1",
        title: vec![text("Memory of the machine over time")],
        blocks,
    }
}

fn header(summary: &PeriodSummary, options: RecordOptions) -> ReportBlock {
    let mut facts = Vec::new();
    if let (Some(first), Some(last)) = (summary.first, summary.last) {
        facts.extend(options.time_facts("from", "from", first));
        facts.extend(options.time_facts("to", "to", last));
    }
    let count = |event: fn(&SweepEventKind) -> u64| {
        CellValue::Count(summary.events.iter().map(|it| event(&it.event)).sum())
    };
    facts.extend([
        fact("sweeps", "sweeps", CellValue::Count(summary.sweeps), ""),
        fact("processes", "processes", CellValue::Count(summary.processes.len() as u64), ""),
        fact(
            "short_lived",
            "short processes and threads",
            count(|it| match it {
                SweepEventKind::ShortLived { count } => *count,
                _ => 0,
            }),
            "",
        ),
        fact(
            "oom_kills",
            "OOM kills",
            count(|it| match it {
                SweepEventKind::OomKill { kills, .. } => *kills,
                _ => 0,
            }),
            "",
        ),
        fact("gaps", "gaps", count(|it| u64::from(matches!(it, SweepEventKind::Gap { .. }))), ""),
        fact("cpu_ns", "CPU time of the sweeps", CellValue::Nanos(summary.cpu_ns), ""),
        fact("longest_hold_ns", "", CellValue::Nanos(summary.longest_hold_ns), "").for_programs(),
    ]);
    if let Some((at, least)) = summary.least_available {
        facts.push(fact("least_available", "least available", CellValue::Bytes(least.0), ""));
        facts.push(fact("least_available_at", "at", options.time(at), "").for_people());
    }
    if let Some((at, most)) = summary.highest_pressure.filter(|(_, most)| *most > 0) {
        let share = CellValue::Share(float(most) / 10_000.0);
        facts.push(fact("highest_pressure", "highest memory pressure", share, ""));
        facts.push(fact("highest_pressure_at", "at", options.time(at), "").for_people());
    }
    line("period", "", facts)
}

fn chart(summary: &PeriodSummary, options: RecordOptions) -> Option<Chart> {
    let start = summary.machine.first()?.at_ns;
    if summary.machine.len() < 3 {
        return None;
    }
    let line = |label: &'static str, pick: fn(&MachineSample) -> Option<u64>| ChartLine {
        label: label.into(),
        points: summary
            .machine
            .iter()
            .filter_map(|it| Some((float(it.at_ns.saturating_sub(start)), float(pick(it)?))))
            .collect(),
    };
    let lines = [
        line("available", |it| it.available),
        line("processes (PSS)", |it| Some(it.pss)),
        line("swap used", |it| it.swap_used.filter(|it| *it > 0)),
    ];
    let since = format!("time since {}", options.civil(start));
    Some(Chart {
        title: vec![text("Memory over time")],
        x: Axis { label: since.into(), unit: AxisUnit::Nanos, scale: Scale::Linear },
        y: Axis { label: "bytes".into(), unit: AxisUnit::Bytes, scale: Scale::Linear },
        lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
    })
}

type ProcessEntry<'a> = (&'a ProcessKey, &'a ProcessHistory);

fn growth(history: &ProcessHistory) -> i64 {
    change(history.first.rss, history.last.rss)
}

/// Growth of RSS per minute.
fn growth_rate(history: &ProcessHistory) -> CellValue {
    let ns = history.last.boot_ns.saturating_sub(history.first.boot_ns);
    let seconds = float(ns) / 1e9;
    if seconds < MIN_RATE_SECONDS {
        let why = format!("it was seen for {seconds:.0} s only");
        return CellValue::Absent(Absent::NotCollected(why.into()));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate has three digits")]
    per_minute(Ok(growth(history) as f64 / (seconds / 60.0)))
}

/// Change of PSS; absent if the PSS readings cover less than three quarters of the time over which
/// RSS changed.
fn pss_growth(history: &ProcessHistory) -> CellValue {
    let (first, last) = (&history.first, &history.last);
    let covered = last.pss_boot_ns.saturating_sub(first.pss_boot_ns.max(first.boot_ns));
    let whole = last.boot_ns.saturating_sub(first.boot_ns);
    match (&first.pss, &last.pss) {
        (Ok(_), Ok(_)) if covered < whole / 4 * 3 => {
            let age = (last.boot_ns - last.pss_boot_ns) / 1_000_000_000;
            let why = format!("the pages were last read {age} s before the last sweep");
            CellValue::Absent(Absent::NotCollected(why.into()))
        }
        (Ok(first), Ok(last)) => CellValue::Change(change(*first, *last)),
        (_, Err(why)) | (Err(why), _) => CellValue::Absent(why.clone()),
    }
}

fn growing(
    summary: &PeriodSummary,
    categories: &[CategorySample],
    options: RecordOptions,
) -> ReportTable {
    let mut all: Vec<ProcessEntry<'_>> = summary.processes.iter().collect();
    all.retain(|(_, it)| growth(it) >= MIN_GROWTH.0.cast_signed());
    all.sort_by_key(|(key, it)| (Reverse(growth(it)), **key));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let each = || all.iter().map(|(_, it)| *it);
    let mut columns = vec![
        pids(all.iter().map(|(key, _)| key.pid)),
        values("user", "USER", each().map(|it| user(&it.identity))),
        values("first_rss", "RSS FIRST", each().map(|it| CellValue::Bytes(it.first.rss.0))),
        values("last_rss", "LAST", each().map(|it| CellValue::Bytes(it.last.rss.0))),
        values("growth", "GROWTH", each().map(|it| CellValue::Change(growth(it)))),
        values("growth_per_minute", "PER MIN", each().map(growth_rate)),
        values("pss_growth", "PSS GROWTH", each().map(pss_growth)),
        values(
            "category",
            "GREW MOST",
            all.iter().map(|(key, _)| grown_category(**key, categories)),
        ),
        for_programs(values(
            "minor_faults",
            "",
            each().map(|it| CellValue::Count(it.last.minor_faults - it.first.minor_faults)),
        )),
        for_programs(values(
            "major_faults",
            "",
            each().map(|it| CellValue::Count(it.last.major_faults - it.first.major_faults)),
        )),
        for_programs(values(
            "cpu_ns",
            "",
            each().map(|it| CellValue::Nanos(it.last.cpu_ns.saturating_sub(it.first.cpu_ns))),
        )),
    ];
    columns.extend(named(each().map(|it| &*it.identity)));
    list_table("grew", "Processes that grew", columns, note)
}

/// Returns the category of a process with the largest growth from the first sample to the last.
fn grown_category(process: ProcessKey, samples: &[CategorySample]) -> CellValue {
    let mut own = samples.iter().filter(|it| it.process == process);
    let (Some(first), Some(last)) = (own.next(), own.next_back()) else { return CellValue::None };
    let before = |name: &Name| {
        let found = first.categories.iter().find(|it| it.category == *name);
        found.map_or(Ok(Bytes::ZERO), |it| it.rss.clone())
    };
    let grown = last.categories.iter().filter_map(|it| {
        let (Ok(before), Ok(after)) = (before(&it.category), &it.rss) else { return None };
        Some((change(before, *after), &it.category))
    });
    match grown.max_by_key(|(by, _)| *by).filter(|(by, _)| *by > 0) {
        Some((by, name)) => CellValue::Sentence(vec![
            CellValue::Name(name.clone()),
            text(" "),
            CellValue::Change(by),
        ]),
        None => CellValue::None,
    }
}

fn peaks(summary: &PeriodSummary, options: RecordOptions) -> ReportTable {
    let mut all: Vec<ProcessEntry<'_>> = summary.processes.iter().collect();
    all.sort_by_key(|(key, it)| (Reverse(it.peak.1), **key));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let each = || all.iter().map(|(_, it)| *it);
    let end = summary.last.map_or(0, |it| it.unix_ns);
    let times: Vec<_> = each().map(|it| Some(it.peak.0)).collect();
    let mut columns = vec![
        pids(all.iter().map(|(key, _)| key.pid)),
        values("user", "USER", each().map(|it| user(&it.identity))),
        values("peak_rss", "PEAK RSS", each().map(|it| CellValue::Bytes(it.peak.1.0))),
    ];
    columns.extend(options.time_columns("peak_at", "AT", &times));
    columns.extend([
        TableColumn::bytes("vm_peak", "VmHWM", each().map(|it| it.vm_peak.clone())),
        values("last_rss", "LAST RSS", each().map(|it| CellValue::Bytes(it.last.rss.0))),
        TableColumn::bytes("last_pss", "LAST PSS", each().map(|it| it.last.pss.clone())),
        TableColumn::bytes("last_swap", "SWAP", each().map(|it| it.last.swap.clone())),
        values(
            "ended",
            "ENDED",
            each().map(|it| match it.last.at_ns < end {
                true => text("yes"),
                false => CellValue::None,
            }),
        ),
    ]);
    columns.extend(named(each().map(|it| &*it.identity)));
    list_table("peaks", "Largest peaks", columns, note)
}

fn cgroup_table(summary: &PeriodSummary, options: RecordOptions) -> ReportTable {
    let mut all: Vec<(&Name, &CgroupHistory)> = summary.cgroups.iter().collect();
    all.sort_by_key(|(_, it)| Reverse(it.peak.map_or(Bytes::ZERO, |(_, peak)| peak)));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let each = || all.iter().map(|(_, it)| *it);
    let grown = |counts: &(Reading<u64>, Reading<u64>)| match counts {
        (Ok(first), Ok(last)) => Ok(last.saturating_sub(*first)),
        (_, Err(why)) | (Err(why), _) => Err(why.clone()),
    };
    let change_of = |it: &CgroupHistory| match (&it.first, &it.last) {
        (Ok(first), Ok(last)) => CellValue::Change(change(*first, *last)),
        (_, Err(why)) | (Err(why), _) => CellValue::Absent(why.clone()),
    };
    let nearest = |it: &CgroupHistory| match (it.peak, &it.limit) {
        (Some((_, peak)), Ok(Some(limit))) => {
            share_of(peak.0, limit.0).map_or(CellValue::None, CellValue::Share)
        }
        _ => CellValue::None,
    };
    let times: Vec<_> = each().map(|it| it.peak.map(|(at, _)| at)).collect();
    let peak =
        |it: &CgroupHistory| it.peak.map_or(CellValue::None, |(_, peak)| CellValue::Bytes(peak.0));
    let mut columns = vec![values("peak", "PEAK", each().map(peak))];
    columns.extend(options.time_columns("peak_at", "AT", &times));
    columns.extend([
        values("limit", "LIMIT", each().map(|it| limit(&it.limit))),
        values("nearest", "NEAREST", each().map(nearest)),
        TableColumn::bytes("last", "LAST", each().map(|it| it.last.clone())),
        values("growth", "GROWTH", each().map(change_of)),
        values("limit_hits", "HITS", each().map(|it| count(&grown(&it.hits)))),
        values("oom_kills", "OOM KILLS", each().map(|it| count(&grown(&it.kills)))),
        TableColumn::new(
            "path",
            "CGROUP",
            ColumnCells::Names(all.iter().map(|(path, _)| (*path).clone()).collect()),
        ),
    ]);
    list_table("cgroups", "Memory cgroups", columns, note)
}

/// Builds the table of the largest processes before each of the last OOM kills.
fn post_mortem(summary: &PeriodSummary, options: RecordOptions) -> Option<ReportTable> {
    let first = summary.suspects.len().saturating_sub(options.rows);
    let last = &summary.suspects[first..];
    let rows: Vec<(&OomSuspects, &OomSuspect)> =
        last.iter().flat_map(|kill| kill.before.iter().map(move |it| (kill, it))).collect();
    if rows.is_empty() {
        return None;
    }
    let each = || rows.iter().map(|(_, it)| *it);
    let ended = |(kill, it): &(&OomSuspects, &OomSuspect)| match kill.ended.contains(&it.key) {
        true => text("ended"),
        false => text("still running"),
    };
    let cgroup = |(kill, _): &(&OomSuspects, &OomSuspect)| match &kill.event {
        SweepEventKind::OomKill { cgroup: Some(path), .. } => CellValue::Name(path.clone()),
        _ => CellValue::None,
    };
    let times: Vec<_> = rows.iter().map(|(kill, _)| Some(kill.time.unix_ns)).collect();
    let mut columns: Vec<TableColumn> =
        options.time_columns("time", "OOM KILL SEEN", &times).into();
    columns.extend([
        pids(each().map(|it| it.key.pid)),
        TableColumn::bytes("rss", "RSS BEFORE", each().map(|it| Ok(it.rss))),
        TableColumn::bytes("swap", "SWAP", each().map(|it| it.swap.clone())),
        values("oom_score", "OOM SCORE", each().map(|it| count(&it.oom_score))),
        values("after", "AFTERWARDS", rows.iter().map(ended)),
        values("cgroup", "CGROUP", rows.iter().map(cgroup)),
    ]);
    columns.extend(named(each().map(|it| &*it.identity)));
    let note = match first {
        0 => String::new(),
        more => format!("{more} earlier OOM kills: --rows all"),
    };
    Some(list_table("oom", "Largest processes before OOM kills", columns, note))
}

/// Describes the last reports of the kernel in words. Programs find them among the events.
fn kernel_reports(
    summary: &PeriodSummary,
    options: RecordOptions,
) -> impl Iterator<Item = Paragraph> {
    let reports = summary.events.iter().filter_map(|it| match &it.event {
        SweepEventKind::OomReport { explanation } => Some((it.time, explanation)),
        _ => None,
    });
    let reports: Vec<_> = reports.collect();
    let first = reports.len().saturating_sub(options.rows);
    let paragraph = move |(time, explanation): &(SweepTime, &Name)| Paragraph {
        title: format!("OOM kill before {}", options.civil(time.unix_ns)).into(),
        pieces: vec![CellValue::Name((*explanation).clone())],
        audience: Audience::People,
    };
    let paragraphs: Vec<_> = reports[first..].iter().map(paragraph).collect();
    paragraphs.into_iter()
}

fn saved_table(saved: &[(SweepTime, String, Name)], options: RecordOptions) -> ReportTable {
    let times: Vec<_> = saved.iter().map(|(time, ..)| Some(time.unix_ns)).collect();
    let mut columns: Vec<TableColumn> = options.time_columns("time", "TIME", &times).into();
    columns.extend([
        TableColumn::new(
            "kind",
            "KIND",
            ColumnCells::Labels(saved.iter().map(|(_, kind, _)| kind.clone().into()).collect()),
        ),
        TableColumn::new(
            "file",
            "FILE",
            ColumnCells::Names(saved.iter().map(|(.., file)| file.clone()).collect()),
        ),
    ]);
    list_table("saved", "Saved when a trigger fired", columns, String::new())
}

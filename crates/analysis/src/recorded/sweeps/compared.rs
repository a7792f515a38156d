//! Comparison of two times of a recording, or of two recordings.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::report::{
    CellValue, ColumnCells, FactsShape, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::sweep::{Sweep, SweepProcess};
use pagewise_model::{Bytes, Name, Pid, Reading};

use super::{RecordOptions, change, line, list_table, values, weight};
use crate::blocks::facts_of;
use crate::cells::text;
use crate::explain::fact;
use crate::program_name::whole_command;

/// Two sweeps to compare.
#[derive(Clone, Copy, Debug)]
pub struct ComparedSweeps<'a> {
    /// The earlier sweep, or the sweep of the first host.
    pub before: &'a Sweep,
    /// The later sweep, or the sweep of the second host.
    pub after: &'a Sweep,
    /// True if both sweeps are of one host. Processes of one host are then matched by their
    /// identity; processes of two hosts are matched by their name.
    pub same_host: bool,
}

/// Lines of `meminfo` that are compared: name, key, heading.
const LINES: [(&str, &str, &str); 9] = [
    ("MemTotal", "total", "RAM"),
    ("MemAvailable", "available", "available"),
    ("MemFree", "free", "free"),
    ("Cached", "cached", "page cache"),
    ("AnonPages", "anonymous", "anonymous"),
    ("Shmem", "shmem", "tmpfs"),
    ("Slab", "slab", "slab"),
    ("PageTables", "page_tables", "page tables"),
    ("SwapFree", "swap_free", "swap free"),
];

/// Reports the difference of two sweeps.
pub fn compare(compared: ComparedSweeps<'_>, options: RecordOptions) -> Report {
    let ComparedSweeps { before, after, .. } = compared;
    let mut facts: Vec<_> = options.time_facts("before", "before", before.time).into();
    facts.extend(options.time_facts("after", "after", after.time));
    Report {
        schema: "pagewise.record-diff/1",
        title: vec![text(match compared.same_host {
            true => "Memory of the machine at two times",
            false => "Memory of two machines",
        })],
        blocks: vec![
            line("times", "", facts),
            machine(before, after),
            ReportBlock::Table(processes(compared, options)),
            ReportBlock::Table(cgroups(before, after, options)),
        ],
    }
}

fn machine(before: &Sweep, after: &Sweep) -> ReportBlock {
    let facts = LINES.map(|(name, key, label)| {
        let (before, after) = (before.machine.memory(name), after.machine.memory(name));
        fact(key, label, difference(&before, &after), "")
    });
    ReportBlock::Facts(facts_of(
        "machine",
        "Change of the machine",
        FactsShape::Columns,
        facts.into(),
    ))
}

fn difference(before: &Reading<Bytes>, after: &Reading<Bytes>) -> CellValue {
    match (before, after) {
        (Ok(before), Ok(after)) => CellValue::Change(change(*before, *after)),
        (_, Err(why)) | (Err(why), _) => CellValue::Absent(why.clone()),
    }
}

/// Processes that are compared as one: the sums of both sweeps.
struct ComparedProcess {
    pid: Option<Pid>,
    name: Name,
    counts: [u64; 2],
    rss: [Bytes; 2],
    pss: [Reading<Bytes>; 2],
    swap: [Reading<Bytes>; 2],
    /// PSS, or RSS if PSS is unknown. It determines the order of the rows.
    weight: [Bytes; 2],
}

impl Default for ComparedProcess {
    fn default() -> ComparedProcess {
        let nothing = || [Ok(Bytes::ZERO), Ok(Bytes::ZERO)];
        ComparedProcess {
            pid: None,
            name: Name::default(),
            counts: [0; 2],
            rss: [Bytes::ZERO; 2],
            pss: nothing(),
            swap: nothing(),
            weight: [Bytes::ZERO; 2],
        }
    }
}

impl ComparedProcess {
    fn add(&mut self, side: usize, process: &SweepProcess) {
        self.counts[side] += 1;
        self.rss[side] += process.rss;
        add(&mut self.pss[side], &process.pss_total());
        add(&mut self.swap[side], &process.swap);
        self.weight[side] += weight(process);
    }

    fn change(&self) -> i64 {
        change(self.weight[0], self.weight[1])
    }

    fn presence(&self) -> CellValue {
        match self.counts {
            [0, _] => text("new"),
            [_, 0] => text("gone"),
            _ => CellValue::None,
        }
    }
}

/// Adds a value to a sum. The sum is absent if a value is absent.
fn add(sum: &mut Reading<Bytes>, value: &Reading<Bytes>) {
    if let Ok(before) = sum {
        *sum = value.clone().map(|value| *before + value);
    }
}

fn processes(compared: ComparedSweeps<'_>, options: RecordOptions) -> ReportTable {
    let mut found: BTreeMap<(Option<(Pid, u64)>, Name), ComparedProcess> = BTreeMap::new();
    for (side, sweep) in [compared.before, compared.after].into_iter().enumerate() {
        for process in &sweep.processes {
            let key = match compared.same_host {
                true => (Some((process.key.pid, process.key.start_ticks)), Name::default()),
                false => (None, process.identity.name.clone()),
            };
            let entry = found.entry(key).or_default();
            entry.add(side, process);
            (entry.pid, entry.name) = match compared.same_host {
                true => (Some(process.key.pid), whole_command(&process.identity)),
                false => (None, process.identity.name.clone()),
            };
        }
    }
    let mut all: Vec<ComparedProcess> = found.into_values().collect();
    all.retain(|it| it.change() != 0 || it.counts[0] != it.counts[1]);
    all.sort_by_key(|it| Reverse(it.change().unsigned_abs()));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let pss = |key, label, side: usize| {
        TableColumn::bytes(key, label, all.iter().map(move |it| it.pss[side].clone()))
    };
    let changes = |key, label, pick: fn(&ComparedProcess) -> CellValue| {
        values(key, label, all.iter().map(pick))
    };
    let pid =
        |it: &ComparedProcess| it.pid.map_or(CellValue::None, |pid| CellValue::Count(pid.0.into()));
    let count = |at: usize| move |it: &ComparedProcess| CellValue::Count(it.counts[at]);
    let mut columns = match compared.same_host {
        true => vec![values("pid", "PID", all.iter().map(pid))],
        false => vec![
            values("processes_before", "N FIRST", all.iter().map(count(0))),
            values("processes_after", "N SECOND", all.iter().map(count(1))),
        ],
    };
    columns.extend([
        pss("pss_before", "PSS BEFORE", 0),
        pss("pss_after", "AFTER", 1),
        changes("pss_change", "CHANGE", |it| difference(&it.pss[0], &it.pss[1])),
        changes("rss_change", "RSS CHANGE", |it| CellValue::Change(change(it.rss[0], it.rss[1]))),
        changes("swap_change", "SWAP CHANGE", |it| difference(&it.swap[0], &it.swap[1])),
        values("presence", "STATE", all.iter().map(ComparedProcess::presence)),
        TableColumn::new(
            "command",
            if compared.same_host { "COMMAND" } else { "NAME" },
            ColumnCells::Names(all.iter().map(|it| it.name.clone()).collect()),
        ),
    ]);
    list_table("processes", "Processes that changed", columns, note)
}

fn cgroups(before: &Sweep, after: &Sweep, options: RecordOptions) -> ReportTable {
    // A cgroup that does not exist has no memory; a cgroup whose memory is unknown stays unknown.
    let mut found: BTreeMap<&Name, [Option<&Reading<Bytes>>; 2]> = BTreeMap::new();
    for (side, sweep) in [before, after].into_iter().enumerate() {
        for cgroup in sweep.cgroups.iter().flatten() {
            found.entry(&cgroup.path).or_default()[side] = Some(&cgroup.current);
        }
    }
    let size = |it: Option<&Reading<Bytes>>| it.map_or(Ok(Bytes::ZERO), Clone::clone);
    let mut all: Vec<(&Name, [Option<&Reading<Bytes>>; 2])> = found.into_iter().collect();
    let by = |sides: &[Option<&Reading<Bytes>>; 2]| match sides.map(size) {
        [Ok(before), Ok(after)] => change(before, after),
        _ => 0,
    };
    all.retain(|(_, sides)| by(sides) != 0);
    all.sort_by_key(|(_, sides)| Reverse(by(sides).unsigned_abs()));
    let (shown, note) = options.shown(all.len());
    all.truncate(shown);
    let cell =
        |it: Option<&Reading<Bytes>>| it.map_or(CellValue::None, |it| CellValue::bytes(it.clone()));
    let columns = vec![
        values("before", "BEFORE", all.iter().map(|(_, sides)| cell(sides[0]))),
        values("after", "AFTER", all.iter().map(|(_, sides)| cell(sides[1]))),
        values(
            "change",
            "CHANGE",
            all.iter().map(|(_, sides)| difference(&size(sides[0]), &size(sides[1]))),
        ),
        TableColumn::new(
            "path",
            "CGROUP",
            ColumnCells::Names(all.iter().map(|(path, _)| (*path).clone()).collect()),
        ),
    ];
    list_table("cgroups", "Memory cgroups that changed", columns, note)
}

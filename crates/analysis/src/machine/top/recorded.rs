//! The report of one process in a recording: its values at one time.

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Report, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::sweep::{
    BytesByPageKind, CategoryBytes, CategorySample, PagesReading, ProcessKey, SweepProcess,
    SweepTime,
};
use pagewise_model::{Absent, Bytes, Reading};

use super::TopHistory;
use crate::blocks::{facts_of, table};
use crate::cells::text;
use crate::explain::fact;
use crate::program_name::whole_command;
use crate::sweeps::category_label;

/// Name and version of the JSON form.
const SCHEMA: &str = "pagewise.recorded-process/1";

/// Reports the values of a process at the last sweep, with its latest memory by category; `None` if
/// the sweep does not contain the process.
pub fn recorded_process(
    history: &TopHistory,
    key: ProcessKey,
    categories: Option<&CategorySample>,
) -> Option<Report> {
    let sweep = history.current()?;
    let process = sweep.process(key)?;
    let growth = history.process(key).map(|series| history.growth(&series.memory));
    let growth =
        growth.map_or(CellValue::None, |it| CellValue::from_reading(it, CellValue::Change));
    let mut blocks = vec![block("memory", "Memory", memory(process, growth))];
    blocks.extend(categories.map(|it| by_category(it, process.rss, sweep.time)));
    blocks.extend([
        block("pss", "PSS by page kind", kinds(&process.pss)),
        block("rss", "RSS by page kind", kinds(&process.rss_by_kind)),
        block("work", "Since its start", work(process)),
        ReportBlock::Facts(facts_of("process", "", FactsShape::Line, identity(process))),
        age(process, sweep.time.boot_ns),
    ]);
    let title = vec![text("Recorded values of the process")];
    Some(Report { schema: SCHEMA, title, blocks })
}

/// Builds the table of memory by category. The recorder reads the categories at most once per
/// minute.
fn by_category(sample: &CategorySample, rss: Bytes, now: SweepTime) -> ReportBlock {
    let each = || sample.categories.iter();
    let share = |it: &CategoryBytes| {
        let share = it.rss.as_ref().ok().and_then(|it| it.fraction_of(rss));
        share.map_or(CellValue::None, CellValue::Bar)
    };
    let columns = vec![
        TableColumn::new(
            "category",
            "Category",
            ColumnCells::Values(each().map(|it| category_label(&it.category)).collect()),
        ),
        TableColumn::bytes("rss", "RSS", each().map(|it| it.rss.clone())),
        TableColumn::new("share", "Share", ColumnCells::Values(each().map(share).collect())),
        TableColumn::bytes("pss", "PSS", each().map(|it| it.pss.clone())),
        TableColumn::bytes("swap", "Swap", each().map(|it| it.swap.clone())),
    ];
    let age = now.boot_ns.saturating_sub(sample.time.boot_ns) / 1_000_000_000;
    let note = match age {
        0 => String::new(),
        age => format!("Read {age} s before."),
    };
    let by = table("categories", "Memory by category", Audience::Everyone, columns);
    ReportBlock::Table(ReportTable { note: note.into(), ..by })
}

fn block(key: &'static str, title: &'static str, facts: Vec<Fact>) -> ReportBlock {
    ReportBlock::Facts(facts_of(key, title, FactsShape::Columns, facts))
}

fn size(key: &'static str, label: &'static str, value: Reading<Bytes>) -> Fact {
    fact(key, label, CellValue::bytes(value), "")
}

fn memory(process: &SweepProcess, growth: CellValue) -> Vec<Fact> {
    vec![
        size("pss", "PSS", process.pss_total()),
        size("uss", "USS", process.uss.clone()),
        size("rss", "RSS", Ok(process.rss)),
        size("peak_rss", "peak RSS", process.peak_rss.clone()),
        size("swap", "swap", process.swap.clone()),
        size("swap_shmem", "shared in swap", process.swap_shmem.clone()),
        size("virt", "address space", Ok(process.virt)),
        fact("growth", "growth/min", growth, ""),
    ]
}

fn kinds(reading: &Reading<BytesByPageKind>) -> Vec<Fact> {
    let of =
        |pick: fn(&BytesByPageKind) -> Bytes| reading.as_ref().map(pick).map_err(Absent::clone);
    vec![
        size("anonymous", "anonymous", of(|it| it.anonymous)),
        size("file", "files", of(|it| it.file)),
        size("shmem", "shared memory", of(|it| it.shmem)),
    ]
}

fn work(process: &SweepProcess) -> Vec<Fact> {
    let count = |key, label, value| fact(key, label, CellValue::Count(value), "");
    vec![
        count("minor_faults", "minor faults", process.minor_faults),
        count("major_faults", "major faults", process.major_faults),
        fact("cpu_ns", "CPU time", CellValue::Nanos(process.cpu_ns), ""),
        count("threads", "threads now", process.threads),
        fact(
            "oom_score",
            "OOM score",
            CellValue::from_reading(process.oom_score.clone(), CellValue::Count),
            "",
        ),
    ]
}

fn identity(process: &SweepProcess) -> Vec<Fact> {
    let identity = &process.identity;
    vec![
        fact("user", "user", crate::sweeps::user(identity), ""),
        fact("parent", "parent", CellValue::Count(identity.parent.0.into()), ""),
        fact(
            "cgroup",
            "cgroup",
            CellValue::from_reading(identity.cgroup.clone(), CellValue::Name),
            "",
        ),
        fact("command", "command", CellValue::Name(whole_command(identity)), ""),
    ]
}

/// Reports the age of PSS and USS, which are not read in each sweep.
fn age(process: &SweepProcess, now_ns: u64) -> ReportBlock {
    let words = match process.pages {
        PagesReading::Now => vec![text("PSS and USS are of this time.")],
        PagesReading::Unchanged(at) => vec![
            text("PSS and USS were read "),
            CellValue::Nanos(now_ns.saturating_sub(at)),
            text(" before; the process has not changed since."),
        ],
        PagesReading::Postponed(at) => vec![
            text("PSS and USS were read "),
            CellValue::Nanos(now_ns.saturating_sub(at)),
            text(" before; the process has changed since."),
        ],
        PagesReading::Never => vec![text("PSS and USS were not read.")],
    };
    crate::diagnose::text_block("", words)
}

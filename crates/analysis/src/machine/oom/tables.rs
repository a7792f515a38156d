//! The conclusion in words, and the tables of scopes and processes.

use pagewise_model::oom::OomProcess;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Paragraph, ReportTable, TableColumn,
};
use pagewise_model::{Name, Reading};

use super::forecast::{OomForecast, time_left};
use super::{OomOptions, OomRank, badness_cell};
use crate::blocks::{first, for_people, for_programs, table};
use crate::cells::text;
use crate::program_name::joined;

/// Describes the outcome if the machine ran out of memory now.
pub(super) fn verdict(next: Option<OomRank<'_>>, machine: Option<&OomForecast<'_>>) -> Paragraph {
    let mut pieces = Vec::new();
    match next {
        None => pieces
            .push(text("No process can be killed: if the machine runs out of memory, it panics.")),
        Some(next) => {
            pieces.extend([
                text("If the machine runs out of memory now, the kernel kills "),
                CellValue::Name(next.process.name.clone()),
                text(format!(" ({}). ", next.process.pid)),
            ]);
            pieces.extend(frees(next.process));
        }
    }
    if let Some(left) = machine.and_then(|it| it.left.clone().ok()) {
        pieces.extend([
            text(" At most "),
            CellValue::Bytes(left.0),
            text(" can still be allocated."),
        ]);
    }
    match machine.and_then(|it| it.seconds_left) {
        Some(seconds) => pieces.extend([
            text(" At the present growth that lasts "),
            super::forecast::duration(seconds),
            text("."),
        ]),
        None if machine.is_some_and(|it| it.growth.is_some()) => {
            pieces.push(text(" Memory in use does not grow at present."));
        }
        None => {}
    }
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn frees(process: &OomProcess) -> Vec<CellValue> {
    match &process.uss {
        Ok(uss) => vec![text("Its end frees "), CellValue::Bytes(uss.0), text(".")],
        Err(_) => vec![text("The memory that its end frees is not readable.")],
    }
}

/// Builds the table of the machine and the cgroups with a limit.
pub(super) fn scopes(forecasts: &[OomForecast<'_>]) -> ReportTable {
    let cells = |make: &dyn Fn(&OomForecast<'_>) -> CellValue| {
        ColumnCells::Values(forecasts.iter().map(make).collect())
    };
    let bytes = |value: &Reading<pagewise_model::Bytes>| CellValue::bytes(value.clone());
    let column =
        |key: &'static str, label: &'static str, meaning: &'static str, cells: ColumnCells| {
            TableColumn { meaning: meaning.into(), ..TableColumn::new(key, label, cells) }
        };
    let process = |make: &dyn Fn(&OomProcess) -> CellValue| {
        cells(&|it| it.next.map_or(CellValue::None, |next| make(next.process)))
    };
    let columns = vec![
        column(
            "limit",
            "Limit",
            "RAM of the machine, or the limit of the cgroup.",
            cells(&|it| bytes(&it.limit)),
        ),
        column(
            "kept",
            "In use",
            "Used memory that the kernel cannot drop: without page cache and reclaimable slab.",
            cells(&|it| bytes(&it.kept)),
        ),
        column(
            "left",
            "Left",
            "Memory that can still be allocated, with the swap that may be used.",
            cells(&|it| bytes(&it.left)),
        ),
        column(
            "growth",
            "Growth/s",
            "Growth of the used memory per second.",
            cells(&|it| it.growth.map_or(CellValue::None, change)),
        ),
        column(
            "seconds_left",
            "Lasts",
            "Time until nothing is left at this growth.",
            cells(&|it| time_left(it.seconds_left)),
        ),
        for_programs(column("pid", "PID", "", process(&|it| CellValue::Count(it.pid.0.into())))),
        column(
            "next",
            "Next victim",
            "The process that the kernel would kill.",
            cells(&|it| victim(it)),
        ),
        column(
            "badness",
            "Badness",
            "",
            cells(&|it| {
                it.next.and_then(|next| next.badness.ok()).map_or(CellValue::None, badness_cell)
            }),
        ),
        column("frees", "Frees", "USS of the victim.", process(&|it| bytes(&it.uss))),
        column("scope", "Limit of", "", cells(&|it| it.scope.cell())),
    ];
    table("scopes", "The machine and the cgroups with a limit", Audience::Everyone, columns)
}

#[expect(clippy::cast_possible_truncation, reason = "bytes per second")]
fn change(growth: f64) -> CellValue {
    CellValue::Change(growth as i64)
}

fn victim(forecast: &OomForecast<'_>) -> CellValue {
    if forecast.kill_disabled {
        return text("none: the processes wait (oom_kill_disable)");
    }
    let Some(next) = forecast.next else { return text("none") };
    let mut pieces =
        vec![CellValue::Name(next.process.name.clone()), text(format!(" ({})", next.process.pid))];
    if forecast.kills_all {
        pieces.push(text(" and its whole cgroup"));
    }
    CellValue::Sentence(pieces)
}

/// Builds the table of processes in the order of the OOM killer.
pub(super) fn processes(ranks: &[OomRank<'_>], options: &OomOptions) -> ReportTable {
    let killable: Vec<OomRank<'_>> =
        ranks.iter().copied().filter(|it| it.badness.is_ok()).collect();
    let (shown, note) = first(&killable, options.rows, "--limit");
    let each = |make: &dyn Fn(&OomProcess) -> CellValue| {
        ColumnCells::Values(shown.iter().map(|it| make(it.process)).collect())
    };
    let column =
        |key: &'static str, label: &'static str, meaning: &'static str, cells: ColumnCells| {
            TableColumn { meaning: meaning.into(), ..TableColumn::new(key, label, cells) }
        };
    let bytes = |value: &Reading<pagewise_model::Bytes>| CellValue::bytes(value.clone());
    let columns = vec![
        column(
            "pid",
            "PID",
            "",
            ColumnCells::Counts(shown.iter().map(|it| it.process.pid.0.into()).collect()),
        ),
        column(
            "badness",
            "Badness",
            "Pages of RSS, swap and page tables, plus oom_score_adj thousandths of all pages.",
            ColumnCells::Values(
                shown.iter().map(|it| it.badness.map_or(CellValue::None, badness_cell)).collect(),
            ),
        ),
        column(
            "oom_score",
            "Score",
            "/proc/PID/oom_score: the kernel's own computation.",
            each(&|it| CellValue::from_reading(it.score.clone(), CellValue::Count)),
        ),
        for_people(column(
            "adj",
            "Adj",
            "oom_score_adj: -1000 protects, 1000 selects first.",
            each(&|it| CellValue::from_reading(it.adj.clone(), adj_text)),
        )),
        for_programs(column(
            "oom_score_adj",
            "",
            "",
            each(&|it| CellValue::from_reading(it.adj.clone(), badness_cell)),
        )),
        column("rss", "RSS", "", each(&|it| CellValue::Bytes(it.rss.0))),
        column("swap", "Swap", "", each(&|it| CellValue::Bytes(it.swap.0))),
        column(
            "page_tables",
            "Tables",
            "Page tables.",
            each(&|it| CellValue::Bytes(it.page_tables.0)),
        ),
        column(
            "frees",
            "Frees",
            "USS: memory that only this process maps.",
            each(&|it| bytes(&it.uss)),
        ),
        for_programs(column(
            "frees_anonymous",
            "",
            "The anonymous part of it, which its end certainly frees.",
            each(&|it| bytes(&it.uss_anonymous)),
        )),
        for_programs(column(
            "cgroup",
            "Cgroup",
            "",
            each(&|it| CellValue::from_reading(it.cgroup.clone(), CellValue::Name)),
        )),
        for_programs(column(
            "same_memory",
            "",
            "Processes with the same memory, which are killed with it.",
            each(&|it| {
                CellValue::List(
                    it.same_memory.iter().map(|pid| CellValue::Count(pid.0.into())).collect(),
                )
            }),
        )),
        for_programs(column(
            "command",
            "Command",
            "",
            ColumnCells::Names(shown.iter().map(|it| command(it.process)).collect()),
        )),
        column(
            "name",
            "Name",
            "",
            ColumnCells::Names(shown.iter().map(|it| it.process.name.clone()).collect()),
        ),
    ];
    ReportTable {
        note,
        ..table(
            "processes",
            "Processes in the order of the OOM killer",
            Audience::Everyone,
            columns,
        )
    }
}

/// Writes an adjustment for people, without thousands separators.
pub(super) fn adj_text(adj: i64) -> CellValue {
    text(adj.to_string())
}

/// Returns the command line, or the name of a process whose command line is empty or unknown.
fn command(process: &OomProcess) -> Name {
    joined(process.command.as_deref().unwrap_or_default()).unwrap_or_else(|| process.name.clone())
}

/// Builds the table of processes with memory that are not selected, the largest first.
pub(super) fn exempt(ranks: &[OomRank<'_>]) -> Option<ReportTable> {
    let mut exempt: Vec<(OomRank<'_>, super::OomExemption)> = ranks
        .iter()
        .filter_map(|it| Some((*it, it.badness.err()?)))
        .filter(|(_, why)| *why != super::OomExemption::NoMemory)
        .collect();
    if exempt.is_empty() {
        return None;
    }
    exempt.sort_by_key(|(it, _)| std::cmp::Reverse(it.process.rss));
    let columns = vec![
        TableColumn::new(
            "pid",
            "PID",
            ColumnCells::Counts(exempt.iter().map(|(it, _)| it.process.pid.0.into()).collect()),
        ),
        TableColumn::new(
            "rss",
            "RSS",
            ColumnCells::Bytes(exempt.iter().map(|(it, _)| it.process.rss.0).collect()),
        ),
        TableColumn::new(
            "why",
            "Reason",
            ColumnCells::Labels(exempt.iter().map(|(_, why)| why.words().into()).collect()),
        ),
        TableColumn::new(
            "name",
            "Name",
            ColumnCells::Names(exempt.iter().map(|(it, _)| it.process.name.clone()).collect()),
        ),
    ];
    Some(table("exempt", "Processes that the kernel does not select", Audience::Everyone, columns))
}

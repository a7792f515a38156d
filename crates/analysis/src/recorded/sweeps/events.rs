//! Events of a recording, described in sentences.

use pagewise_model::report::{CellValue, ColumnCells, ReportTable, TableColumn};
use pagewise_model::sweep::{SweepEvent, SweepEventKind, TriggerTarget};

use super::{RecordOptions, list_table, values};
use crate::blocks::for_programs;
use crate::cells::text;

/// True for an event that matters to users. Starts, ends and short processes are background.
pub const fn is_notable(event: &SweepEventKind) -> bool {
    match event {
        SweepEventKind::Started { .. }
        | SweepEventKind::Exited { .. }
        | SweepEventKind::ShortLived { .. } => false,
        SweepEventKind::OomKill { .. }
        | SweepEventKind::OomReport { .. }
        | SweepEventKind::LimitHit { .. }
        | SweepEventKind::Gap { .. }
        | SweepEventKind::ClockSet { .. }
        | SweepEventKind::Triggered { .. }
        | SweepEventKind::NotSaved { .. } => true,
    }
}

/// Describes the event in a sentence.
pub(crate) fn sentence(event: &SweepEventKind) -> Vec<CellValue> {
    let pid = |key: &pagewise_model::sweep::ProcessKey| text(key.pid.to_string());
    match event {
        SweepEventKind::Started { process, name } => {
            vec![
                text("process "),
                pid(process),
                text(" ("),
                CellValue::Name(name.clone()),
                text(") began"),
            ]
        }
        SweepEventKind::Exited { process, name, peak_rss, lived_ns, .. } => vec![
            text("process "),
            pid(process),
            text(" ("),
            CellValue::Name(name.clone()),
            text(") ended after "),
            CellValue::Nanos(*lived_ns),
            text(", peak RSS "),
            CellValue::bytes(peak_rss.clone()),
        ],
        SweepEventKind::ShortLived { count } => {
            vec![CellValue::Count(*count), text(" short processes or new threads")]
        }
        SweepEventKind::OomKill { cgroup, kills } => {
            let place = match cgroup {
                Some(path) => vec![text(" in cgroup "), CellValue::Name(path.clone())],
                // The kernel counts the kills of all cgroups, including cgroups that were removed
                // in the meantime.
                None => vec![text(", in no cgroup of the recording")],
            };
            let killed = if *kills == 1 { " process killed" } else { " processes killed" };
            [vec![text("OOM kill: "), CellValue::Count(*kills), text(killed)], place].concat()
        }
        SweepEventKind::OomReport { explanation } => {
            vec![text("report of the kernel: "), CellValue::Name(explanation.clone())]
        }
        SweepEventKind::LimitHit { cgroup, hits, limit } => vec![
            text("cgroup "),
            CellValue::Name(cgroup.clone()),
            text(" reached its limit "),
            match limit {
                Ok(Some(limit)) => CellValue::Bytes(limit.0),
                Ok(None) => text("(none)"),
                Err(why) => CellValue::Absent(why.clone()),
            },
            text(", hits: "),
            CellValue::Count(*hits),
        ],
        SweepEventKind::Gap { reason, .. } => {
            vec![text("no sweeps before this time: "), text(reason.key())]
        }
        SweepEventKind::ClockSet { by_ns } => vec![
            text("the clock was set "),
            text(if *by_ns < 0 { "back" } else { "forward" }),
            text(" by "),
            CellValue::Nanos(by_ns.unsigned_abs()),
        ],
        SweepEventKind::Triggered { trigger, target } => {
            let target = match target {
                TriggerTarget::Process(key) => vec![text("process "), pid(key)],
                TriggerTarget::Cgroup(path) => {
                    vec![text("cgroup "), CellValue::Name(path.clone())]
                }
                TriggerTarget::Machine => vec![text("the machine")],
            };
            [vec![text("trigger "), text(trigger.key()), text(" fired: ")], target].concat()
        }
        SweepEventKind::NotSaved { kind, process, reason } => vec![
            text("no "),
            text(kind.key()),
            text(" of process "),
            pid(process),
            text(" was saved: "),
            CellValue::Name(reason.clone()),
        ],
    }
}

/// Builds a table of events, in the order of their times.
pub(super) fn table(
    title: &'static str,
    events: &[&SweepEvent],
    options: RecordOptions,
) -> ReportTable {
    let (shown, note) = options.shown(events.len());
    // If not all events are shown, the latest events are shown.
    let shown = &events[events.len() - shown..];
    let times: Vec<_> = shown.iter().map(|it| Some(it.time.unix_ns)).collect();
    let mut columns: Vec<TableColumn> = options.time_columns("time", "TIME", &times).into();
    let kinds = shown.iter().map(|it| it.event.key().into()).collect();
    columns.push(for_programs(TableColumn::new("kind", "KIND", ColumnCells::Labels(kinds))));
    let sentences = shown.iter().map(|it| CellValue::Sentence(sentence(&it.event)));
    columns.push(values("event", "EVENT", sentences));
    list_table("events", title, columns, note)
}

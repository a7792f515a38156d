//! Live, held and resident bytes over time.

use pagewise_model::heap::{HeapRecording, HeapSnapshot};
use pagewise_model::report::{
    Audience, Axis, AxisUnit, CellValue, Chart, ChartLine, ColumnCells, Gaps, ReportTable, Scale,
    TableColumn,
};
use pagewise_model::{Absent, Bytes};

use super::{HeapOptions, table};
use crate::blocks::{for_people, for_programs};
use crate::cells::float;

/// Lines of live, held and resident bytes; `None` for fewer than three points.
pub(super) fn chart(recording: &HeapRecording) -> Option<Chart> {
    let moments = &recording.moments;
    if moments.len() < 3 {
        return None;
    }
    let line = |label: &'static str, bytes: &dyn Fn(&HeapSnapshot) -> Option<u64>| ChartLine {
        label: label.into(),
        points: moments
            .iter()
            .filter_map(|moment| Some((float(moment.time_ns), float(bytes(moment)?))))
            .collect(),
    };
    let mut live = line("live", &|moment| Some(moment.live.bytes));
    if let Ok(at) = recording.peak_at_ns {
        let at = float(at);
        let place = live.points.partition_point(|point| point.0 < at);
        live.points.insert(place, (at, float(recording.totals.peak.bytes)));
    }
    let others = [
        line("held by malloc", &|moment| moment.held.as_ref().ok().map(|held| held.0)),
        line("resident", &|moment| moment.resident.as_ref().ok().map(|it| it.rss())),
    ];
    let others = others.into_iter().filter(|line| !line.points.is_empty());
    Some(Chart {
        title: vec![CellValue::text("The heap over time")],
        x: Axis { label: "time".into(), unit: AxisUnit::Nanos, scale: Scale::Linear },
        y: Axis { label: "bytes".into(), unit: AxisUnit::Bytes, scale: Scale::Linear },
        lines: std::iter::once(live).chain(others).collect(),
    })
}

/// All moments for programs, and some of them for people.
pub(super) fn tables(recording: &HeapRecording, options: &HeapOptions) -> [ReportTable; 2] {
    let all: Vec<usize> = (0..recording.moments.len()).collect();
    let some = chosen(recording, options.limit);
    let note = match all.len() - some.len() {
        0 => String::new(),
        _ => format!("{} of {} moments: --top all shows all.", some.len(), all.len()),
    };
    let mut people = moments(recording, &some, "moments", Audience::People);
    people.note = note.into();
    if some.is_empty() {
        people.columns.clear();
        people.audience = Audience::Programs;
        people.key = "timeline".into();
    }
    [people, moments(recording, &all, "timeline", Audience::Programs)]
}

/// Indices of evenly spaced snapshots: the first and the last are among them, and the one with the
/// most live bytes.
fn chosen(recording: &HeapRecording, limit: Option<usize>) -> Vec<usize> {
    /// If fewer snapshots than this would be left out, all are shown.
    const FEW: usize = 3;
    let moments = &recording.moments;
    let room = limit.unwrap_or(usize::MAX);
    let count = if moments.len() < room.saturating_add(FEW) { moments.len() } else { room };
    let last = moments.len().saturating_sub(1);
    let steps = count.saturating_sub(1).max(1);
    let mut chosen: Vec<usize> = (0..count).map(|step| step * last / steps).collect();
    let most =
        (0..moments.len()).max_by_key(|at| (moments[*at].live.bytes, std::cmp::Reverse(*at)));
    if count > 0 {
        chosen.extend(most);
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn moments(
    recording: &HeapRecording,
    chosen: &[usize],
    key: &'static str,
    audience: Audience,
) -> ReportTable {
    let each = || chosen.iter().filter_map(|at| recording.moments.get(*at));
    let bytes = |key, label, pick: &dyn Fn(&HeapSnapshot) -> Result<Bytes, Absent>| {
        TableColumn::bytes(key, label, each().map(pick))
    };
    let resident = |pick: fn(&pagewise_model::heap::ResidentBytes) -> u64| {
        move |moment: &HeapSnapshot| {
            moment.resident.as_ref().map(|it| Bytes(pick(it))).map_err(Clone::clone)
        }
    };
    let counts = |key, label, pick: fn(&HeapSnapshot) -> u64| {
        TableColumn::new(key, label, ColumnCells::Counts(each().map(pick).collect()))
    };
    let (people, programs): (Vec<CellValue>, Vec<CellValue>) =
        each().map(|it| (CellValue::Nanos(it.time_ns), CellValue::Seconds(it.time_ns))).unzip();
    let times = if audience == Audience::Programs { programs } else { people };
    let most = each().map(|moment| moment.live.bytes).max().unwrap_or(0);
    let bar = |moment: &HeapSnapshot| match most {
        0 => CellValue::None,
        most => CellValue::Bar(float(moment.live.bytes) / float(most)),
    };
    let mut columns = vec![
        TableColumn::new("time", "AT", ColumnCells::Values(times)),
        bytes("live", "LIVE", &|moment| Ok(Bytes(moment.live.bytes))),
        counts("live_blocks", "BLOCKS", |moment| moment.live.blocks),
        bytes("held", "HELD", &|moment| moment.held.clone()),
        bytes("resident", "RESIDENT", &resident(|it| it.rss())),
        for_programs(bytes("anonymous", "ANON", &resident(|it| it.anonymous))),
        for_programs(bytes("file", "FILE", &resident(|it| it.file))),
        for_programs(bytes("shmem", "SHMEM", &resident(|it| it.shmem))),
        for_programs(bytes("swap", "SWAP", &resident(|it| it.swap))),
        counts("allocations", "ALLOCATIONS", |moment| moment.allocated.blocks),
        for_programs(TableColumn::new(
            "allocated_bytes",
            "ALLOCATED",
            ColumnCells::Bytes(each().map(|moment| moment.allocated.bytes).collect()),
        )),
        for_programs(TableColumn::new(
            "has_tree",
            "TREE",
            ColumnCells::Values(
                each().map(|moment| CellValue::Flag(moment.tree.is_some())).collect(),
            ),
        )),
        for_people(TableColumn::new("bar", "", ColumnCells::Values(each().map(bar).collect()))),
    ];
    // A column without any value is left out.
    let unknown = |column: &TableColumn| {
        audience == Audience::People
            && matches!(&column.gaps, Gaps::Some(rows) if rows.len() == chosen.len())
    };
    columns.retain(|column| !unknown(column));
    table(key, if audience == Audience::People { "Moments" } else { "" }, audience, columns)
}

//! Tables of runs for people: one for each origin, metrics that were not counted, the quadrants at
//! the peak.

use pagewise_model::measured::{Measurement, MetricOrigin, MetricScope};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Label, Paragraph, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Quadrant, Reading};
use pagewise_stats::{Interval, Ratio, Summary};

use super::compare::{IntervalVerdict, ratio};
use super::rows::{StatRow, StatRows, StatSection, at_peak};
use crate::blocks::table;
use crate::explain::meaning;

/// The sections, in reading order.
const SECTIONS: &[(StatSection, &str)] = &[
    (StatSection::From(MetricOrigin::Rusage), "Time and resources"),
    (StatSection::From(MetricOrigin::Sampled), "Memory at the sample with the most PSS"),
    (StatSection::From(MetricOrigin::Software), "Counted by the kernel"),
    (StatSection::From(MetricOrigin::Tracepoint), "Tracepoints"),
    (StatSection::From(MetricOrigin::Hardware), "Counted by the CPU"),
    (StatSection::Derived, "Derived"),
    (
        StatSection::From(MetricOrigin::Machine),
        "The whole machine during the runs, other programs included",
    ),
];

pub(super) fn blocks(arms: &[StatRows]) -> Vec<ReportBlock> {
    let Some(first) = arms.first() else { return Vec::new() };
    let mut blocks = Vec::new();
    for (section, title) in SECTIONS {
        let rows: Vec<&StatRow> = first.iter().filter(|row| row.section == *section).collect();
        let is_idle = |row: &&StatRow| is_idle(arms, row, *section);
        let (idle, shown): (Vec<&StatRow>, Vec<&StatRow>) =
            rows.into_iter().filter(|row| row.summary().is_ok()).partition(is_idle);
        if !shown.is_empty() {
            let note = idle_note(&idle);
            let shown = table("", title, Audience::People, columns(arms, &shown));
            blocks.push(ReportBlock::Table(ReportTable { note: note.into(), ..shown }));
        }
        if idle.len() > FEW {
            blocks.push(ReportBlock::Text(all_idle(&idle)));
        }
    }
    blocks.extend(not_counted(first).into_iter().map(ReportBlock::Text));
    blocks
}

/// True if the row belongs to tracepoints or machine counters, most of which are usually 0, and is
/// 0 in all runs.
fn is_idle(arms: &[StatRows], row: &StatRow, section: StatSection) -> bool {
    matches!(section, StatSection::From(MetricOrigin::Tracepoint | MetricOrigin::Machine))
        && arms.iter().all(|arm| arm.named(&row.name).is_none_or(StatRow::is_zero))
}

/// Maximum number of names without `--long`.
const FEW: usize = 8;

fn idle_note(idle: &[&StatRow]) -> String {
    match idle.len() {
        0 => String::new(),
        1..=FEW => format!("0 in every run: {}.", names(idle)),
        n => format!("{n} more are 0 in every run; --long names them."),
    }
}

fn all_idle(idle: &[&StatRow]) -> Paragraph {
    Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(format!("0 in every run: {}.", names(idle)))],
        audience: Audience::Long,
    }
}

fn names(rows: &[&StatRow]) -> String {
    rows.iter().map(|row| row.name.as_ref()).collect::<Vec<_>>().join(", ")
}

fn columns(arms: &[StatRows], rows: &[&StatRow]) -> Vec<TableColumn> {
    let label = |row: &&StatRow| match row.scope {
        MetricScope::ProcessUser => Label::from(format!("{} (user mode only)", row.name)),
        MetricScope::Process | MetricScope::Machine => row.name.clone(),
    };
    let mut columns =
        vec![TableColumn::new("name", "", ColumnCells::Labels(rows.iter().map(label).collect()))];
    match arms {
        [one, other] => columns.extend(two(rows, one, other)),
        _ => columns.extend(one(rows)),
    }
    let means = rows.iter().map(|row| meaning(&row.name).into()).collect();
    let means = TableColumn::new("meaning", "", ColumnCells::Labels(means));
    columns.push(TableColumn { audience: Audience::Long, ..means });
    columns
}

/// A column of one number of each summary.
type SummaryColumn = (&'static str, &'static str, fn(&Summary) -> Option<f64>);

const NUMBERS: &[SummaryColumn] = &[
    ("median", "median", |s| Some(s.median)),
    ("mad", "MAD", |s| Some(s.mad)),
    ("min", "min", |s| Some(s.min)),
    ("max", "max", |s| Some(s.max)),
    ("mean", "mean", |s| Some(s.mean)),
    ("sd", "sd", |s| s.sd),
];

fn one(rows: &[&StatRow]) -> Vec<TableColumn> {
    let single = rows.iter().all(|row| row.summary().is_ok_and(|summary| summary.n == 1));
    if single {
        return vec![numbers("value", "value", rows, |s| Some(s.median))];
    }
    NUMBERS.iter().map(|(key, label, number)| numbers(key, label, rows, *number)).collect()
}

fn numbers(
    key: &'static str,
    label: &'static str,
    rows: &[&StatRow],
    number: fn(&Summary) -> Option<f64>,
) -> TableColumn {
    let value = |row: &&StatRow| match row.summary().map(|summary| number(&summary)) {
        Ok(Some(number)) => row.kind.value(number),
        Ok(None) => CellValue::None,
        Err(absent) => CellValue::Absent(absent),
    };
    TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(value).collect()))
}

/// All rows of all arms under each other.
pub(super) fn flat(arms: &[StatRows]) -> ReportTable {
    let arms = ["A", "B"].into_iter().zip(arms);
    let rows: Vec<(&str, &StatRow)> =
        arms.flat_map(|(arm, rows)| rows.iter().map(move |row| (arm, row))).collect();
    let all: Vec<&StatRow> = rows.iter().map(|(_, row)| *row).collect();
    let words = |key, words: fn(&StatRow) -> Label| {
        TableColumn::new(key, key, ColumnCells::Labels(all.iter().map(|row| words(row)).collect()))
    };
    let mut columns = vec![
        TableColumn::new(
            "arm",
            "",
            ColumnCells::Labels(rows.iter().map(|(arm, _)| (*arm).into()).collect()),
        ),
        words("name", |row| row.name.clone()),
        words("unit", |row| row.kind.key().into()),
        words("scope", |row| row.scope.key().into()),
    ];
    columns.extend(NUMBERS.iter().map(|(key, label, number)| numbers(key, label, &all, *number)));
    let count = |row: &&StatRow| row.summary().map_or(0, |summary| summary.n as u64);
    columns.push(TableColumn::new("n", "n", ColumnCells::Counts(all.iter().map(count).collect())));
    columns.push(words("absent", |row| {
        row.summary().err().map_or("".into(), |why| why.to_string().into())
    }));
    table("", "", Audience::Programs, columns)
}

/// Both medians and their comparison.
fn two(rows: &[&StatRow], one: &StatRows, other: &StatRows) -> Vec<TableColumn> {
    let of = |arm: &StatRows, row: &StatRow, number: fn(&Summary) -> f64| {
        let found =
            arm.named(&row.name).map(|row| row.summary().map(|s| row.kind.value(number(&s))));
        match found {
            Some(Ok(value)) => value,
            Some(Err(absent)) => CellValue::Absent(absent),
            None => CellValue::None,
        }
    };
    let column = |key: &'static str, label: &'static str, values: Vec<CellValue>| {
        TableColumn::new(key, label, ColumnCells::Values(values))
    };
    let each = |arm: &StatRows, number: fn(&Summary) -> f64| {
        rows.iter().map(|row| of(arm, row, number)).collect::<Vec<_>>()
    };
    let ratios: Vec<_> =
        rows.iter().map(|row| other.named(&row.name).and_then(|other| ratio(row, other))).collect();
    let number = |n: Option<f64>| n.map_or(CellValue::None, CellValue::Number);
    let verdicts = rows.iter().zip(&ratios).map(|(row, ratio)| match ratio {
        Some(ratio) => {
            CellValue::text(IntervalVerdict::from_interval(ratio.interval).describe(&row.name))
        }
        None => CellValue::None,
    });
    let ends = |end: fn(Interval) -> f64| {
        let interval = |ratio: &Option<Ratio>| ratio.as_ref().and_then(|ratio| ratio.interval);
        ratios.iter().map(|ratio| number(interval(ratio).map(end))).collect::<Vec<_>>()
    };
    let medians = ratios.iter().map(|ratio| number(ratio.as_ref().map(|ratio| ratio.median)));
    // If the line is too narrow, columns on the right are left out.
    vec![
        column("a", "A median", each(one, |s| s.median)),
        column("b", "B median", each(other, |s| s.median)),
        column("ratio", "A/B", medians.collect()),
        column("low", "from", ends(|interval| interval.low)),
        column("high", "to", ends(|interval| interval.high)),
        column("verdict", "A is", verdicts.collect()),
        column("a_mad", "A MAD", each(one, |s| s.mad)),
        column("b_mad", "B MAD", each(other, |s| s.mad)),
    ]
}

/// Metrics without a value, by reason.
fn not_counted(rows: &StatRows) -> Vec<Paragraph> {
    let mut reasons: Vec<(Absent, Vec<&StatRow>)> = Vec::new();
    // A value computed from a missing one is missing for the same reason.
    for row in rows.iter().filter(|row| row.section != StatSection::Derived) {
        let Err(absent) = row.summary() else { continue };
        match reasons.iter_mut().find(|(reason, _)| *reason == absent) {
            Some((_, rows)) => rows.push(row),
            None => reasons.push((absent, vec![row])),
        }
    }
    let paragraph = |(absent, rows): (Absent, Vec<&StatRow>)| Paragraph {
        title: "".into(),
        pieces: vec![
            CellValue::text(format!("Not counted ({absent}): ")),
            CellValue::text(names(&rows)),
            CellValue::text("."),
        ],
        audience: Audience::People,
    };
    reasons.into_iter().map(paragraph).collect()
}

/// The quadrants, page by page, of the largest process of a run: of all runs, the one with the most
/// resident memory in its sample.
pub(super) fn quadrants(measurement: &Measurement) -> Option<ReportBlock> {
    let runs = measurement.arms.first()?.runs.iter();
    let sizes = runs.filter_map(|run| {
        let quadrants = at_peak(run).ok()?;
        let resident = quadrants.effective.iter().map(|cell| cell.resident.clone());
        let size: Reading<Bytes> = resident.sum();
        Some((size.unwrap_or_default(), quadrants, run.at_peak.as_ref()?))
    });
    let (_, quadrants, snapshot) = sizes.max_by_key(|(size, ..)| *size)?;
    let cells = &quadrants.effective;
    let names = Quadrant::ALL.map(|quadrant| Label::from(quadrant.label())).to_vec();
    let names = TableColumn::new("quadrant", "", ColumnCells::Labels(names));
    let columns = vec![
        TableColumn { audience: Audience::People, ..names },
        TableColumn::bytes("reserved", "Reserved", cells.iter().map(|cell| cell.reserved.clone())),
        TableColumn::bytes("resident", "Resident", cells.iter().map(|cell| cell.resident.clone())),
        TableColumn::bytes("pss", "PSS", cells.iter().map(|cell| cell.pss.clone())),
        TableColumn::bytes("swapped", "Swapped", cells.iter().map(|cell| cell.swapped.clone())),
    ];
    let keys = Quadrant::ALL.map(|quadrant| Label::from(quadrant.key())).to_vec();
    let name = snapshot.process.name.escaped();
    let title = format!("Quadrants of {name}, its largest process near the peak, by page state");
    let found = table("at_peak", "", Audience::Everyone, columns);
    Some(ReportBlock::Table(ReportTable { title: title.into(), row_keys: Some(keys), ..found }))
}

//! What people see of runs: a table for each origin, what was not counted, the quadrants at the peak.

use pagewise_model::measured::{Measurement, Origin, Scope};
use pagewise_model::report::{Audience, Block, Cells, Column, Label, Paragraph, Table, Value};
use pagewise_model::{Absent, Bytes, Quadrant, Reading};
use pagewise_stats::{Interval, Ratio, Summary};

use super::compare::{Verdict, ratio};
use super::rows::{Row, Rows, Section, at_peak};
use crate::blocks::table;
use crate::explain::meaning;

/// The sections, in reading order.
const SECTIONS: &[(Section, &str)] = &[
    (Section::From(Origin::Rusage), "Time and resources"),
    (Section::From(Origin::Sampled), "Memory at the sample with the most PSS"),
    (Section::From(Origin::Software), "Counted by the kernel"),
    (Section::From(Origin::Tracepoint), "Tracepoints"),
    (Section::From(Origin::Hardware), "Counted by the CPU"),
    (Section::Derived, "Derived"),
    (Section::From(Origin::Machine), "The whole machine meanwhile, other programs included"),
];

pub(super) fn blocks(arms: &[Rows]) -> Vec<Block> {
    let Some(first) = arms.first() else { return Vec::new() };
    let mut blocks = Vec::new();
    for (section, title) in SECTIONS {
        let rows: Vec<&Row> = first.iter().filter(|row| row.section == *section).collect();
        let is_idle = |row: &&Row| is_idle(arms, row, *section);
        let (idle, shown): (Vec<&Row>, Vec<&Row>) =
            rows.into_iter().filter(|row| row.summary().is_ok()).partition(is_idle);
        if !shown.is_empty() {
            let note = idle_note(&idle);
            let shown = table("", title, Audience::People, columns(arms, &shown));
            blocks.push(Block::Table(Table { note: note.into(), ..shown }));
        }
        if idle.len() > FEW {
            blocks.push(Block::Text(all_idle(&idle)));
        }
    }
    blocks.extend(not_counted(first).into_iter().map(Block::Text));
    blocks
}

/// Whether it is of a section in which most things mostly do not happen, and did not.
fn is_idle(arms: &[Rows], row: &Row, section: Section) -> bool {
    matches!(section, Section::From(Origin::Tracepoint | Origin::Machine))
        && arms.iter().all(|arm| arm.named(&row.name).is_none_or(Row::is_zero))
}

/// As many names as are told where people did not ask for more.
const FEW: usize = 8;

fn idle_note(idle: &[&Row]) -> String {
    match idle.len() {
        0 => String::new(),
        1..=FEW => format!("0 in every run: {}.", names(idle)),
        n => format!("{n} more are 0 in every run; --long names them."),
    }
}

fn all_idle(idle: &[&Row]) -> Paragraph {
    Paragraph {
        title: "".into(),
        pieces: vec![Value::text(format!("0 in every run: {}.", names(idle)))],
        audience: Audience::Long,
    }
}

fn names(rows: &[&Row]) -> String {
    rows.iter().map(|row| row.name.as_ref()).collect::<Vec<_>>().join(", ")
}

fn columns(arms: &[Rows], rows: &[&Row]) -> Vec<Column> {
    let label = |row: &&Row| match row.scope {
        Scope::ProcessUser => Label::from(format!("{} (user mode only)", row.name)),
        Scope::Process | Scope::Machine => row.name.clone(),
    };
    let mut columns =
        vec![Column::new("name", "", Cells::Labels(rows.iter().map(label).collect()))];
    match arms {
        [one, other] => columns.extend(two(rows, one, other)),
        _ => columns.extend(one(rows)),
    }
    let means = rows.iter().map(|row| meaning(&row.name).into()).collect();
    let means = Column::new("meaning", "", Cells::Labels(means));
    columns.push(Column { audience: Audience::Long, ..means });
    columns
}

/// A column of one number of each summary.
type Number = (&'static str, &'static str, fn(&Summary) -> Option<f64>);

const NUMBERS: &[Number] = &[
    ("median", "median", |s| Some(s.median)),
    ("mad", "MAD", |s| Some(s.mad)),
    ("min", "min", |s| Some(s.min)),
    ("max", "max", |s| Some(s.max)),
    ("mean", "mean", |s| Some(s.mean)),
    ("sd", "sd", |s| s.sd),
];

fn one(rows: &[&Row]) -> Vec<Column> {
    let single = rows.iter().all(|row| row.summary().is_ok_and(|summary| summary.n == 1));
    if single {
        return vec![numbers("value", "value", rows, |s| Some(s.median))];
    }
    NUMBERS.iter().map(|(key, label, number)| numbers(key, label, rows, *number)).collect()
}

fn numbers(
    key: &'static str,
    label: &'static str,
    rows: &[&Row],
    number: fn(&Summary) -> Option<f64>,
) -> Column {
    let value = |row: &&Row| match row.summary().map(|summary| number(&summary)) {
        Ok(Some(number)) => row.kind.value(number),
        Ok(None) => Value::None,
        Err(absent) => Value::Absent(absent),
    };
    Column::new(key, label, Cells::Values(rows.iter().map(value).collect()))
}

/// All rows of all arms under each other.
pub(super) fn flat(arms: &[Rows]) -> Table {
    let arms = ["A", "B"].into_iter().zip(arms);
    let rows: Vec<(&str, &Row)> =
        arms.flat_map(|(arm, rows)| rows.iter().map(move |row| (arm, row))).collect();
    let all: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
    let words = |key, words: fn(&Row) -> Label| {
        Column::new(key, key, Cells::Labels(all.iter().map(|row| words(row)).collect()))
    };
    let mut columns = vec![
        Column::new("arm", "", Cells::Labels(rows.iter().map(|(arm, _)| (*arm).into()).collect())),
        words("name", |row| row.name.clone()),
        words("unit", |row| row.kind.key().into()),
        words("scope", |row| row.scope.key().into()),
    ];
    columns.extend(NUMBERS.iter().map(|(key, label, number)| numbers(key, label, &all, *number)));
    let count = |row: &&Row| row.summary().map_or(0, |summary| summary.n as u64);
    columns.push(Column::new("n", "n", Cells::Counts(all.iter().map(count).collect())));
    columns.push(words("absent", |row| {
        row.summary().err().map_or("".into(), |why| why.to_string().into())
    }));
    table("", "", Audience::Programs, columns)
}

/// Both medians and how they compare.
fn two(rows: &[&Row], one: &Rows, other: &Rows) -> Vec<Column> {
    let of = |arm: &Rows, row: &Row, number: fn(&Summary) -> f64| {
        let found =
            arm.named(&row.name).map(|row| row.summary().map(|s| row.kind.value(number(&s))));
        match found {
            Some(Ok(value)) => value,
            Some(Err(absent)) => Value::Absent(absent),
            None => Value::None,
        }
    };
    let column = |key: &'static str, label: &'static str, values: Vec<Value>| {
        Column::new(key, label, Cells::Values(values))
    };
    let each = |arm: &Rows, number: fn(&Summary) -> f64| {
        rows.iter().map(|row| of(arm, row, number)).collect::<Vec<_>>()
    };
    let ratios: Vec<_> =
        rows.iter().map(|row| other.named(&row.name).and_then(|other| ratio(row, other))).collect();
    let number = |n: Option<f64>| n.map_or(Value::None, Value::Number);
    let verdicts = rows.iter().zip(&ratios).map(|(row, ratio)| match ratio {
        Some(ratio) => Value::text(Verdict::of(ratio.interval).words(&row.name)),
        None => Value::None,
    });
    let ends = |end: fn(Interval) -> f64| {
        let interval = |ratio: &Option<Ratio>| ratio.as_ref().and_then(|ratio| ratio.interval);
        ratios.iter().map(|ratio| number(interval(ratio).map(end))).collect::<Vec<_>>()
    };
    let medians = ratios.iter().map(|ratio| number(ratio.as_ref().map(|ratio| ratio.median)));
    // Where not all fit, those to the right are left out.
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

/// What has no value, by reason.
fn not_counted(rows: &Rows) -> Vec<Paragraph> {
    let mut reasons: Vec<(Absent, Vec<&Row>)> = Vec::new();
    // What follows from what is missing is missing for the same reason.
    for row in rows.iter().filter(|row| row.section != Section::Derived) {
        let Err(absent) = row.summary() else { continue };
        match reasons.iter_mut().find(|(reason, _)| *reason == absent) {
            Some((_, rows)) => rows.push(row),
            None => reasons.push((absent, vec![row])),
        }
    }
    let paragraph = |(absent, rows): (Absent, Vec<&Row>)| Paragraph {
        title: "".into(),
        pieces: vec![
            Value::text(format!("Not counted ({absent}): ")),
            Value::text(names(&rows)),
            Value::text("."),
        ],
        audience: Audience::People,
    };
    reasons.into_iter().map(paragraph).collect()
}

/// The quadrants, page by page, of the largest process of the run that had the most there when it was sampled.
pub(super) fn quadrants(measurement: &Measurement) -> Option<Block> {
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
    let names = Column::new("quadrant", "", Cells::Labels(names));
    let columns = vec![
        Column { audience: Audience::People, ..names },
        Column::bytes("reserved", "Reserved", cells.iter().map(|cell| cell.reserved.clone())),
        Column::bytes("resident", "Resident", cells.iter().map(|cell| cell.resident.clone())),
        Column::bytes("pss", "PSS", cells.iter().map(|cell| cell.pss.clone())),
        Column::bytes("swapped", "Swapped", cells.iter().map(|cell| cell.swapped.clone())),
    ];
    let keys = Quadrant::ALL.map(|quadrant| Label::from(quadrant.key())).to_vec();
    let name = snapshot.process.name.escaped();
    let title = format!("Quadrants of {name}, its largest process near the peak, page by page");
    let found = table("at_peak", "", Audience::Everyone, columns);
    Some(Block::Table(Table { title: title.into(), row_keys: Some(keys), ..found }))
}

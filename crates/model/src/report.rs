//! A report: what an analysis found, in a small closed set of blocks that every view can draw.
//!
//! Each block carries the key under which programs find it (`"totals"`, `"pools"`), so the JSON
//! that users rely on comes from the same values as the page that people read. A view draws; it
//! never computes, so a number appears in every view or in none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lab::Claim;
use crate::mapping::AddrRange;
use crate::{Absent, Name, Reading};

/// Static or built text of our own. Text from outside is a [`Name`].
pub type Label = Cow<'static, str>;

/// What an analysis found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name and version of the JSON form: `pagewise.explain/1`.
    pub schema: &'static str,
    /// One line that names the subject.
    pub title: Vec<Value>,
    /// The blocks, in reading order.
    pub blocks: Vec<Block>,
}

/// One part of a report. Closed on purpose: a new kind must be drawn by every view.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Named values: a JSON object; a line or a list for people.
    Facts(Facts),
    /// Rows and columns: a JSON array of objects, or an object of objects where rows have keys.
    Table(Table),
    /// Findings: a JSON array.
    Findings(Findings),
    /// A picture of an address space, for people only.
    AddressMap(AddressMap),
    /// Lines over an axis, for people only.
    Chart(Chart),
    /// Numbers beside each other, for people only.
    Bars(Bars),
    /// Claims with what became of them, for people only.
    Claims(Vec<Claim>),
    /// A paragraph, for people only.
    Text(Paragraph),
    /// A part begins: what follows up to the next is about this. For people only.
    Part(Label),
}

/// Whom a block or a fact is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// Both.
    #[default]
    Everyone,
    /// Text and HTML.
    People,
    /// Text and HTML with `--long`, and programs.
    Long,
    /// JSON.
    Programs,
}

/// Named values.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The JSON key; a dot nests: `process`, `quadrants.declared`. Empty puts the facts at the top level.
    pub key: Label,
    /// The heading; empty for none.
    pub title: Label,
    /// Whom it is for.
    pub audience: Audience,
    /// How people see it.
    pub shape: Shape,
    /// The values.
    pub facts: Vec<Fact>,
}

/// How a view lays out [`Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One after the other, `label value`, wrapped to the width.
    Line,
    /// As a row of columns with the label above the value, wrapped to the width, as top does.
    Columns,
    /// One a line, with the meaning where the reader asked for it.
    List,
}

/// One named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// The JSON key.
    pub key: Label,
    /// The label for people: `VIRT`.
    pub label: Label,
    /// The value.
    pub value: Value,
    /// One sentence for `--long`; empty for none.
    pub meaning: Label,
    /// Whom it is for.
    pub audience: Audience,
}

impl Fact {
    /// The same for people only.
    #[must_use]
    pub fn for_people(self) -> Fact {
        Fact { audience: Audience::People, ..self }
    }

    /// The same for programs only.
    #[must_use]
    pub fn for_programs(self) -> Fact {
        Fact { audience: Audience::Programs, ..self }
    }

    /// The same, for programs only where there is nothing to tell people.
    #[must_use]
    pub fn hidden_if(self, hidden: bool) -> Fact {
        if hidden { self.for_programs() } else { self }
    }
}

/// A value with its unit. Closed like [`Block`]: a new kind must be drawn by every view.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing to say here: an empty cell; JSON null.
    None,
    /// Bytes. JSON: a number.
    Bytes(u64),
    /// A difference in bytes, drawn with its sign. JSON: a number.
    Change(i64),
    /// How many. JSON: a number.
    Count(u64),
    /// An address, drawn in hex. JSON: a number (page-aligned ones are exact in a double too).
    Address(u64),
    /// A share from 0 to 1, drawn in per cent. JSON: a number.
    Share(f64),
    /// Nanoseconds. JSON: a number.
    Nanos(u64),
    /// Nanoseconds that programs get as seconds. JSON: a number with nine decimals.
    Seconds(u64),
    /// Yes or no. JSON: a boolean.
    Flag(bool),
    /// Our own words.
    Text(Label),
    /// A picture made of characters of the same width. JSON: a string.
    Picture(Label),
    /// Words from outside: escaped by every view.
    Name(Name),
    /// How many a second. JSON: a number.
    Rate(f64),
    /// A number that need not be whole: a mean count, a ratio. JSON: a number.
    Number(f64),
    /// A share from 0 to 1, drawn as a bar to scale. JSON: a number.
    Bar(f64),
    /// Several values. JSON: an array; drawn one after the other.
    List(Vec<Value>),
    /// Named values. JSON: an object; drawn as name and value, one after the other.
    Record(Vec<(Label, Value)>),
    /// Why there is no value. JSON: `{"absent": "why"}`; drawn as a mark with the reason below.
    Absent(Absent),
}

impl Value {
    /// A value from a reading.
    pub fn of<T>(reading: Reading<T>, make: impl FnOnce(T) -> Value) -> Value {
        match reading {
            Ok(value) => make(value),
            Err(absent) => Value::Absent(absent),
        }
    }

    /// Bytes from a reading.
    pub fn bytes(reading: Reading<crate::Bytes>) -> Value {
        Value::of(reading, |b| Value::Bytes(b.0))
    }

    /// Our own words.
    pub fn text(text: impl Into<Label>) -> Value {
        Value::Text(text.into())
    }
}

/// Rows and columns, stored by column.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The JSON key; a dot nests.
    pub key: Label,
    /// The heading; empty for none.
    pub title: Label,
    /// Whom it is for.
    pub audience: Audience,
    /// The columns, all of the same length.
    pub columns: Vec<Column>,
    /// A key for each row makes the JSON an object; `None` makes it an array.
    pub row_keys: Option<Vec<Label>>,
    /// A last row, one value a column; for people only.
    pub total: Option<Vec<Value>>,
    /// A line below the table; empty for none.
    pub note: Label,
}

impl Table {
    /// How many rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |c| c.cells.len())
    }
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The JSON key.
    pub key: Label,
    /// The heading for people.
    pub label: Label,
    /// One sentence for `--long` and hover; empty for none.
    pub meaning: Label,
    /// Whom it is for: an address column may be for programs only.
    pub audience: Audience,
    /// The values.
    pub cells: Cells,
    /// Which rows have no value, and why.
    pub gaps: Gaps,
}

/// The values of a column. The typed forms keep 65,000 rows small.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// [`Value::Bytes`].
    Bytes(Vec<u64>),
    /// [`Value::Count`].
    Counts(Vec<u64>),
    /// [`Value::Address`].
    Addresses(Vec<u64>),
    /// [`Value::Name`].
    Names(Vec<Name>),
    /// [`Value::Text`].
    Labels(Vec<Label>),
    /// Anything.
    Values(Vec<Value>),
}

impl Cells {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Cells::Bytes(v) | Cells::Counts(v) | Cells::Addresses(v) => v.len(),
            Cells::Names(v) => v.len(),
            Cells::Labels(v) => v.len(),
            Cells::Values(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of a column that have no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Gaps {
    /// None: every row has one.
    #[default]
    None,
    /// Every row, for one reason.
    All(Absent),
    /// These rows.
    Some(BTreeMap<usize, Absent>),
}

impl Column {
    /// Why the row has no value, where it has none.
    pub fn gap(&self, row: usize) -> Option<&Absent> {
        match &self.gaps {
            Gaps::None => None,
            Gaps::All(absent) => Some(absent),
            Gaps::Some(rows) => rows.get(&row),
        }
    }

    /// The value of a row.
    pub fn value(&self, row: usize) -> Value {
        if let Some(absent) = self.gap(row) {
            return Value::Absent(absent.clone());
        }
        match &self.cells {
            Cells::Bytes(v) => Value::Bytes(v[row]),
            Cells::Counts(v) => Value::Count(v[row]),
            Cells::Addresses(v) => Value::Address(v[row]),
            Cells::Names(v) => Value::Name(v[row].clone()),
            Cells::Labels(v) => Value::Text(v[row].clone()),
            Cells::Values(v) => v[row].clone(),
        }
    }

    /// A column of bytes from readings; the gaps keep their reasons.
    pub fn bytes(
        key: impl Into<Label>,
        label: impl Into<Label>,
        readings: impl IntoIterator<Item = Reading<crate::Bytes>>,
    ) -> Column {
        let mut gaps = BTreeMap::new();
        let mut cells = Vec::new();
        for (row, reading) in readings.into_iter().enumerate() {
            cells.push(reading.map_or_else(
                |absent| {
                    gaps.insert(row, absent);
                    0
                },
                |bytes| bytes.0,
            ));
        }
        let gaps = if gaps.is_empty() { Gaps::None } else { Gaps::Some(gaps) };
        Column { gaps, ..Column::new(key, label, Cells::Bytes(cells)) }
    }

    /// A column with no gaps, for everyone.
    pub fn new(key: impl Into<Label>, label: impl Into<Label>, cells: Cells) -> Column {
        Column {
            key: key.into(),
            label: label.into(),
            meaning: "".into(),
            audience: Audience::Everyone,
            cells,
            gaps: Gaps::None,
        }
    }
}

/// Findings, under the JSON key `findings`.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// The findings, the gravest first. An empty list is drawn as `none` says.
    pub list: Vec<Finding>,
    /// What people read where there is no finding.
    pub none: Label,
}

/// Something worth knowing, why we think so, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// A stable name: `swapped`, `many-arenas`.
    pub id: &'static str,
    /// How grave.
    pub severity: Severity,
    /// One sentence, as pieces: words of ours, values with units, names from outside.
    pub claim: Vec<Value>,
    /// The values behind it. JSON: an object.
    pub evidence: Vec<Fact>,
    /// What the reader can do.
    pub next_step: Vec<Value>,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// Costs memory or time.
    Warning,
    /// The process is near a limit or at risk.
    Critical,
}

impl Severity {
    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// An address space, to be drawn to scale.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressMap {
    /// The heading.
    pub title: Label,
    /// Clusters of neighbouring mappings: between two lie holes too wide to draw to scale.
    pub clusters: Vec<Cluster>,
}

/// Neighbouring mappings.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// From the first to the last.
    pub range: AddrRange,
    /// The mappings, by address.
    pub cells: Vec<MapCell>,
}

/// One mapping in an [`AddressMap`].
#[derive(Clone, Debug, PartialEq)]
pub struct MapCell {
    /// Where.
    pub range: AddrRange,
    /// The id of its pool: views choose a colour by it.
    pub pool: &'static str,
    /// What it is, in words and names.
    pub label: Vec<Value>,
    /// The share that is resident, from 0 to 1.
    pub filled: Reading<f64>,
    /// What to show on hover.
    pub facts: Vec<Fact>,
}

/// A paragraph of our own words and of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Paragraph {
    /// The heading; empty for none.
    pub title: Label,
    /// The pieces, drawn one after the other with no space added.
    pub pieces: Vec<Value>,
    /// Whom it is for.
    pub audience: Audience,
}

/// Lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The heading, in words and names.
    pub title: Vec<Value>,
    /// What goes to the right.
    pub x: Axis,
    /// What goes up.
    pub y: Axis,
    /// The lines, the most important first.
    pub lines: Vec<Line>,
}

/// An axis of a [`Chart`].
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What its numbers are.
    pub label: Label,
    /// Their unit.
    pub unit: Unit,
    /// How they are laid out.
    pub scale: Scale,
}

/// How the numbers of an [`Axis`] are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal steps are equally far apart. Heights begin at 0.
    Linear,
    /// Equal ratios are equally far apart; there is no place for 0 and what is below.
    Log,
}

/// What the numbers of an [`Axis`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// [`Value::Bytes`].
    Bytes,
    /// [`Value::Count`].
    Count,
    /// [`Value::Nanos`], with its decimals where it is short.
    Nanos,
    /// [`Value::Number`].
    Number,
    /// [`Value::Share`].
    Share,
    /// [`Value::Rate`].
    Rate,
}

impl Unit {
    /// A number of it as a value.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is below 0 or above 2^64 is drawn as the end of the range"
    )]
    pub fn value(self, number: f64) -> Value {
        match self {
            Unit::Bytes => Value::Bytes(number.round() as u64),
            Unit::Count => Value::Count(number.round() as u64),
            Unit::Nanos => Value::Nanos(number.round() as u64),
            Unit::Number => Value::Number(number),
            Unit::Share => Value::Share(number),
            Unit::Rate => Value::Rate(number),
        }
    }
}

/// A line of a [`Chart`].
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is.
    pub label: Label,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Numbers beside each other as bars from 0, each with the interval in which it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The heading.
    pub title: Vec<Value>,
    /// What the numbers are.
    pub axis: Axis,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One of [`Bars`].
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is.
    pub label: Label,
    /// How long it is.
    pub value: f64,
    /// Where the truth lies; `None` where too little is known.
    pub interval: Option<(f64, f64)>,
}

impl Axis {
    /// Where a number is on an axis from `low` to `high`: 0 at the low end, 1 at the high one; `None` beside it, or where
    /// it has no place.
    pub fn place(&self, number: f64, (low, high): (f64, f64)) -> Option<f64> {
        let [at, low, high] = match self.scale {
            Scale::Linear => [number, low, high],
            Scale::Log => [number, low, high].map(f64::ln),
        };
        let place = if high > low { (at - low) / (high - low) } else { 0.5 };
        (place.is_finite() && (-1e-9..=1.0 + 1e-9).contains(&place))
            .then_some(place.clamp(0.0, 1.0))
    }

    /// The number at a place: the other way round.
    pub fn number(&self, place: f64, (low, high): (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => low + (high - low) * place,
            Scale::Log => (low.ln() + (high.ln() - low.ln()) * place).exp(),
        }
    }

    /// The least and the greatest of numbers that have a place; `None` where there are none.
    pub fn ends(&self, numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let has_place = |number: &f64| match self.scale {
            Scale::Linear => number.is_finite(),
            Scale::Log => number.is_finite() && *number > 0.0,
        };
        let widen = |ends: Option<(f64, f64)>, n: f64| {
            Some(ends.map_or((n, n), |(low, high)| (low.min(n), high.max(n))))
        };
        numbers.filter(has_place).fold(None, widen)
    }
}

impl Chart {
    /// The ends of the axis to the right; `None` where there is no point.
    pub fn width(&self) -> Option<(f64, f64)> {
        self.x.ends(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)))
    }

    /// The ends of the axis up.
    pub fn height(&self) -> Option<(f64, f64)> {
        let numbers = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let (low, high) = self.y.ends(numbers)?;
        Some(if self.y.scale == Scale::Linear { (low.min(0.0), high) } else { (low, high) })
    }
}

impl Bars {
    /// The ends of the axis.
    pub fn ends(&self) -> Option<(f64, f64)> {
        let of = |bar: &Bar| {
            [Some(bar.value), bar.interval.map(|ends| ends.0), bar.interval.map(|ends| ends.1)]
        };
        let (low, high) = self.axis.ends(self.bars.iter().flat_map(of).flatten())?;
        Some(if self.axis.scale == Scale::Linear {
            (low.min(0.0), high)
        } else {
            (low / 2.0, high)
        })
    }
}

impl Line {
    /// Its height at `x`, on a straight line between the points around; `None` beside its ends.
    pub fn at(&self, x: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < x);
        let (x1, y1) = *self.points.get(after)?;
        let Some((x0, y0)) = after.checked_sub(1).map(|before| self.points[before]) else {
            return (x1 <= x).then_some(y1);
        };
        let share = if x1 > x0 { (x - x0) / (x1 - x0) } else { 1.0 };
        Some(y0 + (y1 - y0) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_straight_between_its_points() {
        let points = vec![(10.0, 100.0), (20.0, 0.0), (30.0, 7.0)];
        let line = Line { label: "a".into(), points };
        let found = [9.0, 10.0, 15.0, 20.0, 30.0, 31.0].map(|x| line.at(x));
        assert_eq!(found, [None, Some(100.0), Some(50.0), Some(0.0), Some(7.0), None]);
    }

    #[test]
    fn an_axis_places_what_it_can() {
        let axis = |scale| Axis { label: "".into(), unit: Unit::Number, scale };
        let [linear, log] = [Scale::Linear, Scale::Log].map(axis);
        assert_eq!(linear.place(5.0, (0.0, 10.0)), Some(0.5));
        assert_eq!(log.place(100.0, (1.0, 10_000.0)), Some(0.5));
        assert_eq!(log.place(0.0, (1.0, 10.0)), None);
        assert_eq!(linear.place(f64::NAN, (0.0, 1.0)), None);
        assert_eq!(log.ends([0.0, 3.0, f64::INFINITY, 2.0].into_iter()), Some((2.0, 3.0)));
        assert!((log.number(0.5, (1.0, 10_000.0)) - 100.0).abs() < 1e-9);
    }
}

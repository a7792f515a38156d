//! A report: the results of an analysis, in a small closed set of blocks that every view can draw.
//!
//! Each block has the key under which programs find it in the JSON (`"totals"`, `"pools"`), so JSON
//! and pages contain the same values. A view only draws and never computes, so each number is
//! either in all views or in none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lab::ExperimentClaim;
use crate::mapping::AddrRange;
use crate::{Absent, Name, Reading};

/// Text of pagewise itself, static or allocated. Text from outside is a [`Name`].
pub type Label = Cow<'static, str>;

/// Result of an analysis.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name and version of the JSON form: `pagewise.explain/1`.
    pub schema: &'static str,
    /// One line that names the subject.
    pub title: Vec<CellValue>,
    /// The blocks, in reading order.
    pub blocks: Vec<ReportBlock>,
}

/// One part of a report. The set is closed, because every view must draw each kind of block.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportBlock {
    /// Named values: a JSON object; for people a line or a list.
    Facts(NamedFacts),
    /// Rows and columns: a JSON array of objects, or an object of objects if the rows have keys.
    Table(ReportTable),
    /// Findings: a JSON array.
    Findings(Findings),
    /// A picture of an address space, for people only.
    AddressMap(AddressMap),
    /// Lines over an axis, for people only.
    Chart(Chart),
    /// Numbers as bars beside each other, for people only.
    Bars(Bars),
    /// Claims with their verdicts, for people only.
    Claims(Vec<ExperimentClaim>),
    /// A paragraph, for people only.
    Text(Paragraph),
    /// Heading of a part, which extends to the next heading. For people only.
    Part(Label),
}

/// Readers of a block or a fact: people, programs, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// People and programs.
    #[default]
    Everyone,
    /// People: text and HTML.
    People,
    /// People if they use `--long`, and programs.
    Long,
    /// Programs: JSON.
    Programs,
}

/// Named values.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedFacts {
    /// The JSON key; a dot nests: `process`, `quadrants.declared`. An empty key puts the facts at
    /// the top level.
    pub key: Label,
    /// The heading; empty if the block has no heading.
    pub title: Label,
    /// Audience of the block.
    pub audience: Audience,
    /// Layout for people.
    pub shape: FactsShape,
    /// The values.
    pub facts: Vec<Fact>,
}

/// Layout of [`NamedFacts`] in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactsShape {
    /// Values one after the other, `label value`, wrapped to the width.
    Line,
    /// A row of columns with the label above the value, wrapped to the width, like in `top`.
    Columns,
    /// One value on each line, with its meaning if the user requested it (`--long`).
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
    pub value: CellValue,
    /// One sentence for `--long`; empty if the value needs none.
    pub meaning: Label,
    /// Audience of the fact.
    pub audience: Audience,
}

impl Fact {
    /// Returns the fact with the audience [`Audience::People`].
    #[must_use]
    pub fn for_people(self) -> Fact {
        Fact { audience: Audience::People, ..self }
    }

    /// Returns the fact with the audience [`Audience::Programs`].
    #[must_use]
    pub fn for_programs(self) -> Fact {
        Fact { audience: Audience::Programs, ..self }
    }

    /// Returns the fact, for programs only if `hidden` is true.
    #[must_use]
    pub fn hidden_if(self, hidden: bool) -> Fact {
        if hidden { self.for_programs() } else { self }
    }
}

/// A value with its unit. The set is closed, because every view must draw each kind of value.
#[derive(Clone, Debug, PartialEq)]
pub enum CellValue {
    /// An empty cell: the row has no value by design. JSON: null.
    None,
    /// Bytes. JSON: a number.
    Bytes(u64),
    /// A difference in bytes, drawn with its sign. JSON: a number.
    Change(i64),
    /// A count. JSON: a number.
    Count(u64),
    /// An address, drawn in hex. JSON: a number. (Page-aligned addresses are exact as
    /// floating-point numbers too.)
    Address(u64),
    /// A share from 0 to 1, drawn in per cent. JSON: a number.
    Share(f64),
    /// Nanoseconds. JSON: a number.
    Nanos(u64),
    /// Nanoseconds that JSON shows as seconds: a number with nine decimals.
    Seconds(u64),
    /// A truth value, drawn as a word. JSON: a boolean.
    Flag(bool),
    /// Text of pagewise itself. JSON: a string.
    Text(Label),
    /// A picture of characters in a fixed-width font. JSON: a string.
    Picture(Label),
    /// Text from outside, which every view escapes. JSON: a string.
    Name(Name),
    /// A rate per second. JSON: a number.
    Rate(f64),
    /// A number that can have decimals: a mean, a ratio. JSON: a number.
    Number(f64),
    /// A share from 0 to 1, drawn as a bar to scale. JSON: a number.
    Bar(f64),
    /// Several values, drawn one after the other. JSON: an array.
    List(Vec<CellValue>),
    /// Parts of one text: text of pagewise itself, values, text from outside. JSON: a string.
    Sentence(Vec<CellValue>),
    /// Named values, drawn as name and value one after the other. JSON: an object.
    Record(Vec<(Label, CellValue)>),
    /// Reason of an absent value, drawn as a mark with the reason below the block. JSON:
    /// `{"absent": "why"}`.
    Absent(Absent),
}

impl CellValue {
    /// Converts a reading to a cell: the value by `make`, or the reason of its absence.
    pub fn from_reading<T>(reading: Reading<T>, make: impl FnOnce(T) -> CellValue) -> CellValue {
        match reading {
            Ok(value) => make(value),
            Err(absent) => CellValue::Absent(absent),
        }
    }

    /// Converts a reading of bytes to a cell.
    pub fn bytes(reading: Reading<crate::Bytes>) -> CellValue {
        CellValue::from_reading(reading, |b| CellValue::Bytes(b.0))
    }

    /// Creates a cell with text of pagewise itself.
    pub fn text(text: impl Into<Label>) -> CellValue {
        CellValue::Text(text.into())
    }
}

/// Rows and columns, stored by column.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportTable {
    /// The JSON key; a dot nests: `process`, `quadrants.declared`.
    pub key: Label,
    /// The heading; empty if the table has no heading.
    pub title: Label,
    /// Audience of the table.
    pub audience: Audience,
    /// The columns, all of the same length.
    pub columns: Vec<TableColumn>,
    /// A key for each row, if the JSON is an object; `None` if it is an array.
    pub row_keys: Option<Vec<Label>>,
    /// A last row with one value for each column, for people only.
    pub total: Option<Vec<CellValue>>,
    /// Text below the table; empty if the table has none.
    pub note: Label,
}

impl ReportTable {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |c| c.cells.len())
    }
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumn {
    /// The JSON key.
    pub key: Label,
    /// The heading for people.
    pub label: Label,
    /// One sentence for `--long` and for hover text; empty if the column needs none.
    pub meaning: Label,
    /// Audience of the column: an address column may be for programs only.
    pub audience: Audience,
    /// The values.
    pub cells: ColumnCells,
    /// Rows without a value, with the reasons.
    pub gaps: Gaps,
}

/// The values of a column. The typed variants keep tables of 65,000 rows small.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnCells {
    /// [`CellValue::Bytes`].
    Bytes(Vec<u64>),
    /// [`CellValue::Count`].
    Counts(Vec<u64>),
    /// [`CellValue::Address`].
    Addresses(Vec<u64>),
    /// [`CellValue::Name`].
    Names(Vec<Name>),
    /// [`CellValue::Text`].
    Labels(Vec<Label>),
    /// Values of any kind.
    Values(Vec<CellValue>),
    /// Values of any kind, for many rows with few distinct values.
    Coded(CodedCells),
}

/// Cells as indices in a list of values. A table of millions of rows takes 4 bytes for each row;
/// columns with the same indices share them.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedCells {
    /// The values, in order of first appearance.
    pub values: Vec<CellValue>,
    /// For each row, the index of its value in `values`.
    pub codes: Arc<Vec<u32>>,
}

impl CodedCells {
    /// Value of a row; `None` if the row does not exist.
    pub fn get(&self, row: usize) -> Option<&CellValue> {
        self.values.get(usize::try_from(*self.codes.get(row)?).ok()?)
    }
}

impl ColumnCells {
    /// Number of cells.
    pub fn len(&self) -> usize {
        match self {
            ColumnCells::Bytes(v) | ColumnCells::Counts(v) | ColumnCells::Addresses(v) => v.len(),
            ColumnCells::Names(v) => v.len(),
            ColumnCells::Labels(v) => v.len(),
            ColumnCells::Values(v) => v.len(),
            ColumnCells::Coded(coded) => coded.codes.len(),
        }
    }

    /// True if the column has no cells.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of a column that have no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Gaps {
    /// All rows have a value.
    #[default]
    None,
    /// No row has a value, for one reason.
    All(Absent),
    /// These rows have no value, each with its reason.
    Some(BTreeMap<usize, Absent>),
}

impl TableColumn {
    /// Reason why a row has no value; `None` if the row has a value.
    pub fn gap(&self, row: usize) -> Option<&Absent> {
        match &self.gaps {
            Gaps::None => None,
            Gaps::All(absent) => Some(absent),
            Gaps::Some(rows) => rows.get(&row),
        }
    }

    /// Value of a row. If the row has no value, the reason of its absence.
    pub fn value(&self, row: usize) -> CellValue {
        if let Some(absent) = self.gap(row) {
            return CellValue::Absent(absent.clone());
        }
        match &self.cells {
            ColumnCells::Bytes(v) => CellValue::Bytes(v[row]),
            ColumnCells::Counts(v) => CellValue::Count(v[row]),
            ColumnCells::Addresses(v) => CellValue::Address(v[row]),
            ColumnCells::Names(v) => CellValue::Name(v[row].clone()),
            ColumnCells::Labels(v) => CellValue::Text(v[row].clone()),
            ColumnCells::Values(v) => v[row].clone(),
            ColumnCells::Coded(coded) => coded.get(row).cloned().unwrap_or(CellValue::None),
        }
    }

    /// Creates a column of bytes from readings. The gaps keep the reasons of absent readings.
    pub fn bytes(
        key: impl Into<Label>,
        label: impl Into<Label>,
        readings: impl IntoIterator<Item = Reading<crate::Bytes>>,
    ) -> TableColumn {
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
        TableColumn { gaps, ..TableColumn::new(key, label, ColumnCells::Bytes(cells)) }
    }

    /// Creates a column without gaps, for all readers.
    pub fn new(key: impl Into<Label>, label: impl Into<Label>, cells: ColumnCells) -> TableColumn {
        TableColumn {
            key: key.into(),
            label: label.into(),
            meaning: "".into(),
            audience: Audience::Everyone,
            cells,
            gaps: Gaps::None,
        }
    }
}

/// Findings, with the JSON key `findings`.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// The findings, most severe first. If the list is empty, views print `none`.
    pub list: Vec<Finding>,
    /// Text that people get if the list of findings is empty.
    pub none: Label,
}

/// A problem or a fact that is important to the user, with its evidence and the next step.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable ID of the finding: `swapped`, `many-arenas`.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// One sentence of parts: text of pagewise itself, values with units, text from outside.
    pub claim: Vec<CellValue>,
    /// Values from which the claim follows. JSON: an object.
    pub evidence: Vec<Fact>,
    /// Action that the user can take.
    pub next_step: Vec<CellValue>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Useful to know.
    Note,
    /// The problem costs memory or time.
    Warning,
    /// The process is near a limit or at risk.
    Critical,
}

impl Severity {
    /// The name used as a key in JSON.
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
    /// Clusters of neighboring mappings. The gaps between clusters are too wide to draw to scale.
    pub clusters: Vec<Cluster>,
}

/// Neighboring mappings.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Address range from the first to the last mapping.
    pub range: AddrRange,
    /// The mappings, by address.
    pub cells: Vec<MapCell>,
}

/// One mapping of an [`AddressMap`].
#[derive(Clone, Debug, PartialEq)]
pub struct MapCell {
    /// Address range of the mapping.
    pub range: AddrRange,
    /// ID of the mapping's pool: a group of mappings with the same use, such as heaps or stacks.
    /// Views choose a color by the ID.
    pub pool: &'static str,
    /// Description of the mapping, as parts of one text.
    pub label: Vec<CellValue>,
    /// Resident share of the mapping, from 0 to 1.
    pub filled: Reading<f64>,
    /// Facts for hover text.
    pub facts: Vec<Fact>,
}

/// A paragraph of text and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Paragraph {
    /// The heading; empty if the paragraph has no heading.
    pub title: Label,
    /// Parts of the text, drawn one after the other without added spaces.
    pub pieces: Vec<CellValue>,
    /// Audience of the paragraph.
    pub audience: Audience,
}

/// Lines on common axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The heading, as parts of one text.
    pub title: Vec<CellValue>,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines, the most important first.
    pub lines: Vec<ChartLine>,
}

/// An axis of a [`Chart`].
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Name of the axis.
    pub label: Label,
    /// Unit of the axis's numbers.
    pub unit: AxisUnit,
    /// Scale of the axis.
    pub scale: Scale,
}

/// Scale of an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Linear: equal differences have equal distances. A vertical axis begins at 0.
    Linear,
    /// Logarithmic: equal ratios have equal distances; 0 and negative numbers cannot be shown.
    Log,
}

/// Unit of an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisUnit {
    /// Bytes, as [`CellValue::Bytes`].
    Bytes,
    /// A count, as [`CellValue::Count`].
    Count,
    /// A time, as [`CellValue::Nanos`]. Short times have decimals.
    Nanos,
    /// A number, as [`CellValue::Number`].
    Number,
    /// A share, as [`CellValue::Share`].
    Share,
    /// A rate, as [`CellValue::Rate`].
    Rate,
}

impl AxisUnit {
    /// Converts a number in this unit to a cell.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is below 0 or above 2^64 is drawn as the end of the range"
    )]
    pub fn value(self, number: f64) -> CellValue {
        match self {
            AxisUnit::Bytes => CellValue::Bytes(number.round() as u64),
            AxisUnit::Count => CellValue::Count(number.round() as u64),
            AxisUnit::Nanos => CellValue::Nanos(number.round() as u64),
            AxisUnit::Number => CellValue::Number(number),
            AxisUnit::Share => CellValue::Share(number),
            AxisUnit::Rate => CellValue::Rate(number),
        }
    }
}

/// A line of a [`Chart`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChartLine {
    /// Name of the line.
    pub label: Label,
    /// Points of the line as (x, y), from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Numbers as bars that begin at 0, each with its confidence interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The heading, as parts of one text.
    pub title: Vec<CellValue>,
    /// Axis of the bars.
    pub axis: Axis,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One bar of [`Bars`].
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name of the bar.
    pub label: Label,
    /// Length of the bar.
    pub value: f64,
    /// Interval that contains the number with 95 % confidence; `None` if there are too few values.
    pub interval: Option<(f64, f64)>,
}

impl Axis {
    /// Position of a number on an axis from `low` to `high`: 0 at the low end, 1 at the high end;
    /// `None` outside of the axis, or if the scale cannot show the number.
    pub fn place(&self, number: f64, (low, high): (f64, f64)) -> Option<f64> {
        let [at, low, high] = match self.scale {
            Scale::Linear => [number, low, high],
            Scale::Log => [number, low, high].map(f64::ln),
        };
        let place = if high > low { (at - low) / (high - low) } else { 0.5 };
        (place.is_finite() && (-1e-9..=1.0 + 1e-9).contains(&place))
            .then_some(place.clamp(0.0, 1.0))
    }

    /// The number at a position from 0 to 1: the inverse of [`Axis::place`].
    pub fn number(&self, place: f64, (low, high): (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => low + (high - low) * place,
            Scale::Log => (low.ln() + (high.ln() - low.ln()) * place).exp(),
        }
    }

    /// Smallest and largest of the numbers that the scale can show; `None` if it can show none of
    /// them.
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
    /// Minimum and maximum of the horizontal axis; `None` if the chart has no points.
    pub fn width(&self) -> Option<(f64, f64)> {
        self.x.ends(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)))
    }

    /// Minimum and maximum of the vertical axis; a linear axis includes 0. `None` if the chart has
    /// no points.
    pub fn height(&self) -> Option<(f64, f64)> {
        let numbers = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let (low, high) = self.y.ends(numbers)?;
        Some(if self.y.scale == Scale::Linear { (low.min(0.0), high) } else { (low, high) })
    }
}

impl Bars {
    /// Minimum and maximum of the axis. A linear axis includes 0; a logarithmic axis begins at half
    /// the smallest number. `None` if the scale can show no bar.
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

impl ChartLine {
    /// Height of the line at `x`, interpolated between the neighboring points; `None` outside of
    /// the line's points.
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
        let line = ChartLine { label: "a".into(), points };
        let found = [9.0, 10.0, 15.0, 20.0, 30.0, 31.0].map(|x| line.at(x));
        assert_eq!(found, [None, Some(100.0), Some(50.0), Some(0.0), Some(7.0), None]);
    }

    #[test]
    fn an_axis_places_what_it_can() {
        let axis = |scale| Axis { label: "".into(), unit: AxisUnit::Number, scale };
        let [linear, log] = [Scale::Linear, Scale::Log].map(axis);
        assert_eq!(linear.place(5.0, (0.0, 10.0)), Some(0.5));
        assert_eq!(log.place(100.0, (1.0, 10_000.0)), Some(0.5));
        assert_eq!(log.place(0.0, (1.0, 10.0)), None);
        assert_eq!(linear.place(f64::NAN, (0.0, 1.0)), None);
        assert_eq!(log.ends([0.0, 3.0, f64::INFINITY, 2.0].into_iter()), Some((2.0, 3.0)));
        assert!((log.number(0.5, (1.0, 10_000.0)) - 100.0).abs() < 1e-9);
    }
}

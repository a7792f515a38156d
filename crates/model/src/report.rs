//! A report: what an analysis found, in a small closed set of blocks that every view can draw.
//!
//! Each block carries the key under which programs find it (`"totals"`, `"pools"`), so the JSON
//! that users rely on comes from the same values as the page that people read. A view draws; it
//! never computes, so a number appears in every view or in none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lab::ExperimentClaim;
use crate::mapping::AddrRange;
use crate::{Absent, Name, Reading};

/// Static or built text of our own. Text from outside is a [`Name`].
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

/// One part of a report. Closed on purpose: a new kind must be drawn by every view.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportBlock {
    /// Named values: a JSON object; a line or a list for people.
    Facts(NamedFacts),
    /// Rows and columns: a JSON array of objects, or an object of objects where rows have keys.
    Table(ReportTable),
    /// Findings: a JSON array.
    Findings(Findings),
    /// A picture of an address space, for people only.
    AddressMap(AddressMap),
    /// Lines over an axis, for people only.
    Chart(Chart),
    /// Numbers beside each other, for people only.
    Bars(Bars),
    /// Claims with their verdicts, for people only.
    Claims(Vec<ExperimentClaim>),
    /// A paragraph, for people only.
    Text(Paragraph),
    /// Heading of a part, which extends to the next heading. For people only.
    Part(Label),
}

/// Audience of a block or a fact.
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
pub struct NamedFacts {
    /// The JSON key; a dot nests: `process`, `quadrants.declared`. Empty puts the facts at the top
    /// level.
    pub key: Label,
    /// The heading; empty for none.
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
    pub value: CellValue,
    /// One sentence for `--long`; empty for none.
    pub meaning: Label,
    /// Audience of the fact.
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

    /// The same, hidden from people if `hidden` is true.
    #[must_use]
    pub fn hidden_if(self, hidden: bool) -> Fact {
        if hidden { self.for_programs() } else { self }
    }
}

/// A value with its unit. Closed like [`ReportBlock`]: a new kind must be drawn by every view.
#[derive(Clone, Debug, PartialEq)]
pub enum CellValue {
    /// Nothing to say here: an empty cell; JSON null.
    None,
    /// Bytes. JSON: a number.
    Bytes(u64),
    /// A difference in bytes, drawn with its sign. JSON: a number.
    Change(i64),
    /// A count. JSON: a number.
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
    /// A rate per second. JSON: a number.
    Rate(f64),
    /// A number that need not be whole: a mean count, a ratio. JSON: a number.
    Number(f64),
    /// A share from 0 to 1, drawn as a bar to scale. JSON: a number.
    Bar(f64),
    /// Several values. JSON: an array; drawn one after the other.
    List(Vec<CellValue>),
    /// Pieces of one text: our own words, values, names from outside. JSON: a string.
    Sentence(Vec<CellValue>),
    /// Named values. JSON: an object; drawn as name and value, one after the other.
    Record(Vec<(Label, CellValue)>),
    /// Reason of a missing value. JSON: `{"absent": "why"}`; drawn as a mark with the reason below.
    Absent(Absent),
}

impl CellValue {
    /// A value from a reading.
    pub fn from_reading<T>(reading: Reading<T>, make: impl FnOnce(T) -> CellValue) -> CellValue {
        match reading {
            Ok(value) => make(value),
            Err(absent) => CellValue::Absent(absent),
        }
    }

    /// Bytes from a reading.
    pub fn bytes(reading: Reading<crate::Bytes>) -> CellValue {
        CellValue::from_reading(reading, |b| CellValue::Bytes(b.0))
    }

    /// Our own words.
    pub fn text(text: impl Into<Label>) -> CellValue {
        CellValue::Text(text.into())
    }
}

/// Rows and columns, stored by column.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportTable {
    /// The JSON key; a dot nests.
    pub key: Label,
    /// The heading; empty for none.
    pub title: Label,
    /// Audience of the table.
    pub audience: Audience,
    /// The columns, all of the same length.
    pub columns: Vec<TableColumn>,
    /// A key for each row makes the JSON an object; `None` makes it an array.
    pub row_keys: Option<Vec<Label>>,
    /// A last row, one value a column; for people only.
    pub total: Option<Vec<CellValue>>,
    /// A line below the table; empty for none.
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
    /// One sentence for `--long` and hover; empty for none.
    pub meaning: Label,
    /// Audience of the column: an address column may be for programs only.
    pub audience: Audience,
    /// The values.
    pub cells: ColumnCells,
    /// Rows without a value, with the reasons.
    pub gaps: Gaps,
}

/// The values of a column. The typed forms keep 65,000 rows small.
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
    /// Anything.
    Values(Vec<CellValue>),
    /// Anything, for many rows with few different values.
    Coded(CodedCells),
}

/// Cells by their number in a list of values: a table of millions of rows takes 4 bytes a row, for
/// all such columns together if they share the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedCells {
    /// The values, in order of first appearance.
    pub values: Vec<CellValue>,
    /// For each row the index of its value.
    pub codes: Arc<Vec<u32>>,
}

impl CodedCells {
    /// The value of a row; `None` behind the last row.
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

    /// True without cells.
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

impl TableColumn {
    /// Reason why a row has no value; `None` if it has one.
    pub fn gap(&self, row: usize) -> Option<&Absent> {
        match &self.gaps {
            Gaps::None => None,
            Gaps::All(absent) => Some(absent),
            Gaps::Some(rows) => rows.get(&row),
        }
    }

    /// The value of a row.
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

    /// A column of bytes from readings; the gaps keep their reasons.
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

    /// A column with no gaps, for everyone.
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

/// Findings, under the JSON key `findings`.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// The findings, the gravest first. For an empty list, views print `none`.
    pub list: Vec<Finding>,
    /// Text for people without findings.
    pub none: Label,
}

/// Something worth knowing, why we think so, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// A stable name: `swapped`, `many-arenas`.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// One sentence, as pieces: words of ours, values with units, names from outside.
    pub claim: Vec<CellValue>,
    /// The values behind it. JSON: an object.
    pub evidence: Vec<Fact>,
    /// Action that the reader can take.
    pub next_step: Vec<CellValue>,
}

/// Severity of a finding.
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
    /// Clusters of neighboring mappings: between two lie holes too wide to draw to scale.
    pub clusters: Vec<Cluster>,
}

/// Neighboring mappings.
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
    /// Address range.
    pub range: AddrRange,
    /// The id of its pool: views choose a color by it.
    pub pool: &'static str,
    /// Description, in words and names.
    pub label: Vec<CellValue>,
    /// The share that is resident, from 0 to 1.
    pub filled: Reading<f64>,
    /// Facts to show on hover.
    pub facts: Vec<Fact>,
}

/// A paragraph of our own words and of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Paragraph {
    /// The heading; empty for none.
    pub title: Label,
    /// The pieces, drawn one after the other with no space added.
    pub pieces: Vec<CellValue>,
    /// Audience of the paragraph.
    pub audience: Audience,
}

/// Lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The heading, in words and names.
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
    /// Unit of its numbers.
    pub unit: AxisUnit,
    /// Scale of the axis.
    pub scale: Scale,
}

/// Scale of an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal steps are equally far apart. Heights begin at 0.
    Linear,
    /// Logarithmic: equal ratios have equal distances; 0 and negative numbers cannot be shown.
    Log,
}

/// Unit of an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisUnit {
    /// [`CellValue::Bytes`].
    Bytes,
    /// [`CellValue::Count`].
    Count,
    /// [`CellValue::Nanos`], with its decimals where it is short.
    Nanos,
    /// [`CellValue::Number`].
    Number,
    /// [`CellValue::Share`].
    Share,
    /// [`CellValue::Rate`].
    Rate,
}

impl AxisUnit {
    /// A number in this unit as a cell value.
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
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Numbers beside each other as bars from 0, each with the interval in which it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The heading.
    pub title: Vec<CellValue>,
    /// Axis of the bars.
    pub axis: Axis,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One of [`Bars`].
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name of the bar.
    pub label: Label,
    /// Length of the bar.
    pub value: f64,
    /// 95 % interval; `None` if too few values are known.
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

    /// Smallest and largest of the numbers that the scale can show; `None` if the list is empty.
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
    /// Ends of the horizontal axis; `None` without points.
    pub fn width(&self) -> Option<(f64, f64)> {
        self.x.ends(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)))
    }

    /// Ends of the vertical axis; a linear axis includes 0. `None` without points.
    pub fn height(&self) -> Option<(f64, f64)> {
        let numbers = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let (low, high) = self.y.ends(numbers)?;
        Some(if self.y.scale == Scale::Linear { (low.min(0.0), high) } else { (low, high) })
    }
}

impl Bars {
    /// Ends of the axis: a linear axis includes 0, a logarithmic axis begins at half the lowest
    /// number.
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
    /// Its height at `x`, interpolated between the neighboring points; `None` outside of its
    /// points.
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

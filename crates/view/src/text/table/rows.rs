//! The rows of a table, written fast: numbers go from the report into the page with no allocation,
//! and blanks are laid for a whole run of columns of numbers at once.

use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Range;

use pagewise_model::Absent;
use pagewise_model::report::{ColumnCells, Gaps};

use super::{GAP, TextLane};
use crate::cells::CellForm;
use crate::footnotes::Footnotes;
use crate::number::{self, Units};
use crate::words::{Wording, clean, is_printable_ascii, push_cut, width};

/// Writes the rows of a table in order.
pub(super) struct TextRows<'a> {
    parts: Vec<ColumnRun<'a>>,
    wording: Wording<'a>,
    lines: TextLines,
}

impl<'a> TextRows<'a> {
    pub(super) fn new(
        lanes: &'a [TextLane<'a>],
        lines: TextLines,
        wording: Wording<'a>,
    ) -> TextRows<'a> {
        let mut parts: Vec<ColumnRun<'a>> = Vec::new();
        for lane in lanes {
            match (NumberField::of_lane(lane, wording), parts.last_mut()) {
                (None, _) => parts.push(ColumnRun::Other(lane, GapCursor::of_lane(lane, wording))),
                (Some(field), Some(ColumnRun::Numbers(run))) => run.push(field),
                (Some(field), _) => parts.push(ColumnRun::Numbers(vec![field])),
            }
        }
        TextRows { parts, wording, lines }
    }

    /// Writes rows, which must be behind all rows written before, and returns their lines.
    pub(super) fn write(&mut self, rows: Range<usize>) -> &[u8] {
        self.lines.clear();
        for row in rows {
            for part in &mut self.parts {
                match part {
                    ColumnRun::Numbers(run) => self.lines.numbers(run, row),
                    ColumnRun::Other(lane, gaps) => match gaps.at(row) {
                        Some(mark) => self.lines.write_words(mark, lane),
                        None => {
                            let cell = CellForm::present(&lane.column.cells, row);
                            self.lines.cell(cell, lane, self.wording);
                        }
                    },
                }
            }
            self.lines.end();
        }
        self.lines.bytes()
    }
}

/// Neighboring columns of numbers, or one column of anything.
enum ColumnRun<'a> {
    Numbers(Vec<NumberField<'a>>),
    Other(&'a TextLane<'a>, GapCursor<'a>),
}

/// A column of numbers that is as wide as it needs to be.
struct NumberField<'a> {
    values: &'a [u64],
    form: Form,
    width: usize,
    gaps: GapCursor<'a>,
}

/// Format of the numbers of a column.
#[derive(Clone, Copy)]
enum Form {
    Size(Units),
    Decimal,
    Hex,
}

impl<'a> NumberField<'a> {
    fn of_lane(lane: &'a TextLane<'a>, wording: Wording<'a>) -> Option<NumberField<'a>> {
        let (values, form) = match &lane.column.cells {
            ColumnCells::Bytes(values) => (values, Form::Size(wording.units)),
            ColumnCells::Counts(values) => (values, Form::Decimal),
            ColumnCells::Addresses(values) => (values, Form::Hex),
            ColumnCells::Names(_)
            | ColumnCells::Labels(_)
            | ColumnCells::Values(_)
            | ColumnCells::Coded(_) => return None,
        };
        let gaps = GapCursor::of_lane(lane, wording);
        (lane.width >= lane.natural).then_some(NumberField {
            values,
            form,
            width: lane.width,
            gaps,
        })
    }

    /// Writes the number, or the mark of a gap, at the end of `line`.
    #[inline]
    fn write(&mut self, line: &mut [u8], row: usize) {
        match (self.gaps.at(row), self.values.get(row)) {
            (Some(mark), _) => {
                let start = line.len() - mark.len();
                line[start..].copy_from_slice(mark.as_bytes());
            }
            (None, Some(&n)) => {
                match self.form {
                    Form::Size(units) => number::size(line, n, units),
                    Form::Decimal => number::decimal(line, n),
                    Form::Hex => number::hex(line, n),
                };
            }
            (None, None) => {}
        }
    }
}

/// The gaps of a column, read in order of rows: a map lookup for each cell would take longer than
/// the cell.
enum GapCursor<'a> {
    None,
    All(&'a str),
    Some(Peekable<btree_map::Iter<'a, usize, Absent>>, &'a Footnotes<'a>),
}

impl<'a> GapCursor<'a> {
    fn of_lane(lane: &'a TextLane<'a>, wording: Wording<'a>) -> GapCursor<'a> {
        match (&lane.column.gaps, wording.notes) {
            (Gaps::All(absent), notes) => GapCursor::All(notes.map_or("?", |n| n.mark(absent))),
            (Gaps::Some(rows), Some(notes)) => GapCursor::Some(rows.iter().peekable(), notes),
            _ => GapCursor::None,
        }
    }

    /// The mark of a row that has no value; rows must be asked in order, but some may be left out.
    #[inline]
    fn at(&mut self, row: usize) -> Option<&'a str> {
        match self {
            GapCursor::None => None,
            GapCursor::All(mark) => Some(mark),
            GapCursor::Some(rows, notes) => {
                while rows.next_if(|(at, _)| **at < row).is_some() {}
                rows.next_if(|(at, _)| **at == row).map(|(_, absent)| notes.mark(absent))
            }
        }
    }
}

/// Lines of a table being put together, field by field.
pub(super) struct TextLines {
    bytes: Vec<u8>,
    indent: usize,
    /// Start of the last line.
    start: usize,
    /// Reused for cells that are formatted before they are written.
    scratch: String,
}

impl TextLines {
    pub(super) fn new(indent: usize) -> TextLines {
        TextLines { bytes: Vec::new(), indent, start: 0, scratch: String::new() }
    }

    /// The lines so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// Ends the line, without the blanks at its end.
    fn end(&mut self) {
        while self.bytes.last() == Some(&b' ') {
            self.bytes.pop();
        }
        self.bytes.push(b'\n');
        self.start = self.bytes.len();
    }

    /// Number of blanks before the next field.
    fn gap(&self) -> usize {
        if self.bytes.len() > self.start { GAP } else { self.indent }
    }

    fn pad(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, b' ');
    }

    /// Writes a run of numbers, each at the right edge of its field.
    fn numbers(&mut self, run: &mut [NumberField<'_>], row: usize) {
        let mut end = self.bytes.len() + self.gap();
        let width: usize = run.iter().map(|field| field.width + GAP).sum();
        self.pad(self.gap() + width - GAP);
        for field in run {
            end += field.width;
            field.write(&mut self.bytes[..end], row);
            end += GAP;
        }
    }

    /// Writes any cell.
    pub(super) fn cell(&mut self, cell: CellForm<'_>, lane: &TextLane<'_>, wording: Wording<'_>) {
        if let Some(plain) = plain_words(cell).filter(|plain| plain.len() <= lane.width) {
            return self.field(plain, plain.len(), lane);
        }
        let mut made = std::mem::take(&mut self.scratch);
        made.clear();
        match cell {
            CellForm::Bytes(n) => number::push(&mut made, |f| number::size(f, n, wording.units)),
            CellForm::Count(n) => number::push(&mut made, |f| number::decimal(f, n)),
            CellForm::Address(n) => number::push(&mut made, |f| number::hex(f, n)),
            CellForm::Name(name) => made.push_str(&clean(name.as_bytes())),
            CellForm::Label(text) => made.push_str(&clean(text.as_bytes())),
            CellForm::Absent(absent) => {
                made.push_str(wording.notes.map_or("?", |n| n.mark(absent)))
            }
            CellForm::Other(value) => wording.push(&mut made, value),
        }
        self.write_words(&made, lane);
        self.scratch = made;
    }

    /// Writes words in their field, cut if they are wider.
    pub(super) fn write_words(&mut self, words: &str, lane: &TextLane<'_>) {
        let used = width(words);
        if used <= lane.width {
            self.field(words.as_bytes(), used, lane);
        } else {
            let mut cut = String::new();
            push_cut(&mut cut, words, lane.width);
            self.pad(self.gap());
            self.bytes.extend_from_slice(cut.as_bytes());
            self.pad(lane.width - width(&cut));
        }
    }

    /// Writes words that are `used` columns wide, which is not more than the field has.
    fn field(&mut self, words: &[u8], used: usize, lane: &TextLane<'_>) {
        let blank = lane.width - used;
        self.pad(self.gap() + if lane.words { 0 } else { blank });
        self.bytes.extend_from_slice(words);
        self.pad(if lane.words { blank } else { 0 });
    }
}

/// The words of a cell if each byte is one column wide, which holds for most names.
fn plain_words(cell: CellForm<'_>) -> Option<&[u8]> {
    let words = match cell {
        CellForm::Name(name) => name.as_bytes(),
        CellForm::Label(text) => text.as_bytes(),
        _ => return None,
    };
    is_printable_ascii(words).then_some(words)
}

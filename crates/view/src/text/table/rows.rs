//! The rows of a table, written fast: numbers are formatted without allocations, and the spaces of
//! adjacent numeric columns are written at once. A coded column has a list of values, and for each
//! row an index in this list, the code. Adjacent columns with the same codes are formatted once per
//! code.

use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use pagewise_model::Absent;
use pagewise_model::report::{CodedCells, ColumnCells, Gaps};

use super::{GAP, TextLane};
use crate::cells::CellForm;
use crate::footnotes::Footnotes;
use crate::number::{self, Units};
use crate::words::{Wording, clean, is_printable_ascii, push_cut, width};

/// Writer of the rows of a table, in order.
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
            if let Some(coded) = coded_cells(lane) {
                match parts.last_mut() {
                    Some(ColumnRun::Coded(run)) if Arc::ptr_eq(&run.coded.codes, &coded.codes) => {
                        run.lanes.push(lane);
                    }
                    _ => parts.push(ColumnRun::Coded(CodedRun::new(lane, coded))),
                }
                continue;
            }
            match (NumberField::of_lane(lane, wording), parts.last_mut()) {
                (None, _) => parts.push(ColumnRun::Other(lane, GapCursor::of_lane(lane, wording))),
                (Some(field), Some(ColumnRun::Numbers(run))) => run.push(field),
                (Some(field), _) => parts.push(ColumnRun::Numbers(vec![field])),
            }
        }
        TextRows { parts, wording, lines }
    }

    /// Formats rows and returns their lines. The rows must follow all rows that were formatted
    /// before.
    pub(super) fn write(&mut self, rows: Range<usize>) -> &[u8] {
        self.lines.clear();
        for row in rows {
            for part in &mut self.parts {
                match part {
                    ColumnRun::Numbers(run) => self.lines.numbers(run, row),
                    ColumnRun::Coded(run) => run.write(&mut self.lines, row, self.wording),
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

/// Adjacent columns of numbers or of coded cells, or one column of any form.
enum ColumnRun<'a> {
    Numbers(Vec<NumberField<'a>>),
    Coded(CodedRun<'a>),
    Other(&'a TextLane<'a>, GapCursor<'a>),
}

/// The cells of a coded column without gaps; `None` for other columns.
fn coded_cells<'a>(lane: &TextLane<'a>) -> Option<&'a CodedCells> {
    match (&lane.column.cells, &lane.column.gaps) {
        (ColumnCells::Coded(coded), Gaps::None) => Some(coded),
        _ => None,
    }
}

/// Adjacent columns with the same codes.
struct CodedRun<'a> {
    lanes: Vec<&'a TextLane<'a>>,
    /// Cells of the first column.
    coded: &'a CodedCells,
    /// Text of the columns for each code that was written; empty for other codes.
    texts: Vec<Box<[u8]>>,
}

impl<'a> CodedRun<'a> {
    fn new(lane: &'a TextLane<'a>, coded: &'a CodedCells) -> CodedRun<'a> {
        let texts = vec![Box::default(); coded.values.len()];
        CodedRun { lanes: vec![lane], coded, texts }
    }

    /// Writes the cells of a row. The text of each code is formatted once.
    fn write(&mut self, lines: &mut TextLines, row: usize, wording: Wording<'_>) {
        let code = self.coded.codes.get(row).and_then(|code| usize::try_from(*code).ok());
        let Some(text) = code.and_then(|code| self.texts.get_mut(code)) else {
            return cells_of_row(&self.lanes, lines, row, wording);
        };
        if text.is_empty() {
            let mut line = TextLines::new(0);
            cells_of_row(&self.lanes, &mut line, row, wording);
            *text = line.bytes.into();
        }
        lines.pad(lines.gap());
        lines.bytes.extend_from_slice(text);
    }
}

fn cells_of_row(lanes: &[&TextLane<'_>], lines: &mut TextLines, row: usize, wording: Wording<'_>) {
    for lane in lanes {
        lines.cell(CellForm::present(&lane.column.cells, row), lane, wording);
    }
}

/// A column of numbers that is wide enough for all its numbers.
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

    /// Writes the number of a row, or the mark of an absent value, right-aligned at the end of
    /// `line`.
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

/// Reads the gaps of a column in the order of rows, because a map lookup for each cell would take
/// longer than formatting the cell.
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

    /// Mark of a row that has no value; `None` if it has one. Calls must have increasing rows, but
    /// can skip rows.
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

/// Lines of a table that are built field by field.
pub(super) struct TextLines {
    bytes: Vec<u8>,
    indent: usize,
    /// Index in the buffer at which the current line starts.
    start: usize,
    /// Buffer for cells that are formatted before they are written; it is reused.
    scratch: String,
}

impl TextLines {
    pub(super) fn new(indent: usize) -> TextLines {
        TextLines { bytes: Vec::new(), indent, start: 0, scratch: String::new() }
    }

    /// The finished lines.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// Ends the line, and removes spaces at its end.
    fn end(&mut self) {
        while self.bytes.last() == Some(&b' ') {
            self.bytes.pop();
        }
        self.bytes.push(b'\n');
        self.start = self.bytes.len();
    }

    /// Number of spaces before the next field.
    fn gap(&self) -> usize {
        if self.bytes.len() > self.start { GAP } else { self.indent }
    }

    fn pad(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, b' ');
    }

    /// Writes the numbers of adjacent columns, each right-aligned in its field.
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

    /// Writes a cell of any form.
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

    /// Writes text in its field. Text that is too wide is cut.
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

    /// Writes text of `used` columns. Requires that `used` is at most the width of the field.
    fn field(&mut self, words: &[u8], used: usize, lane: &TextLane<'_>) {
        let blank = lane.width - used;
        self.pad(self.gap() + if lane.words { 0 } else { blank });
        self.bytes.extend_from_slice(words);
        self.pad(if lane.words { blank } else { 0 });
    }
}

/// Text of a cell if each of its bytes is one column wide (the case for most names); otherwise
/// `None`.
fn plain_words(cell: CellForm<'_>) -> Option<&[u8]> {
    let words = match cell {
        CellForm::Name(name) => name.as_bytes(),
        CellForm::Label(text) => text.as_bytes(),
        _ => return None,
    };
    is_printable_ascii(words).then_some(words)
}

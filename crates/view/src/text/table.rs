//! Tables: columns sized to what they hold, cut or left out where they do not fit, and written
//! fast: a row of numbers goes from the report into the page with no allocation.

use std::collections::btree_map;
use std::io;
use std::iter::Peekable;
use std::ops::Range;

use pagewise_model::Absent;
use pagewise_model::report::{Cells, Column, Gaps, Table, Value};

use super::page::{Ink, Page};
use crate::cells::{Cell, for_people, holds_words};
use crate::footnotes::Footnotes;
use crate::number::{self, Units};
use crate::words::{Wording, clean, is_printable_ascii, push_cut, width};

/// Between two columns.
const GAP: usize = 2;

/// A column of words narrower than this says little: numbers are left out before it shrinks further.
const NARROW: usize = 16;

/// Rows between two visits to the writer.
const ROWS_A_FLUSH: usize = 512;

/// A column on the page.
struct Lane<'a> {
    column: &'a Column,
    total: Option<&'a Value>,
    label: String,
    /// Words stand left and may be cut; numbers stand right and are never cut.
    words: bool,
    /// The widest cell.
    natural: usize,
    /// What it gets.
    width: usize,
}

pub(super) fn draw(page: &mut Page<'_>, table: &Table) -> io::Result<()> {
    let columns = || shown(table, page.style.long);
    let all_notes = Footnotes::of_columns(columns());
    let wording = column_wording(page, &all_notes);
    let rows = table.rows();
    let mut lanes: Vec<Lane<'_>> =
        columns().map(|(column, total)| Lane::new(column, total, rows, wording)).collect();
    if lanes.is_empty() {
        return Ok(());
    }
    let sizes = lanes.iter().any(|lane| matches!(lane.column.cells, Cells::Bytes(_)));
    page.heading_of_sizes(&table.title, sizes);
    let left_out = fit(&mut lanes, page.room());
    let notes = Footnotes::of_columns(lanes.iter().map(|lane| (lane.column, lane.total)));
    header(page, &lanes);
    body(page, &lanes, rows, &notes)?;
    total(page, &lanes, table.total.is_some(), &notes);
    page.remark(&clean(table.note.as_bytes()));
    page.footnotes(&notes);
    if !left_out.is_empty() {
        page.remark(&format!(
            "Not shown at this width: {} (widen the terminal, or use --json).",
            left_out.join(", ")
        ));
    }
    if page.style.long {
        meanings(page, &lanes);
    }
    Ok(())
}

fn column_wording<'n>(page: &Page<'_>, notes: &'n Footnotes<'n>) -> Wording<'n> {
    Wording { units: page.style.units, bare: true, notes: Some(notes) }
}

/// The columns for people, each with its total.
fn shown(table: &Table, long: bool) -> impl Iterator<Item = (&Column, Option<&Value>)> {
    let columns = table.columns.iter().enumerate();
    columns
        .filter(move |(_, column)| for_people(column.audience, long))
        .map(|(at, column)| (column, table.total.as_ref().and_then(|total| total.get(at))))
}

impl<'a> Lane<'a> {
    fn new(
        column: &'a Column,
        total: Option<&'a Value>,
        rows: usize,
        wording: Wording<'_>,
    ) -> Lane<'a> {
        let label = clean(column.label.as_bytes()).into_owned();
        let cells = widest_cell(column, rows, wording).max(widest_mark(column, wording));
        let total_width = total.map_or(0, |value| cell_width(value.into(), wording));
        let natural = cells.max(total_width).max(width(&label));
        Lane { column, total, label, words: holds_words(column), natural, width: natural }
    }

    /// The narrowest it may be while all columns are there.
    fn narrowest(&self) -> usize {
        if self.words { self.natural.min(NARROW.max(width(&self.label))) } else { self.natural }
    }
}

/// The widest of the values; gaps hold no value but cost nothing to measure.
fn widest_cell(column: &Column, rows: usize, wording: Wording<'_>) -> usize {
    if matches!(column.gaps, Gaps::All(_)) {
        return 0;
    }
    let size = |n: u64| number::size_width(n, wording.units);
    match &column.cells {
        // A larger size can be narrower here: `1023` and `1.0K`.
        Cells::Bytes(v) if wording.units == Units::Human => widest_human(v.iter().take(rows)),
        Cells::Bytes(v) => v.iter().take(rows).max().map_or(0, |n| size(*n)),
        Cells::Counts(v) => v.iter().take(rows).max().map_or(0, |n| number::decimal_width(*n)),
        Cells::Addresses(v) => v.iter().take(rows).max().map_or(0, |n| number::hex_width(*n)),
        Cells::Names(_) | Cells::Labels(_) | Cells::Values(_) => (0..rows)
            .map(|row| cell_width(Cell::present(&column.cells, row), wording))
            .max()
            .unwrap_or(0),
    }
}

/// The widest of some sizes, looking no further than the first that no other can exceed.
fn widest_human<'a>(sizes: impl Iterator<Item = &'a u64>) -> usize {
    let mut widest = 0;
    for size in sizes {
        widest = widest.max(number::size_width(*size, Units::Human));
        if widest == number::WIDEST_HUMAN {
            break;
        }
    }
    widest
}

/// The widest mark for a missing value.
fn widest_mark(column: &Column, wording: Wording<'_>) -> usize {
    let mark = |absent| cell_width(Cell::Absent(absent), wording);
    match &column.gaps {
        Gaps::None => 0,
        Gaps::All(absent) => mark(absent),
        Gaps::Some(rows) => rows.values().map(mark).max().unwrap_or(0),
    }
}

fn cell_width(cell: Cell<'_>, wording: Wording<'_>) -> usize {
    match cell {
        Cell::Bytes(n) => number::size_width(n, wording.units),
        Cell::Count(n) => number::decimal_width(n),
        Cell::Address(n) => number::hex_width(n),
        Cell::Name(name) => text_width(name.as_bytes()),
        Cell::Label(text) => text_width(text.as_bytes()),
        Cell::Absent(absent) => wording.notes.map_or(1, |notes| notes.mark(absent).len()),
        Cell::Other(value) => width(&wording.value(value)),
    }
}

fn text_width(text: &[u8]) -> usize {
    if is_printable_ascii(text) { text.len() } else { width(&clean(text)) }
}

/// Makes the columns fit: shrinks words, and where that is not enough leaves out columns, numbers
/// from the right first. Says which it left out, from left to right.
fn fit(lanes: &mut Vec<Lane<'_>>, room: usize) -> Vec<String> {
    let mut left_out = Vec::new();
    while lanes.len() > 1 && taken(lanes, |lane| lane.narrowest()) > room {
        let numbers = (1..lanes.len()).rfind(|&at| !lanes[at].words);
        let lane = lanes.remove(numbers.unwrap_or(lanes.len() - 1));
        left_out.insert(0, lane.label);
    }
    while let over @ 1.. = taken(lanes, |lane| lane.width).saturating_sub(room) {
        shrink(lanes, over);
    }
    left_out
}

/// The width of a row.
fn taken(lanes: &[Lane<'_>], width: impl Fn(&Lane<'_>) -> usize) -> usize {
    lanes.iter().map(width).sum::<usize>() + GAP * (lanes.len() - 1)
}

/// Narrows the widest column of words by at most `over`, and not far below the next widest.
fn shrink(lanes: &mut [Lane<'_>], over: usize) {
    let alone = lanes.len() == 1;
    let mut widths: Vec<(usize, usize)> = (0..lanes.len())
        .filter(|&at| alone || lanes[at].width > lanes[at].narrowest())
        .map(|at| (lanes[at].width, at))
        .collect();
    widths.sort_unstable();
    let Some((widest, at)) = widths.pop() else { return };
    let next = widths.last().map_or(0, |(width, _)| *width);
    let floor = if alone { 0 } else { lanes[at].narrowest() };
    lanes[at].width = widest - over.min((widest - floor).min((widest - next).max(1)));
}

/// Writes the labels, each over its column.
fn header(page: &mut Page<'_>, lanes: &[Lane<'_>]) {
    let mut line = Lines::new(page.indent());
    for lane in lanes {
        line.words(&lane.label, lane);
    }
    finish(page, line, Ink::Dim);
}

fn total(page: &mut Page<'_>, lanes: &[Lane<'_>], there_is_one: bool, notes: &Footnotes<'_>) {
    if !there_is_one {
        return;
    }
    let wording = column_wording(page, notes);
    let mut line = Lines::new(page.indent());
    for lane in lanes {
        line.cell(lane.total.unwrap_or(&Value::None).into(), lane, wording);
    }
    finish(page, line, Ink::Bold);
}

/// Puts one line on the page in one ink.
fn finish(page: &mut Page<'_>, line: Lines, ink: Ink) {
    page.dip(ink);
    page.buffer.extend_from_slice(&line.bytes);
    page.newline();
}

fn body(
    page: &mut Page<'_>,
    lanes: &[Lane<'_>],
    rows: usize,
    notes: &Footnotes<'_>,
) -> io::Result<()> {
    page.flush()?;
    let mut writer = Rows::new(lanes, page, notes, 0..rows);
    while writer.write(ROWS_A_FLUSH) {
        page.put(&writer.lines.bytes)?;
        writer.lines.clear();
    }
    Ok(())
}

/// The rows of a table, from one to another.
struct Rows<'a> {
    lanes: &'a [Lane<'a>],
    gaps: Vec<GapCursor<'a>>,
    wording: Wording<'a>,
    rows: Range<usize>,
    lines: Lines,
}

impl<'a> Rows<'a> {
    fn new(
        lanes: &'a [Lane<'a>],
        page: &Page<'_>,
        notes: &'a Footnotes<'a>,
        rows: Range<usize>,
    ) -> Rows<'a> {
        let gap = |lane: &'a Lane<'a>| GapCursor::new(&lane.column.gaps, rows.start, notes);
        let gaps = lanes.iter().map(gap).collect();
        let wording = column_wording(page, notes);
        Rows { lanes, gaps, wording, rows, lines: Lines::new(page.indent()) }
    }

    /// Writes up to `count` rows; false where none is left.
    fn write(&mut self, count: usize) -> bool {
        let mut wrote = false;
        for row in self.rows.by_ref().take(count) {
            for (lane, gaps) in self.lanes.iter().zip(&mut self.gaps) {
                match gaps.at(row) {
                    Some(mark) => self.lines.words(mark, lane),
                    None => {
                        let cell = Cell::present(&lane.column.cells, row);
                        self.lines.cell(cell, lane, self.wording);
                    }
                }
            }
            self.lines.end();
            wrote = true;
        }
        wrote
    }
}

/// The gaps of a column, asked row after row: a look-up a cell would cost more than the cell.
enum GapCursor<'a> {
    None,
    All(&'a str),
    Some(Peekable<btree_map::Range<'a, usize, Absent>>, &'a Footnotes<'a>),
}

impl<'a> GapCursor<'a> {
    fn new(gaps: &'a Gaps, first: usize, notes: &'a Footnotes<'a>) -> GapCursor<'a> {
        match gaps {
            Gaps::None => GapCursor::None,
            Gaps::All(absent) => GapCursor::All(notes.mark(absent)),
            Gaps::Some(rows) => GapCursor::Some(rows.range(first..).peekable(), notes),
        }
    }

    /// The mark of a row that has no value; rows must be asked in order, none left out.
    #[inline]
    fn at(&mut self, row: usize) -> Option<&'a str> {
        match self {
            GapCursor::None => None,
            GapCursor::All(mark) => Some(mark),
            GapCursor::Some(rows, notes) => {
                rows.next_if(|(at, _)| **at == row).map(|(_, absent)| notes.mark(absent))
            }
        }
    }
}

/// Lines of a table being put together, field by field.
struct Lines {
    bytes: Vec<u8>,
    indent: usize,
    /// Where the last line starts.
    start: usize,
    /// Reused for words that have to be made.
    scratch: String,
}

impl Lines {
    fn new(indent: usize) -> Lines {
        Lines { bytes: Vec::new(), indent, start: 0, scratch: String::new() }
    }

    /// Ends the line, without the blanks at its end.
    fn end(&mut self) {
        while self.bytes.last() == Some(&b' ') {
            self.bytes.pop();
        }
        self.bytes.push(b'\n');
        self.start = self.bytes.len();
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// How many blanks stand before the next field.
    fn gap(&self) -> usize {
        if self.bytes.len() > self.start { GAP } else { self.indent }
    }

    #[inline]
    fn cell(&mut self, cell: Cell<'_>, lane: &Lane<'_>, wording: Wording<'_>) {
        match cell {
            Cell::Bytes(n) => self.number(lane, |field| number::size(field, n, wording.units)),
            Cell::Count(n) => self.number(lane, |field| number::decimal(field, n)),
            Cell::Address(n) => self.number(lane, |field| number::hex(field, n)),
            Cell::Name(name) => self.words(&clean(name.as_bytes()), lane),
            Cell::Label(text) => self.words(&clean(text.as_bytes()), lane),
            Cell::Absent(absent) => {
                self.words(wording.notes.map_or("?", |notes| notes.mark(absent)), lane);
            }
            Cell::Other(value) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.clear();
                wording.push(&mut scratch, value);
                self.words(&scratch, lane);
                self.scratch = scratch;
            }
        }
    }

    /// A number at the right edge of its field. Only where words stand too, or the page is
    /// narrower than a number, does it go the way of words.
    #[inline]
    fn number(&mut self, lane: &Lane<'_>, write: impl FnOnce(&mut [u8]) -> usize) {
        if lane.words || lane.width < lane.natural {
            let mut digits = String::new();
            number::push(&mut digits, write);
            return self.words(&digits, lane);
        }
        let start = self.bytes.len();
        self.pad(self.gap() + lane.width);
        write(&mut self.bytes[start..]);
    }

    /// Words in their field, cut where they are wider.
    fn words(&mut self, words: &str, lane: &Lane<'_>) {
        let blank = lane.width.saturating_sub(width(words));
        self.pad(self.gap() + if lane.words { 0 } else { blank });
        if width(words) <= lane.width {
            self.bytes.extend_from_slice(words.as_bytes());
        } else {
            let mut cut = String::new();
            push_cut(&mut cut, words, lane.width);
            self.bytes.extend_from_slice(cut.as_bytes());
            self.pad(lane.width - width(&cut));
        }
        self.pad(if lane.words { blank } else { 0 });
    }

    /// Writes blanks. Nearly always few: a store of a fixed length is then faster than a loop.
    #[inline]
    fn pad(&mut self, count: usize) {
        const FEW: usize = 32;
        let end = self.bytes.len() + count;
        if count <= FEW {
            self.bytes.extend_from_slice(&[b' '; FEW]);
        }
        self.bytes.resize(end, b' ');
    }
}

/// What the columns mean, for those who ask.
fn meanings(page: &mut Page<'_>, lanes: &[Lane<'_>]) {
    let told = || lanes.iter().filter(|lane| !lane.column.meaning.is_empty());
    let indent = page.indent();
    let widest = told().map(|lane| width(&lane.label)).max().unwrap_or(0);
    for lane in told() {
        page.hang(indent);
        page.words(Ink::Dim, &lane.label, 0);
        page.hang(indent + widest + GAP);
        page.words(Ink::Dim, &clean(lane.column.meaning.as_bytes()), GAP);
        page.newline();
    }
    page.hang(indent);
}

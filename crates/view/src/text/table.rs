//! Tables: columns as wide as their cells, and cut or omitted if the table does not fit.

mod rows;

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread;

use pagewise_model::parallel;
use pagewise_model::report::{CellValue, ColumnCells, Gaps, ReportTable, TableColumn};

use super::page::{Ink, TextPage};
use crate::cells::{CellForm, for_people, holds_sizes, holds_words};
use crate::footnotes::Footnotes;
use crate::number::{self, Units};
use crate::words::{Wording, clean, is_printable_ascii, width};
use rows::{TextLines, TextRows};

/// Number of spaces between two columns.
const GAP: usize = 2;

/// Minimum width of a text column. If the table does not fit, columns of numbers are omitted
/// instead of narrowing text columns further.
const NARROW: usize = 16;

/// Number of rows that are written to the output at once.
const ROWS_A_FLUSH: usize = 512;

/// Maximum number of finished pieces of [`ROWS_A_FLUSH`] rows (about 100 KiB each) that wait for
/// the output.
const PIECES_AHEAD: usize = 4;

/// A column with its layout.
struct TextLane<'a> {
    column: &'a TableColumn,
    total: Option<&'a CellValue>,
    label: String,
    /// True for text, which is left-aligned and can be cut. Numbers are right-aligned and never
    /// cut.
    words: bool,
    /// Width of the widest cell, total or label.
    natural: usize,
    /// Width that the layout assigned to the column.
    width: usize,
}

pub(super) fn draw(page: &mut TextPage<'_>, table: &ReportTable) -> io::Result<()> {
    let columns = || shown(table, page.style.long);
    let all_notes = Footnotes::of_columns(columns());
    let wording = column_wording(page, &all_notes);
    let rows = table.rows();
    let measure = |columns: &[(_, _)]| {
        columns.iter().map(|&(column, total)| TextLane::new(column, total, rows, wording)).collect()
    };
    let columns: Vec<_> = columns().collect();
    let mut lanes = parallel::halves(rows >= parallel::MIN_ROWS, &columns, measure);
    if lanes.is_empty() {
        return Ok(());
    }
    let sizes = lanes.iter().any(|lane| holds_sizes(lane.column));
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

fn column_wording<'n>(page: &TextPage<'_>, notes: &'n Footnotes<'n>) -> Wording<'n> {
    Wording { units: page.style.units, bare: true, notes: Some(notes) }
}

/// Columns for people, each with its total.
fn shown(
    table: &ReportTable,
    long: bool,
) -> impl Iterator<Item = (&TableColumn, Option<&CellValue>)> {
    let columns = table.columns.iter().enumerate();
    columns
        .filter(move |(_, column)| for_people(column.audience, long))
        .map(|(at, column)| (column, table.total.as_ref().and_then(|total| total.get(at))))
}

impl<'a> TextLane<'a> {
    fn new(
        column: &'a TableColumn,
        total: Option<&'a CellValue>,
        rows: usize,
        wording: Wording<'_>,
    ) -> TextLane<'a> {
        let label = clean(column.label.as_bytes()).into_owned();
        let cells = widest_cell(column, rows, wording).max(widest_mark(column, wording));
        let total_width = total.map_or(0, |value| cell_width(value.into(), wording));
        let natural = cells.max(total_width).max(width(&label));
        TextLane { column, total, label, words: holds_words(column), natural, width: natural }
    }

    /// Minimum width of the column, below which columns are omitted instead.
    fn narrowest(&self) -> usize {
        if self.words { self.natural.min(NARROW.max(width(&self.label))) } else { self.natural }
    }
}

/// Width of the widest cell. Cells of rows with gaps are included.
fn widest_cell(column: &TableColumn, rows: usize, wording: Wording<'_>) -> usize {
    if matches!(column.gaps, Gaps::All(_)) {
        return 0;
    }
    let size = |n: u64| number::size_width(n, wording.units);
    match &column.cells {
        // A larger size can be narrower: `1.0M` is narrower than `1023K`.
        ColumnCells::Bytes(v) if wording.units == Units::Human => widest_human(v.iter().take(rows)),
        ColumnCells::Bytes(v) => v.iter().take(rows).max().map_or(0, |n| size(*n)),
        ColumnCells::Counts(v) => {
            v.iter().take(rows).max().map_or(0, |n| number::decimal_width(*n))
        }
        ColumnCells::Addresses(v) => v.iter().take(rows).max().map_or(0, |n| number::hex_width(*n)),
        // Each value occurs in at least one row, so the codes of the rows are not read.
        ColumnCells::Coded(coded) => {
            widest(coded.values.iter().map(|value| cell_width(value.into(), wording)))
        }
        ColumnCells::Names(_) | ColumnCells::Labels(_) | ColumnCells::Values(_) => {
            widest((0..rows).map(|row| cell_width(CellForm::present(&column.cells, row), wording)))
        }
    }
}

fn widest(widths: impl Iterator<Item = usize>) -> usize {
    widths.max().unwrap_or(0)
}

/// Width of the widest size. The search ends at the first size with the maximum width.
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

/// Width of the widest mark of an absent value.
fn widest_mark(column: &TableColumn, wording: Wording<'_>) -> usize {
    let mark = |absent| cell_width(CellForm::Absent(absent), wording);
    match &column.gaps {
        Gaps::None => 0,
        Gaps::All(absent) => mark(absent),
        Gaps::Some(rows) => rows.values().map(mark).max().unwrap_or(0),
    }
}

fn cell_width(cell: CellForm<'_>, wording: Wording<'_>) -> usize {
    match cell {
        CellForm::Bytes(n) => number::size_width(n, wording.units),
        CellForm::Count(n) => number::decimal_width(n),
        CellForm::Address(n) => number::hex_width(n),
        CellForm::Name(name) => text_width(name.as_bytes()),
        CellForm::Label(text) => text_width(text.as_bytes()),
        CellForm::Absent(absent) => wording.notes.map_or(1, |notes| notes.mark(absent).len()),
        CellForm::Other(value) => width(&wording.value(value)),
    }
}

fn text_width(text: &[u8]) -> usize {
    if is_printable_ascii(text) { text.len() } else { width(&clean(text)) }
}

/// Makes the columns fit into `room`. If text columns at their minimum widths are still too wide,
/// columns are omitted, numbers from the right first. Returns the labels of the omitted columns,
/// from left to right.
fn fit(lanes: &mut Vec<TextLane<'_>>, room: usize) -> Vec<String> {
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

/// Width of a row, with the gaps between its columns.
fn taken(lanes: &[TextLane<'_>], width: impl Fn(&TextLane<'_>) -> usize) -> usize {
    lanes.iter().map(width).sum::<usize>() + GAP * (lanes.len() - 1)
}

/// Narrows the widest text column by at most `over`: down to the width of the next widest text
/// column, or by one character if both are equally wide.
fn shrink(lanes: &mut [TextLane<'_>], over: usize) {
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

/// Writes the labels of the columns.
fn header(page: &mut TextPage<'_>, lanes: &[TextLane<'_>]) {
    let mut line = TextLines::new(page.indent());
    for lane in lanes {
        line.write_words(&lane.label, lane);
    }
    finish(page, &line, Ink::Dim);
}

fn total(
    page: &mut TextPage<'_>,
    lanes: &[TextLane<'_>],
    there_is_one: bool,
    notes: &Footnotes<'_>,
) {
    if !there_is_one {
        return;
    }
    let wording = column_wording(page, notes);
    let mut line = TextLines::new(page.indent());
    for lane in lanes {
        line.cell(lane.total.unwrap_or(&CellValue::None).into(), lane, wording);
    }
    finish(page, &line, Ink::Bold);
}

/// Writes one line in one style.
fn finish(page: &mut TextPage<'_>, line: &TextLines, ink: Ink) {
    page.dip(ink);
    page.buffer.extend_from_slice(line.bytes());
    page.newline();
}

fn body(
    page: &mut TextPage<'_>,
    lanes: &[TextLane<'_>],
    rows: usize,
    notes: &Footnotes<'_>,
) -> io::Result<()> {
    page.flush()?;
    let (indent, wording) = (page.indent(), column_wording(page, notes));
    let writer = || TextRows::new(lanes, TextLines::new(indent), wording);
    let pieces = || (0..rows).step_by(ROWS_A_FLUSH).map(|at| at..rows.min(at + ROWS_A_FLUSH));
    if rows < parallel::MIN_ROWS {
        let mut writer = writer();
        return pieces().try_for_each(|piece| page.put(writer.write(piece)));
    }
    // Another thread formats every second piece. If the thread cannot start, this thread formats
    // all pieces.
    thread::scope(|scope| {
        let (written, other) = sync_channel(PIECES_AHEAD);
        let write = move || {
            let mut writer = writer();
            let mut odd = pieces().skip(1).step_by(2);
            // The receiver is dropped if the output returns an error.
            odd.all(|piece| written.send(writer.write(piece).to_vec()).is_ok())
        };
        let _ = thread::Builder::new().spawn_scoped(scope, write);
        let mut own = writer();
        for (number, piece) in pieces().enumerate() {
            match if number % 2 == 1 { other.recv().ok() } else { None } {
                Some(lines) => page.put(&lines)?,
                None => page.put(own.write(piece))?,
            }
        }
        Ok(())
    })
}

/// Writes the meanings of the columns.
fn meanings(page: &mut TextPage<'_>, lanes: &[TextLane<'_>]) {
    let told = || lanes.iter().filter(|lane| !lane.column.meaning.is_empty());
    let indent = page.indent();
    let widest = told().map(|lane| width(&lane.label)).max().unwrap_or(0);
    for lane in told() {
        page.hang(indent);
        page.write_words(Ink::Dim, &lane.label, 0);
        page.hang(indent + widest + GAP);
        page.write_words(Ink::Dim, &clean(lane.column.meaning.as_bytes()), GAP);
        page.newline();
    }
    page.hang(indent);
}

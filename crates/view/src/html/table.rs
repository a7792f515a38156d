//! Tables in HTML. Numeric cells contain their numbers, so that sorting does not parse texts such
//! as `4.0K`.
//!
//! The first rows of a long table are plain HTML, for browsers without scripts. All rows are also
//! embedded as data, from which a script creates the rows of one screen page at a time: 65,000
//! mappings as HTML elements are 20 MB, and slow in any browser.

use std::collections::HashMap;
use std::io;

use pagewise_model::report::{Audience, CellValue, ColumnCells, ReportTable, TableColumn};

use super::{HtmlPage, WORDING, class, escaped, push_escaped};
use crate::cells::{CellForm, for_people, holds_labels, holds_sizes, holds_words};
use crate::footnotes::Footnotes;
use crate::number;
use crate::words::{Wording, clean};

/// Number of collected bytes from which on the page is written to the output.
const CHUNK: usize = 1 << 16;

/// Maximum number of rows of a table that is written as plain HTML only.
const LONG: usize = 2000;

/// Number of rows of a long table that are plain HTML.
const FIRST: usize = 200;

/// A column, with its total and the alignment of its cells.
struct HtmlLane<'a> {
    column: &'a TableColumn,
    total: Option<&'a CellValue>,
    words: bool,
}

impl<'a> HtmlLane<'a> {
    /// Cell of the column in the last row, which has the totals.
    fn last(&self) -> CellForm<'a> {
        self.total.unwrap_or(&CellValue::None).into()
    }

    /// The class attribute for the alignment and the visibility of a cell. Text of pagewise itself
    /// is short and stays on one line.
    fn class(&self) -> &'static str {
        let ours = holds_labels(self.column);
        match (self.words, ours, self.column.audience) {
            (true, true, Audience::Long) => " class=\"words ours long\"",
            (true, true, _) => " class=\"words ours\"",
            (true, false, Audience::Long) => " class=\"words long\"",
            (true, false, _) => " class=\"words\"",
            (false, _, audience) => class(audience),
        }
    }
}

impl HtmlPage<'_> {
    pub(super) fn table(&mut self, table: &ReportTable) -> io::Result<()> {
        let lanes: Vec<HtmlLane<'_>> = lanes(table).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let notes = Footnotes::of_columns(lanes.iter().map(|lane| (lane.column, lane.total)));
        self.section(&table.title, table.audience);
        self.html.push_str("<div class=\"table\"><table>\n<thead><tr>");
        lanes.iter().for_each(|lane| self.head(lane));
        self.html.push_str("</tr></thead>\n<tbody>\n");
        let rows = table.rows();
        let is_long = rows > LONG;
        for row in 0..if is_long { FIRST } else { rows } {
            self.row(lanes.iter().map(|lane| (lane, CellForm::at(lane.column, row))), &notes);
            if self.html.len() > CHUNK {
                self.flush()?;
            }
        }
        self.html.push_str("</tbody>\n");
        if table.total.is_some() {
            self.html.push_str("<tfoot>\n");
            self.row(lanes.iter().map(|lane| (lane, lane.last())), &notes);
            self.html.push_str("</tfoot>\n");
        }
        self.html.push_str("</table></div>\n");
        if is_long {
            self.data(&lanes, rows, &notes)?;
        }
        if !table.note.is_empty() {
            self.html.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(&table.note)));
        }
        self.footnotes(&notes);
        self.end_section();
        Ok(())
    }

    /// Writes all rows of a long table as data, by column. If cells repeat, the column has each
    /// distinct cell once and, for each row, the index of its cell.
    fn data(
        &mut self,
        lanes: &[HtmlLane<'_>],
        rows: usize,
        notes: &Footnotes<'_>,
    ) -> io::Result<()> {
        self.html.push_str(&format!(
            "<noscript><p class=\"note\">The first {FIRST} of {rows} rows; a script in this page shows the others.</p></noscript>\n\
             <script type=\"application/json\">\n{{\"rows\":{rows},\"columns\":["
        ));
        for (at, lane) in lanes.iter().enumerate() {
            self.html.push_str(if at == 0 { "\n" } else { ",\n" });
            match &lane.column.cells {
                ColumnCells::Addresses(_)
                    if (0..rows).all(|row| lane.column.gap(row).is_none()) =>
                {
                    self.addresses(lane, rows)?;
                }
                _ => self.cells(lane, rows, notes)?,
            }
        }
        self.html.push_str("\n]}\n</script>\n");
        self.flush()
    }

    /// Writes addresses in hex as differences from the previous address; most differences are
    /// small.
    fn addresses(&mut self, lane: &HtmlLane<'_>, rows: usize) -> io::Result<()> {
        self.html.push_str("{\"kind\":\"address\",\"steps\":\"");
        let mut before = 0_u64;
        for row in 0..rows {
            let CellForm::Address(address) = CellForm::at(lane.column, row) else { continue };
            if row > 0 {
                self.html.push(' ');
            }
            let step = match address.checked_sub(before) {
                Some(step) => step,
                None => {
                    self.html.push('-');
                    before - address
                }
            };
            number::push(&mut self.html, |field| number::hex(field, step));
            before = address;
            self.flush_pieces()?;
        }
        self.html.push_str("\"}");
        Ok(())
    }

    fn cells(&mut self, lane: &HtmlLane<'_>, rows: usize, notes: &Footnotes<'_>) -> io::Result<()> {
        let kind = match &lane.column.cells {
            _ if holds_sizes(lane.column) => "bytes",
            ColumnCells::Counts(_) => "count",
            ColumnCells::Coded(coded)
                if coded.values.iter().any(|value| matches!(value, CellValue::Count(_))) =>
            {
                "count"
            }
            _ => "words",
        };
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut of_rows = Vec::with_capacity(rows);
        self.html.push_str(&format!("{{\"kind\":\"{kind}\",\"cells\":["));
        let mut cell = String::new();
        for row in 0..rows {
            cell.clear();
            push_data(&mut cell, CellForm::at(lane.column, row), kind, notes);
            let next = numbers.len();
            let number = match numbers.get(&cell) {
                Some(number) => *number,
                None => {
                    if next > 0 {
                        self.html.push(',');
                    }
                    self.html.push_str(&cell);
                    numbers.insert(cell.clone(), next);
                    next
                }
            };
            of_rows.push(number);
            self.flush_pieces()?;
        }
        self.html.push(']');
        // If indices are missing, the cells are in the order of the rows.
        if numbers.len() < rows {
            self.html.push_str(",\"numbers\":[");
            for (row, number) in of_rows.into_iter().enumerate() {
                if row > 0 {
                    self.html.push(',');
                }
                number::push(&mut self.html, |field| number::decimal(field, number as u64));
                self.flush_pieces()?;
            }
            self.html.push(']');
        }
        self.html.push('}');
        Ok(())
    }

    fn flush_pieces(&mut self) -> io::Result<()> {
        if self.html.len() > CHUNK { self.flush() } else { Ok(()) }
    }

    fn head(&mut self, lane: &HtmlLane<'_>) {
        let column = lane.column;
        self.html.push_str(&format!("<th scope=\"col\"{}", lane.class()));
        if holds_sizes(column) {
            self.html.push_str(" data-unit=\"bytes\"");
        }
        if !column.meaning.is_empty() {
            self.html.push_str(&format!(" title=\"{}\"", escaped(&column.meaning)));
        }
        self.html.push_str(&format!(">{}</th>", escaped(&column.label)));
    }

    fn row<'c>(
        &mut self,
        cells: impl Iterator<Item = (&'c HtmlLane<'c>, CellForm<'c>)>,
        notes: &Footnotes<'_>,
    ) {
        self.html.push_str("<tr>");
        cells.for_each(|(lane, cell)| self.cell(lane, cell, notes));
        self.html.push_str("</tr>\n");
    }

    fn cell(&mut self, lane: &HtmlLane<'_>, cell: CellForm<'_>, notes: &Footnotes<'_>) {
        self.html.push_str("<td");
        self.html.push_str(lane.class());
        self.sort_key(cell);
        self.html.push('>');
        match cell {
            CellForm::Bytes(n) => {
                number::push(&mut self.html, |field| number::size(field, n, WORDING.units));
            }
            CellForm::Count(n) => number::push(&mut self.html, |field| number::decimal(field, n)),
            CellForm::Address(n) => number::push(&mut self.html, |field| number::hex(field, n)),
            CellForm::Name(name) => push_escaped(&mut self.html, &name.escaped()),
            CellForm::Label(text) => push_escaped(&mut self.html, text),
            CellForm::Absent(absent) => self.html.push_str(&format!(
                "<abbr title=\"{}\">{}</abbr>",
                escaped(&absent.to_string()),
                notes.mark(absent)
            )),
            CellForm::Other(CellValue::Picture(text)) => {
                self.html.push_str(&format!("<code>{}</code>", escaped(text)));
            }
            CellForm::Other(value) => {
                let words = Wording { notes: Some(notes), bare: true, ..WORDING }.value(value);
                push_escaped(&mut self.html, &words);
            }
        }
        self.html.push_str("</td>");
    }

    /// Writes the attribute with the number by which a cell is sorted. Text cells have no
    /// attribute: their text is sorted.
    fn sort_key(&mut self, cell: CellForm<'_>) {
        if let Some(number) = sort_key(cell) {
            self.html.push_str(&format!(" data-v=\"{number}\""));
        }
    }
}

/// Number by which a cell is sorted; `None` for text and absent values.
fn sort_key(cell: CellForm<'_>) -> Option<String> {
    match cell {
        CellForm::Bytes(n) | CellForm::Count(n) | CellForm::Address(n) => Some(n.to_string()),
        CellForm::Other(CellValue::Change(n)) => Some(n.to_string()),
        CellForm::Other(CellValue::Nanos(n) | CellValue::Seconds(n)) => Some(n.to_string()),
        CellForm::Other(
            CellValue::Share(number)
            | CellValue::Rate(number)
            | CellValue::Number(number)
            | CellValue::Bar(number),
        ) if number.is_finite() => Some(number.to_string()),
        _ => None,
    }
}

/// Appends a cell as JSON. Numbers of the column's kind and texts are values; other cells have
/// their text and the number by which they are sorted; absent values have their mark and the
/// reason.
fn push_data(out: &mut String, cell: CellForm<'_>, kind: &str, notes: &Footnotes<'_>) {
    match cell {
        CellForm::Bytes(n) if kind == "bytes" => {
            number::push(out, |field| number::decimal(field, n));
        }
        CellForm::Count(n) if kind == "count" => {
            number::push(out, |field| number::decimal(field, n));
        }
        CellForm::Name(name) => push_json(out, &name.escaped()),
        CellForm::Label(text) => push_json(out, text),
        CellForm::Absent(absent) => {
            out.push_str("{\"mark\":");
            push_json(out, notes.mark(absent));
            out.push_str(",\"why\":");
            push_json(out, &absent.to_string());
            out.push('}');
        }
        CellForm::Other(CellValue::Picture(text)) => {
            out.push_str("{\"picture\":");
            push_json(out, text);
            out.push('}');
        }
        cell => {
            let words = match cell {
                CellForm::Other(value) => {
                    Wording { notes: Some(notes), bare: true, ..WORDING }.value(value)
                }
                CellForm::Bytes(n) => drawn(|field| number::size(field, n, WORDING.units)),
                CellForm::Count(n) => drawn(|field| number::decimal(field, n)),
                CellForm::Address(n) => drawn(|field| number::hex(field, n)),
                CellForm::Name(_) | CellForm::Label(_) | CellForm::Absent(_) => String::new(),
            };
            match sort_key(cell) {
                Some(key) => {
                    out.push('[');
                    push_json(out, &words);
                    out.push_str(&format!(",{key}]"));
                }
                None => push_json(out, &words),
            }
        }
    }
}

fn drawn(write: impl FnOnce(&mut [u8]) -> usize) -> String {
    let mut out = String::new();
    number::push(&mut out, write);
    out
}

/// Appends text without terminal escape sequences as a JSON string in which no HTML tag can begin.
fn push_json(out: &mut String, text: &str) {
    out.push('"');
    for c in clean(text.as_bytes()).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '<' => out.push_str("\\u003c"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Columns for people, each with its total.
fn lanes(table: &ReportTable) -> impl Iterator<Item = HtmlLane<'_>> {
    let columns = table.columns.iter().enumerate();
    columns.filter(|(_, column)| for_people(column.audience, true)).map(|(at, column)| HtmlLane {
        column,
        total: table.total.as_ref().and_then(|total| total.get(at)),
        words: holds_words(column),
    })
}

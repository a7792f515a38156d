//! Tables in HTML. Cells with numbers carry them, so that sorting does not read `4.0K`.

use std::io;

use pagewise_model::report::{Audience, Cells, Column, Table, Value};

use super::{Page, WORDING, class, escaped, push_escaped};
use crate::cells::{Cell, for_people, holds_words};
use crate::footnotes::Footnotes;
use crate::number;
use crate::words::Wording;

/// The page goes to the writer in pieces of about this size.
const CHUNK: usize = 1 << 16;

/// A column with what its cells have in common.
struct Lane<'a> {
    column: &'a Column,
    total: Option<&'a Value>,
    words: bool,
}

impl<'a> Lane<'a> {
    /// The cell in the table's last row.
    fn last(&self) -> Cell<'a> {
        self.total.unwrap_or(&Value::None).into()
    }

    /// The attribute that tells how a cell stands and whether it is shown. Our own words are
    /// short and stay on one line.
    fn class(&self) -> &'static str {
        let ours = matches!(self.column.cells, Cells::Labels(_));
        match (self.words, ours, self.column.audience) {
            (true, true, Audience::Long) => " class=\"words ours long\"",
            (true, true, _) => " class=\"words ours\"",
            (true, false, Audience::Long) => " class=\"words long\"",
            (true, false, _) => " class=\"words\"",
            (false, _, audience) => class(audience),
        }
    }
}

impl Page<'_> {
    pub(super) fn table(&mut self, table: &Table) -> io::Result<()> {
        let lanes: Vec<Lane<'_>> = lanes(table).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let notes = Footnotes::of_columns(lanes.iter().map(|lane| (lane.column, lane.total)));
        self.section(&table.title, table.audience);
        self.html.push_str("<div class=\"table\"><table>\n<thead><tr>");
        lanes.iter().for_each(|lane| self.head(lane));
        self.html.push_str("</tr></thead>\n<tbody>\n");
        for row in 0..table.rows() {
            self.row(lanes.iter().map(|lane| (lane, Cell::of(lane.column, row))), &notes);
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
        if !table.note.is_empty() {
            self.html.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(&table.note)));
        }
        self.footnotes(&notes);
        self.end_section();
        Ok(())
    }

    fn head(&mut self, lane: &Lane<'_>) {
        let column = lane.column;
        self.html.push_str(&format!("<th scope=\"col\"{}", lane.class()));
        if matches!(column.cells, Cells::Bytes(_)) {
            self.html.push_str(" data-unit=\"bytes\"");
        }
        if !column.meaning.is_empty() {
            self.html.push_str(&format!(" title=\"{}\"", escaped(&column.meaning)));
        }
        self.html.push_str(&format!(">{}</th>", escaped(&column.label)));
    }

    fn row<'c>(
        &mut self,
        cells: impl Iterator<Item = (&'c Lane<'c>, Cell<'c>)>,
        notes: &Footnotes<'_>,
    ) {
        self.html.push_str("<tr>");
        cells.for_each(|(lane, cell)| self.cell(lane, cell, notes));
        self.html.push_str("</tr>\n");
    }

    fn cell(&mut self, lane: &Lane<'_>, cell: Cell<'_>, notes: &Footnotes<'_>) {
        self.html.push_str("<td");
        self.html.push_str(lane.class());
        self.sort_key(cell);
        self.html.push('>');
        match cell {
            Cell::Bytes(n) => {
                number::push(&mut self.html, |field| number::size(field, n, WORDING.units));
            }
            Cell::Count(n) => number::push(&mut self.html, |field| number::decimal(field, n)),
            Cell::Address(n) => number::push(&mut self.html, |field| number::hex(field, n)),
            Cell::Name(name) => push_escaped(&mut self.html, &name.escaped()),
            Cell::Label(text) => push_escaped(&mut self.html, text),
            Cell::Absent(absent) => self.html.push_str(&format!(
                "<abbr title=\"{}\">{}</abbr>",
                escaped(&absent.to_string()),
                notes.mark(absent)
            )),
            Cell::Other(Value::Picture(text)) => {
                self.html.push_str(&format!("<code>{}</code>", escaped(text)));
            }
            Cell::Other(value) => {
                let words = Wording { notes: Some(notes), bare: true, ..WORDING }.value(value);
                push_escaped(&mut self.html, &words);
            }
        }
        self.html.push_str("</td>");
    }

    /// The attribute with the number that a cell is sorted by; words are sorted as they are.
    fn sort_key(&mut self, cell: Cell<'_>) {
        let number = match cell {
            Cell::Bytes(n) | Cell::Count(n) | Cell::Address(n) => {
                self.html.push_str(" data-v=\"");
                number::push(&mut self.html, |field| number::decimal(field, n));
                return self.html.push('"');
            }
            Cell::Other(Value::Change(n)) => n.to_string(),
            Cell::Other(Value::Nanos(n) | Value::Seconds(n)) => n.to_string(),
            Cell::Other(
                Value::Share(number)
                | Value::Rate(number)
                | Value::Number(number)
                | Value::Bar(number),
            ) if number.is_finite() => number.to_string(),
            _ => return,
        };
        self.html.push_str(&format!(" data-v=\"{number}\""));
    }
}

/// The columns for people, each with its total.
fn lanes(table: &Table) -> impl Iterator<Item = Lane<'_>> {
    let columns = table.columns.iter().enumerate();
    columns.filter(|(_, column)| for_people(column.audience, true)).map(|(at, column)| Lane {
        column,
        total: table.total.as_ref().and_then(|total| total.get(at)),
        words: holds_words(column),
    })
}

//! CSV for spreadsheets and scripts: one table, one line a row (RFC 4180).

use std::io::{self, Write};

use pagewise_model::report::{Column, Table, Value};

use crate::cells::{Cell, for_programs};
use crate::json;

/// Writes the columns of a table that programs see, their keys first. Numbers are as in JSON: bytes, seconds. A missing
/// value is an empty field.
///
/// ```
/// use pagewise_model::report::{Cells, Column, Table};
/// use pagewise_view::csv::write;
///
/// let columns = vec![
///     Column::new("name", "", Cells::Names(vec!["a,\"b\"".into()])),
///     Column::new("size", "Size", Cells::Bytes(vec![4096])),
/// ];
/// let table = Table {
///     key: "".into(),
///     title: "".into(),
///     audience: Default::default(),
///     columns,
///     row_keys: None,
///     total: None,
///     note: "".into(),
/// };
/// let mut out = Vec::new();
/// write(&table, &mut out).unwrap();
/// assert_eq!(out, b"name,size\r\n\"a,\"\"b\"\"\",4096\r\n");
/// ```
///
/// # Errors
/// What `out` returns.
pub fn write(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    let columns: Vec<&Column> =
        table.columns.iter().filter(|column| for_programs(column.audience)).collect();
    line(out, columns.iter().map(|column| column.key.to_string()))?;
    for row in 0..table.rows() {
        line(out, columns.iter().map(|column| field(Cell::of(column, row))))?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, fields: impl Iterator<Item = String>) -> io::Result<()> {
    let fields: Vec<String> = fields.map(quoted).collect();
    write!(out, "{}\r\n", fields.join(","))
}

fn field(cell: Cell<'_>) -> String {
    match cell {
        Cell::Bytes(n) | Cell::Count(n) | Cell::Address(n) => n.to_string(),
        Cell::Name(name) => name.escaped().into_owned(),
        Cell::Label(text) => text.to_owned(),
        Cell::Absent(_) | Cell::Other(Value::None) => String::new(),
        Cell::Other(Value::Text(text) | Value::Picture(text)) => text.to_string(),
        Cell::Other(value) => json::of(value),
    }
}

/// A field in quotes where it must be.
fn quoted(field: String) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

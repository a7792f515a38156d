//! CSV for spreadsheets and scripts: one table, one line for each row (RFC 4180).

use std::io::{self, Write};

use pagewise_model::report::{CellValue, ReportTable, TableColumn};

use crate::cells::{CellForm, for_programs};
use crate::json;

/// Writes the columns of a table that are for programs, after a line with their keys. Numbers are
/// in the units of JSON: bytes, seconds. An absent value is an empty field.
///
/// ```
/// use pagewise_model::report::{ColumnCells, TableColumn, ReportTable};
/// use pagewise_view::csv::write;
///
/// let columns = vec![
///     TableColumn::new("name", "", ColumnCells::Names(vec!["a,\"b\"".into()])),
///     TableColumn::new("size", "Size", ColumnCells::Bytes(vec![4096])),
/// ];
/// let table = ReportTable {
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
/// Returns the error of `out`.
pub fn write(table: &ReportTable, out: &mut dyn Write) -> io::Result<()> {
    let columns: Vec<&TableColumn> =
        table.columns.iter().filter(|column| for_programs(column.audience)).collect();
    line(out, columns.iter().map(|column| column.key.to_string()))?;
    for row in 0..table.rows() {
        line(out, columns.iter().map(|column| field(CellForm::at(column, row))))?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, fields: impl Iterator<Item = String>) -> io::Result<()> {
    let fields: Vec<String> = fields.map(quoted).collect();
    write!(out, "{}\r\n", fields.join(","))
}

fn field(cell: CellForm<'_>) -> String {
    match cell {
        CellForm::Bytes(n) | CellForm::Count(n) | CellForm::Address(n) => n.to_string(),
        CellForm::Name(name) => name.escaped().into_owned(),
        CellForm::Label(text) => text.to_owned(),
        CellForm::Absent(_) | CellForm::Other(CellValue::None) => String::new(),
        CellForm::Other(CellValue::Text(text) | CellValue::Picture(text)) => text.to_string(),
        CellForm::Other(value) => json::value_text(value),
    }
}

/// Returns the field, in quotes if the format requires them.
fn quoted(field: String) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

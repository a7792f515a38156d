//! One cell of a table as a reference, so that names are not copied.

use pagewise_model::report::{Audience, CellValue, ColumnCells, TableColumn};
use pagewise_model::{Absent, Name};

/// A cell of a table. Tables draw each variant in its own form.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellForm<'a> {
    /// Bytes.
    Bytes(u64),
    /// A count.
    Count(u64),
    /// An address, in hex with no prefix, as in `/proc/<pid>/maps`.
    Address(u64),
    /// Text from outside.
    Name(&'a Name),
    /// Text of pagewise itself.
    Label(&'a str),
    /// Reason of an absent value.
    Absent(&'a Absent),
    /// Any other value.
    Other(&'a CellValue),
}

impl<'a> CellForm<'a> {
    /// Returns the cell of a row; an empty cell if the column has fewer rows.
    pub(crate) fn at(column: &'a TableColumn, row: usize) -> CellForm<'a> {
        column.gap(row).map_or_else(|| CellForm::present(&column.cells, row), CellForm::Absent)
    }

    /// Returns the cell of a row that has no gap.
    #[inline]
    pub(crate) fn present(cells: &'a ColumnCells, row: usize) -> CellForm<'a> {
        let cell = match cells {
            ColumnCells::Bytes(v) => v.get(row).copied().map(CellForm::Bytes),
            ColumnCells::Counts(v) => v.get(row).copied().map(CellForm::Count),
            ColumnCells::Addresses(v) => v.get(row).copied().map(CellForm::Address),
            ColumnCells::Names(v) => v.get(row).map(CellForm::Name),
            ColumnCells::Labels(v) => v.get(row).map(|label| CellForm::Label(label)),
            ColumnCells::Values(v) => v.get(row).map(CellForm::from),
            ColumnCells::Coded(coded) => coded.get(row).map(CellForm::from),
        };
        cell.unwrap_or(CellForm::Other(&CellValue::None))
    }
}

impl<'a> From<&'a CellValue> for CellForm<'a> {
    fn from(value: &'a CellValue) -> CellForm<'a> {
        match value {
            CellValue::Bytes(n) => CellForm::Bytes(*n),
            CellValue::Count(n) => CellForm::Count(*n),
            CellValue::Address(n) => CellForm::Address(*n),
            CellValue::Name(name) => CellForm::Name(name),
            CellValue::Text(text) => CellForm::Label(text),
            CellValue::Absent(absent) => CellForm::Absent(absent),
            other => CellForm::Other(other),
        }
    }
}

/// True if a column contains text. Text is left-aligned and can be cut.
pub(crate) fn holds_words(column: &TableColumn) -> bool {
    match &column.cells {
        ColumnCells::Bytes(_) | ColumnCells::Counts(_) | ColumnCells::Addresses(_) => false,
        ColumnCells::Names(_) | ColumnCells::Labels(_) => true,
        ColumnCells::Values(values) => values.iter().any(is_words),
        ColumnCells::Coded(coded) => coded.values.iter().any(is_words),
    }
}

/// True if a column contains sizes in bytes. Tables show the unit of such columns.
pub(crate) fn holds_sizes(column: &TableColumn) -> bool {
    match &column.cells {
        ColumnCells::Bytes(_) => true,
        ColumnCells::Coded(coded) => {
            coded.values.iter().any(|value| matches!(value, CellValue::Bytes(_)))
        }
        ColumnCells::Counts(_) | ColumnCells::Addresses(_) | ColumnCells::Names(_) => false,
        ColumnCells::Labels(_) | ColumnCells::Values(_) => false,
    }
}

/// True if a column contains only text of pagewise itself.
pub(crate) fn holds_labels(column: &TableColumn) -> bool {
    match &column.cells {
        ColumnCells::Labels(_) => true,
        ColumnCells::Coded(coded) => {
            coded.values.iter().all(|value| matches!(value, CellValue::Text(_)))
        }
        ColumnCells::Bytes(_) | ColumnCells::Counts(_) | ColumnCells::Addresses(_) => false,
        ColumnCells::Names(_) | ColumnCells::Values(_) => false,
    }
}

fn is_words(value: &CellValue) -> bool {
    matches!(
        value,
        CellValue::Text(_)
            | CellValue::Name(_)
            | CellValue::List(_)
            | CellValue::Sentence(_)
            | CellValue::Record(_)
            | CellValue::Flag(_)
            | CellValue::Bar(_)
            | CellValue::Picture(_)
    )
}

/// True if text and HTML show the parts of a report with this audience. `long` is true if the user
/// passed `--long`.
pub(crate) fn for_people(audience: Audience, long: bool) -> bool {
    match audience {
        Audience::Everyone | Audience::People => true,
        Audience::Long => long,
        Audience::Programs => false,
    }
}

/// True if JSON contains the parts of a report with this audience.
pub(crate) fn for_programs(audience: Audience) -> bool {
    audience != Audience::People
}

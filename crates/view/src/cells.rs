//! One cell of a table, borrowed: no copy of a name for each look at it.

use pagewise_model::report::{Audience, Cells, Column, Value};
use pagewise_model::{Absent, Name};

/// A cell in one of the forms that tables draw in their own way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    /// Bytes.
    Bytes(u64),
    /// How many.
    Count(u64),
    /// An address, in hex with no prefix, as in `/proc/<pid>/maps`.
    Address(u64),
    /// Words from outside.
    Name(&'a Name),
    /// Words of ours.
    Label(&'a str),
    /// Why there is nothing.
    Absent(&'a Absent),
    /// Any other value.
    Other(&'a Value),
}

impl<'a> Cell<'a> {
    /// The cell of a row. A column that is too short has empty cells.
    pub(crate) fn of(column: &'a Column, row: usize) -> Cell<'a> {
        column.gap(row).map_or_else(|| Cell::present(&column.cells, row), Cell::Absent)
    }

    /// The cell of a row that has no gap.
    #[inline]
    pub(crate) fn present(cells: &'a Cells, row: usize) -> Cell<'a> {
        let cell = match cells {
            Cells::Bytes(v) => v.get(row).copied().map(Cell::Bytes),
            Cells::Counts(v) => v.get(row).copied().map(Cell::Count),
            Cells::Addresses(v) => v.get(row).copied().map(Cell::Address),
            Cells::Names(v) => v.get(row).map(Cell::Name),
            Cells::Labels(v) => v.get(row).map(|label| Cell::Label(label)),
            Cells::Values(v) => v.get(row).map(Cell::from),
        };
        cell.unwrap_or(Cell::Other(&Value::None))
    }
}

impl<'a> From<&'a Value> for Cell<'a> {
    fn from(value: &'a Value) -> Cell<'a> {
        match value {
            Value::Bytes(n) => Cell::Bytes(*n),
            Value::Count(n) => Cell::Count(*n),
            Value::Address(n) => Cell::Address(*n),
            Value::Name(name) => Cell::Name(name),
            Value::Text(text) => Cell::Label(text),
            Value::Absent(absent) => Cell::Absent(absent),
            other => Cell::Other(other),
        }
    }
}

/// Whether a column holds words, which are drawn from the left and may be cut.
pub(crate) fn holds_words(column: &Column) -> bool {
    match &column.cells {
        Cells::Bytes(_) | Cells::Counts(_) | Cells::Addresses(_) => false,
        Cells::Names(_) | Cells::Labels(_) => true,
        Cells::Values(values) => values.iter().any(is_words),
    }
}

fn is_words(value: &Value) -> bool {
    matches!(
        value,
        Value::Text(_)
            | Value::Name(_)
            | Value::List(_)
            | Value::Record(_)
            | Value::Flag(_)
            | Value::Bar(_)
            | Value::Picture(_)
    )
}

/// Whether people see it; `long` is whether they asked for everything.
pub(crate) fn for_people(audience: Audience, long: bool) -> bool {
    match audience {
        Audience::Everyone | Audience::People => true,
        Audience::Long => long,
        Audience::Programs => false,
    }
}

/// Whether programs see it.
pub(crate) fn for_programs(audience: Audience) -> bool {
    audience != Audience::People
}

//! Blocks of reports as most analyses make them.

use pagewise_model::report::{Audience, Column, Fact, Facts, Label, Shape, Table};

use crate::explain::meaning;

/// A table of those columns; those that say nothing of themselves get their meaning from the one table of fields.
pub(crate) fn table(
    key: &'static str,
    title: &'static str,
    audience: Audience,
    columns: Vec<Column>,
) -> Table {
    let described = |column: Column| match column.meaning.as_ref() {
        "" => Column { meaning: meaning(&column.key).into(), ..column },
        _ => column,
    };
    Table {
        key: key.into(),
        title: title.into(),
        audience,
        columns: columns.into_iter().map(described).collect(),
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// The rows to show, at most so many, and a word on the others: which option shows all.
pub(crate) fn first<'t, T>(all: &'t [T], limit: Option<usize>, option: &str) -> (&'t [T], Label) {
    let (shown, left_out) = all.split_at(all.len().min(limit.unwrap_or(usize::MAX)));
    let note = match left_out.len() {
        0 => "".into(),
        more => format!("{more} more: {option} all").into(),
    };
    (shown, note)
}

/// A column that only programs see.
pub(crate) fn for_programs(column: Column) -> Column {
    Column { audience: Audience::Programs, ..column }
}

/// Facts for everyone.
pub(crate) fn facts_of(
    key: &'static str,
    title: &'static str,
    shape: Shape,
    facts: Vec<Fact>,
) -> Facts {
    Facts { key: key.into(), title: title.into(), audience: Audience::Everyone, shape, facts }
}

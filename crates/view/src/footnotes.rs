//! Reasons of missing values: a mark in place of the value, and each reason once below.

use std::collections::HashMap;

use pagewise_model::Absent;
use pagewise_model::report::{CellValue, CodedCells, ColumnCells, Fact, Gaps, TableColumn};

use crate::words::clean;

/// The reasons of one block, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footnotes<'a> {
    // Each with its mark.
    reasons: Vec<(&'a Absent, String)>,
    numbers: HashMap<&'a Absent, usize>,
}

impl<'a> Footnotes<'a> {
    /// The reasons in some facts.
    pub(crate) fn of_facts(facts: impl IntoIterator<Item = &'a Fact>) -> Footnotes<'a> {
        let mut notes = Footnotes::default();
        facts.into_iter().for_each(|fact| notes.add_value(&fact.value));
        notes
    }

    /// The reasons in some columns and in a table's total.
    pub(crate) fn of_columns(
        columns: impl IntoIterator<Item = (&'a TableColumn, Option<&'a CellValue>)>,
    ) -> Footnotes<'a> {
        let mut notes = Footnotes::default();
        for (column, total) in columns {
            notes.add_column(column);
            total.into_iter().for_each(|value| notes.add_value(value));
        }
        notes
    }

    fn add_column(&mut self, column: &'a TableColumn) {
        match &column.gaps {
            Gaps::None => {}
            Gaps::All(absent) => self.add(absent),
            Gaps::Some(rows) => rows.values().for_each(|absent| self.add(absent)),
        }
        if let ColumnCells::Values(values) | ColumnCells::Coded(CodedCells { values, .. }) =
            &column.cells
        {
            values.iter().for_each(|value| self.add_value(value));
        }
    }

    fn add_value(&mut self, value: &'a CellValue) {
        match value {
            CellValue::Absent(absent) => self.add(absent),
            CellValue::List(values) | CellValue::Sentence(values) => {
                values.iter().for_each(|value| self.add_value(value))
            }
            CellValue::Record(members) => {
                members.iter().for_each(|(_, value)| self.add_value(value))
            }
            _ => {}
        }
    }

    fn add(&mut self, absent: &'a Absent) {
        let next = self.reasons.len();
        if *self.numbers.entry(absent).or_insert(next) == next {
            self.reasons.push((absent, format!("?{}", next + 1)));
        }
    }

    /// The mark in place of the value: `?`, or `?2` if there are several reasons.
    pub(crate) fn mark(&self, absent: &Absent) -> &str {
        match self.reasons.len() {
            0 | 1 => "?",
            _ => self.numbers.get(absent).map_or("?", |&number| &self.reasons[number].1),
        }
    }

    /// Each mark with its reason.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        self.reasons.iter().map(|(absent, _)| {
            (self.mark(absent), clean(absent.to_string().as_bytes()).into_owned())
        })
    }
}

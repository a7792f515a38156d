//! A series of readings: one line for each reading, with columns of the same width in all lines.

use std::io::{self, Write};

use pagewise_model::report::{CellValue, Fact, NamedFacts};

use super::page::{Ink, TextPage};
use super::{Style, Units};
use crate::cells::for_people;
use crate::words::{Wording, push_cut, width};

/// Minimum number of columns for the text at the end of a line. Numbers are omitted if the text
/// would get less.
const WORDS: usize = 20;
/// Number of spaces between two columns.
const GAP: usize = 2;

/// Writes the facts of one reading as one line, with the labels above it if `has_labels`. If the
/// line is too long, the rightmost numbers are omitted.
///
/// # Errors
/// Returns the error of `out`.
pub fn write_series_line(
    facts: &NamedFacts,
    style: &Style,
    has_labels: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut page = TextPage::new(style, out);
    let shown = facts.facts.iter().filter(|it| for_people(it.audience, style.long));
    let (numbers, words): (Vec<&Fact>, Vec<&Fact>) = shown.partition(|it| is_number(&it.value));
    let numbers = fitting(numbers, style);
    let columns: Vec<usize> = numbers.iter().map(|it| column_width(it, style)).collect();
    let room = style.width.saturating_sub(columns.iter().map(|it| it + GAP).sum());
    if has_labels {
        let labels = numbers.iter().map(|it| it.label.to_string());
        let last = words.first().map_or("", |it| &*it.label);
        page.ink_cut(Ink::Dim, &line(labels, &columns, last, room));
        page.newline();
    }
    let cells = numbers.iter().map(|it| cell(&it.value, style));
    let last: Vec<String> = words.iter().map(|it| cell(&it.value, style)).collect();
    page.ink_cut(Ink::Plain, &line(cells, &columns, &last.join(" "), room));
    page.newline();
    page.flush()
}

fn is_number(value: &CellValue) -> bool {
    use CellValue::{Absent, Bytes, Change, Count};
    matches!(value, Bytes(_) | Change(_) | Count(_) | Absent(_))
}

/// Numbers that leave enough space for the text at the end of the line. Numbers without enough
/// space are omitted in pairs: a value and its change.
fn fitting<'f>(mut numbers: Vec<&'f Fact>, style: &Style) -> Vec<&'f Fact> {
    let taken = |numbers: &[&Fact]| -> usize {
        numbers.iter().map(|it| column_width(it, style) + GAP).sum()
    };
    while numbers.len() > 3 && taken(&numbers).saturating_add(WORDS) > style.width {
        numbers.truncate(numbers.len() - 2);
    }
    numbers
}

fn column_width(fact: &Fact, style: &Style) -> usize {
    let digits = match (&fact.value, style.units) {
        (CellValue::Count(_), _) => 4,
        (_, Units::Human) => "-1023K".len(),
        (_, _) => "-1099511627776".len(),
    };
    digits.max(width(&fact.label))
}

fn cell(value: &CellValue, style: &Style) -> String {
    let mut text = String::new();
    match value {
        // The report at the end of the series contains the reasons.
        CellValue::Absent(_) => text.push('?'),
        value => Wording { units: style.units, bare: true, notes: None }.push(&mut text, value),
    }
    text
}

fn line(
    cells: impl Iterator<Item = String>,
    columns: &[usize],
    words: &str,
    room: usize,
) -> String {
    let mut text = String::new();
    for (cell, &column) in cells.zip(columns) {
        text.push_str(&" ".repeat(column.saturating_sub(width(&cell))));
        text.push_str(&cell);
        text.push_str(&" ".repeat(GAP));
    }
    push_cut(&mut text, words, room);
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use pagewise_model::Absent;
    use pagewise_model::report::{Audience, FactsShape};

    use super::*;

    fn fact(label: &'static str, value: CellValue) -> Fact {
        Fact {
            key: "key".into(),
            label: label.into(),
            value,
            meaning: "".into(),
            audience: Audience::Everyone,
        }
    }

    fn lines(res: u64, change: i64, width: usize) -> String {
        let facts = vec![
            fact("s", CellValue::Count(res >> 20)),
            fact("RES", CellValue::Bytes(res)),
            fact("CHANGE", CellValue::Change(change)),
            fact("PSS", CellValue::Absent(Absent::Vanished)),
            fact("CHANGE", CellValue::Absent(Absent::Vanished)),
            fact("GREW MOST", CellValue::text("brk heap")),
        ];
        let facts = NamedFacts {
            key: "".into(),
            title: "".into(),
            audience: Audience::Everyone,
            shape: FactsShape::Line,
            facts,
        };
        let mut out = Vec::new();
        let style = Style { width, ..Style::default() };
        write_series_line(&facts, &style, true, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_for_all_values() {
        assert_eq!(
            lines(3 << 20, 1 << 20, 80),
            "   s     RES  CHANGE     PSS  CHANGE  GREW MOST\n   \
             3    3.0M   +1.0M       ?       ?  brk heap\n"
        );
        assert_eq!(
            lines(1000 << 20, -(900 << 20), 80).lines().last().unwrap(),
            "1000   1000M   -900M       ?       ?  brk heap"
        );
        assert_eq!(
            lines(3 << 20, 0, 44).lines().last().unwrap(),
            "   3    3.0M       0  brk heap",
            "a narrow terminal"
        );
    }
}

//! Facts: on one line, in columns like in `top`, or one on each line with its meaning.

use pagewise_model::report::{CellValue, Fact, FactsShape, NamedFacts};

use super::page::{Ink, TextPage};
use crate::cells::for_people;
use crate::footnotes::Footnotes;
use crate::words::{Wording, clean, push_cut, width};

/// Number of spaces between two facts.
const GAP: usize = 2;

/// A fact as text.
struct Worded<'a> {
    label: String,
    value: String,
    meaning: &'a str,
    number: bool,
}

pub(super) fn draw(page: &mut TextPage<'_>, facts: &NamedFacts) {
    let shown: Vec<&Fact> =
        facts.facts.iter().filter(|f| for_people(f.audience, page.style.long)).collect();
    if shown.is_empty() {
        return;
    }
    let notes = Footnotes::of_facts(shown.iter().copied());
    let shape = if page.style.long { FactsShape::List } else { facts.shape };
    let bare = shape == FactsShape::Columns;
    let wording = Wording { notes: Some(&notes), bare, ..page.wording() };
    let worded: Vec<Worded<'_>> = shown.iter().map(|fact| word(fact, wording)).collect();
    page.heading_of_sizes(&facts.title, bare);
    match shape {
        FactsShape::Line => line(page, worded.iter().map(|f| (f.label.as_str(), f.value.as_str()))),
        FactsShape::Columns => columns(page, &worded),
        FactsShape::List => list(page, &worded),
    }
    page.footnotes(&notes);
}

fn word<'a>(fact: &'a Fact, wording: Wording<'_>) -> Worded<'a> {
    let words = matches!(
        fact.value,
        CellValue::Text(_)
            | CellValue::Name(_)
            | CellValue::List(_)
            | CellValue::Sentence(_)
            | CellValue::Record(_)
            | CellValue::Bar(_)
            | CellValue::Picture(_)
    );
    Worded {
        label: clean(fact.label.as_bytes()).into_owned(),
        value: wording.value(&fact.value),
        meaning: &fact.meaning,
        number: !words,
    }
}

/// Writes `label value  label value`, wrapped between facts. A value that is wider than a line is
/// cut.
pub(super) fn line<'a>(page: &mut TextPage<'_>, facts: impl Iterator<Item = (&'a str, &'a str)>) {
    for (label, value) in facts {
        let space = usize::from(!label.is_empty() && !value.is_empty());
        page.make_room(width(label) + space + width(value), GAP);
        page.ink_cut(Ink::Dim, label);
        if page.room() > space {
            page.skip(space);
            page.ink_cut(Ink::Plain, value);
        }
    }
    page.newline();
}

/// Writes labels above values, in as few rows as possible. All rows have the same columns.
fn columns(page: &mut TextPage<'_>, facts: &[Worded<'_>]) {
    let room = page.room();
    let widths: Vec<usize> =
        facts.iter().map(|f| width(&f.label).max(width(&f.value)).min(room)).collect();
    let grids = (1..=facts.len()).map(|rows| grid(&widths, facts.len().div_ceil(rows)));
    let fits = |grid: &Vec<usize>| grid.iter().sum::<usize>() + GAP * (grid.len() - 1) <= room;
    // The last grid has one column, which is at most as wide as the line. So one grid always fits.
    let grid = grids.into_iter().find(fits).unwrap_or_default();
    for facts in facts.chunks(grid.len().max(1)) {
        row(page, Ink::Dim, facts.iter().map(|f| f.label.as_str()).zip(&grid));
        row(page, Ink::Plain, facts.iter().map(|f| f.value.as_str()).zip(&grid));
    }
}

/// Widths of the columns if fields with these widths are put into rows of `per_row` fields.
fn grid(widths: &[usize], per_row: usize) -> Vec<usize> {
    let mut grid = vec![0; per_row];
    for row in widths.chunks(per_row) {
        grid.iter_mut().zip(row).for_each(|(column, width)| *column = (*column).max(*width));
    }
    grid
}

/// Writes one row of right-aligned texts.
fn row<'a>(page: &mut TextPage<'_>, ink: Ink, cells: impl Iterator<Item = (&'a str, &'a usize)>) {
    let mut end = page.indent();
    for (words, &room) in cells {
        let mut cut = String::new();
        push_cut(&mut cut, words, room);
        page.pad_to(end + room - width(&cut));
        page.ink(ink, &cut);
        end += room + GAP;
    }
    page.newline();
}

/// Maximum width of the column of labels and of the column of values. Longer texts exceed their
/// column.
const LABEL: usize = 24;
const VALUE: usize = 22;

/// Writes one fact on each line: label, value and meaning in columns. Texts that are too wide are
/// wrapped.
fn list(page: &mut TextPage<'_>, facts: &[Worded<'_>]) {
    let indent = page.indent();
    let label_width = facts.iter().map(|f| width(&f.label).min(LABEL)).max().unwrap_or(0);
    let value_column = indent + label_width + if label_width > 0 { GAP } else { 0 };
    let value_width = facts.iter().map(|f| width(&f.value)).filter(|w| *w <= VALUE).max();
    let value_width = value_width.unwrap_or(0);
    let numbers = facts.iter().all(|fact| fact.number);
    for fact in facts {
        page.hang(indent);
        page.write_words(Ink::Dim, &fact.label, 0);
        page.hang(value_column);
        page.make_room(width(&fact.value).min(value_width), GAP);
        if numbers {
            page.pad_to(value_column + value_width.saturating_sub(width(&fact.value)));
        }
        page.write_words(Ink::Plain, &fact.value, 0);
        if page.style.long && !fact.meaning.is_empty() {
            meaning(page, fact, indent, value_column + value_width + GAP);
        }
        page.newline();
    }
    page.hang(indent);
}

/// Writes the meaning beside the value if there is enough space, otherwise below the value.
fn meaning(page: &mut TextPage<'_>, fact: &Worded<'_>, indent: usize, column: usize) {
    if page.is_left_half(column) && width(&fact.value) <= VALUE {
        page.hang(column);
    } else {
        page.newline();
        page.hang(indent + 2 * GAP);
    }
    page.write_words(Ink::Dim, &clean(fact.meaning.as_bytes()), GAP);
}

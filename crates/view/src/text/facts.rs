//! Facts: on a line, as top's columns, or one a line with what they mean.

use pagewise_model::report::{Fact, Facts, Shape, Value};

use super::page::{Ink, Page};
use crate::cells::for_people;
use crate::footnotes::Footnotes;
use crate::words::{Wording, clean, push_cut, width};

/// Between two facts.
const GAP: usize = 2;

/// A fact in words.
struct Worded<'a> {
    label: String,
    value: String,
    meaning: &'a str,
    number: bool,
}

pub(super) fn draw(page: &mut Page<'_>, facts: &Facts) {
    let shown: Vec<&Fact> =
        facts.facts.iter().filter(|f| for_people(f.audience, page.style.long)).collect();
    if shown.is_empty() {
        return;
    }
    let notes = Footnotes::of_facts(shown.iter().copied());
    let wording = Wording { units: page.style.units, notes: Some(&notes) };
    let worded: Vec<Worded<'_>> = shown.iter().map(|fact| word(fact, wording)).collect();
    page.heading(&facts.title);
    match facts.shape {
        Shape::List => list(page, &worded),
        _ if page.style.long => list(page, &worded),
        Shape::Line => line(page, worded.iter().map(|f| (f.label.as_str(), f.value.as_str()))),
        Shape::Columns => columns(page, &worded),
    }
    page.footnotes(&notes);
}

fn word<'a>(fact: &'a Fact, wording: Wording<'_>) -> Worded<'a> {
    let words = matches!(fact.value, Value::Text(_) | Value::Name(_) | Value::List(_));
    Worded {
        label: clean(fact.label.as_bytes()).into_owned(),
        value: wording.value(&fact.value),
        meaning: &fact.meaning,
        number: !words,
    }
}

/// `label value  label value`, wrapped between facts. A value wider than a line is cut.
pub(super) fn line<'a>(page: &mut Page<'_>, facts: impl Iterator<Item = (&'a str, &'a str)>) {
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

/// Labels above values, as many to a row as fit; rows share their columns where there are several.
fn columns(page: &mut Page<'_>, facts: &[Worded<'_>]) {
    let room = page.room();
    let mut widths: Vec<usize> =
        facts.iter().map(|f| width(&f.label).max(width(&f.value)).min(room)).collect();
    let mut per_row = facts.len();
    if widths.iter().map(|w| w + GAP).sum::<usize>() > room.saturating_add(GAP) {
        let widest = widths.iter().copied().max().unwrap_or(1);
        widths.fill(widest);
        per_row = (room.saturating_add(GAP) / (widest + GAP)).max(1);
    }
    for (facts, widths) in facts.chunks(per_row).zip(widths.chunks(per_row)) {
        row(page, Ink::Dim, facts.iter().map(|f| f.label.as_str()).zip(widths));
        row(page, Ink::Plain, facts.iter().map(|f| f.value.as_str()).zip(widths));
    }
}

/// One row of right-aligned words.
fn row<'a>(page: &mut Page<'_>, ink: Ink, cells: impl Iterator<Item = (&'a str, &'a usize)>) {
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

/// The widest label and the widest value that get a column of their own.
const LABEL: usize = 24;
const VALUE: usize = 16;

/// One fact a line: label, value, meaning, each in its column; what is too wide wraps.
fn list(page: &mut Page<'_>, facts: &[Worded<'_>]) {
    let indent = page.indent();
    let label_width = facts.iter().map(|f| width(&f.label).min(LABEL)).max().unwrap_or(0);
    let value_column = indent + label_width + if label_width > 0 { GAP } else { 0 };
    let value_width = facts.iter().map(|f| width(&f.value)).filter(|w| *w <= VALUE).max();
    let value_width = value_width.unwrap_or(0);
    for fact in facts {
        page.hang(indent);
        page.words(Ink::Dim, &fact.label, 0);
        page.hang(value_column);
        page.make_room(width(&fact.value).min(value_width), GAP);
        if fact.number {
            page.pad_to(value_column + value_width.saturating_sub(width(&fact.value)));
        }
        page.words(Ink::Plain, &fact.value, 0);
        if page.style.long && !fact.meaning.is_empty() {
            meaning(page, fact, indent, value_column + value_width + GAP);
        }
        page.newline();
    }
    page.hang(indent);
}

/// The meaning: beside the value where there is room for a column of words, else below it.
fn meaning(page: &mut Page<'_>, fact: &Worded<'_>, indent: usize, column: usize) {
    if page.is_left_half(column) && width(&fact.value) <= VALUE {
        page.hang(column);
    } else {
        page.newline();
        page.hang(indent + 2 * GAP);
    }
    page.words(Ink::Dim, &clean(fact.meaning.as_bytes()), GAP);
}

//! A chart as characters: a mark for each line in each column.

use pagewise_model::report::{Axis, Chart, Line};

use super::page::{Ink, Page};
use crate::words::{clean, width};

/// The marks of lines; all further lines share the last one.
const MARKS: [char; 6] = ['●', '○', '×', '+', '◆', '△'];

/// How large the area of the lines is, at most, in characters.
const WIDTH: u32 = 72;
const HEIGHT: u32 = 10;

pub(super) fn draw(page: &mut Page<'_>, chart: &Chart) {
    let Some(ends) = chart.width() else { return };
    let title = page.wording().sentence(&chart.title);
    page.heading(&title);
    let tall = chart.height();
    let mut labels = [0, tall / 2, tall].map(|y| number(page, &chart.y, y));
    let widest = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    if widest > page.room() / 2 {
        labels = Default::default();
    }
    let start = page.indent();
    let margin = labels.iter().map(|label| width(label) + 1).max().unwrap_or(0);
    let room = u32::try_from(page.room().saturating_sub(margin + 1)).unwrap_or(WIDTH);
    let columns = room.clamp(2, WIDTH);
    for row in (0..HEIGHT).rev() {
        let label = match row {
            0 => &labels[0],
            row if row == HEIGHT - 1 => &labels[2],
            row if row == HEIGHT / 2 => &labels[1],
            _ => "",
        };
        page.pad_to(start + margin - 1 - width(label));
        page.ink_cut(Ink::Dim, label);
        page.pad_to(start + margin);
        page.ink(Ink::Dim, if label.is_empty() { "│" } else { "┤" });
        let marks: String =
            (0..columns).map(|column| mark(chart, ends, (column, columns), row)).collect();
        page.ink(Ink::Plain, marks.trim_end());
        page.newline();
    }
    axis(page, chart, ends, (margin, columns as usize));
    legend(page, &chart.lines);
}

/// A number of an axis in words.
fn number(page: &Page<'_>, axis: &Axis, number: u64) -> String {
    page.wording().value(&axis.unit.value(number))
}

/// The mark of the first line that passes here; a blank where none does.
fn mark(chart: &Chart, ends: (u64, u64), column: (u32, u32), row: u32) -> char {
    let (at, columns) = column;
    let span = u128::from(ends.1 - ends.0) * u128::from(at) / u128::from(columns - 1);
    let x = ends.0.saturating_add(u64::try_from(span).unwrap_or(u64::MAX));
    let passes = |line: &Line| line.at(x).is_some_and(|y| row_of(y, chart.height()) == row);
    chart.lines.iter().position(passes).map_or(' ', pattern)
}

/// In which row a height is: the lowest is 0 alone or the nearest to it.
fn row_of(y: u64, tall: u64) -> u32 {
    let rows = u128::from(HEIGHT - 1);
    let tall = u128::from(tall.max(1));
    u32::try_from((u128::from(y) * rows + tall / 2) / tall).unwrap_or(HEIGHT)
}

fn pattern(line: usize) -> char {
    MARKS[line.min(MARKS.len() - 1)]
}

/// The axis to the right, with its ends and what it is.
fn axis(page: &mut Page<'_>, chart: &Chart, ends: (u64, u64), (margin, columns): (usize, usize)) {
    let start = page.indent();
    page.pad_to(start + margin);
    page.ink(Ink::Dim, &format!("└{}", "─".repeat(columns)));
    page.newline();
    let [from, to] = [ends.0, ends.1].map(|x| number(page, &chart.x, x));
    let label = clean(chart.x.label.as_bytes());
    page.pad_to(start + margin + 1);
    page.ink_cut(Ink::Dim, &from);
    let middle = columns.saturating_sub(width(&from) + width(&to) + width(&label)) / 2;
    page.skip(middle.max(1));
    page.ink_cut(Ink::Dim, &label);
    page.pad_to(start + margin + 1 + columns.saturating_sub(width(&to)));
    page.ink_cut(Ink::Dim, &to);
    page.newline();
}

fn legend(page: &mut Page<'_>, lines: &[Line]) {
    for (at, line) in lines.iter().enumerate() {
        let entry = format!("{} {}", pattern(at), clean(line.label.as_bytes()));
        page.make_room(width(&entry), 2);
        page.ink_cut(Ink::Dim, &entry);
    }
    page.newline();
}

//! Charts as characters: a mark for each line in each column, and bars.

use pagewise_model::report::{Axis, Bars, Chart, ChartLine, Scale};

use super::page::{Ink, TextPage};
use crate::words::{clean, width};

/// The marks of lines; all further lines share the last one.
const MARKS: [char; 6] = ['●', '○', '×', '+', '◆', '△'];

/// Maximum size of the area of the lines, in characters.
const WIDTH: u32 = 72;
const HEIGHT: u32 = 10;

/// Maximum length of a bar, in characters.
const MAX_BAR: usize = 40;

pub(super) fn draw(page: &mut TextPage<'_>, chart: &Chart) {
    let Some((wide, tall)) = chart.width().zip(chart.height()) else { return };
    let title = page.wording().sentence(&chart.title);
    page.heading(&title);
    let mut labels = [0.0, 0.5, 1.0].map(|place| number(page, &chart.y, place, tall));
    let widest = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    if widest > page.room() / 2 {
        labels = Default::default();
    }
    let start = page.indent();
    let margin = labels.iter().map(|label| width(label) + 1).max().unwrap_or(0);
    let room = u32::try_from(page.room().saturating_sub(margin + 1)).unwrap_or(WIDTH);
    let columns = room.clamp(2, WIDTH);
    let area = TextArea { chart, wide, tall, columns };
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
        let marks: String = (0..columns).map(|column| area.mark(column, row)).collect();
        page.ink(Ink::Plain, marks.trim_end());
        page.newline();
    }
    axis(page, chart, wide, (margin, columns as usize));
    legend(page, chart, &chart.lines);
}

/// The number at a position of an axis in words.
fn number(page: &TextPage<'_>, axis: &Axis, place: f64, ends: (f64, f64)) -> String {
    page.wording().value(&axis.unit.value(axis.number(place, ends)))
}

/// Area of the lines.
struct TextArea<'c> {
    chart: &'c Chart,
    wide: (f64, f64),
    tall: (f64, f64),
    columns: u32,
}

impl TextArea<'_> {
    /// The mark of the first line that passes here; a blank where none does.
    fn mark(&self, column: u32, row: u32) -> char {
        let place = f64::from(column) / f64::from(self.columns - 1);
        let x = self.chart.x.number(place, self.wide);
        let passes = |line: &ChartLine| {
            let place = line.at(x).and_then(|y| self.chart.y.place(y, self.tall));
            place.is_some_and(|place| row_of(place) == row)
        };
        self.chart.lines.iter().position(passes).map_or(' ', pattern)
    }
}

/// Row of a position from 0 to 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1 times 9")]
fn row_of(place: f64) -> u32 {
    (place * f64::from(HEIGHT - 1)).round() as u32
}

fn pattern(line: usize) -> char {
    MARKS[line.min(MARKS.len() - 1)]
}

/// The horizontal axis with the numbers at its ends and its name.
fn axis(
    page: &mut TextPage<'_>,
    chart: &Chart,
    wide: (f64, f64),
    (margin, columns): (usize, usize),
) {
    let start = page.indent();
    page.pad_to(start + margin);
    page.ink(Ink::Dim, &format!("└{}", "─".repeat(columns)));
    page.newline();
    let [from, to] = [0.0, 1.0].map(|place| number(page, &chart.x, place, wide));
    let label = named(&chart.x);
    page.pad_to(start + margin + 1);
    page.ink_cut(Ink::Dim, &from);
    let middle = columns.saturating_sub(width(&from) + width(&to) + width(&label)) / 2;
    page.skip(middle.max(1));
    page.ink_cut(Ink::Dim, &label);
    page.pad_to(start + margin + 1 + columns.saturating_sub(width(&to)));
    page.ink_cut(Ink::Dim, &to);
    page.newline();
}

/// Name of an axis, and its scale if it is not linear.
fn named(axis: &Axis) -> String {
    let label = clean(axis.label.as_bytes());
    match axis.scale {
        Scale::Linear => label.into_owned(),
        Scale::Log if label.is_empty() => "log scale".to_owned(),
        Scale::Log => format!("{label} (log)"),
    }
}

fn legend(page: &mut TextPage<'_>, chart: &Chart, lines: &[ChartLine]) {
    let up = named(&chart.y);
    if !up.is_empty() {
        page.ink_cut(Ink::Dim, &format!("↑ {up}"));
    }
    for (at, line) in lines.iter().enumerate() {
        let entry = format!("{} {}", pattern(at), clean(line.label.as_bytes()));
        page.make_room(width(&entry), 2);
        page.ink_cut(Ink::Dim, &entry);
    }
    page.newline();
}

pub(super) fn draw_bars(page: &mut TextPage<'_>, bars: &Bars) {
    let Some(ends) = bars.ends() else { return };
    let title = page.wording().sentence(&bars.title);
    page.heading(&title);
    if bars.axis.scale == Scale::Log {
        page.ink_cut(Ink::Dim, &named(&bars.axis));
        page.newline();
    }
    let rows: Vec<[String; 2]> = bars.bars.iter().map(|bar| row(page, bars, bar)).collect();
    let widest = |at: usize| rows.iter().map(|row| width(&row[at])).max().unwrap_or(0);
    let start = page.indent();
    let label = widest(0).min(page.room() / 3);
    let room = page.room().saturating_sub(label + widest(1) + 3).min(MAX_BAR);
    for (bar, [name, value]) in bars.bars.iter().zip(&rows) {
        let mut cut = String::new();
        crate::words::push_cut(&mut cut, name, label);
        page.ink(Ink::Plain, &cut);
        page.pad_to(start + label + 1);
        let place = bars.axis.place(bar.value, ends).unwrap_or(0.0);
        page.ink(Ink::Plain, &bar_of(place, room));
        page.skip(1);
        page.ink_cut(Ink::Dim, value);
        page.newline();
    }
    let axis = named(&bars.axis);
    page.remark(&axis);
}

/// The words of a bar: its label, and its number with the interval.
fn row(page: &TextPage<'_>, bars: &Bars, bar: &pagewise_model::report::Bar) -> [String; 2] {
    let number = |number: f64| page.wording().value(&bars.axis.unit.value(number));
    let value = match bar.interval {
        Some((low, high)) => {
            format!("{} ({} to {})", number(bar.value), number(low), number(high))
        }
        None => number(bar.value),
    };
    [clean(bar.label.as_bytes()).into_owned(), value]
}

/// A bar by eighths of a character.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 40 times 8")]
fn bar_of(place: f64, room: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let room = u32::try_from(room).unwrap_or(0);
    let eighths = (place * f64::from(room) * 8.0).round() as usize;
    "█".repeat(eighths / 8) + PARTS[eighths % 8]
}

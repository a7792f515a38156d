//! Text for terminals: aligned, within the requested width, and without color unless requested.

mod address_map;
mod chart;
mod claims;
mod facts;
mod findings;
mod page;
mod series;
mod table;

use std::io::{self, Write};

use pagewise_model::Bytes;
use pagewise_model::report::{CellValue, Paragraph, Report, ReportBlock};

use crate::cells::for_people;
pub use crate::number::Units;
use crate::words::{Wording, clean, push_cut};
use page::{Ink, TextPage};

pub use series::write_series_line;

/// Style of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Maximum number of columns of a line. Numbers below 20 count as 20; `usize::MAX` disables
    /// wrapping.
    pub width: usize,
    /// True to use bold, dim and colored text. Styles never carry information alone.
    pub color: bool,
    /// True to print one fact on each line with its meaning, and parts of
    /// [`Audience::Long`](pagewise_model::report::Audience::Long). Then only table cells are cut.
    pub long: bool,
    /// Format of sizes.
    pub units: Units,
}

impl Default for Style {
    fn default() -> Style {
        Style { width: 80, color: false, long: false, units: Units::Human }
    }
}

/// Writes a report.
///
/// ```
/// use pagewise_model::report::{ReportBlock, Paragraph, Report, CellValue};
/// use pagewise_view::text::{Style, write};
///
/// let pieces = vec![CellValue::text("It uses "), CellValue::Bytes(4096), CellValue::text(".")];
/// let text = Paragraph { title: "Memory".into(), pieces, audience: Default::default() };
/// let title = vec![CellValue::Name("cat\x1b[2J".into())];
/// let report = Report { schema: "example/1", title, blocks: vec![ReportBlock::Text(text)] };
/// let mut out = Vec::new();
/// write(&report, &Style::default(), &mut out).unwrap();
/// assert_eq!(out, b"cat\\x1b[2J\n\nMemory\n  It uses 4.0K.\n");
/// ```
///
/// # Errors
/// Returns the error of `out`.
pub fn write(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let mut page = TextPage::new(style, out);
    title(&mut page, &report.title);
    for block in &report.blocks {
        match block {
            ReportBlock::Facts(facts) if for_people(facts.audience, style.long) => {
                facts::draw(&mut page, facts);
            }
            ReportBlock::Table(table) if for_people(table.audience, style.long) => {
                table::draw(&mut page, table)?;
            }
            ReportBlock::Findings(findings) => findings::draw(&mut page, findings),
            ReportBlock::AddressMap(map) => address_map::draw(&mut page, map),
            ReportBlock::Chart(chart) => chart::draw(&mut page, chart),
            ReportBlock::Bars(bars) => chart::draw_bars(&mut page, bars),
            ReportBlock::Claims(list) => claims::draw(&mut page, list),
            ReportBlock::Part(title) => part(&mut page, title),
            ReportBlock::Text(text) if for_people(text.audience, style.long) => {
                paragraph(&mut page, text);
            }
            ReportBlock::Facts(_) | ReportBlock::Table(_) | ReportBlock::Text(_) => {}
        }
        page.flush()?;
    }
    page.flush()
}

/// Formats a size with a unit suffix, like tables do: `4.0K`.
pub fn human(size: Bytes) -> String {
    inline(&[CellValue::Bytes(size.0)])
}

/// Converts parts of a sentence to one line of text without escape sequences and without a maximum
/// width: the claim of a finding, the hint of an error.
pub fn inline(pieces: &[CellValue]) -> String {
    Wording { units: Units::Human, bare: false, notes: None }.sentence(pieces)
}

/// Formats a value like a table cell: a size below 1 KiB has no unit.
pub fn cell(value: &CellValue) -> String {
    Wording { units: Units::Human, bare: true, notes: None }.value(value)
}

/// Cuts text to at most `columns` columns. If the text is too long, `…` replaces its middle, or its
/// end if the text has several words.
pub fn cut(text: &str, columns: usize) -> String {
    let mut out = String::new();
    push_cut(&mut out, text, columns);
    out
}

fn title(page: &mut TextPage<'_>, pieces: &[CellValue]) {
    let text = page.wording().sentence(pieces);
    if text.is_empty() {
        return;
    }
    if page.style.long {
        page.write_words(Ink::Bold, &text, 0);
    } else {
        page.ink_cut(Ink::Bold, &text);
    }
    page.newline();
}

/// Writes the title of a part, with a line below it.
fn part(page: &mut TextPage<'_>, title: &str) {
    page.heading("");
    page.newline();
    page.write_words(Ink::Bold, &clean(title.as_bytes()), 0);
    page.newline();
    page.rule();
}

fn paragraph(page: &mut TextPage<'_>, text: &Paragraph) {
    let sentence = page.wording().sentence(&text.pieces);
    page.heading(&text.title);
    page.write_words(Ink::Plain, &sentence, 0);
    page.newline();
}

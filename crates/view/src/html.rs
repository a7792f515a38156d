//! HTML: one page that needs nothing else. Tables and the address map are there without JavaScript.
//! With JavaScript, tables can be sorted and filtered, the map can be zoomed, and the heap is shown
//! at each snapshot.

mod address_map;
mod chart;
mod heap;
mod retained;
mod table;

use std::io::{self, Write};

use pagewise_model::heap::HeapRecording;
use pagewise_model::heap_graph::RetainedCell;
use pagewise_model::lab::{ClaimVerdict, ExperimentClaim};
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Finding, Findings, NamedFacts, Paragraph, Report,
    ReportBlock,
};

use crate::cells::for_people;
use crate::footnotes::Footnotes;
use crate::number::{self, Units};
use crate::words::{Wording, clean};

/// Nothing may be loaded, sent or framed; only what is inside this page runs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      base-uri 'none'; form-action 'none'";

const CSS: &str = include_str!("html/page.css");
const JS: &str = include_str!("html/page.js");

/// Writes a report as one self-contained page.
///
/// All that [`Audience::Long`] adds is in the page, behind a switch.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    write_page(report, PageExtra::None, out)
}

/// Writes the report of a heap, with the recording in it: a time line on which to pick a moment,
/// and its call stacks.
///
/// # Errors
/// Returns the error of `out`.
pub fn write_heap(
    report: &Report,
    recording: &HeapRecording,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_page(report, PageExtra::Recording(recording), out)
}

/// Writes the report of a heap, with an icicle of retained bytes before the table of roots.
///
/// # Errors
/// Returns the error of `out`.
pub fn write_retained(
    report: &Report,
    cells: &[RetainedCell],
    out: &mut dyn Write,
) -> io::Result<()> {
    write_page(report, PageExtra::Retained(cells), out)
}

/// An interactive part of a page.
#[derive(Clone, Copy)]
enum PageExtra<'a> {
    None,
    Recording(&'a HeapRecording),
    Retained(&'a [RetainedCell]),
}

impl PageExtra<'_> {
    const fn css(self) -> &'static str {
        match self {
            PageExtra::None => "",
            PageExtra::Recording(_) | PageExtra::Retained(_) => heap::CSS,
        }
    }

    const fn js(self) -> Option<&'static str> {
        match self {
            PageExtra::None => None,
            PageExtra::Recording(_) => Some(heap::JS),
            PageExtra::Retained(_) => Some(retained::JS),
        }
    }
}

fn write_page(report: &Report, extra: PageExtra<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut page = HtmlPage { out, html: String::new(), parts: 0 };
    let title = escaped(&WORDING.sentence(&report.title));
    page.html.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.html.push_str(&format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{CSS}{}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1>{}</header>\n<main>\n",
        extra.css(),
        if has_more(report) { MORE } else { "" }
    ));
    page.contents(&report.blocks);
    let mut waiting = match extra {
        PageExtra::Recording(recording) => Some(recording),
        PageExtra::None | PageExtra::Retained(_) => None,
    };
    for block in &report.blocks {
        // The interactive part replaces the chart, which is for browsers without scripts.
        if let ReportBlock::Chart(chart) = block
            && let Some(recording) = waiting.take()
        {
            page.heap(recording, Some(chart))?;
            continue;
        }
        if let (ReportBlock::Table(table), PageExtra::Retained(cells)) = (block, extra)
            && table.key == "retained"
        {
            page.retained(cells)?;
        }
        page.block(block)?;
        page.flush()?;
    }
    if let Some(recording) = waiting {
        page.heap(recording, None)?;
    }
    page.html.push_str(&format!("</main>\n<script>\n{JS}</script>\n"));
    if let Some(script) = extra.js() {
        page.html.push_str(&format!("<script>\n{script}</script>\n"));
    }
    page.html.push_str("</body>\n</html>\n");
    page.flush()
}

/// The switch that shows parts for [`Audience::Long`]; it works without JavaScript.
const MORE: &str = "<label class=\"more\"><input type=\"checkbox\" id=\"more\"> Show more</label>";

/// Values in words, missing ones with their reason.
const WORDING: Wording<'static> = Wording { units: Units::Human, bare: false, notes: None };

/// True if a part of the report is for [`Audience::Long`].
fn has_more(report: &Report) -> bool {
    let is_long = |audience: Audience| audience == Audience::Long;
    report.blocks.iter().any(|block| match block {
        ReportBlock::Facts(facts) => {
            is_long(facts.audience)
                || facts.facts.iter().any(|f| is_long(f.audience) || !f.meaning.is_empty())
        }
        ReportBlock::Table(table) => {
            is_long(table.audience) || table.columns.iter().any(|c| is_long(c.audience))
        }
        ReportBlock::Text(text) => is_long(text.audience),
        ReportBlock::Findings(_)
        | ReportBlock::AddressMap(_)
        | ReportBlock::Chart(_)
        | ReportBlock::Bars(_) => false,
        ReportBlock::Claims(_) | ReportBlock::Part(_) => false,
    })
}

/// Clean text with the five characters of HTML's grammar replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_escaped(&mut out, text);
    out
}

/// Pushes the result of [`escaped`].
fn push_escaped(out: &mut String, text: &str) {
    for c in clean(text.as_bytes()).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
}

/// The class attribute of parts for [`Audience::Long`].
fn class(audience: Audience) -> &'static str {
    if audience == Audience::Long { " class=\"long\"" } else { "" }
}

struct HtmlPage<'p> {
    out: &'p mut dyn Write,
    html: String,
    /// Number of parts that have begun.
    parts: usize,
}

impl HtmlPage<'_> {
    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(self.html.as_bytes())?;
        self.html.clear();
        Ok(())
    }

    fn block(&mut self, block: &ReportBlock) -> io::Result<()> {
        match block {
            ReportBlock::Facts(facts) if for_people(facts.audience, true) => self.facts(facts),
            ReportBlock::Table(table) if for_people(table.audience, true) => self.table(table)?,
            ReportBlock::Findings(findings) => self.findings(findings),
            ReportBlock::AddressMap(map) => self.address_map(map),
            ReportBlock::Chart(chart) => self.chart(chart),
            ReportBlock::Bars(bars) => self.bars(bars),
            ReportBlock::Claims(list) => self.claims(list),
            ReportBlock::Part(title) => self.part(title),
            ReportBlock::Text(text) if for_people(text.audience, true) => self.paragraph(text),
            ReportBlock::Facts(_) | ReportBlock::Table(_) | ReportBlock::Text(_) => {}
        }
        Ok(())
    }

    /// Starts a section; the caller ends it.
    fn section(&mut self, title: &str, audience: Audience) {
        self.html.push_str(&format!("<section{}>\n", class(audience)));
        if !title.is_empty() {
            let level = if self.parts == 0 { "h2" } else { "h3" };
            self.html.push_str(&format!("<{level}>{}</{level}>\n", escaped(title)));
        }
    }

    fn end_section(&mut self) {
        self.html.push_str("</section>\n");
    }

    /// Links to the parts, where there are several.
    fn contents(&mut self, blocks: &[ReportBlock]) {
        let parts: Vec<&str> = blocks
            .iter()
            .filter_map(
                |block| if let ReportBlock::Part(title) = block { Some(&**title) } else { None },
            )
            .collect();
        if parts.len() < 2 {
            return;
        }
        self.html.push_str("<nav>\n");
        for (at, title) in parts.into_iter().enumerate() {
            let title = escaped(title);
            self.html.push_str(&format!("<a href=\"#part-{}\">{title}</a>\n", at + 1));
        }
        self.html.push_str("</nav>\n");
    }

    fn part(&mut self, title: &str) {
        self.parts += 1;
        let (id, title) = (self.parts, escaped(title));
        self.html.push_str(&format!("<h2 class=\"part\" id=\"part-{id}\">{title}</h2>\n"));
    }

    /// The verdict first, then the claim, and its details below.
    fn claims(&mut self, claims: &[ExperimentClaim]) {
        self.section("Claims", Audience::Everyone);
        for claim in claims {
            let tone = match claim.verdict {
                ClaimVerdict::Agrees => "agrees",
                ClaimVerdict::CannotTell => "cannot-tell",
                ClaimVerdict::Disagrees => "disagrees",
            };
            self.html.push_str(&format!(
                "<article class=\"finding {tone}\">\n<h3><span class=\"severity\">{}</span> {}</h3>\n<dl class=\"list\">\n",
                claim.verdict.describe(),
                escaped(&claim.text)
            ));
            for (name, words) in claim.details() {
                let words = escaped(words);
                self.html.push_str(&format!("<div><dt>{name}</dt><dd>{words}</dd></div>\n"));
            }
            self.html.push_str("</dl>\n</article>\n");
        }
        self.end_section();
    }

    fn facts(&mut self, facts: &NamedFacts) {
        let shown = || facts.facts.iter().filter(|fact| for_people(fact.audience, true));
        let notes = Footnotes::of_facts(shown());
        let shape = match facts.shape {
            FactsShape::Line => "line",
            FactsShape::Columns => "columns",
            FactsShape::List => "list",
        };
        self.section(&facts.title, facts.audience);
        self.fact_list(shape, shown(), &notes);
        self.footnotes(&notes);
        self.end_section();
    }

    fn fact_list<'f>(
        &mut self,
        shape: &str,
        facts: impl Iterator<Item = &'f Fact>,
        notes: &Footnotes<'_>,
    ) {
        self.html.push_str(&format!("<dl class=\"{shape}\">\n"));
        facts.for_each(|fact| self.fact(fact, notes));
        self.html.push_str("</dl>\n");
    }

    fn fact(&mut self, fact: &Fact, notes: &Footnotes<'_>) {
        let meaning = escaped(&fact.meaning);
        self.html.push_str(&format!("<div{}", class(fact.audience)));
        if !meaning.is_empty() {
            self.html.push_str(&format!(" title=\"{meaning}\""));
        }
        self.html.push_str(&format!("><dt>{}</dt><dd>", escaped(&fact.label)));
        self.value(&fact.value, notes);
        self.html.push_str("</dd>");
        if !meaning.is_empty() {
            self.html.push_str(&format!("<dd class=\"long meaning\">{meaning}</dd>"));
        }
        self.html.push_str("</div>\n");
    }

    /// A value; the exact size and the reason for a missing one are shown on hover.
    fn value(&mut self, value: &CellValue, notes: &Footnotes<'_>) {
        let words = escaped(&Wording { notes: Some(notes), ..WORDING }.value(value));
        match value {
            CellValue::Bytes(n) if *n >= 1024 => {
                let mut exact = String::new();
                number::push(&mut exact, |field| number::decimal(field, *n));
                self.html.push_str(&format!("<span title=\"{exact} bytes\">{words}</span>"));
            }
            CellValue::Absent(absent) => {
                let why = escaped(&absent.to_string());
                self.html.push_str(&format!("<abbr title=\"{why}\">{words}</abbr>"));
            }
            _ => self.html.push_str(&words),
        }
    }

    fn footnotes(&mut self, notes: &Footnotes<'_>) {
        for (mark, reason) in notes.lines() {
            let reason = escaped(&reason);
            self.html.push_str(&format!("<p class=\"note\"><b>{mark}</b> {reason}</p>\n"));
        }
    }

    fn findings(&mut self, findings: &Findings) {
        self.section("Findings", Audience::Everyone);
        if findings.list.is_empty() {
            self.html.push_str(&format!("<p>{}</p>\n", escaped(&findings.none)));
        }
        findings.list.iter().for_each(|finding| self.finding(finding));
        self.end_section();
    }

    fn finding(&mut self, finding: &Finding) {
        let severity = finding.severity.key();
        self.html.push_str(&format!(
            "<article class=\"finding {severity}\">\n<h3><span class=\"severity\">{severity}</span> {}</h3>\n",
            escaped(&WORDING.sentence(&finding.claim))
        ));
        let shown = || finding.evidence.iter().filter(|fact| for_people(fact.audience, true));
        if shown().next().is_some() {
            let notes = Footnotes::of_facts(shown());
            self.fact_list("line", shown(), &notes);
            self.footnotes(&notes);
        }
        let next_step = escaped(&WORDING.sentence(&finding.next_step));
        if !next_step.is_empty() {
            self.html.push_str(&format!("<p class=\"next\">→ {next_step}</p>\n"));
        }
        self.html.push_str("</article>\n");
    }

    fn paragraph(&mut self, text: &Paragraph) {
        self.section(&text.title, text.audience);
        let sentence = escaped(&WORDING.sentence(&text.pieces));
        self.html.push_str(&format!("<p>{sentence}</p>\n"));
        self.end_section();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_data_cannot_end_its_element() {
        for script in [JS, heap::JS, retained::JS] {
            assert!(!script.to_lowercase().contains("</script") && !script.contains("<!--"));
        }
        for style in [CSS, heap::CSS] {
            assert!(!style.to_lowercase().contains("</style"));
        }
    }
}

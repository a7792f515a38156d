//! Markdown in the dialect of `GitHub`. Tables are Markdown tables; charts are those of the text
//! view.

use std::io::{self, Write};

use pagewise_model::Report;
use pagewise_model::lab::ExperimentClaim;
use pagewise_model::report::{
    CellValue, Findings, NamedFacts, Paragraph, ReportBlock, ReportTable,
};

use crate::cells::for_people;
use crate::number::Units;
use crate::text::{self, Style};
use crate::words::Wording;

/// Conversion of values to words. Absent values are replaced by their reasons.
const WORDING: Wording<'static> = Wording { units: Units::Human, bare: false, notes: None };

/// Writes a report as Markdown.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# {}", escaped(&WORDING.sentence(&report.title)))?;
    let mut level = "##";
    for block in &report.blocks {
        match block {
            ReportBlock::Part(title) => {
                heading("##", title, out)?;
                level = "###";
            }
            ReportBlock::Claims(list) => claims(level, list, out)?,
            ReportBlock::Facts(facts) if for_people(facts.audience, false) => {
                list(level, facts, out)?
            }
            ReportBlock::Table(rows) if for_people(rows.audience, false) => {
                table(level, rows, out)?
            }
            ReportBlock::Findings(found) => findings(level, found, out)?,
            ReportBlock::Text(text) if for_people(text.audience, false) => {
                paragraph(level, text, out)?
            }
            ReportBlock::AddressMap(_) | ReportBlock::Chart(_) | ReportBlock::Bars(_) => {
                picture(block, out)?
            }
            ReportBlock::Facts(_) | ReportBlock::Table(_) | ReportBlock::Text(_) => {}
        }
    }
    Ok(())
}

/// Escapes the special characters of Markdown and HTML.
fn escaped(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for c in words.chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '&' | '~') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn heading(level: &str, title: &str, out: &mut dyn Write) -> io::Result<()> {
    if title.is_empty() { writeln!(out) } else { writeln!(out, "\n{level} {}\n", escaped(title)) }
}

fn list(level: &str, facts: &NamedFacts, out: &mut dyn Write) -> io::Result<()> {
    heading(level, &facts.title, out)?;
    for fact in facts.facts.iter().filter(|fact| for_people(fact.audience, false)) {
        writeln!(out, "- {}: {}", escaped(&fact.label), cell_text(&fact.value))?;
    }
    Ok(())
}

fn cell_text(value: &CellValue) -> String {
    escaped(&WORDING.value(value))
}

fn table(level: &str, table: &ReportTable, out: &mut dyn Write) -> io::Result<()> {
    heading(level, &table.title, out)?;
    let columns = || table.columns.iter().filter(|column| for_people(column.audience, false));
    let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    writeln!(out, "{}", row(columns().map(|column| escaped(&column.label)).collect()))?;
    writeln!(out, "{}", row(columns().map(|_| "---".to_owned()).collect()))?;
    for at in 0..table.rows() {
        writeln!(out, "{}", row(columns().map(|column| cell_text(&column.value(at))).collect()))?;
    }
    if !table.note.is_empty() {
        writeln!(out, "\n{}", escaped(&table.note))?;
    }
    Ok(())
}

fn findings(level: &str, findings: &Findings, out: &mut dyn Write) -> io::Result<()> {
    heading(level, "Findings", out)?;
    if findings.list.is_empty() {
        return writeln!(out, "{}", escaped(&findings.none));
    }
    for finding in &findings.list {
        let claim = escaped(&WORDING.sentence(&finding.claim));
        writeln!(out, "- **{}**: {claim}", finding.severity.key())?;
        let next_step = escaped(&WORDING.sentence(&finding.next_step));
        if !next_step.is_empty() {
            writeln!(out, "  → {next_step}")?;
        }
    }
    Ok(())
}

fn claims(level: &str, claims: &[ExperimentClaim], out: &mut dyn Write) -> io::Result<()> {
    heading(level, "Claims", out)?;
    for claim in claims {
        writeln!(out, "- **{}**: {}", claim.verdict.describe(), escaped(&claim.text))?;
        for (name, words) in claim.details() {
            writeln!(out, "  - {name}: {}", escaped(words))?;
        }
    }
    Ok(())
}

fn paragraph(level: &str, text: &Paragraph, out: &mut dyn Write) -> io::Result<()> {
    heading(level, &text.title, out)?;
    writeln!(out, "{}", escaped(&WORDING.sentence(&text.pieces)))
}

/// Writes a block in the form of the text view, as a code block.
fn picture(block: &ReportBlock, out: &mut dyn Write) -> io::Result<()> {
    let (schema, title) = ("", Vec::new());
    let alone = Report { schema, title, blocks: vec![block.clone()] };
    writeln!(out, "\n```text")?;
    text::write(&alone, &Style { width: 100, ..Style::default() }, out)?;
    writeln!(out, "```")
}

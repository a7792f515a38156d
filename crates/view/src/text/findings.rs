//! Findings: severity, claim, evidence, and next step.

use pagewise_model::report::{Finding, Findings, Severity};

use super::facts;
use super::page::{Ink, TextPage};
use crate::cells::for_people;
use crate::footnotes::Footnotes;
use crate::words::{Wording, clean, width};

pub(super) fn draw(page: &mut TextPage<'_>, findings: &Findings) {
    page.heading("Findings");
    if findings.list.is_empty() {
        page.write_words(Ink::Plain, &clean(findings.none.as_bytes()), 0);
        page.newline();
    }
    let indent = page.indent();
    for finding in &findings.list {
        draw_one(page, finding);
        page.hang(indent);
    }
}

const fn ink(severity: Severity) -> Ink {
    match severity {
        Severity::Note => Ink::Cyan,
        Severity::Warning => Ink::Yellow,
        Severity::Critical => Ink::Red,
    }
}

fn draw_one(page: &mut TextPage<'_>, finding: &Finding) {
    page.ink(ink(finding.severity), finding.severity.key());
    page.hang(page.indent() + width(Severity::Critical.key()) + 2);
    let claim = page.wording().sentence(&finding.claim);
    page.write_words(Ink::Bold, &claim, 1);
    page.newline();
    evidence(page, finding);
    let next_step = page.wording().sentence(&finding.next_step);
    if !next_step.is_empty() {
        page.ink(Ink::Plain, "→");
        page.hang(page.indent() + 2);
        page.write_words(Ink::Plain, &next_step, 1);
        page.newline();
    }
}

fn evidence(page: &mut TextPage<'_>, finding: &Finding) {
    let long = page.style.long;
    let shown = || finding.evidence.iter().filter(move |f| for_people(f.audience, long));
    if shown().next().is_none() {
        return;
    }
    let notes = Footnotes::of_facts(shown());
    let wording = Wording { notes: Some(&notes), ..page.wording() };
    let worded: Vec<_> =
        shown().map(|f| (clean(f.label.as_bytes()), wording.value(&f.value))).collect();
    facts::line(page, worded.iter().map(|(label, value)| (label.as_ref(), value.as_str())));
    page.footnotes(&notes);
}

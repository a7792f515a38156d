//! Findings about a process's memory: each rule tests for one condition, reports it in bytes, and
//! gives the next step. A healthy process has none.

mod limits;
mod rules;

use std::cmp::Reverse;

use pagewise_model::Bytes;
use pagewise_model::report::{CellValue, Fact, Finding, Severity};

use crate::explain::{ExplainSubject, fact};

/// One rule: a finding where it applies.
type FindingRule = fn(&ExplainSubject<'_>) -> Option<Finding>;

/// Every rule that gives at most one finding.
const RULES: &[FindingRule] = &[
    rules::swapped,
    rules::writable_code,
    rules::stale_files,
    rules::many_arenas,
    rules::page_tables,
    rules::huge_page_bloat,
    rules::copied_file_pages,
    rules::reserved_only,
    rules::merged,
    rules::spread_over_nodes,
    limits::map_count,
    limits::cgroup,
];

/// The findings, the gravest first.
pub(crate) fn findings(subject: &ExplainSubject<'_>) -> Vec<Finding> {
    let mut findings: Vec<_> = RULES.iter().filter_map(|rule| rule(subject)).collect();
    findings.extend(limits::resource_limits(subject));
    findings.sort_by_key(|finding| Reverse(finding.severity));
    findings
}

/// A finding with its pieces. Words that stand alone are text, numbers keep their unit.
fn finding<const C: usize, const E: usize>(
    id: &'static str,
    severity: Severity,
    claim: [CellValue; C],
    evidence: [Fact; E],
    next_step: Vec<CellValue>,
) -> Finding {
    Finding { id, severity, claim: claim.into(), evidence: evidence.into(), next_step }
}

fn bytes(bytes: Bytes) -> CellValue {
    CellValue::Bytes(bytes.0)
}

fn size(key: &'static str, label: &'static str, size: Bytes) -> Fact {
    fact(key, label, bytes(size), "")
}

fn text(text: &'static str) -> CellValue {
    CellValue::text(text)
}

/// `pagewise COMMAND PID`, as the reader can type it.
fn command(
    before: &'static str,
    subject: &ExplainSubject<'_>,
    after: &'static str,
) -> Vec<CellValue> {
    let pid = subject.snapshot.process.pid;
    vec![text(before), CellValue::text(pid.to_string()), text(after)]
}

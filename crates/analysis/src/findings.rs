//! What is worth knowing about a process's memory: each rule looks for one thing, says what it saw in
//! bytes, and what the reader can do. A healthy process gets none.

mod limits;
mod rules;

use std::cmp::Reverse;

use pagewise_model::Bytes;
use pagewise_model::report::{Fact, Finding, Severity, Value};

use crate::explain::{Subject, fact};

/// One rule: a finding where it applies.
type Rule = fn(&Subject<'_>) -> Option<Finding>;

/// Every rule that gives at most one finding.
const RULES: &[Rule] = &[
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
pub(crate) fn findings(subject: &Subject<'_>) -> Vec<Finding> {
    let mut findings: Vec<_> = RULES.iter().filter_map(|rule| rule(subject)).collect();
    findings.extend(limits::resource_limits(subject));
    findings.sort_by_key(|finding| Reverse(finding.severity));
    findings
}

/// A finding with its pieces. Words that stand alone are text, numbers keep their unit.
fn finding<const C: usize, const E: usize>(
    id: &'static str,
    severity: Severity,
    claim: [Value; C],
    evidence: [Fact; E],
    next_step: Vec<Value>,
) -> Finding {
    Finding { id, severity, claim: claim.into(), evidence: evidence.into(), next_step }
}

fn bytes(bytes: Bytes) -> Value {
    Value::Bytes(bytes.0)
}

fn size(key: &'static str, label: &'static str, size: Bytes) -> Fact {
    fact(key, label, bytes(size), "")
}

fn text(text: &'static str) -> Value {
    Value::text(text)
}

/// `pagewise COMMAND PID`, as the reader can type it.
fn command(before: &'static str, subject: &Subject<'_>, after: &'static str) -> Vec<Value> {
    let pid = subject.snapshot.process.pid;
    vec![text(before), Value::text(pid.to_string()), text(after)]
}

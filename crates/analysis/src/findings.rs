//! Findings: each rule tests for one condition. If the numbers support the condition, the rule
//! reports it with the evidence and the next step. A healthy process has no findings.
//!
//! Each module contains the rules for one type of evidence, and lists them in its constant `RULES`.
//! A rule names the evidence that it needs; a command passes the evidence that it has to [`find`].

mod core_file;
mod faults;
mod heap;
mod heap_sample;
pub(crate) mod heap_scan;
mod huge_pages;
pub(crate) mod limits;
mod pools;
pub(crate) mod shootdowns;
pub(crate) mod snapshot;
mod stat;

use std::cmp::Reverse;

use pagewise_model::faults::FaultRecording;
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::measured::Measurement;
use pagewise_model::pagewise_pools::RegisteredPool;
use pagewise_model::report::{CellValue, Fact, Finding, Severity};
use pagewise_model::{Bytes, Reading, Snapshot, parallel};

use crate::causes::{self, CauseRow};
use crate::cells::text;
use crate::explain::{ExplainSubject, fact};
use crate::faults::places::FaultFrames;
use crate::heap::frames::Sites;
use crate::shootdowns::ShootdownCauses;
use crate::stat::rows::StatRows;
use crate::thp::ZeroEstimate;
use crate::thp::table::ThpRows;

/// Evidence of one command for the rules.
#[derive(Clone, Copy)]
pub(crate) enum Evidence<'a> {
    /// A snapshot of a process, with its pools.
    Snapshot(&'a ExplainSubject<'a>),
    /// Huge pages of a process, and the estimate of their zero-filled part.
    HugePages(&'a Snapshot, &'a ThpRows<'a>, &'a Reading<ZeroEstimate>),
    /// One pool of pagewise's allocators.
    Pool(&'a RegisteredPool),
    /// Recorded page faults, by call stack.
    Faults(&'a FaultRecording, &'a FaultFrames<'a>),
    /// Recorded TLB shootdowns, by cause.
    Shootdowns(&'a ShootdownCauses<'a>),
    /// Recorded allocations, by call stack.
    Heap(&'a Sites<'a>),
    /// A scan of a process's heap by another process.
    HeapScan(&'a HeapScan),
    /// Measured runs of one or two commands, with the metrics of each command.
    Measurement(&'a Measurement, &'a [StatRows]),
}

/// A rule. The variant determines the evidence that the rule needs.
#[derive(Clone, Copy)]
enum FindingRule {
    Snapshot(fn(&ExplainSubject<'_>) -> Option<Finding>),
    Limits(fn(&ExplainSubject<'_>) -> Vec<Finding>),
    HugePages(fn(&Snapshot, &ThpRows<'_>, &Reading<ZeroEstimate>) -> Option<Finding>),
    Pool(fn(&RegisteredPool) -> Option<Finding>),
    Faults(fn(&FaultRecording, &FaultFrames<'_>) -> Option<Finding>),
    Shootdowns(fn(&ShootdownCauses<'_>) -> Option<Finding>),
    /// Returns several findings, because each cause of shootdowns has its own remedy.
    ShootdownCauses(fn(&ShootdownCauses<'_>) -> Vec<Finding>),
    Heap(fn(&Sites<'_>) -> Option<Finding>),
    HeapScan(fn(&HeapScan) -> Option<Finding>),
    Measurement(fn(&Measurement, &[StatRows]) -> Option<Finding>),
    /// Returns findings for each measured command.
    EachCommand(fn(&Measurement, &[StatRows]) -> Vec<Finding>),
}

/// All rules, by module. Findings of the same severity are reported in the order of this list.
const RULES: &[&[FindingRule]] = &[
    core_file::RULES,
    snapshot::RULES,
    heap_sample::RULES,
    limits::RULES,
    huge_pages::RULES,
    pools::RULES,
    faults::RULES,
    shootdowns::RULES,
    heap::RULES,
    heap_scan::RULES,
    stat::RULES,
];

/// Findings that state a cause of [`crate::causes`] under another ID, with the IDs of the causes. A
/// finding whose ID is that of a cause states this cause. All other findings state facts that are
/// no cause of trouble by themselves.
pub(crate) const CAUSES_OF_FINDINGS: &[(&str, &[&str])] = &[
    ("near-address-space-limit", &["near-rlimit-as"]),
    ("near-data-limit", &["near-rlimit-data"]),
    ("near-stack-limit", &["near-rlimit-stack"]),
    ("near-locked-limit", &["near-rlimit-memlock"]),
    ("near-cgroup-limit", &["cgroup-limit"]),
    ("leaked-blocks", &["leak"]),
    ("arena-heavy", &["many-arenas"]),
    ("not-freed", &["leak", "unbounded-cache"]),
    ("growing-containers", &["unbounded-cache"]),
    ("held-unused", &["trimmable-heap", "fragmented-heap"]),
    ("huge-page-bloat", &["thp-bloat-requested", "thp-bloat-system"]),
    ("touched-again", &["fault-churn"]),
    ("copies-on-write", &["cow-storm"]),
    ("major-faults", &["file-refaults", "swap-thrash"]),
    ("many-cpus", &["tlb-shootdowns"]),
    ("dontneed-by-pages", &["tlb-shootdowns", "memory-calls"]),
];

/// Returns the causes that a finding states.
pub(crate) fn causes_of(finding: &str) -> impl Iterator<Item = &'static CauseRow> {
    let of_other_id = CAUSES_OF_FINDINGS.iter().find(|(id, _)| *id == finding);
    let ids = of_other_id.map_or(&[][..], |(_, ids)| *ids);
    causes::row(finding).into_iter().chain(ids.iter().filter_map(|id| causes::row(id)))
}

/// Returns the findings that state causes under another ID, each with one of its causes.
pub(crate) fn with_other_ids() -> impl Iterator<Item = (&'static str, &'static CauseRow)> {
    CAUSES_OF_FINDINGS.iter().flat_map(|(id, _)| causes_of(id).map(move |row| (*id, row)))
}

impl FindingRule {
    /// Returns the findings of the rule; no findings if the rule needs other evidence.
    fn apply(&self, evidence: Evidence<'_>) -> Vec<Finding> {
        let one = match (self, evidence) {
            (FindingRule::Snapshot(rule), Evidence::Snapshot(subject)) => rule(subject),
            (FindingRule::HugePages(rule), Evidence::HugePages(snapshot, rows, bloat)) => {
                rule(snapshot, rows, bloat)
            }
            (FindingRule::Pool(rule), Evidence::Pool(pool)) => rule(pool),
            (FindingRule::Faults(rule), Evidence::Faults(recording, frames)) => {
                rule(recording, frames)
            }
            (FindingRule::Shootdowns(rule), Evidence::Shootdowns(causes)) => rule(causes),
            (FindingRule::Heap(rule), Evidence::Heap(sites)) => rule(sites),
            (FindingRule::HeapScan(rule), Evidence::HeapScan(scan)) => rule(scan),
            (FindingRule::Measurement(rule), Evidence::Measurement(measurement, arms)) => {
                rule(measurement, arms)
            }
            (FindingRule::Limits(rule), Evidence::Snapshot(subject)) => return rule(subject),
            (FindingRule::ShootdownCauses(rule), Evidence::Shootdowns(causes)) => {
                return rule(causes);
            }
            (FindingRule::EachCommand(rule), Evidence::Measurement(measurement, arms)) => {
                return rule(measurement, arms);
            }
            _ => None,
        };
        one.into_iter().collect()
    }
}

/// Returns the findings that the evidence supports, the most severe first.
pub(crate) fn find(evidence: Evidence<'_>) -> Vec<Finding> {
    let is_large = match evidence {
        Evidence::Snapshot(subject) => subject.is_large(),
        _ => false,
    };
    let rules = RULES.concat();
    let mut findings = parallel::halves(is_large, &rules, |rules| {
        rules.iter().flat_map(|rule| rule.apply(evidence)).collect()
    });
    findings.sort_by_key(|finding| Reverse(finding.severity));
    findings
}

/// Builds a finding. Each number in `claim` is a cell with a unit.
fn finding(
    id: &'static str,
    severity: Severity,
    claim: impl Into<Vec<CellValue>>,
    evidence: impl Into<Vec<Fact>>,
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

/// Builds the command line `before` PID `after`.
fn command(
    before: &'static str,
    subject: &ExplainSubject<'_>,
    after: &'static str,
) -> Vec<CellValue> {
    let pid = subject.snapshot.process.pid;
    vec![text(before), CellValue::text(pid.to_string()), text(after)]
}

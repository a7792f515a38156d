//! The results of the slow cycle, which the caller hands to the exporter.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::account::MemoryAccount;
use pagewise_model::report::Severity;
use pagewise_model::{Bytes, Name};

/// Findings that have series. A machine in trouble can have one for each process.
const MAX_FINDINGS: usize = 100;

/// The account of a machine's RAM, and signs of trouble.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportedDiagnosis {
    /// Time of the diagnosis or, without findings, of the account, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The account; `None` if the machine could not be read.
    pub account: Option<MemoryAccount>,
    /// Memory that programs can still allocate.
    pub headroom: ExportedHeadroom,
    /// Free memory, by the size of its blocks.
    pub free: ExportedFreeMemory,
    /// Signs of trouble, in any order and number; `None` if nothing looked for them.
    pub findings: Option<Vec<ExportedFinding>>,
}

/// Memory that programs can still allocate; `None` where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportedHeadroom {
    /// Before the kernel reclaims memory.
    pub before_reclaim: Option<Bytes>,
    /// Before programs are swapped out.
    pub before_swap: Option<Bytes>,
    /// Before an OOM kill.
    pub before_oom: Option<Bytes>,
}

/// Fragmentation of the free memory; `None` where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExportedFreeMemory {
    /// Free memory that huge pages can be made of without compaction.
    pub allocatable_huge: Option<Bytes>,
    /// Share of the free memory, from 0 to 1, in blocks that are smaller than a huge page.
    pub unusable_index: Option<f64>,
}

/// A sign of trouble of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFinding {
    /// The stable name.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The object.
    pub object: FindingObject,
}

/// The object of a finding. PIDs would make new series with each restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingObject {
    /// The machine.
    Machine,
    /// All processes of a name.
    Process(Name),
    /// A cgroup, by its path.
    Cgroup(Name),
}

impl FindingObject {
    /// The value of the label `object`.
    pub fn label(&self) -> Name {
        match self {
            FindingObject::Machine => "machine".into(),
            FindingObject::Process(name) | FindingObject::Cgroup(name) => name.clone(),
        }
    }
}

/// The findings that have series.
#[derive(Debug, Default)]
pub(crate) struct RankedFindings {
    /// Each object once, the most severe first.
    pub(crate) kept: Vec<RankedFinding>,
    /// Number of those that do not fit.
    pub(crate) dropped: u64,
}

/// A finding, with all findings of the same name about the same object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RankedFinding {
    pub(crate) id: &'static str,
    pub(crate) object: Name,
    /// The highest severity of them.
    pub(crate) severity: Severity,
}

impl ExportedDiagnosis {
    /// The findings that have series, at most [`MAX_FINDINGS`] and `max_series`: the most severe.
    pub(crate) fn findings(&self, max_series: usize) -> RankedFindings {
        let mut highest: BTreeMap<(&'static str, Name), Severity> = BTreeMap::new();
        for finding in self.findings.iter().flatten() {
            let severity =
                highest.entry((finding.id, finding.object.label())).or_insert(finding.severity);
            *severity = finding.severity.max(*severity);
        }
        let ranked = highest.into_iter();
        let mut kept: Vec<RankedFinding> =
            ranked.map(|((id, object), severity)| RankedFinding { id, object, severity }).collect();
        // A stable order: among equally severe ones, the same are kept each time.
        kept.sort_by_key(|it| Reverse(it.severity));
        let all = kept.len();
        kept.truncate(MAX_FINDINGS.min(max_series));
        RankedFindings { dropped: (all - kept.len()) as u64, kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &'static str, severity: Severity, process: &str) -> ExportedFinding {
        ExportedFinding { id, severity, object: FindingObject::Process(process.into()) }
    }

    fn ranked(findings: Vec<ExportedFinding>, max_series: usize) -> RankedFindings {
        ExportedDiagnosis { findings: Some(findings), ..ExportedDiagnosis::default() }
            .findings(max_series)
    }

    #[test]
    fn a_finding_about_several_processes_of_a_name_has_the_highest_severity() {
        let both = |first, second| {
            let list = vec![finding("growth", first, "a"), finding("growth", second, "a")];
            ranked(list, usize::MAX).kept
        };
        for (first, second) in
            [(Severity::Warning, Severity::Critical), (Severity::Critical, Severity::Warning)]
        {
            let kept = both(first, second);
            assert_eq!(kept.len(), 1);
            assert_eq!(kept[0].severity, Severity::Critical);
        }
    }

    #[test]
    fn the_most_severe_are_kept_and_the_others_counted() {
        let mut list: Vec<ExportedFinding> = (0..MAX_FINDINGS + 5)
            .map(|at| finding("growth", Severity::Warning, &format!("a{at}")))
            .collect();
        // The last in the order of names and of the list.
        list.push(finding("thrash", Severity::Critical, "z"));
        let found = ranked(list.clone(), usize::MAX);
        assert_eq!((found.kept.len(), found.dropped), (MAX_FINDINGS, 6));
        assert_eq!(found.kept[0].object, "z".into());
        let found = ranked(list, 3);
        assert_eq!((found.kept.len(), found.dropped), (3, MAX_FINDINGS as u64 + 3));
    }
}

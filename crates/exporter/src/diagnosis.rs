//! Results of the slow cycle, which runs less often than sweeps: the account of the machine's RAM,
//! which divides the RAM by use, and the findings of a diagnosis. The caller passes these results
//! to the exporter.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::account::MemoryAccount;
use pagewise_model::report::Severity;
use pagewise_model::{Bytes, Name};

/// Maximum number of findings that have series. A machine with problems can have one finding for
/// each process.
const MAX_FINDINGS: usize = 100;

/// Account of a machine's RAM, and findings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportedDiagnosis {
    /// Time of the diagnosis or, without findings, of the account, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Account of the machine's RAM; `None` if the machine could not be read.
    pub account: Option<MemoryAccount>,
    /// Memory that programs can still allocate.
    pub headroom: ExportedHeadroom,
    /// Fragmentation of the free memory.
    pub free: ExportedFreeMemory,
    /// Findings, in any order and number; `None` if no diagnosis was made.
    pub findings: Option<Vec<ExportedFinding>>,
}

/// Memory that programs can still allocate. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportedHeadroom {
    /// Bytes that can be allocated before the kernel reclaims memory.
    pub before_reclaim: Option<Bytes>,
    /// Bytes that can be allocated before programs are swapped out.
    pub before_swap: Option<Bytes>,
    /// Bytes that can be allocated before an OOM kill.
    pub before_oom: Option<Bytes>,
}

/// Fragmentation of the free memory. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExportedFreeMemory {
    /// Free memory that can be allocated as huge pages without compaction.
    pub allocatable_huge: Option<Bytes>,
    /// Share of the free memory in blocks that are smaller than a huge page, from 0 to 1.
    pub unusable_index: Option<f64>,
}

/// A finding, which is a detected memory problem, about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFinding {
    /// Stable ID of the finding.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Object of the finding.
    pub object: FindingObject,
}

/// Object of a finding. Objects have no PIDs, which would create new series at each restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingObject {
    /// The machine as a whole.
    Machine,
    /// All processes with this name.
    Process(Name),
    /// A cgroup, by its path.
    Cgroup(Name),
}

impl FindingObject {
    /// Value of the label `object`.
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
    /// Findings, most severe first. No two have the same ID and object.
    pub(crate) kept: Vec<RankedFinding>,
    /// Number of findings without series, because the limits were reached.
    pub(crate) dropped: u64,
}

/// All findings with the same ID about the same object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RankedFinding {
    pub(crate) id: &'static str,
    pub(crate) object: Name,
    /// Highest severity of these findings.
    pub(crate) severity: Severity,
}

impl ExportedDiagnosis {
    /// Selects the findings that have series: at most [`MAX_FINDINGS`] and at most `max_series`,
    /// most severe first.
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
        // The sort is stable, so that equally severe findings are selected in the same order each
        // time.
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
        // This finding is the last one in the order of names and in the list.
        list.push(finding("thrash", Severity::Critical, "z"));
        let found = ranked(list.clone(), usize::MAX);
        assert_eq!((found.kept.len(), found.dropped), (MAX_FINDINGS, 6));
        assert_eq!(found.kept[0].object, "z".into());
        let found = ranked(list, 3);
        assert_eq!((found.kept.len(), found.dropped), (3, MAX_FINDINGS as u64 + 3));
    }
}

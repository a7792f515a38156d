//! The results of the slow cycle, which the caller hands to the exporter.

use std::collections::BTreeMap;

use pagewise_model::account::MemoryAccount;
use pagewise_model::report::Severity;
use pagewise_model::{Bytes, Name};

/// Findings that have series. A machine in trouble can have one for each process.
const MAX_FINDINGS: usize = 100;

/// The account of a machine's RAM, and signs of trouble.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportedDiagnosis {
    /// Time of the diagnosis, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The account; `None` if the machine could not be read.
    pub account: Option<MemoryAccount>,
    /// Memory that programs can still allocate.
    pub headroom: ExportedHeadroom,
    /// Signs of trouble, in any order and number.
    pub findings: Vec<ExportedFinding>,
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

/// A sign of trouble of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFinding {
    /// The stable name.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The object: `machine`, the name of a process, or the path of a cgroup. PIDs would make new
    /// series with each restart.
    pub object: Name,
}

impl ExportedDiagnosis {
    /// The findings that have series: each once, the most severe first.
    pub(crate) fn findings(&self) -> Vec<&ExportedFinding> {
        let key = |it: &ExportedFinding| (it.id, it.object.clone());
        let mut found: BTreeMap<(&'static str, Name), &ExportedFinding> = BTreeMap::new();
        for finding in &self.findings {
            found.entry(key(finding)).or_insert(finding);
        }
        let mut all: Vec<&ExportedFinding> = found.into_values().collect();
        all.sort_by_key(|it| std::cmp::Reverse(it.severity));
        all.truncate(MAX_FINDINGS);
        all
    }
}

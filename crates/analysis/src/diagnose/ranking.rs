//! Judges the causes by the evidence, and ranks the causes that are present by their cost.

use pagewise_model::Absent;
use pagewise_model::cause::{Cause, Verdict};
use pagewise_model::evidence::{Evidence, Gathered, Instrument};
use pagewise_model::report::{CellValue, Label};

use crate::causes::{self, CauseEvidence};
use crate::explain::ExplainSubject;

/// The complaint about a process, which raises the rank of the causes that explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// The process takes too much memory.
    Memory,
    /// The memory of the process grows.
    Growth,
    /// The process is slow, or stops at times.
    Latency,
    /// The process or its neighbors are killed for lack of memory.
    Oom,
    /// The process starts slowly.
    Start,
}

/// Conclusions about a process.
#[derive(Debug)]
pub struct Diagnosis {
    /// Causes of trouble, the most costly first.
    pub causes: Vec<Cause>,
    /// Causes that the evidence excludes.
    pub ruled_out: Vec<RuledOutCause>,
    /// Evidence that is missing.
    pub not_seen: Vec<UnseenEvidence>,
}

/// A cause that the evidence excludes.
#[derive(Debug)]
pub struct RuledOutCause {
    /// Stable name of the cause.
    pub id: &'static str,
    /// Name of the cause in reports.
    pub title: &'static str,
    /// Measured values that exclude the cause.
    pub evidence: Vec<CellValue>,
}

/// Evidence that is missing, or a cause that the evidence neither shows nor excludes.
#[derive(Debug)]
pub struct UnseenEvidence {
    /// Stable name of the instrument or of the cause.
    pub id: &'static str,
    /// Name of the instrument or of the cause in reports.
    pub title: &'static str,
    /// Reason why the evidence is missing.
    pub why: Label,
    /// Command that collects the missing evidence; empty if such a command does not exist.
    pub command: Label,
}

/// Factor by which the rank of a cause is multiplied if the cause explains the symptom.
const EXPLAINS_SYMPTOM: f64 = 3.0;

/// Judges all causes by the evidence, and ranks the causes that are present.
pub fn diagnose(evidence: &Evidence, symptom: Option<Symptom>) -> Diagnosis {
    let now = causes::latest(evidence);
    let subject = ExplainSubject::from_snapshot(now);
    let first =
        evidence.last.value().and_then(|_| ExplainSubject::from_snapshot(&evidence.first).ok());
    let judged = causes::judge(&CauseEvidence {
        all: evidence,
        now,
        subject: &subject,
        before: first.as_ref(),
    });
    let mut found = Diagnosis {
        causes: Vec::new(),
        ruled_out: Vec::new(),
        not_seen: missing_instruments(evidence),
    };
    for (row, verdict) in judged {
        match verdict {
            Verdict::Present(cause) => found.causes.push(*cause),
            Verdict::RuledOut(evidence) => {
                let (id, title) = (row.id, row.title);
                found.ruled_out.push(RuledOutCause { id, title, evidence });
            }
            Verdict::Unknown(why, command) => {
                let (id, title) = (row.id, row.title);
                found.not_seen.push(UnseenEvidence { id, title, why, command });
            }
            Verdict::NotApplicable => {}
        }
    }
    let rank = |cause: &Cause| {
        let factor = if explains(cause, symptom) { EXPLAINS_SYMPTOM } else { 1.0 };
        cause.cost.rank() * cause.confidence.weight() * factor
    };
    found.causes.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    found
}

/// True if a cause explains the symptom.
fn explains(cause: &Cause, symptom: Option<Symptom>) -> bool {
    const GROWING: [&str; 5] =
        ["leak", "unbounded-cache", "mapping-growth", "shm-growth", "page-cache-charged"];
    match symptom {
        None => false,
        Some(Symptom::Memory) => cause.cost.memory_share > cause.cost.time_share,
        Some(Symptom::Growth) => GROWING.contains(&cause.id),
        Some(Symptom::Latency | Symptom::Start) => cause.cost.time_share > 0.0,
        Some(Symptom::Oom) => cause.cost.risk > 0.0 || GROWING.contains(&cause.id),
    }
}

fn missing_instruments(evidence: &Evidence) -> Vec<UnseenEvidence> {
    let all = [
        (Instrument::Snapshot, why(&evidence.last)),
        (Instrument::Stacks, why(&evidence.stacks)),
        (Instrument::HugePages, why(&evidence.huge_pages)),
        (Instrument::ZeroPages, why(&evidence.zero_pages)),
        (Instrument::Collector, why(&evidence.collector)),
        (Instrument::Faults, why(&evidence.faults)),
        (Instrument::Shootdowns, why(&evidence.shootdowns)),
        (Instrument::Calls, why(&evidence.calls)),
        (Instrument::HeapScan, why(&evidence.scan)),
        (Instrument::AllocationSizes, why(&evidence.allocation_sizes)),
        (Instrument::Allocations, why(&evidence.allocations)),
    ];
    let pid = evidence.first.process.pid;
    let missing = all.into_iter().filter_map(|(instrument, why)| {
        let (first, options) =
            instrument.command().split_once(" --").unwrap_or((instrument.command(), ""));
        let options = if options.is_empty() { String::new() } else { format!(" --{options}") };
        Some(UnseenEvidence {
            id: instrument.key(),
            title: instrument.label(),
            why: why?.to_string().into(),
            command: format!("{first} {pid}{options}").into(),
        })
    });
    missing.collect()
}

fn why<T>(gathered: &Gathered<T>) -> Option<&Absent> {
    gathered.missing()
}

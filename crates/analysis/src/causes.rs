//! The table of causes. Each row describes one cause of memory trouble, and has a rule: a function
//! that decides from the evidence if the cause is present.
//!
//! Instruments, such as a snapshot, a heap scan or a recording of page faults, collect the
//! evidence. The observation is the time in which they read the process.
//!
//! A rule that lacks evidence returns [`Verdict::Unknown`], never [`Verdict::RuledOut`]. If another
//! cause explains the same evidence, a rule returns [`Verdict::RuledOut`] with the name of that
//! cause.

mod collector;
mod evidence;
mod files;
mod growth;
mod heap;
mod huge_pages;
mod leak_sites;
mod limits;
#[cfg(test)]
mod made;
#[cfg(test)]
mod made_recordings;
mod pressure;
mod processes;
mod responsible;
mod signs;
mod stacks;
mod time;
mod trend;

use pagewise_model::cause::{Cause, CauseObject, Confidence, Remedy, Verdict};
use pagewise_model::evidence::Instrument;
use pagewise_model::report::{CellValue, Label};

pub(crate) use evidence::{CauseEvidence, latest};

/// A row of the table of causes.
#[derive(Clone, Copy)]
pub(crate) struct CauseRow {
    /// Stable name for programs.
    pub(crate) id: &'static str,
    /// Name of the cause in reports.
    pub(crate) title: &'static str,
    /// One sentence that defines the cause.
    pub(crate) meaning: &'static str,
    /// Instruments whose results the rule uses.
    pub(crate) needs: &'static [Instrument],
    /// Description of the evidence that excludes the cause.
    pub(crate) excluded_by: &'static str,
    /// Source of the thresholds and of the remedy: documentation, man page, or measurement.
    pub(crate) source: &'static str,
    /// Function that judges the cause.
    pub(crate) rule: fn(&CauseEvidence<'_>) -> Verdict,
}

impl std::fmt::Debug for CauseRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CauseRow").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All causes, by module. Causes of the same rank are reported in this order.
const GROUPS: &[&[CauseRow]] = &[
    limits::ROWS,
    pressure::ROWS,
    growth::ROWS,
    heap::ROWS,
    huge_pages::ROWS,
    stacks::ROWS,
    time::ROWS,
    files::ROWS,
    processes::ROWS,
];

/// All rows of the table.
pub(crate) fn causes() -> impl Iterator<Item = &'static CauseRow> {
    GROUPS.iter().copied().flatten()
}

/// Finds the row of a cause by its stable name.
pub(crate) fn row(id: &str) -> Option<&'static CauseRow> {
    causes().find(|row| row.id == id)
}

/// Returns the verdicts on all causes, in the order of the table.
pub(crate) fn judge(evidence: &CauseEvidence<'_>) -> Vec<(&'static CauseRow, Verdict)> {
    causes().map(|row| (row, (row.rule)(evidence))).collect()
}

/// Creates a cause without remedies, which the caller completes.
fn cause(
    id: &'static str,
    object: CauseObject,
    confidence: Confidence,
    sentence: impl Into<Vec<CellValue>>,
) -> Cause {
    Cause {
        id,
        sentence: sentence.into(),
        object,
        confidence,
        cost: pagewise_model::cause::CauseCost::default(),
        evidence: Vec::new(),
        now: None,
        code: None,
    }
}

/// Creates a remedy that is a command.
fn remedy_now(
    command: impl Into<Label>,
    change: impl Into<Vec<CellValue>>,
    reversible: bool,
) -> Option<Remedy> {
    Some(Remedy {
        change: change.into(),
        command: command.into(),
        effect: Vec::new(),
        reversible: Some(reversible),
    })
}

/// Creates a remedy that changes the program.
fn remedy_code(change: impl Into<Vec<CellValue>>) -> Option<Remedy> {
    Some(Remedy { change: change.into(), command: "".into(), effect: Vec::new(), reversible: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_each_cause() {
        let document = include_str!("../../../docs/diagnose.md");
        let is_row = |line: &&str| line.starts_with("| `");
        let rows: Vec<&str> = document.lines().filter(is_row).collect();
        let expected: Vec<String> = causes()
            .map(|row| format!("| `{}` | {} | {} |", row.id, row.title, row.meaning))
            .collect();
        assert_eq!(rows, expected);
    }
}

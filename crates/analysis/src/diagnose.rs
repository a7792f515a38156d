//! The diagnosis of a process: ranks causes by the evidence, and reports them.

mod machine;
mod page;
mod ranking;
mod report;

pub use machine::{
    MachineDiagnosis, SuspectOf, TroubleSign, cgroup_report, diagnose_machine, machine_report,
};
pub use page::page;
pub use ranking::{Diagnosis, RuledOutCause, Symptom, UnseenEvidence, diagnose};
pub(crate) use report::text_block;
pub use report::{DiagnosisOptions, SCHEMA, report};

//! The diagnosis of a process: evidence to ranked causes, and their report.

mod page;
mod ranking;
mod report;

pub use page::page;
pub use ranking::{Diagnosis, RuledOutCause, Symptom, UnseenEvidence, diagnose};
pub use report::{DiagnosisOptions, SCHEMA, report};

//! Costs of commands and regions of code: counters of the CPU and of the kernel, page faults,
//! `getrusage`, and counters of the whole machine during that time. The crate returns values of
//! `pagewise_model` and does not summarize them.
#![forbid(unsafe_code)]

pub mod cache;
mod counters;
mod error;
pub mod events;
mod machine;
pub mod pin;
mod pmu;
pub mod probe;
pub mod runner;
mod sampled;
pub mod tlb;
mod why;

pub use error::MeasureError;

//! Sweeps over all processes and memory cgroups at an interval and within a CPU budget, and the
//! events between two sweeps.
//!
//! A sweep reads `stat` of each process. More files are read only if `stat` shows a change of the
//! page faults, the CPU time or the sizes; the pages are read only within the CPU budget. Unchanged
//! processes are read again from time to time, because other processes change their PSS.
#![forbid(unsafe_code)]

mod budget;
mod cgroups;
mod process;
mod sampler;
mod triggers;

pub use sampler::{Sampler, SamplerOptions, SweepOutcome};
pub use triggers::{FiredTrigger, TriggerLimits, TriggerWatch};

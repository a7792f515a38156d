//! Sweeps over all processes and memory cgroups, at a rate and within a budget, and the events
//! between two sweeps.
//!
//! A sweep reads `stat` of each process. Only a process that has changed since, by its faults, its
//! CPU time or its sizes, is read further; its pages only within a budget of CPU time. Processes
//! that have not changed are read again from time to time, since other processes change their PSS.
#![forbid(unsafe_code)]

mod budget;
mod cgroups;
mod process;
mod sampler;
mod triggers;

pub use sampler::{Sampler, SamplerOptions, SweepOutcome};
pub use triggers::{FiredTrigger, TriggerLimits, TriggerWatch};

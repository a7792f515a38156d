//! The lab: experiments on memory that anyone can run, each with its question, its expectation and
//! its own verdict.
//!
//! An experiment is one file in `experiments` and one line in [`EXPERIMENTS`]. It declares its
//! requirements and its conditions ("arms"), measures one condition in a process of its own, and
//! judges the measurements of all runs. The [`runner`] does the rest: it interleaves conditions,
//! limits memory and time, and undoes all changes of a run.
#![forbid(unsafe_code)]

mod about;
mod bench;
mod cgroup;
mod compared_kernels;
mod environment;
mod error;
mod experiments;
mod files;
mod guest;
mod guest_system;
mod journal;
mod machine;
mod needs;
mod outline;
mod replacement;
mod results;
pub mod runner;
mod simulated;

pub use about::{ExperimentAbout, Need, ParameterAbout, Parameters, QuantityAbout, Size};
pub use bench::{Bench, RunContext, run_child};
pub use compared_kernels::{ComparedKernels, RECLAIM_PATCH};
pub use environment::touch;
pub use error::LabError;
pub use experiments::{EXPERIMENTS, RunExperiment, find};
pub use guest::GuestSetup;
pub use journal::Journal;
pub use results::ExperimentResults;

//! What commands and regions of code cost: counters of the CPU and of the kernel, page faults, `getrusage`, and what the
//! whole machine counted meanwhile. Makes models and summarises nothing.
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

pub use error::Error;

//! Remote calls: system calls and functions that a thread of another process is made to run. This
//! crate is the only one that writes to another process.
//!
//! Nothing in the target depends on this process being alive. Whenever it is killed, each thread of
//! the target finds back to its own registers and signal mask by itself ([`thread`]).
//!
//! ```text
//!  process  the target: its threads, its memory; one thread stopped, or all
//!  thread   a stopped thread, its saved context, the calls it makes
//!  scratch  a mapping of ours in the target, for stacks and saved contexts
//!  alone    calls while all other threads wait, whoever dies
//!  code     instructions of the target that calls run by
//!  memory   the target's memory
//!  shield   a tracer that keeps wrong SIGTRAPs from the target
//! ```
#![forbid(unsafe_code)]

mod alone;
mod code;
mod error;
mod memory;
mod process;
mod scratch;
mod shield;
pub mod thread;

#[cfg(not(target_arch = "x86_64"))]
#[path = "unsupported.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;

pub use alone::Alone;
pub use error::RemoteError;
pub use memory::TargetMemory;
pub use process::{RemoteProcess, on_tracer_thread};
pub use scratch::{Keeper, Returning, Scratch, Undo};
pub use shield::TracingShield;
pub use thread::{RemoteFunction, StopPoint, Tracee};

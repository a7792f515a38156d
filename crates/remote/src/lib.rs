//! Remote calls: system calls and functions that a thread of another process is made to run. This
//! crate is the only one that writes to another process.
//!
//! Nothing in the target depends on this process being alive. Whenever it is killed, each thread of
//! the target restores its own registers and signal mask by itself ([`thread`]).
//!
//! ```text
//!  process  the target: its threads, its memory; one thread stopped, or all
//!  thread   a stopped thread, its saved context, the calls it makes
//!  scratch  a mapping of ours in the target, for stacks and saved contexts
//!  alone    calls while all other threads wait, whoever dies
//!  code     instructions of the target that calls run by
//!  function_thread  one more thread in the target, which runs a function and ends
//!  memory   the target's memory
//!  snapshot  a child that the process is made to fork, to be read
//!  undo     changes that whoever finds their note undoes
//!  shield   a tracer that keeps wrong SIGTRAPs from the target
//! ```
#![forbid(unsafe_code)]

mod alone;
mod code;
mod error;
mod function_thread;
mod memory;
mod process;
mod scratch;
mod shield;
mod snapshot;
pub mod thread;
mod undo;

#[cfg(not(target_arch = "x86_64"))]
#[path = "unsupported.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;

pub use alone::Alone;
pub use error::RemoteError;
pub use function_thread::FunctionThread;
pub use memory::TargetMemory;
pub use process::{RemoteProcess, on_tracer_thread};
pub use scratch::{MappingUndo, Returning, Scratch};
pub use shield::TracingShield;
pub use snapshot::{ChildUndo, ForkedSnapshot};
pub use thread::{RemoteFunction, StopPoint, Tracee};
pub use undo::{Keeper, Undo};

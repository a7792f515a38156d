//! Remote calls: system calls and functions that pagewise makes a thread of another process run. No
//! other crate writes to another process.
//!
//! The target does not depend on the tracer. Whenever the tracer is killed, each thread of the
//! target restores its own registers and signal mask ([`thread`]).
//!
//! ```text
//!  process          the target: its threads and its memory; stops one thread, or all of them
//!  thread           a stopped thread: its saved registers, and the calls that it is made to make
//!  scratch          a mapping that pagewise makes in the target, for stacks and saved registers
//!  alone            calls for which all other threads of the target wait, also if the tracer dies
//!  code             instructions in the target's own code that remote calls use
//!  function_thread  a thread that is added to the target, runs one function and ends
//!  memory           reads and writes the target's memory
//!  snapshot         a child that the target is made to fork, so that pagewise can read it
//!  undo             changes of the target; a helper process undoes them if the tracer dies
//!  shield           a tracer that discards SIGTRAPs that a hypervisor causes by mistake
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

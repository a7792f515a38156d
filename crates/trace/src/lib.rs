//! Kernel events of running programs: where in the program they happened, and in which memory.
//!
//! A [`TraceSession`] makes the kernel write samples into rings, and passes them on in order of
//! time as [`PerfRecord`]s. [`Spaces`] finds the mapping of an address, [`RecordedStacks`] gives
//! each call stack a number, and [`Symbols`] its functions and lines.
#![forbid(unsafe_code)]

pub mod allocation_profile;
pub mod call_profile;
mod callers;
mod code;
mod data_types;
mod elf;
mod error;
pub mod faults;
mod file_symbols;
mod files;
mod heaviest;
mod jit;
mod kernel;
mod links;
mod process_code;
mod record;
mod session;
pub mod shootdowns;
mod spaces;
mod stacks;
mod symbolized;
mod symbolizer;
mod symbols;
pub mod tracepoint;
mod unwind;
mod watch;
mod x86_store;

pub use callers::{Callers, Finder};
pub use error::TraceError;
pub use file_symbols::{FileSymbols, MappedModule, Unusable};
pub use kernel::KernelFunctions;
pub use process_code::{ProcessCode, RecordedFile, StackFrame, TypedData};
pub use record::{Carried, MmapAccess, MmapRecord, PerfRecord, PerfSample};
pub use session::{SessionEvent, TraceSession, TraceTarget, Uprobes};
pub use spaces::{SpaceRegion, Spaces};
pub use stacks::{RecordedStacks, StackId};
pub use symbols::{CodePlace, Symbols, demangled};
pub use tracepoint::{Tracepoint, TracepointField};
pub use unwind::Unwinder;
pub use watch::{Hits, MemoryWatch};

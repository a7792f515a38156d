//! Kernel events of running programs: where in the program they happened, and in which memory.
//!
//! A [`Session`] has the kernel write samples into rings, and hands them on in order of time as [`Record`]s. [`Spaces`] knows
//! which mapping an address was in, [`Stacks`] gives each call stack a number, and [`Symbols`] tells its functions and lines.
#![forbid(unsafe_code)]

mod callers;
mod code;
mod elf;
mod error;
pub mod faults;
mod file_symbols;
mod files;
mod heaviest;
mod jit;
mod kernel;
mod links;
mod record;
mod session;
pub mod shootdowns;
mod spaces;
mod stacks;
mod store;
mod symbolizer;
mod symbols;
pub mod tracepoint;
mod unwind;
mod watch;

pub use callers::{Callers, Finder};
pub use error::Error;
pub use file_symbols::{FileSymbols, Module, Unusable};
pub use kernel::Functions;
pub use record::{Access, Carried, Mapped, Record, Sample};
pub use session::{Session, Target, Uprobes, Wanted};
pub use spaces::{Region, Spaces};
pub use stacks::{StackId, Stacks};
pub use symbols::{Place, Symbols};
pub use tracepoint::{Field, Tracepoint};
pub use unwind::Unwinder;
pub use watch::{Hits, Watch};

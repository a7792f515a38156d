//! The heap of a process from outside: the blocks of its allocators, their reachability, and the
//! bytes that each root retains. Needs no recorder in the process.
//!
//! ```text
//!  memory   memory, mappings and threads at one time: of a stopped process, a snapshot, a core file
//!  live     memory of a live process, copied while it is stopped
//!  glibc    the walk of glibc's malloc
//!  blocks   the live blocks that an allocator walk found
//!  scan     a copy and its walk as one value
//!  saved    scans in files
//! ```
#![forbid(unsafe_code)]

pub mod blocks;
mod error;
pub mod glibc;
pub mod live;
pub mod memory;
pub mod saved;
pub mod scan;

pub use error::ScanError;

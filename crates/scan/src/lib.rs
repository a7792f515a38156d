//! The heap of a process from outside: the blocks of its allocators, their reachability, and the
//! bytes that each root retains. Needs no recorder in the process.
//!
//! ```text
//!  memory   memory, mappings and threads at one time: of a stopped process, a snapshot, a core file
//!  blocks   the live blocks that an allocator walk found
//! ```
#![forbid(unsafe_code)]

pub mod blocks;
pub mod memory;

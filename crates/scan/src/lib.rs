//! The heap of a process from outside: the blocks of its allocators, their reachability, and the
//! bytes that each root retains. Needs no recorder in the process.
//!
//! ```text
//!  memory   memory, mappings and threads at one time: of a stopped process, a snapshot, a core file
//!  blocks   the live blocks that an allocator walk found
//!  graph    pointers between blocks: reachable and leaked blocks, retained bytes
//! ```
#![forbid(unsafe_code)]

pub mod blocks;
pub mod graph;
pub mod memory;

//! Analysis of the heap of a process from outside: the blocks of its allocators, their
//! reachability, and the bytes that each root retains. The process needs no recorder.
//!
//! ```text
//!  memory   memory, mappings and threads at one time: stopped process, snapshot, core file
//!  live     memory of a live process, copied while it is stopped
//!  core_image  memory of a core file, read from the file on demand
//!  walk     the walks of all allocators, combined into one heap
//!  allocator_code  address ranges of allocator code
//!  running  memory of a live process that is not stopped
//!  glibc    the walk of glibc's malloc
//!  cpython  the walk of CPython's obmalloc
//!  pagewise_pools  the walk of pagewise's own allocators
//!  musl     the walk of musl's malloc (mallocng)
//!  mimalloc  the walk of mimalloc 2
//!  slot_heap  sums for allocators whose pages contain slots of one size
//!  size_tally, density, corruption  parts of the sums: sizes, pages by live share, contradictions
//!  jemalloc the walk of jemalloc
//!  tcmalloc the walk of gperftools' tcmalloc
//!  span_tally  sums for heaps whose blocks are in slabs
//!  blocks   the live blocks that an allocator walk found
//!  graph    pointers between blocks: reachable and leaked blocks, retained bytes
//!  reachability  the graph as a model value, with names
//!  leak_sample  leaked blocks to be read again later
//!  recheck  excerpts of a running process that are read a second time
//!  scan     a copied process or a core file, and its heap walk, as one value
//!  sample   live and free shares, estimated from windows of a running process
//!  saved    scans in files
//! ```
#![forbid(unsafe_code)]

pub mod allocator_code;
pub mod blocks;
pub mod core_image;
mod corruption;
mod cpython;
mod density;
mod error;
pub mod glibc;
pub mod graph;
pub mod jemalloc;
mod leak_sample;
pub mod live;
#[cfg(test)]
mod made;
pub mod memory;
mod mimalloc;
mod musl;
mod pagewise_pools;
pub mod reachability;
mod recheck;
pub mod running;
pub mod sample;
pub mod saved;
pub mod scan;
mod size_tally;
mod slot_heap;
mod span_tally;
pub mod tcmalloc;
pub mod walk;

pub use error::ScanError;
pub use recheck::recheck;

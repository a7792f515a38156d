//! `malloc` by the allocators of pagewise, for any program that loads this library:
//! `LD_PRELOAD=libpagewise_malloc.so program`. `pagewise pools PID` then shows the heap of the
//! program.
//!
//! ```text
//!  malloc ──> cache of the thread: blocks up to 8 KiB by size, without a lock
//!               │ ▲  some at a time
//!               ▼ │
//!             TLSF, behind a lock: blocks up to 64 KiB
//!               │ ▲  regions
//!               ▼ │
//!             pages: runs, with a cache for each thread  <── larger blocks
//! ```
//!
//! The header word before each block contains its size. TLSF writes the header words of its blocks;
//! `large` writes those of runs, with a bit that TLSF does not use. Blocks in the cache of a thread
//! count as live in the pools.
#![allow(clippy::missing_safety_doc, reason = "the manual pages of malloc(3) are the contracts")]
#![cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]

mod cache;
pub mod entry;
mod heap;
mod large;
mod thread;

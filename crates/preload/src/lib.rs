//! The recorder that a program loads (`LD_PRELOAD`): it interposes `malloc` and the other
//! allocation functions and counts allocations and frees by call stack, in tables that the program
//! shares with the collector ([`pagewise_heaplog::tables`]).
//!
//! This code runs inside another program's `malloc`. It allocates nothing and calls no function
//! that might. It takes a lock only to record an item for the first time, does not wait for the
//! collector while it records, and records less rather than fail.
//!
//! ```text
//!  stubs   exported functions: a few instructions, and a jump to the target of the recording mode
//!  hooks   each function of malloc's family, recorded
//!  threads the data of each thread, and its counts
//!  stacks  the call stack: found by a hash of its words, or unwound by rows
//!  map     a table that readers use without a lock
//!  rows    unwind rows by return address; cfi reads them from .eh_frame
//!  tree    the call tree, and allocation sites
//!  live    live blocks by address
//!  log     allocations and frees of large blocks in the order of time, on request
//!  peak    live bytes, and their maximum
//!  aux_hooks threads that begin, libraries that are unloaded
//!  guard   the other mode: objects on pages of their own, which detects memory errors
//!  mappings the program's own mmap and related calls, on request
//!  pools   blocks of pagewise's own allocators, on request
//!  inline  inline hooks of functions that cannot be interposed
//!  named   allocators under other names than malloc's
//!  attach  recording of a running program
//!  linker  functions that older C libraries have in other files, or lack
//!  symbols functions by name, if the loader does not look them up
//!  objects files of code, if the loader has no table of them
//!  begin   the first call, the child after fork, and the handshake with the collector
//! ```
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "what programs call is left out of tests, which would call it themselves"
    )
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses are words of x86-64 here, and parts of words are packed and unpacked"
)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod attach;
mod aux_hooks;
mod begin;
mod cfi;
mod guard;
mod hooks;
mod inline;
mod kernel;
mod linker;
mod live;
mod lock;
mod log;
mod map;
mod mappings;
mod modules;
mod named;
mod next_alloc;
mod objects;
mod peak;
mod pools;
mod rows;
mod sampling;
mod shared;
mod stacks;
mod stubs;
mod symbols;
mod thread_cache;
mod threads;
mod tree;

//! The recorder that a program loads (`LD_PRELOAD`): it interposes `malloc` and the other
//! allocation functions and counts allocations and frees by call stack, in tables that the program
//! shares with the collector ([`pagewise_heaplog::tables`]).
//!
//! This code runs inside another program's `malloc`. It allocates nothing, calls nothing that
//! might, takes a lock only where something is seen for the first time, never waits for who looks
//! on, and rather records less than fail.
//!
//! ```text
//!  enter   what the program calls: a few instructions, and on to where the mode of recording says
//!  hooks   each function of malloc's family, recorded
//!  threads what a thread has of its own, and how it counts
//!  stacks  the call stack: known by a hash of its words, or followed by rows
//!  map     a table that readers use without a lock
//!  rows    how to leave a function, by return address; cfi reads it from .eh_frame
//!  tree    calls by caller, and sites
//!  live    which blocks are live, by address
//!  log     where large blocks begin and end, as it happens, on request
//!  peak    how much is live, and when it was most
//!  others  threads that begin, libraries that are unloaded
//!  guard   the other mode: objects on pages of their own, so that misuse is noticed
//!  mappings the program's own mmap and kin, where that is asked for
//!  pools   blocks of pagewise's own allocators, where that is asked for
//!  inline  jumps at the entry of functions that nobody else lets us stand before
//!  named   allocators under other names than malloc's
//!  attach  a program that runs already
//!  linker  functions that older C libraries have in other files, or lack
//!  symbols functions by name, where the loader does not look them up
//!  objects files of code, where the loader has no table of them
//!  begin   what happens at the first call, after fork, and how a collector is greeted
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

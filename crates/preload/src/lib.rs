//! The recorder, a library that a program loads by `LD_PRELOAD`. It interposes `malloc` and the
//! other allocation functions, and counts allocations and frees by call stack in tables that it
//! shares with the collector ([`pagewise_heaplog::tables`]).
//!
//! This code runs inside another program's `malloc`. It allocates nothing, and calls no function
//! that might allocate. It takes a lock only to record an item for the first time, and does not
//! wait for the collector while it records. After an error it records less data instead of failing.
//!
//! ```text
//!  stubs   exported functions: a few instructions, and a jump to the target for the recording mode
//!  hooks   recording hooks of malloc's family
//!  threads the data of each thread, and its counts
//!  stacks  call stacks: found by a hash of their words, or unwound frame by frame
//!  map     a hash table that is read without a lock
//!  rows    unwind rows by return address; cfi reads them from .eh_frame
//!  tree    the call tree, and allocation sites
//!  live    live blocks by address
//!  log     allocations and frees of large blocks in order of time, on request
//!  peak    live bytes and their maximum
//!  aux_hooks hooks of other functions, such as pthread_create and dlclose
//!  guard   the guarding mode: objects on separate pages, which detects memory errors
//!  mappings the program's own mmap and related calls, on request
//!  pools   blocks of pagewise's own allocators, on request
//!  inline  inline hooks of functions that cannot be interposed
//!  named   allocators with other function names than malloc's
//!  attach  recording of a running program
//!  linker  functions that older C libraries lack or have in other files
//!  symbols lookup of functions by name, if the loader's lookup is missing
//!  objects files of code, if the loader has no lookup for them
//!  begin   the first call, children of fork, and the handshake with the collector
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

//! Requirements on every pool, for each discipline: one suite for all pools.
//!
//! The suite runs a program of random steps, in an order that the pool permits, on the pool and on
//! a mirror that knows the expected content of each block. To add a pool, add a line to
//! [`for_each_allocator`]: its name, and an expression that creates a pool with blocks of `memory`,
//! or is `None` if `memory` has too little for a first block.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

mod direct;
mod frames;
mod heap;
mod mirror;
mod mutants;
mod program;
mod suite;

use std::ffi::CString;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewise_alloc::persistent::{Persistent, PersistentOptions};
use pagewise_alloc::source::{FailAfter, FixedBuffer};
use pagewise_alloc::{DisciplinedAllocator, Fifo, Pages, Ring, Stack, Tlsf};

use direct::Direct;
use frames::RingFrames;
use heap::TestHeap;

/// Source of a pool under test.
type TestMemory = FailAfter<TestHeap>;

macro_rules! for_each_allocator {
    ($($name:ident: |$memory:ident| $new:expr;)*) => {
        mod pool {
            $(mod $name {
                use crate::*;

                fn new($memory: TestMemory) -> Option<impl DisciplinedAllocator> {
                    $new
                }

                fn new_in_buffer($memory: FixedBuffer<'static>) -> Option<impl DisciplinedAllocator> {
                    $new
                }

                #[test]
                fn hands_out_blocks_that_are_aligned_and_apart_and_keep_what_they_hold() {
                    suite::runs_any_program(new);
                }

                #[test]
                fn runs_out_of_memory_at_any_moment_and_nothing_is_harmed() {
                    suite::survives_running_out(new);
                }

                #[test]
                fn lives_in_a_buffer_and_writes_to_no_other_memory() {
                    suite::lives_in_a_buffer(new_in_buffer);
                }
            })*
        }
    };
}

/// Creates a heap in a file, which is deleted when the heap is closed.
fn persistent() -> Option<Persistent> {
    static HEAPS: AtomicUsize = AtomicUsize::new(0);
    let number = HEAPS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir();
    let path = path.join(format!("pagewise-conformance-{}-{number}.heap", std::process::id()));
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: no other code has the file open.
    let heap = unsafe { Persistent::open(&name, &PersistentOptions::DEFAULT) };
    fs::remove_file(path).unwrap();
    heap.ok()
}

for_each_allocator! {
    direct: |memory| Some(Direct::new(memory));
    stack: |memory| Some(Stack::unguarded(memory));
    stack_with_guards: |memory| Some(Stack::guarded(memory));
    fifo: |memory| Fifo::unguarded(memory);
    fifo_with_guards: |memory| Fifo::guarded(memory);
    pages: |memory| Some(Pages::unguarded(memory));
    pages_with_guards: |memory| Some(Pages::guarded(memory));
    // This heap takes its memory from its file; a test in `persistent/replay.rs` covers a full
    // disk.
    persistent: |_memory| persistent();
    ring: |memory| Ring::unguarded(memory).map(RingFrames::new);
    ring_with_guards: |memory| Ring::guarded(memory).map(RingFrames::new);
    tlsf: |memory| Some(Tlsf::<_>::new(memory));
    tlsf_with_nothing_at_hand: |memory| Some(Tlsf::<_, 0>::new(memory));
}

//! `pagewise heap run` of a Rust program whose global allocator is mimalloc: this test program,
//! which counts its own allocations.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test may do all of that"
)]

mod fixture;
#[path = "fixture/global.rs"]
mod global;

use global::{CountedAllocator, allocate};

#[global_allocator]
static ALLOCATOR: CountedAllocator<mimalloc::MiMalloc> = CountedAllocator(mimalloc::MiMalloc);

/// Program that is recorded.
#[test]
#[ignore = "the other tests run it"]
fn the_program() {
    allocate();
}

#[test]
fn every_call_is_counted_to_the_byte() {
    global::every_call_is_counted_to_the_byte("the_program", ", mi_");
}

#[test]
fn samples_of_mimalloc_are_within_their_error_bounds() {
    global::samples_are_taken("the_program");
}

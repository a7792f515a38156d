//! `pagewise heap run` of a Rust program that has jemalloc for all that it allocates: this one. It
//! counts for itself.

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
static ALLOCATOR: CountedAllocator<tikv_jemallocator::Jemalloc> =
    CountedAllocator(tikv_jemallocator::Jemalloc);

/// Program that is recorded.
#[test]
#[ignore = "the other tests run it"]
fn the_program() {
    allocate();
}

#[test]
fn every_call_is_counted_to_the_byte() {
    global::every_call_is_counted_to_the_byte("the_program", "_rjem_malloc of ");
}

#[test]
fn samples_are_taken_of_it_too() {
    global::samples_are_taken("the_program");
}

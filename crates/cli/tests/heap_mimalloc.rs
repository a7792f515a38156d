//! `pagewise heap run` of a Rust program that has mimalloc for all that it allocates: this one. It counts for itself.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test may do all of that"
)]

mod fixture;
#[path = "fixture/global.rs"]
mod global;

use fixture::number;
use fixture::recorder::report;
use global::{Counted, allocate, compare, record};

#[global_allocator]
static ALLOCATOR: Counted<mimalloc::MiMalloc> = Counted(mimalloc::MiMalloc);

/// What is recorded.
#[test]
#[ignore = "the other tests run it"]
fn the_program() {
    allocate();
}

#[test]
fn every_call_is_counted_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.pwh");
    let output = record("the_program", &file, &[]);
    compare(&output, &file);
    let report = report(&file);
    let allocator = report["recording"]["allocator"].as_str().unwrap();
    assert!(allocator.contains(", mi_"), "{allocator}");
}

#[test]
fn samples_are_taken_of_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.pwh");
    let whole = folder.path().join("whole.pwh");
    record("the_program", &whole, &[]);
    record("the_program", &file, &["--sample", "1k"]);
    let [whole, samples] = [whole, file].map(|file| report(&file));
    let [all, estimated] = [&whole, &samples].map(|it| number(it, "totals.allocated_bytes"));
    let within = number(&samples, "totals.allocated_within");
    assert!(all.abs_diff(estimated) < 6 * within, "{all}, {estimated} within {within}");
    assert!(within < all / 5, "{within} of {all}");
}

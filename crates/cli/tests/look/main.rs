//! Tests of `diagnose`, `explain`, `maps`, `pools` and saved files, one module per subject.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod core_file;
mod diagnose;
mod pools;
mod saved_files;
#[cfg(feature = "top")]
mod top;

//! Tests of all commands: hostile files of a target, outputs, manual pages, completions.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod files;
mod outputs;
mod shell;

//! Tests of `trim` and `run`, one module per command.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod run_command;
mod trim;

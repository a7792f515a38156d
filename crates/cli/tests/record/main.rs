//! Tests of commands that record a running program, except `heap`: one module per command.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod faults;
mod faults_heap;
mod guard;
#[cfg(feature = "record")]
mod recording;
mod syscalls;
mod watch;

//! Tests of `pagewise heap`, one module per subject.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod arenas;
mod attach;
mod export;
mod flood;
mod hostile;
mod leaks;
mod life;
mod maps;
mod names;
mod other_libraries;
mod own_malloc;
mod pools;
mod redis;
mod report;
mod run;
mod scan;
mod servers;
mod static_programs;
mod types;

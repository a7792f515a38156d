//! `pagewise export`: the command, and Prometheus and process-exporter as independent judges.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod command;
mod dashboards;
mod large_host;
mod otlp;
mod process_exporter;
mod prometheus;
mod server;

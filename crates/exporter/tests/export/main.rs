//! Tests of metrics from synthetic sweeps: as text, by an independent parser and promtool, and over
//! HTTP.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod groups;
mod http;
mod parser;
mod sweeps;
mod text;

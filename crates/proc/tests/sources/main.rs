//! Tests of the parsers and readers of /proc and core files, one module per source.

#![allow(clippy::unwrap_used, reason = "tests may do that")]

mod core_file;
mod fields;
mod kernels;
mod listing;
mod mappings;

//! Checks and chores of the workspace: `cargo xtask ci`.
#![forbid(unsafe_code)]

fn main() {}

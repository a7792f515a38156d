//! Tests of `explain` on synthetic snapshots: each rule has a minimal input.

mod build;
mod findings;
mod pools;
mod quadrants;
mod report;

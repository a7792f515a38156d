//! `explain` on snapshots made by hand: each rule with the smallest input that shows it.

mod build;
mod findings;
mod pools;
mod quadrants;
mod report;

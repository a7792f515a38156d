//! `system` and `oom`: the account of RAM against independent counts, and predictions against real
//! OOM kills in memory cgroups.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

mod cgroup_v2;
#[path = "../fixture/mod.rs"]
mod fixture;
mod kills;
mod machines;
mod oom;
mod owners;
mod system;

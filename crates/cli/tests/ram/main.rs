//! `system` and `oom`: the account of RAM against independent counts, and predictions against real
//! OOM kills in memory cgroups.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

#[path = "../fixture/mod.rs"]
mod fixture;
mod kills;
mod machines;
mod oom;
mod system;

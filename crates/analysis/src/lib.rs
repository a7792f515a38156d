//! Analyses: model values to reports. Pure: no I/O, no clock.
#![forbid(unsafe_code)]
mod blocks;
mod causes;
mod cells;
pub mod define;
pub mod diagnose;
mod findings;

mod machine;
mod measured;
mod process;
mod recorded;
#[cfg(test)]
mod sample;
pub(crate) use machine::cgroup_limit;
pub use machine::{doctor, events, fragmentation};
pub use measured::{lab, simulated, stat};
pub(crate) use process::{address_map, swapped};
pub use process::{
    diff, explain, filter, heap_graph, heap_scan, invariants, maps, page_map, pagewise_pools,
    pools, ps, pss, quadrants, sections, thp, trim,
};
pub use recorded::{calls, faults, guard, heap, shootdowns, sweeps, watch};

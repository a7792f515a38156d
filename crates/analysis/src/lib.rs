//! Analyses: they convert model values to reports, without I/O and without reading a clock. Report
//! blocks for people appear in text and HTML, and report blocks for programs in JSON.
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
pub use machine::{
    account, cgroup_report, doctor, events, fragmentation, headroom, oom, system, top,
};
pub use measured::{lab, simulated, stat};
pub(crate) use process::{address_map, swapped};
pub use process::{
    diff, explain, filter, heap_graph, heap_scan, invariants, maps, page_map, pagewise_pools,
    pools, program_name, ps, pss, quadrants, sections, thp, trim,
};
pub use recorded::{calls, faults, guard, heap, shootdowns, sweeps, watch};

//! Analyses: model values to reports. Pure: no I/O, no clock.
#![forbid(unsafe_code)]
mod address_map;
mod blocks;
pub mod calls;
mod cells;
pub mod define;
pub mod diff;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod faults;
pub mod filter;
mod findings;
pub mod fragmentation;
pub mod guard;
pub mod heap;
pub mod invariants;
pub mod lab;
pub mod maps;
pub mod page_map;
pub mod pagewise_pools;
pub mod pools;
pub mod ps;
pub mod pss;
pub mod quadrants;
pub mod sections;
pub mod shootdowns;
pub mod simulated;
pub mod stat;
mod swapped;
pub mod thp;
pub mod watch;

#[cfg(test)]
mod sample;

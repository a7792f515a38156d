//! Analyses: model values to reports. Pure: no I/O, no clock.
#![forbid(unsafe_code)]
pub mod define;
pub mod diff;
pub mod filter;
pub mod invariants;
pub mod maps;
pub mod pools;
pub mod ps;
pub mod pss;
pub mod quadrants;
pub mod sections;

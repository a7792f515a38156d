//! Memory operations that only experiments need: mappings of every kind whose bytes are written by
//! offset, forked children, pointer chases, the C library's heap, swap files, NUMA policies.
//!
//! These are safe functions around unsafe operations, so that the lab itself has no unsafe code.

pub mod chase;
pub mod fork;
pub mod libc_malloc;
pub mod mapping;
pub mod numa;
pub mod swap;

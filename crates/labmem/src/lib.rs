//! Memory operations that only experiments need: mappings with any flags, children of `fork`,
//! pointer chases, the C library's heap, swap files, and NUMA policies.
//!
//! These safe functions contain unsafe code, so that the crate `lab` needs no unsafe code.

pub mod chase;
pub mod fork;
pub mod libc_malloc;
pub mod mapping;
pub mod numa;
pub mod swap;

//! Typed wrappers of kernel interfaces: system calls, ioctls, ptrace, probes. They contain no
//! policy.
//!
//! Each file wraps one interface. Errors of the kernel are returned as [`std::io::Error`].

pub mod bpf;
pub mod cache;
pub mod cpuid;
pub mod descriptor_holder;
pub mod interrupt;
pub mod launch;
pub mod libraries;
pub mod madvise;
pub mod output_file;
pub mod own_memory;
pub mod page_cache;
pub mod pagemap_scan;
pub mod parent_death;
pub mod peer;
pub mod perf_event;
pub mod perf_page;
pub mod perf_ring;
pub mod precise_sleep;
pub mod priority;
pub mod probe;
pub mod procmap_query;
pub mod ptrace;
pub mod region;
pub mod remote;
#[cfg(target_env = "gnu")]
pub mod resolver;
pub mod system;
pub mod thp;
pub mod trace;
pub mod tracefs;

//! Sources: parses files of `/proc`, ELF headers and core files into the types of `pagewise-model`.
//! Interprets nothing. A *copied tree* is a folder with copies of files of `/proc`, which is read
//! in place of the live `/proc`.
#![forbid(unsafe_code)]

mod ending;
mod error;
mod files;
mod machine;
mod memory;
mod process;
mod root;
mod stream;
mod text;

pub use ending::program_ending;
pub use error::{CAP_SYS_PTRACE, ProcError};
pub use files::{core_file, data_symbols, elf, target_file, variables};
pub use machine::activity as machine_activity;
pub use machine::{
    buddyinfo, cached_files, counters, fragmentation, interrupts, kernel_log, meminfo, mountinfo,
    oom_log, oom_reading, pressure, settings, slabinfo, swaps, system_reading, users, vmstat,
    zoneinfo,
};
pub(crate) use machine::{kernel_memory, shmem_uses};
pub(crate) use memory::page_charges;
pub use memory::{huge, ksm, numa, page_map, pages, referenced, zero_pages};
pub(crate) use process::heads;
pub(crate) use process::tmpfs;
pub use process::{
    activity, auxv, calls, capture, cgroup, fork_room, huge_flags, limits, listing, maps,
    memory_files, others, page_sums, pagewise_pools, quick_reader, run_queue, saved, smaps, stat,
    status, target, threads, tree, unused_stacks,
};
pub use root::ProcRoot;

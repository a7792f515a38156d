//! Files of one process, or of all: mappings, counters, threads, and the snapshot made of them.

pub mod activity;
pub mod auxv;
pub mod calls;
pub mod capture;
pub mod cgroup;
pub mod fork_room;
pub(crate) mod heads;
pub mod huge_flags;
pub mod limits;
pub mod listing;
pub mod maps;
pub mod memory_files;
pub mod others;
pub mod page_sums;
pub mod pagewise_pools;
pub mod quick_reader;
pub mod saved;
pub mod smaps;
pub mod stat;
pub mod status;
pub mod target;
pub mod threads;
pub(crate) mod tmpfs;
pub mod tree;
pub mod unused_stacks;

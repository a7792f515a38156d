//! Files of the whole machine: memory, swap, settings, users.

pub mod activity;
pub mod buddyinfo;
pub mod cached_files;
pub mod counters;
pub mod fragmentation;
pub mod interrupts;
pub mod kernel_log;
pub(crate) mod kernel_memory;
pub mod meminfo;
pub mod mountinfo;
pub mod oom_log;
pub mod oom_reading;
pub mod pressure;
pub mod settings;
pub(crate) mod shmem_uses;
pub mod slabinfo;
pub mod swaps;
pub mod system_reading;
pub mod users;
pub mod vmstat;
pub mod zoneinfo;

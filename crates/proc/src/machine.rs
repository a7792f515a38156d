//! Files of the whole machine: memory, swap, settings, users.

pub mod activity;
pub mod buddyinfo;
pub mod counters;
pub mod fragmentation;
pub mod interrupts;
pub mod meminfo;
pub mod mountinfo;
pub mod pressure;
pub mod settings;
pub mod swaps;
pub mod users;
pub mod vmstat;

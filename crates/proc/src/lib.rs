//! Sources: files of `/proc` and ELF headers to model values. Interprets nothing.
#![forbid(unsafe_code)]

pub mod auxv;
pub mod buddyinfo;
pub mod calls;
pub mod capture;
pub mod cgroup;
pub mod elf;
mod ending;
mod error;
pub mod fragmentation;
mod heads;
pub mod huge;
pub mod interrupts;
pub mod ksm;
pub mod limits;
pub mod listing;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod numa;
pub mod page_map;
pub mod pages;
pub mod pagewise_pools;
pub mod pressure;
pub mod referenced;
mod root;
pub mod saved;
pub mod settings;
pub mod smaps;
pub mod stat;
pub mod status;
mod stream;
pub mod swaps;
pub mod target;
pub mod target_file;
mod text;
pub mod threads;
pub mod tree;
pub mod users;
pub mod variables;
pub mod vmstat;

pub use ending::program_ending;
pub use error::{CAP_SYS_PTRACE, ProcError};
pub use root::ProcRoot;

//! Records the heap of a running program.
//!
//! The recorder in the program (`pagewise-preload`) counts allocations. This crate reads its tables
//! and writes a file from them, which `pagewise-heapread` reads.
#![forbid(unsafe_code)]

mod attach;
mod block_lookup;
mod blocks;
mod collector;
mod error;
pub mod guard;
mod guest_dir;
mod hook;
mod layout;
mod library;
mod memory;
mod names;
mod output;
pub mod probes;
mod recorder_cache;
mod rendezvous;
mod run_dir;
pub mod safe_call;
mod tables;

pub use attach::{AttachRefused, Attached, LeftBehind, PauseMeter, is_visible};
pub use block_lookup::{allocation_stacks, block_at, recorder_memory, stacks_of_recording};
pub use blocks::LiveBlocks;
pub use collector::{CollectRequest, Collector, Finished, RecorderTrouble};
pub use error::HeapError;
pub use hook::{LeftOut, Why};
pub use library::{RecorderLibrary, library};
pub use names::Nameless;

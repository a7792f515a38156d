//! Recordings of a heap over time.
//!
//! While a program runs, a recorder inside it counts allocations by call stack, in memory that it
//! shares with a collector. The collector reads these tables from time to time and appends new
//! entries to a file. A [`LogRecording`] is the content of such a file: raw addresses and numbers,
//! without names of functions.
#![forbid(unsafe_code)]

#[cfg(feature = "file")]
mod format;
pub mod glibc_arena;
pub mod glibc_cache;
pub mod glibc_chunk;
pub mod guard;
#[cfg(feature = "file")]
mod layouts;
#[cfg(feature = "file")]
pub mod reader;
pub mod recording;
#[cfg(feature = "file")]
mod shapes;
pub mod tables;
#[cfg(feature = "file")]
pub mod writer;

pub use recording::LogRecording;
#[cfg(feature = "file")]
pub use writer::LogWriter;

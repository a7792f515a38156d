//! Recordings of a heap over time.
//!
//! While a program runs, a recorder inside it counts what is allocated by call stack, in memory
//! that it shares with who looks on. A collector outside reads these tables from time to time and
//! adds what is new to a file. A [`LogRecording`] is what such a file says: addresses and numbers,
//! as they were, of which nothing is looked up yet.
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

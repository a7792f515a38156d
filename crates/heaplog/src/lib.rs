//! Recordings of a heap over time.
//!
//! While a program runs, a recorder inside it counts what is allocated by call stack, in memory that it shares with who
//! looks on. A collector outside reads these tables from time to time and adds what is new to a file. A [`Recording`] is what
//! such a file says: addresses and numbers, as they were, of which nothing is looked up yet.
#![forbid(unsafe_code)]

pub mod recording;
pub mod tables;

pub use recording::Recording;

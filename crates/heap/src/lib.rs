//! Records the heap of a running program, and reads such recordings.
//!
//! The recorder in the program (`pagewise-preload`) counts; from here its tables are read and made into a file, and a file into
//! a [`pagewise_model::heap::Recording`] with functions and lines.
#![forbid(unsafe_code)]

mod at;
mod attach;
mod blocks;
mod collector;
mod error;
mod folder;
pub mod guard;
mod hook;
mod kept;
mod layout;
mod library;
mod meeting;
mod memory;
mod names;
mod output;
pub mod probes;
mod resolve;
mod tables;

pub use at::block_at;
pub use attach::{Attached, Ended, Refused, is_visible};
pub use blocks::Live;
pub use collector::{Collector, Finished, Request};
pub use error::Error;
pub use hook::{LeftOut, Why};
pub use library::{Library, library};
pub use names::Nameless;
pub use resolve::resolve;

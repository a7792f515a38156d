//! Sources: files of `/proc` and ELF headers to model values. Interprets nothing.
#![forbid(unsafe_code)]

mod error;
pub mod maps;
pub mod pages;
mod root;
pub mod smaps;
mod text;

pub use error::Error;
pub use root::ProcRoot;

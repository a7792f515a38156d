//! Allocators with predictable behavior, each for one pattern of use.
//!
//! A pool takes large blocks from a [`Source`] and allocates small ones in them. It never calls the
//! global allocator, and returns `None` if its source has no more memory.
#![no_std]

mod classes;
#[cfg(feature = "allocator-api2")]
mod collections;
mod discipline;
pub mod fifo;
#[cfg(feature = "os")]
mod fork;
pub mod hooks;
mod lock;
pub mod misuse;
pub mod pages;
#[cfg(all(feature = "os", target_pointer_width = "64", target_endian = "little"))]
pub mod persistent;
pub mod ring;
mod shelf;
pub mod source;
pub mod stack;
pub mod tlsf;
mod values;
#[doc(hidden)]
pub mod watch;

#[cfg(feature = "allocator-api2-04")]
pub use collections::Api04;
pub use discipline::{Discipline, DisciplinedAllocator};
pub use fifo::Fifo;
pub use pages::Pages;
pub use ring::Ring;
#[cfg(feature = "os")]
pub use shelf::SystemMalloc;
pub use shelf::{ShelfSlot, TestShelf};
#[cfg(feature = "os")]
pub use source::Os;
pub use source::{Source, SourceBlock};
pub use stack::Stack;
#[cfg(feature = "thread")]
pub use stack::thread::{TScope, t_scope};
pub use tlsf::{LockedTlsf, Tlsf};

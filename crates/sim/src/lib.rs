//! Simulators: caches, TLBs and the kernel's page replacement, fed with accesses to memory.
//!
//! Pure: no I/O, no clock, and chance only from seeds, so that the same accesses give the same counts. What comes out is
//! *simulated*: a model of some hardware, as good as its assumptions, which [`Levels`] states.
//!
//! ```
//! use pagewise_sim::geometry::{I7_6800K, PageSize};
//! use pagewise_sim::{Levels, Policy, workload};
//!
//! let mut caches = Levels::caches(&I7_6800K.caches, Policy::Lru)?;
//! let mut tlb = Levels::tlb(&I7_6800K.tlb(PageSize::Base)?, Policy::Lru)?;
//! workload::Uniform { bytes: 1 << 20, accesses: 10_000, seed: 1 }.play(&mut |block| {
//!     caches.play(block);
//!     tlb.play(block);
//! });
//! // 1 MiB is 256 pages: more than the 64 of the first level, less than the 1536 of the second.
//! assert!(tlb.counts().first.total() > 5_000);
//! assert_eq!(tlb.counts().last.total(), 256);
//! # Ok::<(), pagewise_sim::Unfit>(())
//! ```
#![forbid(unsafe_code)]

mod access;
pub mod geometry;
pub mod lackey;
mod levels;
mod prefetch;
mod recency;
pub mod replacement;
mod table;
pub mod workload;

pub use access::{Access, Split};
pub use geometry::Unfit;
pub use levels::{Counts, Levels};
pub use prefetch::NextPage;
pub use recency::Policy;

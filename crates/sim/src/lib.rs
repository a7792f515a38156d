//! Simulators: caches, TLBs and the kernel's page replacement, fed with accesses to memory.
//!
//! Simulators use no I/O and no clock, and random numbers depend only on seeds, so the same
//! accesses give the same counts. Results are *simulated*: they are as good as the assumptions of
//! the hardware model.
//!
//! ```
//! use pagewise_sim::geometry::{I7_6800K, TlbPageSize};
//! use pagewise_sim::{Levels, RecencyPolicy, workload};
//!
//! let mut caches = Levels::caches(&I7_6800K.caches, RecencyPolicy::Lru)?;
//! let mut tlb = Levels::tlb(&I7_6800K.tlb(TlbPageSize::Base)?, RecencyPolicy::Lru)?;
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

pub use access::{MemoryAccess, ReadWriteCounts};
pub use geometry::Unfit;
pub use levels::{LevelCounts, Levels};
pub use prefetch::NextPagePrefetcher;
pub use recency::RecencyPolicy;

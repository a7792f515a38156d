//! The heap of a process by a sample of its pages: live and free shares, each as a range.

use serde::{Deserialize, Serialize};

use crate::{Absent, Bytes};

/// Two bounds of a number of bytes that was estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesEstimate {
    /// The lower bound.
    pub low: Bytes,
    /// The upper bound.
    pub high: Bytes,
}

/// The arenas of an allocator, estimated from windows: ranges of addresses of equal size at random
/// places. The process ran meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapSample {
    /// The allocator.
    pub allocator: String,
    /// Number of arenas.
    pub arenas: u64,
    /// Resident memory of the arenas. Blocks with mappings of their own are not part of it.
    pub resident: Bytes,
    /// Resident memory of live blocks and of the allocator itself.
    pub live: BytesEstimate,
    /// Resident memory of free blocks, `top` included.
    pub free: BytesEstimate,
    /// Resident pages of free blocks alone, which `malloc_trim(0)` would return, without `top`.
    pub trimmable: BytesEstimate,
    /// Resident free bytes in pages that also hold other bytes, which no call can return.
    pub pinned: BytesEstimate,
    /// Resident free memory at the ends of the arenas, which the next allocations use.
    pub top: BytesEstimate,
    /// Number of windows that were read.
    pub windows: u64,
    /// Number of windows of the arenas.
    pub population: u64,
    /// Resident bytes in the windows whose use remained unknown: a block was changed meanwhile, or
    /// no header was found. All upper bounds contain them.
    pub unsettled: Bytes,
    /// Bytes that were read.
    pub read: Bytes,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The longest single system call that may have held the process's mmap lock, in nanoseconds.
    pub longest_hold_ns: u64,
}

/// The reason of a snapshot that an earlier version saved.
pub(crate) fn not_saved() -> Result<HeapSample, Absent> {
    Err(Absent::NotCollected("the version that saved this file did not sample the heap".into()))
}

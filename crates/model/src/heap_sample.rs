//! The heap of a process, estimated from a sample of its pages: lower and upper bounds of live and
//! free memory.

use serde::{Deserialize, Serialize};

use crate::{Absent, Bytes};

/// Lower and upper bound of an estimated number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesEstimate {
    /// The lower bound.
    pub low: Bytes,
    /// The upper bound.
    pub high: Bytes,
}

/// Arenas of an allocator, estimated from windows: address ranges of equal length at random
/// addresses. The process was running while the windows were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapSample {
    /// Name of the allocator.
    pub allocator: String,
    /// Number of arenas.
    pub arenas: u64,
    /// Resident memory of the arenas. It excludes blocks with their own mappings.
    pub resident: Bytes,
    /// Resident memory of live blocks and of the allocator itself.
    pub live: BytesEstimate,
    /// Resident memory of free blocks, `top` included.
    pub free: BytesEstimate,
    /// Resident pages that contain only free blocks, without `top`: `malloc_trim(0)` would release
    /// them.
    pub trimmable: BytesEstimate,
    /// Resident free bytes in pages that also contain other bytes, so that no call can release
    /// them.
    pub pinned: BytesEstimate,
    /// Resident free memory at the ends of the arenas, which the next allocations use.
    pub top: BytesEstimate,
    /// Number of windows that were read.
    pub windows: u64,
    /// Number of windows into which the arenas were divided.
    pub population: u64,
    /// Resident bytes of windows whose use is unknown, because a block was changed during the
    /// reading or no header was found. All upper bounds include these bytes.
    pub unsettled: Bytes,
    /// Number of bytes that were read.
    pub read: Bytes,
    /// Duration of the reading in nanoseconds.
    pub took_ns: u64,
    /// One free page of each window that has such pages. They are not saved.
    #[serde(skip)]
    pub free_pages: Vec<MemoryExcerpt>,
    /// Longest duration of a single system call that may have held the process's mmap lock, in
    /// nanoseconds.
    pub longest_hold_ns: u64,
}

/// Bytes of a process, which a later reading compares with the bytes at the same address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryExcerpt {
    /// Address of the bytes.
    pub address: u64,
    /// Some bytes of a block or page.
    pub bytes: Vec<u8>,
    /// Number of equal parts of the memory for which the excerpt stands.
    pub weight: u64,
}

/// The reason for a missing sample in a snapshot that an earlier version saved.
pub(crate) fn not_saved() -> Result<HeapSample, Absent> {
    Err(Absent::NotCollected("the version that saved this file did not sample the heap".into()))
}

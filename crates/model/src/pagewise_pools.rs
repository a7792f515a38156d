//! Pools of pagewise's own allocators in a process, with the counters that the pools keep.

use serde::{Deserialize, Serialize};

use crate::{AddrRange, Bytes, Name, Pid};

/// All pools of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// The process.
    pub pid: Pid,
    /// Name of the process.
    pub process: Name,
    /// Live pools, and ended pools whose table entries have not been reused.
    pub pools: Vec<RegisteredPool>,
    /// Number of pools that are not listed because the table of pools was full.
    pub lost: u32,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredPool {
    /// Kind of allocator: `stack`, `fifo` and so on.
    pub kind: Name,
    /// Name that the program gave to the pool; empty if the pool has no name.
    pub name: Name,
    /// True if the pool exists; false if it has ended.
    pub lives: bool,
    /// Number of allocation requests.
    pub requests: u64,
    /// Requested bytes since the creation of the pool.
    pub requested: Bytes,
    /// Freed bytes since the creation of the pool.
    pub returned: Bytes,
    /// Highest number of live bytes so far.
    pub peak_live: Bytes,
    /// Bytes that the pool currently holds from its source: the memory provider that it was created
    /// with.
    pub held: Bytes,
    /// Highest value of `held` so far.
    pub peak_held: Bytes,
    /// Number of blocks obtained from the source since the creation of the pool.
    pub blocks_taken: u64,
    /// Number of blocks returned to the source since the creation of the pool.
    pub blocks_returned: u64,
    /// Number of requests that took a slow path.
    pub slow_paths: u64,
    /// Estimated number of requests by size. The upper bounds of the sizes are 1 byte, 2 bytes, 4
    /// bytes and so on; the last number counts all larger sizes.
    pub sizes: Vec<u64>,
    /// Values of the pool after increasing numbers of requests, from its creation.
    pub series: Vec<Point>,
    /// Address ranges of the pool's blocks, unordered.
    pub ranges: Vec<AddrRange>,
    /// Number of address ranges that were not stored, because the list of ranges was full.
    pub ranges_lost: u64,
}

/// Values of a pool after a number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Number of requests since the creation of the pool.
    pub requests: u64,
    /// Live bytes.
    pub live: Bytes,
    /// Bytes that the pool holds from its source.
    pub held: Bytes,
}

impl RegisteredPool {
    /// Bytes that are live at the time of the reading.
    pub fn live(&self) -> Bytes {
        self.requested.saturating_sub(self.returned)
    }
}

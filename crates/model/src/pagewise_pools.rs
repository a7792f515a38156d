//! The pools of pagewise's own allocators in a process, by their own counters.

use serde::{Deserialize, Serialize};

use crate::{AddrRange, Bytes, Name, Pid};

/// All pools of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub process: Name,
    /// Live pools, and ended pools whose entries are not yet used again.
    pub pools: Vec<RegisteredPool>,
    /// Number of pools without an entry, because the table of pools was full.
    pub lost: u32,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredPool {
    /// The allocator: `stack`, `fifo`, ..
    pub kind: Name,
    /// Name that the program gave to the pool; empty if it has none.
    pub name: Name,
    /// True if it lives.
    pub lives: bool,
    /// Number of allocation requests.
    pub requests: u64,
    /// Requested bytes since the creation of the pool.
    pub requested: Bytes,
    /// Freed bytes since the creation of the pool.
    pub returned: Bytes,
    /// Highest number of live bytes.
    pub peak_live: Bytes,
    /// Bytes obtained from its source.
    pub held: Bytes,
    /// Highest value of `held`.
    pub peak_held: Bytes,
    /// Blocks obtained from its source since its creation.
    pub blocks_taken: u64,
    /// Blocks returned to its source.
    pub blocks_returned: u64,
    /// Number of times a slow path was taken.
    pub slow_paths: u64,
    /// Requests by size, estimated: up to 1 byte, 2, 4, .. the last for all larger ones.
    pub sizes: Vec<u64>,
    /// State of the pool over time, from its creation.
    pub series: Vec<Point>,
    /// Address ranges of its blocks, unordered.
    pub ranges: Vec<AddrRange>,
    /// Number of address ranges that were not stored, because the list of ranges was full.
    pub ranges_lost: u64,
}

/// State of a pool after a number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Number of requests.
    pub requests: u64,
    /// Live bytes.
    pub live: Bytes,
    /// Bytes obtained from its source.
    pub held: Bytes,
}

impl RegisteredPool {
    /// Live bytes now.
    pub fn live(&self) -> Bytes {
        self.requested.saturating_sub(self.returned)
    }
}

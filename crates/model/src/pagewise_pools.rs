//! The pools of pagewise's own allocators in a process, as they count themselves.

use serde::{Deserialize, Serialize};

use crate::{AddrRange, Bytes, Name, Pid};

/// All pools of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// The process.
    pub pid: Pid,
    /// Its name.
    pub process: Name,
    /// Those that live, and those that ended and whose place no other has taken yet.
    pub pools: Vec<RegisteredPool>,
    /// Pools that found no place to count in.
    pub lost: u32,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredPool {
    /// Which allocator: `stack`, `fifo`, ..
    pub kind: Name,
    /// Name that the program gave to the pool; empty if it has none.
    pub name: Name,
    /// True if it lives.
    pub lives: bool,
    /// Number of allocation requests.
    pub requests: u64,
    /// Bytes that were asked for, ever.
    pub requested: Bytes,
    /// Bytes that came back, ever.
    pub returned: Bytes,
    /// The most that was out at once.
    pub peak_live: Bytes,
    /// Bytes obtained from its source.
    pub held: Bytes,
    /// The most that it had.
    pub peak_held: Bytes,
    /// Blocks that it took of its source, ever.
    pub blocks_taken: u64,
    /// Blocks returned to its source.
    pub blocks_returned: u64,
    /// Number of times a slow path was taken.
    pub slow_paths: u64,
    /// Requests by size, estimated: up to 1 byte, 2, 4, .. the last for all larger ones.
    pub sizes: Vec<u64>,
    /// Course over time, from the pool's creation.
    pub series: Vec<Point>,
    /// Address ranges of its blocks, unordered.
    pub ranges: Vec<AddrRange>,
    /// Blocks of which it lost count where they lie: there were too many in too many places.
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

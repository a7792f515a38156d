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
    pub pools: Vec<Pool>,
    /// Pools that found no place to count in.
    pub lost: u32,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Which allocator: `stack`, `fifo`, ..
    pub kind: Name,
    /// What its program calls it; empty where it has no name.
    pub name: Name,
    /// Whether it lives.
    pub lives: bool,
    /// How often memory was asked for.
    pub requests: u64,
    /// Bytes that were asked for, ever.
    pub requested: Bytes,
    /// Bytes that came back, ever.
    pub returned: Bytes,
    /// The most that was out at once.
    pub peak_live: Bytes,
    /// What it has of its source.
    pub held: Bytes,
    /// The most that it had.
    pub peak_held: Bytes,
    /// Blocks that it took of its source, ever.
    pub blocks_taken: u64,
    /// Blocks that it gave back.
    pub blocks_returned: u64,
    /// How often a fast path did not do.
    pub slow_paths: u64,
    /// Requests by size, estimated: up to 1 byte, 2, 4, .. the last for all larger ones.
    pub sizes: Vec<u64>,
    /// How it went, from its beginning.
    pub series: Vec<Point>,
    /// Where its blocks lie, in no order.
    pub ranges: Vec<AddrRange>,
    /// Blocks of which it lost count where they lie: there were too many in too many places.
    pub ranges_lost: u64,
}

/// A pool after so many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// How many requests.
    pub requests: u64,
    /// What was out.
    pub live: Bytes,
    /// What it had of its source.
    pub held: Bytes,
}

impl Pool {
    /// What is out now.
    pub fn live(&self) -> Bytes {
        self.requested.saturating_sub(self.returned)
    }
}

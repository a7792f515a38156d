//! Pools: pages with blocks of one size. In a consistent pool each block is either live, freed or
//! never used.
//!
//! ```text
//!  pool_header
//!     0  number of live blocks              36  size class: blocks of 16 * (class + 1) bytes
//!     8  first free block                   40  offset of the first block that was never used
//!    16  next pool                          44  offset of the last block
//!    24  previous pool                      48  the blocks
//!    32  index of the arena
//! ```
//!
//! The first word of a free block is the address of the next free block, or 0 in the last one.

use pagewise_model::AddrRange;

use super::arenas::PythonArena;
use crate::corruption::CorruptionLog;

/// Number of bytes of a `pool_header`.
pub(super) const HEADER_BYTES: u64 = 48;
/// Alignment of blocks in bytes; each size class is 16 bytes larger than the previous one.
pub(super) const ALIGNMENT: u64 = 16;
/// Number of size classes.
pub(super) const CLASSES: u64 = 32;
const FREE: u64 = 8;
pub(super) const ARENA_INDEX: u64 = 32;
pub(super) const CLASS: u64 = 36;
const NEXT_OFFSET: u64 = 40;
pub(super) const LAST_OFFSET: u64 = 44;

/// Copy of the bytes of an arena. In the copy, unknown bytes are zero.
#[derive(Debug)]
pub(super) struct ArenaImage {
    pub(super) range: AddrRange,
    pub(super) bytes: Vec<u8>,
    /// Ranges of known bytes, in order of address.
    pub(super) runs: Vec<AddrRange>,
}

impl ArenaImage {
    fn is_known(&self, range: AddrRange) -> bool {
        let at = self.runs.partition_point(|run| run.end <= range.start);
        self.runs.get(at).is_some_and(|run| run.start <= range.start && range.end <= run.end)
    }

    fn known<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let range = AddrRange { start: address, end: address.checked_add(N as u64)? };
        let offset = usize::try_from(address.checked_sub(self.range.start)?).ok()?;
        let bytes = self.bytes.get(offset..)?.first_chunk()?;
        self.is_known(range).then_some(*bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.known(address).map(u64::from_le_bytes)
    }

    fn half(&self, address: u64) -> Option<u64> {
        self.known(address).map(|half| u64::from(u32::from_le_bytes(half)))
    }
}

/// State of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolUse {
    /// All blocks of the pool are free.
    Free,
    /// Some blocks of the pool are live.
    Used(UsedPool),
    /// The header or a free block of the pool is in swap or could not be read.
    Unknown,
    /// The data of the pool contradicts itself, so its live blocks are unknown.
    Damaged,
}

/// A pool with live blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsedPool {
    /// Size of each block in bytes.
    pub(super) size: u64,
    /// Number of blocks that fit into the pool.
    pub(super) capacity: u64,
    /// For each block that was ever used: true if it is live.
    pub(super) live: Vec<bool>,
    /// True if the stored count of live blocks is wrong by one, which is possible while a thread
    /// allocates or frees a block.
    pub(super) is_in_change: bool,
}

/// Header of a pool with live blocks.
struct PoolLayout {
    start: u64,
    size: u64,
    capacity: u64,
    /// Number of blocks that were ever used.
    used: u64,
}

impl PoolLayout {
    /// Index of the block that begins at `address`; `None` if no block begins there or the block
    /// was never used.
    fn index_of(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.start + HEADER_BYTES)?;
        let is_block = offset.is_multiple_of(self.size) && offset / self.size < self.used;
        is_block.then(|| usize::try_from(offset / self.size).ok()).flatten()
    }
}

/// Reads the pool at address `start`.
pub(super) fn pool_use(
    image: &ArenaImage,
    arena: &PythonArena,
    start: u64,
    pool: u64,
    log: &mut CorruptionLog,
) -> PoolUse {
    let half = |offset: u64| image.half(start + offset);
    let (Some(live), Some(index)) = (half(0), half(ARENA_INDEX)) else { return PoolUse::Unknown };
    if index != arena.index {
        let expected = format!("{}, the index of the arena", arena.index);
        log.add(start, start + ARENA_INDEX, &expected, index);
        return PoolUse::Damaged;
    }
    if live == 0 {
        return PoolUse::Free;
    }
    let [Some(class), Some(next), Some(last)] = [CLASS, NEXT_OFFSET, LAST_OFFSET].map(half) else {
        return PoolUse::Unknown;
    };
    match pool_layout(start, pool, [class, next, last], log) {
        Some(layout) => used_pool(image, &layout, live, log),
        None => PoolUse::Damaged,
    }
}

/// Computes the layout of a pool from its size class and the two offsets in its header.
fn pool_layout(
    start: u64,
    pool: u64,
    [class, next, last]: [u64; 3],
    log: &mut CorruptionLog,
) -> Option<PoolLayout> {
    if class >= CLASSES {
        log.add(start, start + CLASS, "a size class below 32", class);
        return None;
    }
    let size = (class + 1) * ALIGNMENT;
    if last != pool - size {
        log.add(start, start + LAST_OFFSET, &format!("{} by the size class", pool - size), last);
        return None;
    }
    let capacity = (pool - HEADER_BYTES) / size;
    let used = next.checked_sub(HEADER_BYTES).filter(|used| used.is_multiple_of(size));
    let used = used.map(|used| used / size).filter(|used| (1..=capacity).contains(used));
    if used.is_none() {
        log.add(start, start + NEXT_OFFSET, "the offset of a block", next);
    }
    Some(PoolLayout { start, size, capacity, used: used? })
}

/// Follows the free list, and marks each block in it as free. A block that occurs twice ends the
/// list, so the loop ends.
fn used_pool(
    image: &ArenaImage,
    layout: &PoolLayout,
    counted: u64,
    log: &mut CorruptionLog,
) -> PoolUse {
    let mut live = vec![true; usize::try_from(layout.used).unwrap_or(0)];
    let mut link_at = layout.start + FREE;
    loop {
        let Some(link) = image.word(link_at) else { return PoolUse::Unknown };
        if link == 0 {
            break;
        }
        let index = layout.index_of(link).filter(|index| live[*index]);
        let Some(index) = index else {
            log.add(link_at, link_at, "another free block of the pool, or 0", link);
            return PoolUse::Damaged;
        };
        live[index] = false;
        link_at = link;
    }
    let found = live.iter().filter(|live| **live).count() as u64;
    if found != counted {
        let expected = format!("{found}, the number of live blocks by the free list");
        log.add(layout.start, layout.start, &expected, counted);
    }
    PoolUse::Used(UsedPool {
        size: layout.size,
        capacity: layout.capacity,
        live,
        is_in_change: found.abs_diff(counted) == 1,
    })
}

//! The recorder's map of live blocks, read from outside.

use std::collections::HashMap;
use std::ops::Range;

use pagewise_heaplog::tables::live::{
    HALF, LEAF, ODD, SITE_BITS, SITE_SHIFT, SIZE_BITS, SLACK, SPACE,
};
use pagewise_sys::remote;

use super::WalkedProcess;

/// A decoded cell of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveMapEntry {
    pub(crate) address: u64,
    pub(crate) site: u32,
    /// Difference between usable size and requested size; `None` if it does not fit into a cell and
    /// is stored in a separate table.
    pub(crate) slack: Option<u8>,
    /// Requested size, for an allocator whose usable sizes are unknown.
    pub(crate) size: u64,
}

/// Maximum number of bytes of cells that are read; a larger map would take too long.
const MAX_MAP_BYTES: u64 = 4 << 30;
/// Number of bytes of cells that are read at a time: narrow cells for 1 MiB of memory, so that the
/// blocks fit into a CPU cache.
const PIECE: u64 = 128 << 10;

/// Reads the recorder's table of sizes that do not fit into cells, by block address. Empty if the
/// recorder moved the table meanwhile, because the table grew.
pub(super) fn sizes(process: &WalkedProcess, told: u64) -> HashMap<u64, u64> {
    /// Maximum binary logarithm of the number of cells of the table; no process has a larger table.
    const MAX_LOG2_CELLS: u32 = 24;
    let (table, bits) = (told & !0x3f, u32::try_from(told & 0x3f).unwrap_or(u32::MAX));
    if table == 0 || bits > MAX_LOG2_CELLS {
        return HashMap::new();
    }
    let mut sizes = HashMap::new();
    let cells = table..table.saturating_add(16 << bits);
    let _ = each_piece(process, cells, &mut Vec::new(), |_, bytes| {
        for entry in bytes.chunks_exact(16) {
            let (address, size) = entry.split_at(8);
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            if word(address) != 0 {
                sizes.insert(word(address), word(size));
            }
        }
    });
    sizes
}

/// Calls `take` with each resident piece of a range and its address. The buffer is reused between
/// calls: page faults in fresh memory cost more than the read.
fn each_piece(
    process: &WalkedProcess,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(u64, &[u8]),
) -> Option<()> {
    for run in process.present(range.clone()).ok()? {
        let run = run.start.max(range.start)..run.end.min(range.end);
        let mut at = run.start;
        while at < run.end {
            let piece = at..run.end.min(at.saturating_add(PIECE));
            let length = usize::try_from(piece.end - piece.start).ok()?;
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            let bytes = buffer.get_mut(..length)?;
            let got = remote::read(process.pid, std::slice::from_ref(&piece), bytes).ok()?;
            take(at, buffer.get(..got)?);
            at = piece.end;
        }
    }
    Some(())
}

/// Calls `take` repeatedly with blocks, until all blocks were passed in order of address. Returns
/// `None` if the map cannot be read or is invalid.
pub(super) fn each(
    process: &WalkedProcess,
    map: u64,
    is_narrow: bool,
    mut take: impl FnMut(&[LiveMapEntry]),
) -> Option<()> {
    let mut buffer = Vec::new();
    let leaves = leaves(process, map, is_narrow, &mut buffer)?;
    let (shift, width) = if is_narrow { (5, 4) } else { (4, 8) };
    let mut blocks = Vec::new();
    let mut read = 0;
    for (index, &(number, leaf)) in leaves.iter().enumerate() {
        let range = leaf..leaf.checked_add((1 << (LEAF - shift)) * width)?;
        each_piece(process, range, &mut buffer, |at, bytes| {
            read += bytes.len() as u64;
            let first = (number << LEAF) + (((at - leaf) / width) << shift);
            if is_narrow {
                let cells = (first..).step_by(32).zip(bytes.chunks_exact(4));
                blocks.extend(cells.filter_map(|(at, cell)| narrow(at, cell)));
                // Narrow cells are in order of address.
                take(&blocks);
                blocks.clear();
            } else {
                let cells = (first..).step_by(16).zip(bytes.chunks_exact(8));
                blocks.extend(cells.filter_map(|(at, cell)| wide(at, cell)));
            }
        })?;
        if read > MAX_MAP_BYTES {
            return None;
        }
        if !is_narrow && leaves.get(index + 1).is_none_or(|&(next, _)| next != number) {
            blocks.sort_by_key(|block: &LiveMapEntry| block.address);
            take(&blocks);
            blocks.clear();
        }
    }
    Some(())
}

/// Reads the leaves of a map: the number of the part of the address space that each leaf covers, in
/// ascending order, and the address of the leaf.
fn leaves(
    process: &WalkedProcess,
    map: u64,
    is_narrow: bool,
    buffer: &mut Vec<u8>,
) -> Option<Vec<(u64, u64)>> {
    let count = 1_u64 << (SPACE - LEAF);
    // With wide cells, the second half of the table has the leaves of blocks that begin between
    // multiples of 16.
    let entries = if is_narrow { count } else { 2 * count };
    let mut leaves: Vec<(u64, u64)> = Vec::new();
    each_piece(process, map..map.checked_add(entries * 8)?, buffer, |at, bytes| {
        for (number, word) in ((at - map) / 8..).zip(bytes.chunks_exact(8)) {
            let leaf = word.try_into().map_or(0, u64::from_ne_bytes);
            if leaf != 0 {
                leaves.push((number % count, leaf));
            }
        }
    })?;
    leaves.sort_by_key(|&(number, _)| number);
    Some(leaves)
}

/// Decodes a cell of 4 bytes; `at` is the first address that the cell covers.
pub(crate) fn narrow(at: u64, cell: &[u8]) -> Option<LiveMapEntry> {
    let cell = cell.try_into().map_or(0, u32::from_ne_bytes);
    let site = (cell >> SITE_SHIFT & ((1 << SITE_BITS) - 1)).checked_sub(1)?;
    let slack = cell & SLACK;
    Some(LiveMapEntry {
        address: if cell & ODD == 0 { at } else { at + 16 },
        site,
        slack: if slack == SLACK { None } else { u8::try_from(slack).ok() },
        size: 0,
    })
}

/// Decodes a cell of 8 bytes; `at` is the first address that the cell covers.
pub(crate) fn wide(at: u64, cell: &[u8]) -> Option<LiveMapEntry> {
    let cell = cell.try_into().map_or(0, u64::from_ne_bytes);
    let site = ((cell & !HALF) >> (SIZE_BITS + 1)).checked_sub(1)?;
    Some(LiveMapEntry {
        address: if cell & HALF == 0 { at } else { at + 8 },
        site: u32::try_from(site).ok()?,
        slack: None,
        size: cell & ((1 << SIZE_BITS) - 1),
    })
}

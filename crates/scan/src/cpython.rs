//! Heap walk of CPython's allocator of small blocks (obmalloc): arenas, pools, and blocks of up to
//! 512 bytes, which contain most Python objects. Larger blocks come from malloc.
//!
//! ```text
//!  arenas   the arenas of each interpreter
//!  pools    the blocks of a pool
//!  objects  types of the objects in blocks
//! ```
//!
//! CPython does not guarantee these layouts. If data contradicts itself, the walk reports the
//! contradiction and continues with the next pool. The size of the memory bounds every loop.

mod arenas;
mod objects;
mod pools;
#[cfg(test)]
mod tests;

use pagewise_model::heap_scan::{HeapAllocator, HeapGap, LiveAmount, WalkedArena, WalkedHeap};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize};

use crate::ScanError;
use crate::blocks::{BlockTable, LiveBlock};
use crate::corruption::CorruptionLog;
use crate::density::{CELLS, PageDensityCounter, resident_in};
use crate::graph::range_without;
use crate::memory::Memory;
use crate::size_tally::SizeTally;
use crate::walk::AllocatorWalk;
use arenas::{AVAILABLE, ArenaVector, PoolGeometry, PythonArena, PythonStates};
pub(crate) use objects::live_types;
use pools::{ArenaImage, HEADER_BYTES, PoolUse, UsedPool, pool_use};

pub(crate) const NAME: &str = "CPython";
/// Word for an arena vector in reports: since 3.12 each interpreter with its own lock has its own
/// arenas.
const ARENA_LABEL: &str = "interpreter";
const NOT_RESIDENT: &str = "its pages are in swap or could not be read";
const DAMAGED: &str = "its header or free list contradicts itself";

/// Walks the arenas of CPython. Returns `None` if the process has none.
///
/// # Errors
/// [`ScanError::NotWalked`] for a Python without the global lock: it uses mimalloc instead.
///
/// # Complexity
/// Linear in the number of bytes of all arenas.
pub(crate) fn walk(
    memory: &dyn Memory,
    page_size: PageSize,
) -> Result<Option<AllocatorWalk>, ScanError> {
    let mut log = CorruptionLog::default();
    let states = PythonStates::find(memory, &mut log);
    if states.vectors.is_empty() {
        if states.is_free_threaded {
            let why = "a Python without the global lock has its objects in mimalloc's heaps";
            return Err(ScanError::NotWalked { allocator: NAME, why: why.to_owned() });
        }
        return Ok(None);
    }
    let arenas = in_order(&states.vectors, &mut log);
    let mut walk = PythonWalk::new(memory, page_size, &states.vectors, log);
    for (vector, arena) in &arenas {
        walk.add_arena(*vector, states.vectors[*vector].geometry, arena);
    }
    Ok(Some(walk.finish(&arenas)))
}

/// Returns the arenas of all arena vectors in order of address, each with the index of its vector.
/// Arenas that overlap an earlier one are reported and left out.
fn in_order(vectors: &[ArenaVector], log: &mut CorruptionLog) -> Vec<(usize, PythonArena)> {
    let numbered = vectors.iter().enumerate();
    let mut arenas: Vec<(usize, PythonArena)> = numbered
        .flat_map(|(number, vector)| vector.arenas.iter().map(move |arena| (number, *arena)))
        .collect();
    arenas.sort_by_key(|(_, arena)| arena.range);
    let mut end = 0;
    arenas.retain(|(_, arena)| {
        let is_behind = arena.range.start >= end;
        if is_behind {
            end = arena.range.end;
        } else {
            let expected = "an arena that overlaps no other";
            log.add(arena.entry, arena.entry, expected, arena.range.start);
        }
        is_behind
    });
    arenas
}

/// State and sums of the walk.
struct PythonWalk<'a> {
    memory: &'a dyn Memory,
    page: u64,
    /// One sum for each arena vector.
    sums: Vec<WalkedArena>,
    blocks: BlockTable,
    sizes: SizeTally,
    density: [u64; CELLS],
    gaps: Vec<HeapGap>,
    log: CorruptionLog,
}

/// State of the walk in one arena.
struct OpenArena<'r> {
    vector: usize,
    pool_bytes: u64,
    density: PageDensityCounter<'r>,
    /// End of the last live block; `None` before the first.
    live_end: Option<u64>,
    /// Number of pools without live blocks; `None` if the state of a pool is unknown.
    available: Option<u64>,
}

impl<'a> PythonWalk<'a> {
    fn new(
        memory: &'a dyn Memory,
        page_size: PageSize,
        vectors: &[ArenaVector],
        log: CorruptionLog,
    ) -> PythonWalk<'a> {
        let sums = vectors.iter().map(|vector| WalkedArena {
            label: ARENA_LABEL.to_owned(),
            state: vector.address,
            is_main: true,
            ..WalkedArena::default()
        });
        PythonWalk {
            memory,
            page: page_size.bytes(),
            sums: sums.collect(),
            blocks: BlockTable::default(),
            sizes: SizeTally::default(),
            density: [0; CELLS],
            gaps: Vec::new(),
            log,
        }
    }

    fn add_arena(&mut self, vector: usize, geometry: PoolGeometry, arena: &PythonArena) {
        let image = image_of(self.memory, arena.range);
        let resident = resident_in(&image.runs, arena.range);
        self.add_held(vector, arena, Bytes(resident));
        let mut open = OpenArena {
            vector,
            pool_bytes: geometry.pool,
            density: PageDensityCounter::new(self.page, &image.runs),
            live_end: None,
            available: Some((arena.pools.end - arena.carved_end) / geometry.pool),
        };
        let mut start = arena.pools.start;
        while start < arena.carved_end {
            match pool_use(&image, arena, start, geometry.pool, &mut self.log) {
                PoolUse::Free => self.add_free(&mut open),
                PoolUse::Used(pool) => self.add_pool(&mut open, start, &pool),
                PoolUse::Unknown => self.add_gap(&mut open, start, NOT_RESIDENT),
                PoolUse::Damaged => self.add_gap(&mut open, start, DAMAGED),
            }
            start += geometry.pool;
        }
        self.check_available(&open, arena);
        let cells = open.density.finish(resident / self.page);
        self.density.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell);
    }

    /// Adds an arena to the sums of its vector: its size, its resident bytes, the bytes outside of
    /// its pools, and its pools that were never used.
    fn add_held(&mut self, vector: usize, arena: &PythonArena, resident: Bytes) {
        let sum = &mut self.sums[vector];
        if sum.parts == 0 {
            sum.start = arena.range.start;
        }
        sum.parts += 1;
        sum.held += arena.range.len();
        sum.system += arena.range.len();
        sum.resident += resident;
        sum.own += Bytes(arena.range.len().0 - arena.pools.len().0);
        sum.free.pages += arena.pools.end - arena.carved_end;
    }

    fn add_free(&mut self, open: &mut OpenArena<'_>) {
        open.available = open.available.map(|available| available + 1);
        self.sums[open.vector].free.pages += open.pool_bytes;
    }

    /// Reports the arena's own count of available pools if it differs from the number of pools
    /// without live blocks that the walk found.
    fn check_available(&mut self, open: &OpenArena<'_>, arena: &PythonArena) {
        let Some(available) = open.available.filter(|it| *it != arena.available) else { return };
        let expected = format!("{available}, the number of pools without live blocks");
        self.log.add(arena.entry, arena.entry + AVAILABLE, &expected, arena.available);
        // A difference of 1 is possible while a thread takes or frees a pool.
        self.sums[open.vector].is_locked |= available.abs_diff(arena.available) == 1;
    }

    fn add_pool(&mut self, open: &mut OpenArena<'_>, start: u64, pool: &UsedPool) {
        let mut live = LiveAmount::default();
        let starts = (start + HEADER_BYTES..).step_by(usize::try_from(pool.size).unwrap_or(1));
        for (start, _) in starts.zip(&pool.live).filter(|(_, is_live)| **is_live) {
            let block = LiveBlock { start, size: pool.size };
            if !self.blocks.push(block) {
                continue;
            }
            let end = start + pool.size;
            live.add(LiveAmount { blocks: 1, bytes: pool.size });
            self.sizes.add(pool.size);
            open.density.add(AddrRange { start, end });
            let gap = open.live_end.replace(end).map_or(0, |before| start - before);
            let largest = &mut self.sums[open.vector].largest_gap;
            *largest = (*largest).max(Bytes(gap));
        }
        let sum = &mut self.sums[open.vector];
        sum.live.add(live);
        sum.live_chunks += Bytes(live.bytes);
        sum.free.slots += pool.capacity * pool.size - live.bytes;
        sum.own += Bytes(open.pool_bytes - pool.capacity * pool.size);
        sum.is_locked |= pool.is_in_change;
    }

    fn add_gap(&mut self, open: &mut OpenArena<'_>, start: u64, why: &'static str) {
        open.available = None;
        let why = Absent::NotCollected(why.into());
        let bytes = Bytes(open.pool_bytes);
        let last = self.gaps.last_mut();
        match last.filter(|gap| gap.start + gap.bytes.0 == start && gap.why == why) {
            Some(gap) => gap.bytes += bytes,
            None => self.gaps.push(HeapGap { start, bytes, why }),
        }
    }

    fn finish(self, arenas: &[(usize, PythonArena)]) -> AllocatorWalk {
        let PythonWalk { mut sums, blocks, sizes, density, gaps, log, .. } = self;
        sums.retain(|sum| sum.parts > 0);
        sums.sort_by_key(|sum| sum.start);
        let holes: Vec<AddrRange> = gaps
            .iter()
            .map(|gap| AddrRange { start: gap.start, end: gap.start + gap.bytes.0 })
            .collect();
        let managed = arenas.iter().flat_map(|(_, arena)| range_without(arena.range, &holes));
        let managed = managed.collect();
        let mut heap = WalkedHeap {
            allocators: vec![HeapAllocator { name: NAME.to_owned(), ..HeapAllocator::default() }],
            arenas: sums,
            sizes: sizes.finish(),
            density: density.to_vec(),
            corruption: log.entries,
            corrupted: log.count,
            gaps,
            ..WalkedHeap::default()
        };
        heap.allocators[0].live = heap.live();
        AllocatorWalk { heap, blocks, managed }
    }
}

fn image_of(memory: &dyn Memory, range: AddrRange) -> ArenaImage {
    let mut bytes = vec![0; usize::try_from(range.len().0).unwrap_or(0)];
    let mut runs: Vec<AddrRange> = Vec::new();
    memory.visit(range, &mut |start, piece| {
        let end = start + piece.len() as u64;
        let offset = usize::try_from(start - range.start).unwrap_or(usize::MAX);
        let into = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..piece.len()));
        let Some(into) = into else { return };
        into.copy_from_slice(piece);
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(AddrRange { start, end }),
        }
    });
    ArenaImage { range, bytes, runs }
}

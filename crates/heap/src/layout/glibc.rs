//! Data of glibc's malloc in the process: the words at the beginning of each heap, and the arenas.
//!
//! Source: malloc/arena.c and malloc/malloc.c of glibc 2.27 to 2.44, on 64-bit machines. These
//! structures are not a stable interface, so all addresses in them are checked; with another
//! structure layout no data is returned, instead of wrong data.

use std::ops::Range;

use pagewise_heaplog::glibc_arena::{MAX_HEAP_HEADER, StateLayout};
use pagewise_heaplog::glibc_chunk::{self, MIN_CHUNK, UNIT};
use pagewise_model::Mapping;
use pagewise_sys::remote;

use super::{MAX_EXTENTS, WalkedProcess, is_memory};
use crate::memory::ARENA;

/// A heap of an arena other than the main arena.
#[derive(Clone, Debug)]
pub(super) struct GlibcHeap {
    /// Readable and writable range.
    pub(super) range: Range<u64>,
    /// Address of the arena that the heap belongs to.
    pub(super) arena: u64,
    /// Address of the first chunk.
    pub(super) first: u64,
}

/// An arena other than the main arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    pub(super) address: u64,
    pub(super) area: usize,
}

/// The fields of `malloc_state` that are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct GlibcArena {
    layout: StateLayout,
    /// Address of the top chunk.
    pub(super) top: u64,
    /// Address of the next arena in the ring.
    pub(super) next: u64,
    /// Number of threads that allocate from the arena.
    pub(super) threads: u64,
    /// Number of bytes that the arena got from the system.
    pub(super) system: u64,
}

/// Maximum number of bytes of `malloc_state` in these versions of glibc.
const MAX_STATE: usize = 2200;
const _: () = assert!(StateLayout::WithFastbins.bytes() == MAX_STATE as u64);

fn word(bytes: &[u8], at: u64) -> u64 {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
    rest.and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Finds the heaps of arenas other than the main arena, in order of address. A mapping may contain
/// several adjacent heaps.
pub(super) fn heaps(process: &WalkedProcess, mappings: &[Mapping]) -> Option<Vec<GlibcHeap>> {
    let mut candidates: Vec<Range<u64>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_memory(mapping)) {
        let (first, end) = (mapping.range.start.next_multiple_of(ARENA), mapping.range.end);
        let mut at = first;
        while at < end {
            if candidates.len() >= MAX_EXTENTS {
                return None;
            }
            // An untouched range is not a heap.
            if process.present(at..at + 1).ok()?.len() == 1 {
                candidates.push(at..end.min(at.saturating_add(ARENA)));
            }
            at = at.checked_add(ARENA)?;
        }
    }
    let starts: Vec<u64> = candidates.iter().map(|range| range.start).collect();
    let infos = remote::read_each::<32>(process.pid, &starts).ok()?;
    let mut heaps: Vec<GlibcHeap> = Vec::new();
    let mut linked: Vec<GlibcHeap> = Vec::new();
    for (range, info) in candidates.into_iter().zip(infos) {
        let Some(info) = info else { continue };
        let [arena, previous, size, accessible] = [0, 8, 16, 24].map(|at| word(&info, at));
        let makes_sense = (1..=accessible).contains(&size)
            && accessible <= ARENA
            && accessible.is_multiple_of(process.page)
            && size.is_multiple_of(process.page)
            && arena.is_multiple_of(8);
        if !makes_sense {
            continue;
        }
        let start = range.start;
        let range = start..range.end.min(start + accessible);
        if previous == 0 && (start + 1..=start + MAX_HEAP_HEADER).contains(&arena) {
            let Some(state) = state(process, arena) else { continue };
            let first = arena + state.layout.bytes();
            heaps.push(GlibcHeap { range, arena, first });
        } else if previous != 0 && previous.is_multiple_of(ARENA) {
            linked.push(GlibcHeap { range, arena, first: start });
        }
    }
    let own: Vec<u64> = heaps.iter().map(|heap| heap.arena).collect();
    linked.retain(|heap| own.binary_search(&heap.arena).is_ok());
    heaps.extend(linked);
    heaps.sort_by_key(|heap| heap.range.start);
    Some(heaps)
}

/// Reads the arena at an address.
pub(super) fn state(process: &WalkedProcess, address: u64) -> Option<GlibcArena> {
    let bytes = process.read::<MAX_STATE>(address)?;
    let layout = StateLayout::of_arena(address, &bytes)?;
    let fields = [layout.top(), layout.next(), layout.threads(), layout.system()];
    let [top, next, threads, system] = fields.map(|at| word(&bytes, at));
    Some(GlibcArena { layout, top, next, threads, system })
}

/// Size of the top chunk, if its address is valid: the chunk must begin in a heap, and end at a
/// page boundary in this heap.
pub(super) fn top(
    process: &WalkedProcess,
    top: u64,
    mut ends: impl Iterator<Item = Range<u64>>,
) -> Option<u64> {
    let range = ends.find(|range| range.contains(&top))?;
    let size = glibc_chunk::size(process.word(top.checked_add(8)?)?);
    // The writable range of a heap may extend beyond the part in use.
    let end = top.checked_add(size).filter(|end| *end <= range.end)?;
    let is_it = top.is_multiple_of(UNIT) && end.is_multiple_of(process.page) && size >= MIN_CHUNK;
    is_it.then_some(size)
}

/// Length of the last chunk, found by walking from the end of a block to the end of the heap.
pub(super) fn walk(process: &WalkedProcess, range: Range<u64>) -> Option<u64> {
    /// Maximum number of free chunks after the last block; the walk ends after this number.
    const MAX_FREE_CHUNKS: usize = 1000;
    let mut head = range.start;
    for _ in 0..MAX_FREE_CHUNKS {
        let word = process.word(head)?;
        let size = glibc_chunk::size(word);
        if size < MIN_CHUNK || !size.is_multiple_of(UNIT) || glibc_chunk::is_mapped(word) {
            return None;
        }
        head = head.checked_add(size)?;
        // `head` is the address of a size word, 8 bytes above the start of its chunk.
        if head == range.end.checked_add(8)? {
            return Some(size);
        }
    }
    None
}

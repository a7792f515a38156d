//! What glibc's malloc keeps in the process: the words at the beginning of each heap, and the arenas.
//!
//! malloc/arena.c and malloc/malloc.c of glibc 2.27 to 2.42, of machines of 64 bits. Nothing of it is an interface, so all that is
//! read is checked against where it must point; another layout tells nothing rather than something wrong.

use std::ops::Range;

use pagewise_model::Mapping;
use pagewise_sys::remote;

use super::{FLAGS, LEAST, MAPPED, MOST_EXTENTS, Process, UNIT, is_memory};
use crate::memory::ARENA;

/// A heap of an arena that is not the first.
#[derive(Clone, Debug)]
pub(super) struct Heap {
    /// What may be read and written of it.
    pub(super) range: Range<u64>,
    /// Where its arena is.
    pub(super) arena: u64,
    /// Where chunks begin.
    pub(super) first: u64,
}

/// An arena that is not the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    pub(super) address: u64,
    pub(super) area: usize,
}

/// `malloc_state`, in part.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The last chunk.
    pub(super) top: u64,
    /// The next arena of the ring.
    pub(super) next: u64,
    /// Threads that allocate from it.
    pub(super) threads: u64,
    /// Bytes that it got from the system.
    pub(super) system: u64,
}

/// Bytes of `malloc_state`, and where in it: a lock, flags, 10 lists, then `top`; another chunk, 254 bins, a map of these, then `next`.
const STATE: usize = 2200;
const TOP: usize = 96;
const NEXT: usize = 2160;
const THREADS: usize = 2176;
const SYSTEM: usize = 2184;
/// So far from the beginning of its heap an arena lies at most.
const HEADER: u64 = 128;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

/// The heaps, in order of address: mappings may be several of them, one behind the other.
pub(super) fn heaps(process: &Process, mappings: &[Mapping]) -> Option<Vec<Heap>> {
    let mut candidates: Vec<Range<u64>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_memory(mapping)) {
        let (first, end) = (mapping.range.start.next_multiple_of(ARENA), mapping.range.end);
        let mut at = first;
        while at < end {
            if candidates.len() >= MOST_EXTENTS {
                return None;
            }
            // What was never touched is no heap.
            if process.present(at..at + 1).ok()?.len() == 1 {
                candidates.push(at..end.min(at.saturating_add(ARENA)));
            }
            at = at.checked_add(ARENA)?;
        }
    }
    let starts: Vec<u64> = candidates.iter().map(|range| range.start).collect();
    let infos = remote::read_each::<32>(process.pid, &starts).ok()?;
    let mut heaps: Vec<Heap> = Vec::new();
    let mut linked: Vec<Heap> = Vec::new();
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
        if previous == 0 && (start + 1..=start + HEADER).contains(&arena) {
            let first = arena + STATE as u64;
            heaps.push(Heap { range, arena, first });
        } else if previous != 0 && previous.is_multiple_of(ARENA) {
            linked.push(Heap { range, arena, first: start });
        }
    }
    let own: Vec<u64> = heaps.iter().map(|heap| heap.arena).collect();
    linked.retain(|heap| own.binary_search(&heap.arena).is_ok());
    heaps.extend(linked);
    heaps.sort_by_key(|heap| heap.range.start);
    Some(heaps)
}

/// What is at the address of an arena.
pub(super) fn state(process: &Process, address: u64) -> Option<State> {
    let bytes = process.read::<STATE>(address)?;
    let [top, next, threads, system] = [TOP, NEXT, THREADS, SYSTEM].map(|at| word(&bytes, at));
    Some(State { top, next, threads, system })
}

/// How long the last chunk is, if it is where one must be: at the end of one of these.
pub(super) fn top(
    process: &Process,
    top: u64,
    mut ends: impl Iterator<Item = Range<u64>>,
) -> Option<u64> {
    let range = ends.find(|range| range.contains(&top))?;
    let size = process.word(top.checked_add(8)?)? & !FLAGS;
    // A heap may be able to be written behind what it uses.
    let end = top.checked_add(size).filter(|end| *end <= range.end)?;
    let is_it = top.is_multiple_of(UNIT) && end.is_multiple_of(process.page) && size >= LEAST;
    is_it.then_some(size)
}

/// How long the last chunk is of those from the end of a block on to the end of the heap.
pub(super) fn walk(process: &Process, range: Range<u64>) -> Option<u64> {
    /// More free chunks than this behind the last block are none that anybody waits for.
    const MOST: usize = 1000;
    let mut head = range.start;
    for _ in 0..MOST {
        let word = process.word(head)?;
        let size = word & !FLAGS;
        if size < LEAST || !size.is_multiple_of(UNIT) || word & MAPPED != 0 {
            return None;
        }
        head = head.checked_add(size)?;
        // The word of a chunk behind the end would be 8 bytes behind it.
        if head == range.end.checked_add(8)? {
            return Some(size);
        }
    }
    None
}

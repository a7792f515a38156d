//! Heap walk of glibc's malloc in the memory of a process: arenas, chunks, free lists, thread
//! caches, and blocks with their own mappings.
//!
//! ```text
//!  arena         arenas and heaps, found and checked by structure
//!  thread_cache  the arena and the cache of each thread
//!  lists         the chunks of all free lists
//!  mapped        blocks and parts of the main arena outside of heaps
//!  chunks        the walk over all chunks, which determines the use of each chunk
//!  sample        shares of live and free memory from windows, without a stop of the process
//!  code          address ranges of the code that changes these structures
//! ```
//!
//! glibc does not guarantee these layouts, so all data is checked against the addresses and sizes
//! that it must have. The walk reports each contradiction and continues after it. The size of the
//! memory bounds every loop: a corrupted heap takes time in proportion to its size.

mod arena;
pub(crate) mod chunks;
mod code;
mod lists;
mod mapped;
mod sample;
#[cfg(test)]
mod tests;
mod thread_cache;

use pagewise_heaplog::glibc_chunk::UNIT;
use pagewise_model::heap_scan::{
    HeapAllocator, HeapGap, LiveAmount, LiveSize, MappedBlocks, UnreadLists, WalkedArena,
    WalkedHeap,
};
use pagewise_model::{AddrRange, Bytes, Mapping, PageSize};

use crate::corruption::CorruptionLog;
use crate::density::resident_in;
use crate::graph::range_without;
use crate::memory::Memory;
use crate::walk::AllocatorWalk;
use arena::{ArenaState, HeapSegment, MAX_ADDRESS, MallocParameters, ThreadArena};
use chunks::{ArenaBounds, ChunkWalk};
use lists::{CutList, FreeListReader, ListedChunks};
use mapped::{MappedChunk, OutsideLayout, OutsideMemory};
use thread_cache::ThreadData;

/// Number of usable bytes of the largest block that a thread cache holds by default.
const DEFAULT_LARGEST_CACHED: u64 = 1032;

pub use code::malloc_code;
pub(crate) use sample::sample;

/// Walks the heaps of glibc. Returns `None` if the process has no main arena of glibc.
///
/// # Complexity
/// O(n log n) in the number of free chunks in lists, O(n) in the number of all other chunks.
pub fn walk(memory: &dyn Memory, page_size: PageSize) -> Option<AllocatorWalk> {
    let mut log = CorruptionLog::default();
    let layout = HeapLayout::read(memory, page_size, &mut log)?;
    let addresses = sorted(layout.states.iter().map(|state| state.address).collect());
    let threads = thread_cache::thread_data(memory, &addresses, &|at| {
        lists::is_in_segments(&layout.segments, at)
    });
    let cacheable = layout.cacheable_blocks();
    let mut reader =
        FreeListReader::new(memory, &layout.segments, cacheable, &layout.states, &threads.caches);
    let mangles = reader.mangles;
    let mut listed = ListedChunks::default();
    for cache in &threads.caches {
        reader.add_cache(cache, &mut listed, &mut log);
    }
    let has_all_lists: Vec<bool> =
        layout.states.iter().map(|state| reader.add_arena(state, &mut listed, &mut log)).collect();
    listed.sort();
    let cut = reader.cut;
    let cut_caches: Vec<u64> = cut.iter().filter_map(|list| list.cache).collect();
    let marks = threads.marks(memory, &cut_caches);
    let bounds = layout.bounds(page_size, &has_all_lists);
    let sums = layout.sums(&threads);
    let mut walk = ChunkWalk::new(memory, page_size, &bounds, sums, &listed, &marks, &mut log);
    let mapped = walk_all(&mut walk, memory, &layout);
    walk.finish();
    for range in &layout.unread {
        walk.add_unread(*range);
    }
    let ChunkWalk { blocks, mut sums, sizes, density, gaps, marked, .. } = walk;
    let sizes = sizes.finish();
    sums.retain(|sum| sum.parts > 0);
    sums.sort_by_key(|sum| (!sum.is_main, sum.start));
    let mut heap = WalkedHeap {
        allocators: vec![HeapAllocator {
            name: "glibc".to_owned(),
            thread_caches: threads.caches.first().map_or("", |it| it.layout.name).to_owned(),
            mangles_links: mangles,
            live: LiveAmount::default(),
            nested: LiveAmount::default(),
        }],
        refused: Vec::new(),
        arenas: sums,
        mapped,
        unread_lists: layout.unread_lists(&threads, &cut, (marked, !marks.is_empty()), &sizes),
        sizes,
        objects: Vec::new(),
        density: density.to_vec(),
        corruption: log.entries,
        corrupted: log.count,
        gaps,
    };
    heap.allocators[0].live = heap.live();
    let managed = layout.managed(&heap.gaps);
    Some(AllocatorWalk { heap, blocks, managed })
}

fn sorted(mut addresses: Vec<u64>) -> Vec<u64> {
    addresses.sort_unstable();
    addresses
}

/// Walks the segments and the blocks with their own mappings in order of address.
fn walk_all(walk: &mut ChunkWalk<'_>, memory: &dyn Memory, layout: &HeapLayout) -> MappedBlocks {
    let mut mapped = MappedBlocks {
        counted: layout.parameters.map(|parameters| parameters.mapped),
        ..MappedBlocks::default()
    };
    let mut segments = layout.segments.iter().peekable();
    for chunk in &layout.outside.blocks {
        while let Some(segment) = segments.next_if(|it| it.start < chunk.pages.start) {
            walk.add_segment(segment);
        }
        walk.add_mapped(chunk, &mut mapped);
        mapped.held += chunk.pages.len();
        let mut runs = Vec::new();
        memory.visit(chunk.pages, &mut |start, bytes| {
            runs.push(AddrRange { start, end: start + bytes.len() as u64 });
        });
        mapped.resident += Bytes(resident_in(&runs, chunk.pages));
    }
    segments.for_each(|segment| walk.add_segment(segment));
    mapped
}

/// Arenas and their heaps, without memory outside of the heaps.
struct ArenaLayout {
    /// Main arenas first, then thread arenas.
    states: Vec<ArenaState>,
    mains: usize,
    /// Segments in order of address.
    segments: Vec<HeapSegment>,
    parameters: Option<MallocParameters>,
    /// Address range of the brk heap.
    brk: AddrRange,
    /// Heaps whose first page is unknown.
    unread: Vec<AddrRange>,
}

impl ArenaLayout {
    fn read(memory: &dyn Memory, log: &mut CorruptionLog) -> Option<ArenaLayout> {
        let mut mains = arena::main_arenas(memory);
        mains.sort_by_key(|main| std::cmp::Reverse(main.system));
        let main = mains.first()?;
        let brk = brk_heap(memory.mappings());
        let parameters = arena::parameters(memory, main, &|at| brk.contains(at));
        let mut segments: Vec<HeapSegment> = Vec::new();
        if !main.is_unused() && !brk.is_empty() {
            let start = parameters.map_or(brk.start, |parameters| parameters.heap_start);
            let chunks = AddrRange { start: start.next_multiple_of(UNIT), end: brk.end };
            segments.push(HeapSegment { arena: 0, start, chunks });
        }
        let mut unread = Vec::new();
        let ring = |main| arena::thread_arenas(memory, main, log, &mut unread);
        let rings: Vec<Vec<ThreadArena>> = mains.iter().map(ring).collect();
        let mut states = mains;
        let mains = states.len();
        for thread_arena in rings.iter().flatten() {
            segments.extend(thread_arena.segments(memory, states.len(), log, &mut unread));
            states.push(thread_arena.state.clone());
        }
        let segments = lists::without_overlaps(segments, log);
        Some(ArenaLayout { states, mains, segments, parameters, brk, unread })
    }
}

/// Arenas and all their memory.
struct HeapLayout {
    /// Main arenas first, then thread arenas.
    states: Vec<ArenaState>,
    mains: usize,
    /// Segments in order of address.
    segments: Vec<HeapSegment>,
    outside: OutsideMemory,
    parameters: Option<MallocParameters>,
    /// Address range of the brk heap.
    brk: AddrRange,
    /// Heaps whose first page is unknown.
    unread: Vec<AddrRange>,
}

impl HeapLayout {
    fn read(
        memory: &dyn Memory,
        page_size: PageSize,
        log: &mut CorruptionLog,
    ) -> Option<HeapLayout> {
        let arenas = ArenaLayout::read(memory, log)?;
        let ArenaLayout { states, mains, mut segments, mut parameters, brk, unread } = arenas;
        let main = &states[0];
        let has_outside = !main.is_contiguous() || !brk.contains(main.top);
        let search = OutsideLayout {
            page: page_size.bytes(),
            mapped_end: arena::mapped_end(main.layout),
            top: Some(main.top).filter(|_| has_outside && !main.is_unused()),
        };
        let outside = mapped::outside(memory, &segments, search);
        if let Some(page) = outside.ended_at {
            log.add(page, page, "fewer headers of chunks that lead to none", 0);
        }
        let parts = outside.main.iter();
        if brk.is_empty() {
            // If the first `brk` call fails, the main arena begins in a mapping.
            let is_part = |at| outside.main.iter().any(|part| part.start == at);
            parameters = arena::parameters(memory, main, &is_part);
        }
        segments.extend(parts.map(|&chunks| HeapSegment { arena: 0, start: chunks.start, chunks }));
        let segments = lists::without_overlaps(segments, log);
        Some(HeapLayout { states, mains, segments, outside, parameters, brk, unread })
    }

    /// Returns the number of lists that could not be read and the blocks that they may contain. If
    /// no marks of cached blocks are known (`ThreadData::marks`), each unread cache may hold as
    /// many blocks of each size as a bin holds entries.
    fn unread_lists(
        &self,
        threads: &ThreadData,
        cut: &[CutList],
        marked: (LiveAmount, bool),
        sizes: &[LiveSize],
    ) -> UnreadLists {
        if sizes.is_empty() {
            return UnreadLists::default();
        }
        let (marked, are_marked) = marked;
        let limits = self.parameters.map(|it| (it.largest_cached, it.cached_entries));
        let (largest, entries) = limits.unwrap_or((DEFAULT_LARGEST_CACHED, u64::MAX));
        let number = threads.unread.len() as u64;
        let unmarked = || cut.iter().filter(|list| list.cache.is_none() || !are_marked);
        let mut unclear = LiveAmount::default();
        for entry in sizes {
            let in_caches = if are_marked || entry.size > largest { 0 } else { entries };
            let of_size = unmarked().filter(|list| list.sizes.contains(&(entry.size + 8)));
            let most = of_size
                .map(|list| list.left.unwrap_or(u64::MAX))
                .fold(in_caches.saturating_mul(number), u64::saturating_add);
            let blocks = entry.blocks.min(most);
            unclear.add(LiveAmount { blocks, bytes: blocks.saturating_mul(entry.size) });
        }
        UnreadLists { threads: number, lists: cut.len() as u64, marked, unclear }
    }

    /// Blocks with their own mappings that thread caches may hold; empty before glibc 2.43.
    fn cacheable_blocks(&self) -> &[MappedChunk] {
        let has_any = self.states.iter().any(|state| arena::mapped_end(state.layout) > 0);
        if has_any { &self.outside.blocks } else { &[] }
    }

    /// Returns the ranges of heaps, mapped blocks and arena states, without `gaps`: gaps may
    /// contain unknown live blocks, so pointers in gaps count as roots.
    fn managed(&self, gaps: &[HeapGap]) -> Vec<AddrRange> {
        let segments = self.segments.iter().map(|it| AddrRange { start: it.start, ..it.chunks });
        let mapped = self.outside.blocks.iter().map(|chunk| chunk.pages);
        let states = self.states.iter().map(ArenaState::range);
        let mut ranges: Vec<AddrRange> = segments.chain(mapped).chain(states).collect();
        ranges.sort_unstable();
        let gaps = gaps
            .iter()
            .map(|gap| AddrRange { start: gap.start, end: gap.start.saturating_add(gap.bytes.0) });
        let mut gaps: Vec<AddrRange> = gaps.collect();
        gaps.sort_unstable();
        ranges.into_iter().flat_map(|range| range_without(range, &gaps)).collect()
    }

    fn bounds(&self, page_size: PageSize, has_all_lists: &[bool]) -> Vec<ArenaBounds> {
        let huge_page = self.parameters.map_or(0, |parameters| parameters.huge_page);
        let trim_unit = page_size.bytes().max(huge_page);
        let arenas = self.states.iter().zip(has_all_lists).enumerate();
        arenas
            .map(|(number, (state, &has_all_lists))| ArenaBounds {
                is_main: number < self.mains,
                top: state.top,
                brk: (number == 0).then_some(self.brk.end),
                trim_unit,
                has_all_lists,
            })
            .collect()
    }

    fn sums(&self, threads: &ThreadData) -> Vec<WalkedArena> {
        let arenas = self.states.iter().enumerate();
        arenas
            .map(|(number, state)| {
                let seen = threads.arenas.as_ref().map(|arenas| {
                    arenas.iter().filter(|arena| **arena == state.address).count() as u64
                });
                WalkedArena {
                    state: state.address,
                    is_main: number < self.mains,
                    system: Bytes(state.system),
                    threads: seen.unwrap_or(state.threads),
                    threads_seen: seen.is_some(),
                    is_locked: state.is_locked,
                    ..WalkedArena::default()
                }
            })
            .collect()
    }
}

/// Address range of the brk heap. `mprotect` can have split it into several mappings.
fn brk_heap(mappings: &[Mapping]) -> AddrRange {
    let mut parts =
        mappings.iter().filter(|it| it.name.as_bytes() == b"[heap]" && it.range.end <= MAX_ADDRESS);
    let Some(first) = parts.next() else { return AddrRange { start: 0, end: 0 } };
    parts.fold(first.range, |all, part| AddrRange { end: part.range.end, ..all })
}

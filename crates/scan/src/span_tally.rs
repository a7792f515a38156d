//! Sums of heaps whose blocks are in spans of pages: slabs of equal slots, single blocks, and free
//! pages. jemalloc calls spans extents.

use std::collections::BTreeMap;

use pagewise_model::heap_scan::{
    HeapAllocator, HeapGap, LiveAmount, LiveSize, WalkedArena, WalkedHeap,
};
use pagewise_model::{AddrRange, Bytes, PageSize};

use crate::blocks::{BlockTable, LiveBlock};
use crate::corruption::CorruptionLog;
use crate::density::{CELLS, PageDensityCounter, resident_in};
use crate::memory::Memory;
use crate::size_tally::SizeTally;
use crate::walk::AllocatorWalk;

/// Use of a slot in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// A live block.
    Live,
    /// A free slot in a thread cache.
    Cached,
    /// A free slot that the slab's own data marks as free.
    Free,
    /// A slot with data of the allocator itself.
    Internal,
}

/// State of free pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreePages {
    /// Still backed by memory, which the allocator can release.
    Kept,
    /// Not backed by memory: released to the kernel, or never touched.
    Released,
}

/// Returns the resident ranges of `spans`, which are in order of address.
pub(crate) fn resident_runs(memory: &dyn Memory, spans: &[AddrRange]) -> Vec<AddrRange> {
    let mut runs: Vec<AddrRange> = Vec::new();
    for span in spans {
        memory.visit(*span, &mut |start, bytes| {
            let end = start + bytes.len() as u64;
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(AddrRange { start, end }),
            }
        });
    }
    runs
}

/// Joins adjacent ranges and removes empty ones. Requires ranges in order of address.
pub(crate) fn joined(ranges: impl IntoIterator<Item = AddrRange>) -> Vec<AddrRange> {
    let mut all: Vec<AddrRange> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match all.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// A set of ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct DisjointRanges {
    /// End of each range, by its start.
    ranges: BTreeMap<u64, u64>,
}

impl DisjointRanges {
    /// Adds a range. Returns false and does not add it if it overlaps another range.
    pub(crate) fn insert(&mut self, range: AddrRange) -> bool {
        let before = self.ranges.range(..range.end).next_back();
        let is_apart = before.is_none_or(|(_, end)| *end <= range.start);
        if is_apart {
            self.ranges.insert(range.start, range.end);
        }
        is_apart
    }

    /// Returns the ranges in order of address.
    pub(crate) fn into_ranges(self) -> Vec<AddrRange> {
        self.ranges.into_iter().map(|(start, end)| AddrRange { start, end }).collect()
    }
}

/// End of the last span of an arena, and end of the last live block in the run of adjacent spans.
#[derive(Clone, Copy, Debug, Default)]
struct ArenaCursor {
    span_end: u64,
    live_end: Option<u64>,
}

/// Sums of spans, which must be added in order of address.
pub(crate) struct SpanTally<'r> {
    page: u64,
    /// Resident ranges from the current span on.
    runs: &'r [AddrRange],
    resident: u64,
    density: PageDensityCounter<'r>,
    cursors: Vec<ArenaCursor>,
    sizes: SizeTally,
    arenas: Vec<WalkedArena>,
    blocks: BlockTable,
}

/// Results of a tally.
pub(crate) struct SpanSums {
    pub(crate) arenas: Vec<WalkedArena>,
    pub(crate) blocks: BlockTable,
    pub(crate) sizes: Vec<LiveSize>,
    pub(crate) density: [u64; CELLS],
}

impl SpanSums {
    /// Returns the walked heap of one allocator. `layout` names the detected layout of the
    /// allocator.
    pub(crate) fn into_walk(
        self,
        allocator: &str,
        layout: &str,
        log: CorruptionLog,
        gaps: Vec<HeapGap>,
        managed: Vec<AddrRange>,
    ) -> AllocatorWalk {
        let mut heap = WalkedHeap {
            allocators: vec![HeapAllocator {
                name: allocator.to_owned(),
                thread_caches: layout.to_owned(),
                ..HeapAllocator::default()
            }],
            arenas: self.arenas,
            sizes: self.sizes,
            density: self.density.to_vec(),
            corruption: log.entries,
            corrupted: log.count,
            gaps,
            ..WalkedHeap::default()
        };
        heap.allocators[0].live = heap.live();
        AllocatorWalk { heap, blocks: self.blocks, managed }
    }
}

impl<'r> SpanTally<'r> {
    /// Creates an empty tally. `runs` are the resident ranges of all spans.
    pub(crate) fn new(
        page_size: PageSize,
        runs: &'r [AddrRange],
        arenas: Vec<WalkedArena>,
    ) -> SpanTally<'r> {
        let page = page_size.bytes();
        SpanTally {
            page,
            runs,
            resident: 0,
            density: PageDensityCounter::new(page, runs),
            cursors: vec![ArenaCursor::default(); arenas.len()],
            sizes: SizeTally::default(),
            arenas,
            blocks: BlockTable::default(),
        }
    }

    /// Adds a slab with slots of `size` bytes.
    pub(crate) fn add_slots(
        &mut self,
        arena: usize,
        span: AddrRange,
        size: u64,
        slots: impl IntoIterator<Item = SlotUse>,
    ) {
        self.begin_span(arena, span);
        let mut start = span.start;
        for slot in slots {
            let free = &mut self.arenas[arena].free;
            match slot {
                SlotUse::Live => self.add_live(arena, LiveBlock { start, size }, size),
                SlotUse::Cached => free.tcache += size,
                SlotUse::Free => free.slots += size,
                SlotUse::Internal => self.arenas[arena].own.0 += size,
            }
            start += size;
        }
        self.arenas[arena].own.0 += span.end.saturating_sub(start);
    }

    /// Adds a span with one block.
    pub(crate) fn add_block(
        &mut self,
        arena: usize,
        span: AddrRange,
        block: LiveBlock,
        slot: SlotUse,
    ) {
        self.begin_span(arena, span);
        let bytes = span.len().0;
        match slot {
            SlotUse::Live => self.add_live(arena, block, bytes),
            SlotUse::Cached => self.arenas[arena].free.tcache += bytes,
            SlotUse::Free => self.arenas[arena].free.slots += bytes,
            SlotUse::Internal => self.arenas[arena].own.0 += bytes,
        }
    }

    /// Adds a span of free pages in the state `pages`.
    pub(crate) fn add_free(&mut self, arena: usize, span: AddrRange, pages: FreePages) {
        let resident = self.begin_span(arena, span);
        let sum = &mut self.arenas[arena];
        match pages {
            FreePages::Kept => {
                sum.free.pages += span.len().0;
                sum.trimmable.0 += resident;
            }
            // A part of these pages can be resident: a huge page can back addresses that were never
            // touched.
            FreePages::Released => {
                sum.free.pages += resident;
                sum.free.retained += span.len().0 - resident;
                sum.held.0 -= span.len().0 - resident;
            }
        }
    }

    /// Adds a span with data of the allocator itself.
    pub(crate) fn add_own(&mut self, arena: usize, span: AddrRange) {
        self.begin_span(arena, span);
        self.arenas[arena].own += span.len();
    }

    /// Adds memory of the allocator outside of all spans, which contains no blocks.
    pub(crate) fn add_metadata(&mut self, arena: usize, range: AddrRange, resident: u64) {
        let sum = &mut self.arenas[arena];
        sum.own += range.len();
        sum.held += range.len();
        sum.resident.0 += resident;
    }

    /// Counts the memory of a span. Returns its number of resident bytes.
    fn begin_span(&mut self, arena: usize, span: AddrRange) -> u64 {
        while self.runs.first().is_some_and(|run| run.end <= span.start) {
            self.runs = &self.runs[1..];
        }
        let resident = resident_in(self.runs, span);
        self.resident += resident;
        let cursor = &mut self.cursors[arena];
        let sum = &mut self.arenas[arena];
        if cursor.span_end != span.start {
            cursor.live_end = None;
            sum.parts += 1;
        }
        cursor.span_end = span.end;
        if sum.start == 0 {
            sum.start = span.start;
        }
        sum.held += span.len();
        sum.resident.0 += resident;
        resident
    }

    fn add_live(&mut self, arena: usize, block: LiveBlock, slot_bytes: u64) {
        if !self.blocks.push(block) {
            return;
        }
        let range = AddrRange { start: block.start, end: block.start + block.size };
        self.density.add(range);
        self.sizes.add(block.size);
        let sum = &mut self.arenas[arena];
        sum.live.add(LiveAmount { blocks: 1, bytes: block.size });
        sum.live_chunks.0 += slot_bytes;
        let cursor = &mut self.cursors[arena];
        if let Some(live_end) = cursor.live_end {
            sum.largest_gap = sum.largest_gap.max(Bytes(range.start - live_end));
        }
        cursor.live_end = Some(range.end);
    }

    /// Returns the sums, without arenas that have no memory.
    pub(crate) fn finish(self) -> SpanSums {
        let mut arenas = self.arenas;
        arenas.retain(|arena| !arena.held.is_zero() || arena.free.retained > 0);
        arenas.sort_by_key(|arena| (!arena.is_main, arena.start));
        SpanSums {
            arenas,
            blocks: self.blocks,
            sizes: self.sizes.finish(),
            density: self.density.finish(self.resident / self.page),
        }
    }
}

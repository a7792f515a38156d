//! The walk over the chunks of a heap, in order of address.
//!
//! A chunk is in use if the `PREV_INUSE` flag of the *next* chunk is set, unless the chunk is in a
//! fastbin or a thread cache. So the use of a chunk is determined when the header of the next chunk
//! is read.

use pagewise_heaplog::glibc_chunk::{
    self, FLAGS, HEADER, MAPPED, MIN_CHUNK, OTHER_ARENA, PREVIOUS_IN_USE, UNIT,
};
use pagewise_model::heap_scan::{HeapGap, LiveAmount, MappedBlocks, WalkedArena};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize};

use super::arena::{HeapSegment, MAX_ADDRESS};
use super::lists::{ChunkList, ListedChunks};
use super::mapped::{FENCEPOST, MappedChunk};
use super::thread_cache::ThreadCache;
use crate::blocks::{BlockTable, LiveBlock};
use crate::corruption::CorruptionLog;
use crate::density::{CELLS, PageDensityCounter, resident_in};
use crate::memory::Memory;
use crate::size_tally::SizeTally;

/// Minimum number of consecutive consistent chunks at the address at which the walk continues after
/// a contradiction.
const CHAIN: usize = 8;
/// Maximum number of headers that are examined, in total, to find chunks after contradictions.
const MAX_TRIES: u64 = 8 << 20;
/// Number of bytes that `malloc_trim` keeps at the start of a free chunk: a `struct malloc_chunk`.
pub(super) const KEPT_HEADER: u64 = 48;
const NOT_RESIDENT: &str = "its pages are in swap or could not be read";
const NO_CHUNKS: &str = "no further chunks were found in it";

/// Properties of an arena that the walk needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArenaBounds {
    pub(super) is_main: bool,
    pub(super) top: u64,
    /// End of the brk heap, if the arena has the brk heap and can shrink it.
    pub(super) brk: Option<u64>,
    /// The brk heap shrinks by multiples of this number of bytes.
    pub(super) trim_unit: u64,
    /// True if all free lists of the arena were followed to their ends, so that every free chunk of
    /// the arena is known.
    pub(super) has_all_lists: bool,
}

/// A range that `malloc_trim` would release; only its resident bytes count.
#[derive(Clone, Copy, Debug)]
struct TrimRange {
    arena: usize,
    range: AddrRange,
    is_top: bool,
}

/// The current chunk, whose use is unknown until the next header is read.
#[derive(Clone, Copy, Debug)]
struct OpenChunk {
    start: u64,
    head: u64,
}

impl OpenChunk {
    const fn size(self) -> u64 {
        glibc_chunk::size(self.head)
    }
}

/// State and sums of the walk.
pub(super) struct ChunkWalk<'a> {
    memory: &'a dyn Memory,
    page: u64,
    arenas: &'a [ArenaBounds],
    listed: &'a ListedChunks,
    /// Values that the second word of a block has while the block is in an unread thread cache.
    marks: &'a [u64],
    /// Index and address of the next chunk in `listed`.
    next_listed: (usize, u64),
    tries: u64,
    trims: Vec<TrimRange>,
    pub(super) blocks: BlockTable,
    pub(super) sums: Vec<WalkedArena>,
    pub(super) sizes: SizeTally,
    pub(super) density: [u64; CELLS],
    pub(super) gaps: Vec<HeapGap>,
    /// Number and bytes of the blocks that contain one of `marks`.
    pub(super) marked: LiveAmount,
    pub(super) log: &'a mut CorruptionLog,
}

/// State of the walk in one segment.
struct SegmentState<'s> {
    segment: &'s HeapSegment,
    bounds: ArenaBounds,
    /// Address of the next header.
    next: u64,
    open: Option<OpenChunk>,
    /// Start of the adjacent free chunks before the open chunk, which `malloc_trim` would coalesce.
    free_since: Option<u64>,
    /// End of the last live chunk; `None` before the first.
    live_end: Option<u64>,
    /// Address at which the walk of the segment ended: the arena owns no memory above it. `None`
    /// during the walk.
    end: Option<u64>,
    /// Resident ranges in order of address.
    runs: Vec<AddrRange>,
}

/// Prefetches a header that may be read a few chunks later. The address of each header depends on
/// the header before it, so the CPU cannot prefetch headers itself. The guess is that the next
/// chunks have the same size.
#[inline]
fn read_ahead(bytes: &[u8], offset: usize, size: u64) {
    const CHUNKS: usize = 8;
    let distance = usize::try_from(size).ok().and_then(|size| size.checked_mul(CHUNKS));
    let ahead = distance.and_then(|distance| bytes.get(offset.checked_add(distance)?).copied());
    std::hint::black_box(ahead);
}

impl<'a> ChunkWalk<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        page_size: PageSize,
        arenas: &'a [ArenaBounds],
        sums: Vec<WalkedArena>,
        listed: &'a ListedChunks,
        marks: &'a [u64],
        log: &'a mut CorruptionLog,
    ) -> ChunkWalk<'a> {
        let mut walk = ChunkWalk {
            memory,
            page: page_size.bytes(),
            arenas,
            listed,
            marks,
            next_listed: (0, 0),
            tries: MAX_TRIES,
            trims: Vec::new(),
            blocks: BlockTable::default(),
            sums,
            sizes: SizeTally::default(),
            density: [0; CELLS],
            gaps: Vec::new(),
            marked: LiveAmount::default(),
            log,
        };
        walk.seek_listed(0);
        walk
    }

    fn seek_listed(&mut self, index: usize) {
        let address = self.listed.get(index).map_or(u64::MAX, |(chunk, _)| chunk);
        self.next_listed = (index, address);
    }

    /// Reports the addresses in free lists that are below `chunk` and were not walked: no chunk
    /// begins there.
    fn report_strays(&mut self, chunk: u64) {
        while self.next_listed.1 < chunk {
            let stray = self.next_listed.1;
            let word = self.memory.word(stray + 8).unwrap_or(0);
            self.log.add(stray + HEADER, stray + 8, "a chunk where a free list has one", word);
            self.seek_listed(self.next_listed.0 + 1);
        }
    }

    /// Returns the free list that contains the chunk, or `None`.
    fn list_of(&mut self, chunk: u64) -> Option<ChunkList> {
        self.report_strays(chunk);
        if self.next_listed.1 != chunk {
            return None;
        }
        let list = self.listed.get(self.next_listed.0).map(|(_, list)| list);
        self.seek_listed(self.next_listed.0 + 1);
        while self.next_listed.1 == chunk {
            let block = chunk + HEADER;
            self.log.add(block, block, "a block in one free list only", block);
            self.seek_listed(self.next_listed.0 + 1);
        }
        list
    }

    /// Adds a block with its own mapping. Requires that such blocks and segments are added in order
    /// of address.
    pub(super) fn add_mapped(&mut self, chunk: &MappedChunk, sums: &mut MappedBlocks) {
        let amount = LiveAmount { blocks: 1, bytes: chunk.block.size };
        if self.list_of(chunk.chunk()).is_some() {
            sums.cached.add(amount);
        } else if self.blocks.push(chunk.block) {
            self.sizes.add(chunk.block.size);
            sums.live.add(amount);
        }
    }

    /// Walks a segment.
    pub(super) fn add_segment(&mut self, segment: &HeapSegment) {
        let mut state = SegmentState {
            segment,
            bounds: self.arenas[segment.arena],
            next: segment.chunks.start,
            open: None,
            free_since: None,
            live_end: None,
            end: None,
            runs: Vec::new(),
        };
        let first_block = self.blocks.len();
        let all = AddrRange { start: segment.start, end: segment.chunks.end };
        self.memory.visit(all, &mut |address, bytes| self.add_piece(&mut state, address, bytes));
        if state.end.is_none() {
            self.settle_lost(&mut state);
            self.add_gap(state.next, segment.chunks.end, NOT_RESIDENT);
            state.end = Some(segment.chunks.end);
        }
        self.finish_segment(&state, first_block);
    }

    fn add_piece(&mut self, state: &mut SegmentState<'_>, address: u64, bytes: &[u8]) {
        let end = address + bytes.len() as u64;
        match state.runs.last_mut() {
            Some(last) if last.end == address => last.end = end,
            _ => state.runs.push(AddrRange { start: address, end }),
        }
        while state.end.is_none() && state.next < end {
            let Some(offset) = state.next.checked_sub(address) else {
                self.settle_lost(state);
                self.go_on(state, address, NOT_RESIDENT);
                continue;
            };
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let Some(header) = bytes.get(offset..offset.saturating_add(16)) else { break };
            let word =
                |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            read_ahead(bytes, offset, glibc_chunk::size(word(8)));
            self.add_chunk(state, word(0), word(8));
        }
    }

    /// Determines the use of the open chunk, and opens the chunk at `state.next`.
    fn add_chunk(&mut self, state: &mut SegmentState<'_>, before: u64, head: u64) {
        let chunk = state.next;
        let size = glibc_chunk::size(head);
        let left = state.segment.chunks.end - chunk;
        if chunk == state.bounds.top {
            return self.add_top(state, before, head);
        }
        let is_chunk = size >= MIN_CHUNK
            && size.is_multiple_of(UNIT)
            && size <= left
            && !glibc_chunk::is_mapped(head);
        if !is_chunk {
            return match self.end_marks(state, chunk, head) {
                Some(end) => self.add_end(state, before, head, end),
                None => self.recover(state, head),
            };
        }
        self.settle_open(state, before, head);
        state.open = Some(OpenChunk { start: chunk, head });
        state.next = chunk + size;
    }

    /// Returns the end of the fenceposts that begin at `chunk`, or `None`. In the main arena,
    /// fenceposts are two chunks of 16 bytes, or three if there was no space for a free chunk
    /// before them. At the end of a heap that is not the last of its arena, they are a chunk of 16
    /// bytes and a chunk of 0 bytes.
    fn end_marks(&self, state: &SegmentState<'_>, chunk: u64, head: u64) -> Option<u64> {
        let end = chunk + HEADER;
        match (glibc_chunk::size(head), state.bounds.is_main) {
            (0, false) if head & FLAGS == PREVIOUS_IN_USE => Some(end),
            (FENCEPOST, is_main) => {
                let mark = if is_main { FENCEPOST } else { 0 };
                let is_mark = |at: u64| {
                    at + HEADER <= state.segment.chunks.end
                        && self.memory.word(at + 8) == Some(mark | PREVIOUS_IN_USE)
                };
                let second = end + HEADER;
                let has_third = is_main && is_mark(second);
                is_mark(end).then_some(if has_third { second + HEADER } else { second })
            }
            _ => None,
        }
    }

    /// Ends a part of an arena at its fenceposts. Another part of the main arena can follow in the
    /// same segment. Then the program itself has moved the end of the brk heap, or the arena has
    /// used a mapping elsewhere before it used the brk heap again.
    fn add_end(&mut self, state: &mut SegmentState<'_>, before: u64, head: u64, end: u64) {
        // The first fencepost at the end of a heap can have the header of a chunk of minimum size.
        // Then it is the open chunk, and counts as memory of the allocator.
        let is_mark = |open: &OpenChunk| {
            !state.bounds.is_main
                && glibc_chunk::size(head) == 0
                && open.size() == MIN_CHUNK
                && open.head & OTHER_ARENA == 0
        };
        if let Some(mark) = state.open.take_if(|open| is_mark(open)) {
            self.sums[state.segment.arena].own.0 += mark.size();
            self.close_free_run(state, mark.start);
        }
        self.settle_open(state, before, head);
        self.close_free_run(state, state.next);
        let next = if state.bounds.is_main { self.find_chunk(state, end) } else { None };
        let end = if next.is_some() {
            end
        } else {
            end.next_multiple_of(self.page).min(state.segment.chunks.end)
        };
        self.sums[state.segment.arena].own.0 += end - state.next;
        state.live_end = None;
        state.next = end;
        match next {
            Some(next) => state.next = next,
            None => state.end = Some(end),
        }
    }

    fn add_top(&mut self, state: &mut SegmentState<'_>, before: u64, head: u64) {
        let top = state.next;
        self.settle_open(state, before, head);
        let limit = state.segment.chunks.end;
        let end = top.saturating_add(glibc_chunk::size(head));
        let is_sound = end <= limit
            && end > top
            && head & PREVIOUS_IN_USE != 0
            && (end == limit || state.bounds.is_main);
        if !is_sound {
            let expected = format!("the size {} of the last chunk", limit - top);
            self.log.add(top + HEADER, top + 8, &expected, head);
        }
        let end = if is_sound { end } else { limit };
        self.sums[state.segment.arena].free.top += end - top;
        let free_since = state.free_since.take().unwrap_or(top);
        if state.bounds.brk == Some(end) {
            let range = AddrRange { start: free_since, end };
            self.add_top_trim(state.segment.arena, range, state.bounds.trim_unit);
        }
        state.next = end;
        state.end = Some(end);
    }

    /// Adds the range that `systrim` would release at the end of the brk heap.
    fn add_top_trim(&mut self, arena: usize, top: AddrRange, unit: u64) {
        let spare = top.len().0.saturating_sub(MIN_CHUNK + 1);
        let extra = spare - spare % unit;
        let range = AddrRange { start: top.end - extra, end: top.end };
        if extra > 0 {
            self.trims.push(TrimRange { arena, range, is_top: true });
        }
    }

    fn settle_open(&mut self, state: &mut SegmentState<'_>, before: u64, head: u64) {
        let Some(open) = state.open.take() else { return };
        let is_used = head & PREVIOUS_IN_USE != 0;
        if !is_used && before != open.size() {
            let expected = format!("the size {} of the free chunk before", open.size());
            self.log.add(open.start + HEADER, state.next, &expected, before);
        }
        self.settle(state, open, is_used);
    }

    fn settle(&mut self, state: &mut SegmentState<'_>, chunk: OpenChunk, is_used: bool) {
        let list = if chunk.start < self.next_listed.1 { None } else { self.list_of(chunk.start) };
        let list = match list {
            None if is_used => self.marked_list(chunk),
            list => list,
        };
        let OpenChunk { start, head } = chunk;
        let size = chunk.size();
        let sum = &mut self.sums[state.segment.arena];
        if list.is_some_and(|list| list.looks_used() != is_used) {
            let expected =
                if is_used { "the flag of a free chunk" } else { "the flag of a used chunk" };
            self.log.add(start + HEADER, start + size + 8, expected, u64::from(is_used));
        }
        match list {
            None if is_used => return self.add_live(state, chunk),
            Some(ChunkList::CacheItself) => {
                sum.own.0 += size;
                self.close_free_run(state, start);
                state.live_end = Some(start + size);
                return;
            }
            Some(ChunkList::Tcache) => {
                sum.free.tcache += size;
                return self.close_free_run(state, start);
            }
            Some(ChunkList::Fastbin) => sum.free.fastbins += size,
            Some(ChunkList::Unsorted) => sum.free.unsorted += size,
            Some(ChunkList::Small) => sum.free.small_bins += size,
            Some(ChunkList::Large) => sum.free.large_bins += size,
            None => {
                sum.free.unlisted += size;
                if state.bounds.has_all_lists {
                    self.log.add(start + HEADER, start + 8, "a free chunk in a bin", head);
                }
            }
        }
        state.free_since = state.free_since.or(Some(start));
    }

    /// Returns the list of a chunk that, according to `marks`, is in an unread thread cache or
    /// contains such a cache.
    fn marked_list(&mut self, chunk: OpenChunk) -> Option<ChunkList> {
        if self.marks.is_empty() {
            return None;
        }
        let block = chunk.start + HEADER;
        let is_marked =
            |block: u64| self.memory.word(block + 8).is_some_and(|it| self.marks.contains(&it));
        if is_marked(block) {
            self.marked.add(LiveAmount { blocks: 1, bytes: chunk.size() - 8 });
            return Some(ChunkList::Tcache);
        }
        let cache = ThreadCache::read(self.memory, block)?;
        let entry = cache.heads.first().map(|head| head.entry)?;
        (entry < MAX_ADDRESS && is_marked(entry)).then_some(ChunkList::CacheItself)
    }

    fn add_live(&mut self, state: &mut SegmentState<'_>, chunk: OpenChunk) {
        let OpenChunk { start, head } = chunk;
        let size = chunk.size();
        if (head & OTHER_ARENA == 0) != state.bounds.is_main {
            self.log.add(start + HEADER, start + 8, "the flag of its arena", head);
        }
        self.close_free_run(state, start);
        let block = LiveBlock { start: start + HEADER, size: size - 8 };
        if !self.blocks.push(block) {
            return self.add_gap(start, start + size, "it is larger than a block can be");
        }
        self.sizes.add(block.size);
        let sum = &mut self.sums[state.segment.arena];
        sum.live.add(LiveAmount { blocks: 1, bytes: block.size });
        sum.live_chunks.0 += size;
        if let Some(end) = state.live_end {
            sum.largest_gap = sum.largest_gap.max(Bytes(start - end));
        }
        state.live_end = Some(start + size);
    }

    /// Ends the run of free chunks before `end`. `malloc_trim` would coalesce these chunks and
    /// release their whole pages.
    fn close_free_run(&mut self, state: &mut SegmentState<'_>, end: u64) {
        let Some(start) = state.free_since.take() else { return };
        let first = (start + KEPT_HEADER).next_multiple_of(self.page);
        let last = first + end.saturating_sub(first) / self.page * self.page;
        if last > first {
            let range = AddrRange { start: first, end: last };
            self.trims.push(TrimRange { arena: state.segment.arena, range, is_top: false });
        }
    }

    /// Continues the walk after an inconsistent header.
    fn recover(&mut self, state: &mut SegmentState<'_>, head: u64) {
        let chunk = state.next;
        // The size of the previous chunk may be wrong and span other chunks.
        let inside = state.open.and_then(|open| {
            let next = self.find_chunk_before(state, open.start + MIN_CHUNK, chunk)?;
            Some((open, next))
        });
        if let Some((open, next)) = inside {
            let expected = format!("a size that ends at a chunk, such as {}", next - open.start);
            self.log.add(open.start + HEADER, open.start + 8, &expected, open.head);
            let head = (next - open.start) | (open.head & FLAGS);
            state.open = Some(OpenChunk { head, ..open });
            self.settle_lost(state);
            state.next = next;
            return;
        }
        self.log.add(chunk + HEADER, chunk + 8, "the size of a chunk", head);
        self.settle_lost(state);
        self.go_on(state, chunk + UNIT, NO_CHUNKS);
    }

    /// Determines the use of the open chunk if the header after it is unknown: it counts as live
    /// unless a free list contains it.
    fn settle_lost(&mut self, state: &mut SegmentState<'_>) {
        if let Some(open) = state.open.take() {
            let is_listed = self.next_listed.1 == open.start;
            let list = self.listed.get(self.next_listed.0).filter(|_| is_listed);
            self.settle(state, open, list.is_none_or(|(_, list)| list.looks_used()));
        }
        self.close_free_run(state, state.next);
        state.live_end = None;
    }

    /// Continues the walk at the first chunk from the address `from` on, and records the gap before
    /// it.
    fn go_on(&mut self, state: &mut SegmentState<'_>, from: u64, why: &'static str) {
        let next = self.find_chunk(state, from);
        let end = state.segment.chunks.end;
        self.add_gap(state.next, next.unwrap_or(end), why);
        match next {
            Some(next) => state.next = next,
            None => state.end = Some(end),
        }
    }

    /// Records a heap that was not walked as a gap.
    pub(super) fn add_unread(&mut self, heap: AddrRange) {
        self.add_gap(heap.start, heap.end, NOT_RESIDENT);
    }

    fn add_gap(&mut self, start: u64, end: u64, why: &'static str) {
        /// Maximum number of gaps that are stored.
        const MAX_GAPS: usize = 100;
        let bytes = Bytes(end.saturating_sub(start));
        if !bytes.is_zero() && self.gaps.len() < MAX_GAPS {
            self.gaps.push(HeapGap { start, bytes, why: Absent::NotCollected(why.into()) });
        }
    }

    fn find_chunk(&mut self, state: &SegmentState<'_>, from: u64) -> Option<u64> {
        self.find_chunk_before(state, from, state.segment.chunks.end)
    }

    /// Returns the first address from `from` to `end` at which a chain of consistent chunks begins.
    fn find_chunk_before(&mut self, state: &SegmentState<'_>, from: u64, end: u64) -> Option<u64> {
        let mut at = from.checked_next_multiple_of(UNIT)?;
        while at < end && self.tries > 0 {
            if self.is_chain(state, at) {
                return Some(at);
            }
            at += UNIT;
        }
        None
    }

    fn is_chain(&mut self, state: &SegmentState<'_>, first: u64) -> bool {
        let end = state.segment.chunks.end;
        let other_flags = if state.bounds.is_main { MAPPED | OTHER_ARENA } else { MAPPED };
        let (mut at, mut before) = (first, None);
        for _ in 0..CHAIN {
            self.tries = self.tries.saturating_sub(1);
            if at == state.bounds.top {
                return true;
            }
            let Some(head) = self.memory.word(at + 8) else { return false };
            let size = glibc_chunk::size(head);
            let is_free_before = head & PREVIOUS_IN_USE == 0;
            let agrees = !is_free_before || before.is_none() || self.memory.word(at) == before;
            if at > first && self.end_marks(state, at, head).is_some() {
                return true;
            }
            let is_chunk = size >= MIN_CHUNK && size.is_multiple_of(UNIT) && size <= end - at;
            if !is_chunk || !agrees || head & other_flags != 0 {
                return false;
            }
            before = Some(size);
            at += size;
            if at + HEADER > end {
                return false;
            }
        }
        true
    }

    fn finish_segment(&mut self, state: &SegmentState<'_>, first_block: usize) {
        let end = state.end.unwrap_or(state.segment.chunks.end);
        let all = AddrRange { start: state.segment.start, end };
        let pages = AddrRange { start: all.start, end: end.next_multiple_of(self.page) };
        let resident = resident_in(&state.runs, pages);
        let mut counter = PageDensityCounter::new(self.page, &state.runs);
        for block in (first_block..self.blocks.len()).filter_map(|at| self.blocks.get(at)) {
            let start = block.start - HEADER;
            counter.add(AddrRange { start, end: block.start + block.size - 8 });
        }
        let cells = counter.finish(resident / self.page);
        self.density.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell);
        let sum = &mut self.sums[state.segment.arena];
        if sum.parts == 0 {
            sum.start = all.start;
        }
        sum.parts += 1;
        sum.held.0 += all.len().0;
        sum.resident.0 += resident;
        sum.own.0 += state.segment.chunks.start - all.start;
        let mut runs = state.runs.as_slice();
        for trim in self.trims.drain(..) {
            while runs.first().is_some_and(|run| run.end <= trim.range.start) {
                runs = &runs[1..];
            }
            let bytes = Bytes(resident_in(runs, trim.range));
            let sum = &mut self.sums[trim.arena];
            sum.trimmable += bytes;
            if trim.is_top {
                sum.trimmable_top += bytes;
            }
        }
    }

    /// Reports the remaining chunks of free lists: no walked segment contains them.
    pub(super) fn finish(&mut self) {
        self.report_strays(u64::MAX);
    }
}

//! The chunks in one window of a heap, and the use of each page of the window.

use pagewise_heaplog::glibc_chunk::{
    self, HEADER, MAPPED, MIN_CHUNK, OTHER_ARENA, PREVIOUS_IN_USE, UNIT,
};
use pagewise_model::AddrRange;
use pagewise_model::heap_sample::MemoryExcerpt;

use super::{SampledArenas, block, page_of};
use crate::glibc::arena::HeapSegment;
use crate::glibc::chunks::KEPT_HEADER;
use crate::memory::Memory;
use crate::sample::estimate::{WindowBounds, WindowShares};

/// Minimum number of consistent consecutive chunks after which the first chunk is trusted.
const CHAIN: usize = 8;
/// Maximum number of words outside of the window that are read for one window.
const MAX_WORDS: u32 = 64;
/// Size in bytes of the largest chunk in a thread cache by default.
const MAX_CACHED: u64 = 1040;
const MAX_FAST: u64 = 128;
/// Maximum number of bytes of the fenceposts at the end of a heap.
const END_MARKS: u64 = 64;

/// Bytes of a range, of which some pages may be unknown.
pub(super) struct WindowBytes {
    page: u64,
    range: AddrRange,
    bytes: Vec<u8>,
    /// Number of known bytes of each page.
    known: Vec<u64>,
}

impl WindowBytes {
    pub(super) fn new(page: u64) -> WindowBytes {
        let range = AddrRange { start: 0, end: 0 };
        WindowBytes { page, range, bytes: Vec::new(), known: Vec::new() }
    }

    /// Reads the pages of `range`, which begins and ends at page boundaries.
    pub(super) fn fill(&mut self, memory: &dyn Memory, range: AddrRange) {
        let length = usize::try_from(range.len().0).unwrap_or(0);
        self.range = range;
        self.bytes.clear();
        self.bytes.resize(length, 0);
        self.known.clear();
        self.known.resize(usize::try_from(range.len().0 / self.page).unwrap_or(0), 0);
        memory.visit(range, &mut |address, bytes| {
            let Some(offset) = address.checked_sub(range.start) else { return };
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = offset.saturating_add(bytes.len());
            let Some(own) = self.bytes.get_mut(offset..end) else { return };
            own.copy_from_slice(bytes);
            let piece = AddrRange { start: address, end: address + bytes.len() as u64 };
            for (index, part) in pages(range, piece, self.page) {
                self.known[index] += part.len().0;
            }
        });
    }

    fn is_known(&self, address: u64) -> bool {
        let page = usize::try_from((address - self.range.start) / self.page).unwrap_or(usize::MAX);
        self.known.get(page).is_some_and(|known| *known == self.page)
    }

    /// Bytes from the middle of the page at `start`, without a weight. The allocator writes its own
    /// data to the ends of free chunks, so seldom there.
    fn excerpt(&self, start: u64) -> MemoryExcerpt {
        const LENGTH: usize = 256;
        let address = start + self.page / 2;
        let offset = usize::try_from(address - self.range.start).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        MemoryExcerpt { address, bytes: bytes[..bytes.len().min(LENGTH)].to_vec(), weight: 0 }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.range.start)?).ok()?;
        let word = self.bytes.get(offset..)?.first_chunk()?;
        self.is_known(address).then(|| u64::from_le_bytes(*word))
    }
}

/// Splits `piece` at the page boundaries of `range`. Yields each part with the index of its page in
/// `range`.
fn pages(
    range: AddrRange,
    piece: AddrRange,
    page: u64,
) -> impl Iterator<Item = (usize, AddrRange)> {
    let piece = piece.intersection(range).unwrap_or(AddrRange { start: 0, end: 0 });
    let first = if piece.is_empty() { 0 } else { (piece.start - range.start) / page };
    let count = if piece.is_empty() { 0 } else { (piece.end - range.start).div_ceil(page) - first };
    (first..first + count).filter_map(move |index| {
        let start = range.start + index * page;
        let part = piece.intersection(AddrRange { start, end: start + page })?;
        Some((usize::try_from(index).ok()?, part))
    })
}

/// Use of a chunk, according to its neighbors and its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkUse {
    Live,
    Free,
    /// The chunk is in a thread cache or a fastbin.
    Cached,
    /// The chunk is in a fastbin, or live.
    PerhapsCached,
}

#[derive(Clone, Copy, Debug)]
struct SampledChunk {
    range: AddrRange,
    used_as: ChunkUse,
}

/// Bytes of a page by use, and whether `malloc_trim` would release the page.
#[derive(Clone, Copy, Debug, Default)]
struct PageUse {
    free: u64,
    cached: u64,
    perhaps: u64,
    unknown: u64,
    top: u64,
    is_released: bool,
    is_perhaps_released: bool,
}

impl PageUse {
    fn add_to(self, shares: &mut WindowShares, page: u64) {
        let (free, cached) = (self.free + self.cached, self.perhaps + self.unknown);
        let is_free_at_most = free + cached + self.top >= page && self.unknown > 0;
        let is_perhaps_released = self.is_perhaps_released || is_free_at_most;
        shares.resident += page;
        shares.unsettled += self.unknown;
        let add = |bounds: &mut WindowBounds, low: u64, high: u64| {
            bounds.low += low;
            bounds.high += high;
        };
        add(&mut shares.free, free + self.top, free + cached + self.top);
        add(&mut shares.top, self.top, self.top + self.unknown);
        let released = |is_released: bool| if is_released { page } else { 0 };
        add(
            &mut shares.trimmable,
            released(self.is_released),
            released(is_perhaps_released || self.is_released),
        );
        let least = if is_perhaps_released || self.is_released { 0 } else { free };
        let most = if self.is_released { 0 } else { free + cached };
        add(&mut shares.pinned, least, most);
    }
}

/// Start of the adjacent chunks that `malloc_trim` would coalesce; `None` without a run.
#[derive(Clone, Copy, Debug, Default)]
struct FreeRun(Option<u64>);

impl FreeRun {
    fn open(&mut self, start: u64) {
        self.0 = self.0.or(Some(start));
    }

    /// Ends the run at `end`. Returns the whole pages that `malloc_trim` would release: it keeps
    /// the header of the first chunk.
    fn close(&mut self, end: u64, page: u64) -> Option<AddrRange> {
        let start = (self.0.take()? + KEPT_HEADER).next_multiple_of(page);
        let end = page_of(end, page);
        (start < end).then_some(AddrRange { start, end })
    }
}

/// The runs of free chunks that end at the current chunk. `sure` contains only chunks that are
/// certainly free; `perhaps` also contains chunks that may be free.
#[derive(Clone, Copy, Debug, Default)]
struct FreeRuns {
    sure: FreeRun,
    perhaps: FreeRun,
}

impl FreeRuns {
    /// Continues each run with a chunk if the chunk is or may be free, and otherwise ends the run
    /// before the chunk.
    fn add(&mut self, chunk: u64, is_free: bool, may_be_free: bool, tally: &mut PageTally) {
        match is_free {
            true => self.sure.open(chunk),
            false => self.close_sure(chunk, tally),
        }
        match is_free || may_be_free {
            true => self.perhaps.open(chunk),
            false => self.close_perhaps(chunk, tally),
        }
    }

    fn close(&mut self, end: u64, tally: &mut PageTally) {
        self.close_sure(end, tally);
        self.close_perhaps(end, tally);
    }

    fn close_sure(&mut self, end: u64, tally: &mut PageTally) {
        tally.release(self.sure.close(end, tally.page), |page| page.is_released = true);
    }

    fn close_perhaps(&mut self, end: u64, tally: &mut PageTally) {
        tally.release(self.perhaps.close(end, tally.page), |page| page.is_perhaps_released = true);
    }
}

/// State of the walk over the chunks of one window.
pub(super) struct WindowWalk<'w, 'm> {
    arenas: &'w SampledArenas<'m>,
    segment: HeapSegment,
    bytes: &'w WindowBytes,
    is_main: bool,
    top: u64,
    /// Number of words outside of the window that the walk may still read.
    words: u32,
    /// True if a chain of at least [`CHAIN`] consistent chunks ended with a contradiction.
    has_broken_chain: bool,
}

impl<'w, 'm> WindowWalk<'w, 'm> {
    pub(super) fn new(
        arenas: &'w SampledArenas<'m>,
        segment: HeapSegment,
        bytes: &'w WindowBytes,
    ) -> WindowWalk<'w, 'm> {
        let is_main = segment.arena < arenas.mains;
        let top = arenas.states[segment.arena].top;
        let (words, has_broken_chain) = (MAX_WORDS, false);
        WindowWalk { arenas, segment, bytes, is_main, top, words, has_broken_chain }
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        if self.bytes.range.contains(address) {
            return self.bytes.word(address);
        }
        self.words = self.words.checked_sub(1)?;
        self.arenas.memory.word(address)
    }

    /// Reads the chunk that begins at `start`; `None` if the data there is inconsistent.
    fn chunk(&mut self, start: u64) -> Option<SampledChunk> {
        let listed = self.arenas.listed_behind(start);
        if let Some(range) = listed.filter(|listed| listed.start == start) {
            return Some(SampledChunk { range, used_as: ChunkUse::Free });
        }
        let head = self.word(start + 8)?;
        let size = glibc_chunk::size(head);
        let end = start.checked_add(size)?;
        let is_sound = size >= MIN_CHUNK
            && size.is_multiple_of(UNIT)
            && head & MAPPED == 0
            && (head & OTHER_ARENA == 0 || !self.is_main)
            && end < self.segment.chunks.end
            && listed.is_none_or(|listed| end <= listed.start)
            && (self.top <= start || end <= self.top);
        if !is_sound {
            return None;
        }
        let next = self.word(end + 8)?;
        let used_as = match next & PREVIOUS_IN_USE {
            0 if self.word(end)? == size => ChunkUse::Free,
            0 => return None,
            _ if !self.is_main && head & OTHER_ARENA == 0 => return None,
            _ => self.cached(start, size),
        };
        Some(SampledChunk { range: AddrRange { start, end }, used_as })
    }

    /// Returns the use of a chunk that is marked as in use. The block of a cached chunk begins with
    /// the link to the next cached block.
    fn cached(&self, chunk: u64, size: u64) -> ChunkUse {
        let Some(link) = self.bytes.word(block(chunk)) else { return ChunkUse::Live };
        let is_link = |link: u64| {
            link == 0 || link.is_multiple_of(UNIT) && self.arenas.segment_of(link).is_some()
        };
        let can_be_fast = size <= MAX_FAST && self.arenas.has_fast_chunks(self.segment.arena);
        match self.arenas.mangles {
            // A pointer of the program is indistinguishable from a link that is not mangled.
            Some(false) if can_be_fast && is_link(link) => ChunkUse::PerhapsCached,
            Some(false) => ChunkUse::Live,
            _ if size <= MAX_CACHED && is_link(link ^ (block(chunk) >> 12)) => ChunkUse::Cached,
            _ => ChunkUse::Live,
        }
    }

    /// True if `top`, a chunk of a free list or a fencepost is known to begin at `at`.
    fn is_boundary(&self, at: u64) -> bool {
        at == self.top
            || self.arenas.listed_behind(at).is_some_and(|listed| listed.start == at)
            || self.is_end(at)
    }

    /// True if a chunk is known to begin at `at`.
    fn is_start(&self, at: u64) -> bool {
        at == self.segment.chunks.start || self.is_boundary(at)
    }

    fn is_end(&self, at: u64) -> bool {
        let is_mark = |head: u64| glibc_chunk::size(head) <= HEADER;
        self.segment.chunks.end.saturating_sub(at) <= END_MARKS
            && self.bytes.word(at + 8).is_some_and(is_mark)
    }

    /// Returns `None` if the chunks from `first` on are consistent up to a known boundary, or up to
    /// `until` and for at least [`CHAIN`] chunks. Otherwise returns the address from which another
    /// chain may begin.
    fn chain_break(&mut self, first: u64, until: u64) -> Option<u64> {
        let (mut at, mut was_free, mut length) = (first, false, 0);
        while length < CHAIN || at < until {
            if self.is_boundary(at) {
                return None;
            }
            let chunk = self.chunk(at);
            // Two adjacent free chunks are inconsistent: free neighbors are coalesced.
            let chunk = chunk.filter(|chunk| !(was_free && chunk.used_as == ChunkUse::Free));
            let Some(chunk) = chunk else {
                // A chain that begins at any chunk of this long chain would end at the same
                // contradiction, so the search continues after the contradiction.
                self.has_broken_chain |= length >= CHAIN;
                return Some(if length >= CHAIN { at } else { first } + UNIT);
            };
            (at, was_free) = (chunk.range.end, chunk.used_as == ChunkUse::Free);
            length += 1;
        }
        None
    }

    /// Returns the first chunk of a consistent chain in the known bytes, if it begins before the
    /// end of the window. Data of the program that looks like chunks is seldom consistent for long.
    fn first_chunk(&mut self, window: AddrRange) -> Option<u64> {
        let start = self.bytes.range.start;
        if start <= self.segment.chunks.start {
            return Some(self.segment.chunks.start);
        }
        if self.top <= start && self.segment.chunks.contains(self.top) {
            return Some(self.top);
        }
        let listed = self.arenas.listed_behind(start).filter(|listed| listed.start <= start);
        if let Some(listed) = listed {
            return Some(listed.start);
        }
        let mut at = start.next_multiple_of(UNIT);
        while at < window.end {
            let until = if at < window.start { window.start } else { window.end };
            match self.chain_break(at, until) {
                Some(next) => at = next,
                None => return Some(at),
            }
        }
        None
    }

    /// True if a consistent chain also begins inside of `chunk`. Then one of the two chains is data
    /// of the program that looks like chunks by chance.
    fn is_ambiguous(&mut self, chunk: AddrRange, until: u64) -> bool {
        let mut at = chunk.start + UNIT;
        while at < chunk.end.min(until) {
            match self.chain_break(at, until) {
                Some(next) => at = next,
                None => return true,
            }
        }
        false
    }

    /// Determines the use of the window's resident pages. Also returns an excerpt of a page that
    /// `malloc_trim` would release; its weight is the number of such pages.
    pub(super) fn settle(mut self, window: AddrRange) -> (WindowShares, Option<MemoryExcerpt>) {
        let mut tally = PageTally::new(window, self.bytes.page);
        let first = self.first_chunk(window).unwrap_or(window.end);
        // If the known free chunks are incomplete, a large free chunk may precede the first chunk.
        let is_settled =
            self.arenas.is_listed[self.segment.arena] && self.words > 0 && !self.has_broken_chain;
        if first > window.start && !is_settled {
            tally.add(AddrRange { start: window.start, end: first }, |page| &mut page.unknown);
        }
        self.walk(first, window, &mut tally);
        let mut shares = WindowShares::default();
        let mut free: Option<MemoryExcerpt> = None;
        let step = usize::try_from(self.bytes.page).unwrap_or(usize::MAX);
        for (page, at) in tally.pages.iter().zip((window.start..).step_by(step)) {
            if self.bytes.is_known(at) {
                page.add_to(&mut shares, self.bytes.page);
                if page.is_released {
                    free.get_or_insert_with(|| self.bytes.excerpt(at)).weight += 1;
                }
            }
        }
        (shares, free)
    }

    fn walk(&mut self, first: u64, window: AddrRange, tally: &mut PageTally) {
        let end = window.end;
        let joins_fast = self.arenas.has_fast_chunks(self.segment.arena);
        let mut runs = FreeRuns::default();
        let (mut at, mut was_free) = (first, false);
        let mut sure_chunks = if self.is_start(first) { CHAIN } else { 0 };
        while at < end && !self.is_end(at) {
            if at == self.top {
                let range = AddrRange { start: at, end: self.segment.chunks.end };
                tally.add(range, |page| &mut page.top);
                break;
            }
            let chunk = self.chunk(at);
            let chunk = chunk.filter(|chunk| !(was_free && chunk.used_as == ChunkUse::Free));
            let Some(SampledChunk { range, used_as }) = chunk else {
                tally.add(AddrRange { start: at, end }, |page| &mut page.unknown);
                break;
            };
            let is_sure = sure_chunks >= CHAIN || range.end <= window.start;
            if !is_sure && self.is_ambiguous(range, end) {
                tally.add(range, |page| &mut page.unknown);
                runs.close(at, tally);
                (at, was_free) = (range.end, false);
                continue;
            }
            sure_chunks = if is_sure { sure_chunks + 1 } else { CHAIN };
            match used_as {
                ChunkUse::Live => {}
                ChunkUse::Free => tally.add(range, |page| &mut page.free),
                ChunkUse::Cached => tally.add(range, |page| &mut page.cached),
                ChunkUse::PerhapsCached => tally.add(range, |page| &mut page.perhaps),
            }
            let is_free = used_as == ChunkUse::Free;
            let can_join = joins_fast && range.len().0 <= MAX_FAST && used_as != ChunkUse::Live;
            // `malloc_trim` coalesces the chunks of fastbins but not those of thread caches. A
            // thread cache has at most 7 chunks of each size by default, so most cached chunks are
            // in fastbins.
            let is_fast = can_join && used_as == ChunkUse::Cached;
            runs.add(at, is_free || is_fast, can_join, tally);
            (at, was_free) = (range.end, is_free);
        }
        runs.close(at, tally);
    }
}

/// Use of the pages of a window.
struct PageTally {
    window: AddrRange,
    page: u64,
    pages: Vec<PageUse>,
}

impl PageTally {
    fn new(window: AddrRange, page: u64) -> PageTally {
        let count = usize::try_from(window.len().0.div_ceil(page)).unwrap_or(0);
        PageTally { window, page, pages: vec![PageUse::default(); count] }
    }

    /// Adds the bytes of `range` to the counter that `of_page` selects in each page.
    fn add(&mut self, range: AddrRange, of_page: impl Fn(&mut PageUse) -> &mut u64) {
        for (index, part) in pages(self.window, range, self.page) {
            if let Some(page) = self.pages.get_mut(index) {
                *of_page(page) += part.len().0;
            }
        }
    }

    fn release(&mut self, pages_of_run: Option<AddrRange>, mark: impl Fn(&mut PageUse)) {
        let Some(run) = pages_of_run else { return };
        for (index, _) in pages(self.window, run, self.page) {
            self.pages.get_mut(index).map(&mark);
        }
    }
}

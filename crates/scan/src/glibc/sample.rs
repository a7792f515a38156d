//! Estimates the live and free shares of glibc's heaps from windows at random addresses. The
//! process may run meanwhile.
//!
//! ```text
//!  free lists   all free chunks of 40 KiB and more: exact
//!  windows      64 KiB at random addresses, and the 40 KiB before each (lead)
//!   |<- lead ->|<------- window ------->|
//!      ^ the first chunk from which a chain of chunks is consistent
//! ```
//!
//! A chunk that begins before the lead and ends in the window is larger than 40 KiB. It is live
//! unless a free list contains it, so the use of every byte in a window is known. After a
//! contradiction, for example because memory changed between two reads, the use of the following
//! bytes is unknown. Unknown bytes widen the reported range.

mod window;

use pagewise_heaplog::glibc_chunk::{self, HEADER, UNIT};
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, PageSize, Reading};

use super::ArenaLayout;
use super::arena::{ArenaState, HeapSegment};
use super::lists::FreeListReader;
use crate::corruption::CorruptionLog;
use crate::memory::Memory;
use crate::sample::SampledArenaWindows;
use crate::sample::estimate::{WindowSample, spread_order};
use window::{WindowBytes, WindowWalk};

/// Number of bytes of a window.
const WINDOW: u64 = 64 << 10;
/// Minimum size in bytes of chunks that are looked up in the free lists.
const LARGE_CHUNK: u64 = 40 << 10;
/// Index of the first bin with chunks of at least `LARGE_CHUNK`; the unsorted bin has index 0.
const FIRST_LARGE_LIST: usize = 119;
/// Number of bins that glibc uses.
const LISTS: usize = 126;
/// Maximum number of chunks of free lists that are read from all arenas.
const MAX_LISTED: usize = 4000;
/// Maximum number of attempts to read the arenas while the process changes them.
const ATTEMPTS: u32 = 3;

/// The arenas of a process, and the large chunks of their free lists.
struct SampledArenas<'m> {
    memory: &'m dyn Memory,
    page: u64,
    /// Segments in order of address.
    segments: Vec<HeapSegment>,
    states: Vec<ArenaState>,
    mains: usize,
    /// Ranges of free chunks, in order of address.
    listed: Vec<AddrRange>,
    /// For each arena: true if `listed` contains all its large free chunks.
    is_listed: Vec<bool>,
    /// True if the links of singly linked lists are mangled; `None` if the lists leave it
    /// undecided.
    mangles: Option<bool>,
}

/// Samples the arenas of a process as long as `goes_on` returns true for the number of windows read
/// so far. Returns `None` if `is_large` is false for the resident memory of the arenas.
///
/// # Errors
/// The reason why the process has no arenas of glibc, or why they cannot be read.
pub(crate) fn sample(
    memory: &dyn Memory,
    page_size: PageSize,
    is_large: &dyn Fn(Bytes) -> bool,
    goes_on: &dyn Fn(u64) -> bool,
) -> Reading<Option<SampledArenaWindows>> {
    let layout = settled_layout(memory)?;
    let resident = resident_of(&layout.segments, memory.mappings());
    let reserved = layout.segments.iter().map(|segment| segment.chunks.len()).sum();
    if !is_large(resident.unwrap_or(reserved)) {
        return Ok(None);
    }
    let arenas = SampledArenas::new(memory, page_size.bytes(), layout);
    let sample = arenas.windows(goes_on);
    Ok(Some(SampledArenaWindows { arenas: arenas.states.len() as u64, resident, sample }))
}

/// Reads the arenas, and retries if the process changed them meanwhile.
fn settled_layout(memory: &dyn Memory) -> Reading<ArenaLayout> {
    for _ in 0..ATTEMPTS {
        let mut log = CorruptionLog::default();
        let layout = ArenaLayout::read(memory, &mut log)
            .ok_or(Absent::NotSupported("no heap of glibc was found".into()))?;
        if log.count == 0 {
            return Ok(layout);
        }
    }
    Err(Absent::NotSupported("the data of the arenas contradicts itself".into()))
}

/// Estimates the resident memory of `segments` from the resident memory of their mappings; `None`
/// if that is unknown.
fn resident_of(segments: &[HeapSegment], mappings: &[Mapping]) -> Option<Bytes> {
    let mut sum = Bytes::ZERO;
    for segment in segments {
        let all = AddrRange { start: segment.start, end: segment.chunks.end };
        let first = mappings.partition_point(|it| it.range.end <= all.start);
        for mapping in mappings[first..].iter().take_while(|it| it.range.start < all.end) {
            let part = mapping.range.intersection(all)?.len();
            sum += scaled(mapping.rss().ok()?, part, mapping.size());
        }
    }
    Some(sum)
}

/// Returns `bytes` multiplied by the ratio of `part` to `whole`.
fn scaled(bytes: Bytes, part: Bytes, whole: Bytes) -> Bytes {
    let scaled = u128::from(bytes.0) * u128::from(part.0) / u128::from(whole.0.max(1));
    Bytes(u64::try_from(scaled).unwrap_or(bytes.0))
}

impl<'m> SampledArenas<'m> {
    fn new(memory: &'m dyn Memory, page: u64, layout: ArenaLayout) -> SampledArenas<'m> {
        let ArenaLayout { states, mains, segments, .. } = layout;
        let mangles = FreeListReader::new(memory, &segments, &[], &states, &[]).mangles;
        let (listed, is_listed) = (Vec::new(), Vec::new());
        let mut arenas =
            SampledArenas { memory, page, segments, states, mains, listed, is_listed, mangles };
        for arena in 0..arenas.states.len() {
            let is_whole = arenas.add_large_chunks(arena);
            arenas.is_listed.push(is_whole);
        }
        arenas.listed.sort_unstable();
        arenas.listed.dedup_by(|next, last| next.start < last.end);
        arenas
    }

    /// Adds the large chunks of an arena's bins, beginning with the bins of the largest chunks.
    /// Returns true if all large chunks were added.
    fn add_large_chunks(&mut self, arena: usize) -> bool {
        let mut is_whole = true;
        for bin in (FIRST_LARGE_LIST..LISTS).rev().chain([0]) {
            is_whole &= self.add_bin(arena, bin);
        }
        is_whole
    }

    fn add_bin(&mut self, arena: usize, index: usize) -> bool {
        let head = self.states[arena].bin(index);
        let (mut chunk, mut before) = (self.states[arena].bins[index][0], head);
        let mut steps = 0;
        while chunk != head {
            let mut words = [0; 32];
            let segment = self.segment_of(chunk).filter(|_| chunk.is_multiple_of(UNIT));
            let (Some(segment), true) = (segment, steps < MAX_LISTED) else { return false };
            if self.listed.len() >= MAX_LISTED || !self.memory.read(chunk, &mut words) {
                return false;
            }
            let word = |at: usize| u64::from_le_bytes(words.as_chunks().0[at]);
            let end = chunk.saturating_add(glibc_chunk::size(word(1)));
            let range = AddrRange { start: chunk, end };
            // A list in which all back links agree has no cycle.
            if word(3) != before || range.end > segment.chunks.end {
                return false;
            }
            if range.len().0 >= LARGE_CHUNK {
                self.listed.push(range);
            }
            (before, chunk) = (chunk, word(2));
            steps += 1;
        }
        true
    }

    fn segment_of(&self, address: u64) -> Option<HeapSegment> {
        let at = self.segments.partition_point(|it| it.chunks.end <= address);
        self.segments.get(at).filter(|it| it.chunks.contains(address)).copied()
    }

    /// The first chunk in `listed` that ends above `address`.
    fn listed_behind(&self, address: u64) -> Option<AddrRange> {
        let at = self.listed.partition_point(|it| it.end <= address);
        self.listed.get(at).copied()
    }

    /// True if a fastbin of the arena is not empty.
    fn has_fast_chunks(&self, arena: usize) -> bool {
        self.states[arena].fastbins.iter().any(|chunk| *chunk != 0)
    }

    /// Reads windows in a pseudo-random order. For any N, the first N windows are spread over all
    /// segments.
    fn windows(&self, goes_on: &dyn Fn(u64) -> bool) -> WindowSample {
        let counts: Vec<u64> = self.segments.iter().map(|it| windows_of(it, self.page)).collect();
        let population = counts.iter().sum();
        let mut sample = WindowSample { population, ..WindowSample::default() };
        let mut bytes = WindowBytes::new(self.page);
        for number in spread_order(population) {
            if !goes_on(sample.windows.len() as u64) {
                break;
            }
            let Some((segment, window)) = self.window(&counts, number) else { break };
            let lead = window.start.saturating_sub(LARGE_CHUNK);
            let start = lead.max(page_of(segment.chunks.start, self.page));
            bytes.fill(self.memory, AddrRange { start, end: window.end });
            let (shares, free) = WindowWalk::new(self, segment, &bytes).settle(window);
            sample.windows.push(shares);
            sample.free_pages.extend(free);
        }
        sample
    }

    /// Segment and range of the window with the index `number`, counted over all segments.
    fn window(&self, counts: &[u64], number: u64) -> Option<(HeapSegment, AddrRange)> {
        let mut index = number;
        for (segment, &count) in self.segments.iter().zip(counts) {
            if index < count {
                let start = page_of(segment.chunks.start, self.page) + index * WINDOW;
                let end = segment.chunks.end.next_multiple_of(self.page).min(start + WINDOW);
                return Some((*segment, AddrRange { start, end }));
            }
            index -= count;
        }
        None
    }
}

fn page_of(address: u64, page: u64) -> u64 {
    address - address % page
}

fn windows_of(segment: &HeapSegment, page: u64) -> u64 {
    (segment.chunks.end - page_of(segment.chunks.start, page)).div_ceil(WINDOW)
}

/// Address of the block in a chunk.
const fn block(chunk: u64) -> u64 {
    chunk + HEADER
}

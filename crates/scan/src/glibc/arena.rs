//! `malloc_state`, `malloc_par` and `heap_info`, found and checked by their structure because C
//! libraries are usually stripped.
//!
//! malloc/malloc.c and malloc/arena.c of glibc 2.27 to 2.44, on 64-bit machines. `malloc_state` is
//! in [`pagewise_heaplog::glibc_arena`].
//!
//! ```text
//!  malloc_par until 2.34, 2.42, since 2.43   heap_info
//!   32  32  32  arena_max                     0  arena
//!       40  40  page sizes, flags             8  previous heap
//!   40  60  68  mappings now, permitted      16  bytes in use
//!   48  68  76  maximum mappings so far      24  accessible bytes
//!   52  72  80  fixed threshold              32  page size (2.35)
//!   56  80  88  mapped bytes
//!   72  96 104  start of the brk heap
//!   80 104 112  bins of thread caches
//!   96 120 128  entries of a bin
//! ```

use std::collections::HashSet;

use pagewise_heaplog::glibc_arena::{
    BIN_COUNT, FASTBIN_COUNT, FASTBINS, MAX_HEAP_HEADER, StateLayout,
};
use pagewise_heaplog::glibc_chunk::{HEADER, UNIT};
use pagewise_model::heap_scan::LiveAmount;
use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Mapping};

use crate::corruption::CorruptionLog;
use crate::memory::{Memory, half, word};

/// Number of bytes between the end of a mapped chunk and the end of its mapping. Since glibc 2.43 a
/// block with its own mapping extends into these bytes, as any other block extends into the next
/// chunk.
pub(super) const fn mapped_end(layout: StateLayout) -> u64 {
    match layout {
        StateLayout::WithFastbins => 0,
        StateLayout::WithoutFastbins => HEADER,
    }
}

/// Flag in `malloc_state` of a main arena that has memory outside of the brk heap.
const NONCONTIGUOUS: u32 = 2;
/// All flags of `malloc_state` that any supported version sets.
const ALL_FLAGS: u32 = 7;

/// Minimum number of bins with consistent links in an accepted arena. Corruption may affect the
/// other bins.
const MIN_SOUND_BINS: usize = 100;
/// Maximum number of addresses that are examined as candidates for main arenas.
const MAX_CANDIDATES: usize = 1 << 17;
/// Maximum number of arenas that are walked.
const MAX_ARENAS: usize = 1 << 14;
const MAX_HEAPS: usize = 1 << 16;
/// Smallest page size in bytes of all supported machines.
const MIN_PAGE: u64 = 4 << 10;
/// Alignment of heaps in bytes: by default, and if malloc uses huge pages of 2 MiB.
const HEAP_ALIGNMENTS: [u64; 2] = [64 << 20, 8 << 20];
/// Upper bound of accepted addresses. No program has memory above it, so sums of addresses and
/// sizes cannot overflow.
pub(super) const MAX_ADDRESS: u64 = 1 << 62;

/// Fields of a `malloc_state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArenaState {
    pub(super) address: u64,
    pub(super) layout: StateLayout,
    pub(super) is_locked: bool,
    flags: u32,
    /// First chunk of each fastbin; empty if the layout has no fastbins.
    pub(super) fastbins: Vec<u64>,
    pub(super) top: u64,
    /// First and last chunk of each bin.
    pub(super) bins: Vec<[u64; 2]>,
    next: u64,
    pub(super) threads: u64,
    pub(super) system: u64,
    max_system: u64,
}

impl ArenaState {
    pub(super) fn read(
        memory: &dyn Memory,
        address: u64,
        layout: StateLayout,
    ) -> Option<ArenaState> {
        let mut bytes = vec![0; usize::try_from(layout.bytes()).ok()?];
        if !address.is_multiple_of(8) || !memory.read(address, &mut bytes) {
            return None;
        }
        let has_fastbins = layout == StateLayout::WithFastbins;
        let fastbins = if has_fastbins { FASTBIN_COUNT as u64 } else { 0 };
        let state = ArenaState {
            address,
            layout,
            is_locked: half(&bytes, 0) != 0,
            flags: half(&bytes, 4),
            fastbins: (0..fastbins).map(|at| word(&bytes, FASTBINS + 8 * at)).collect(),
            top: word(&bytes, layout.top()),
            bins: (0..BIN_COUNT as u64)
                .map(|at| layout.bins() + 16 * at)
                .map(|at| [word(&bytes, at), word(&bytes, at + 8)])
                .collect(),
            next: word(&bytes, layout.next()),
            threads: word(&bytes, layout.threads()),
            system: word(&bytes, layout.system()),
            max_system: word(&bytes, layout.max_system()),
        };
        let lock_is_one = half(&bytes, 0) <= 2 && (!has_fastbins || half(&bytes, 8) <= 1);
        (lock_is_one && state.makes_sense()).then_some(state)
    }

    /// Address range of the `malloc_state`.
    pub(super) fn range(&self) -> AddrRange {
        let end = self.address.saturating_add(self.layout.bytes());
        AddrRange { start: self.address, end }
    }

    /// Address of the link to the first chunk of a fastbin.
    pub(super) fn fastbin(&self, index: usize) -> u64 {
        self.address.wrapping_add(FASTBINS).wrapping_add(8 * index as u64)
    }

    /// Address of the link to the next arena.
    fn next_link(&self) -> u64 {
        self.address.wrapping_add(self.layout.next())
    }

    /// Address of the pseudo chunk of a bin: the two links of the bin are its `fd` and `bk`.
    pub(super) fn bin(&self, index: usize) -> u64 {
        self.layout.bin(self.address, index)
    }

    /// True if the arena has no memory yet: `top` points to the first bin.
    pub(super) fn is_unused(&self) -> bool {
        self.system == 0 && self.top == self.bin(0)
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.flags & NONCONTIGUOUS == 0
    }

    fn makes_sense(&self) -> bool {
        let is_sound = |index: usize| {
            let [first, last] = self.bins[index];
            let bin = self.bin(index);
            first != 0 && last != 0 && (first == bin) == (last == bin)
        };
        self.flags <= ALL_FLAGS
            && self.top != 0
            && self.top.is_multiple_of(8)
            && self.next != 0
            && self.next.is_multiple_of(8)
            && self.system <= self.max_system
            && self.threads < 1 << 30
            && (self.system > 0 || self.is_unused())
            && (0..BIN_COUNT).filter(|index| is_sound(*index)).count() >= MIN_SOUND_BINS
    }
}

/// Returns the main arenas of all C libraries in a process, usually one.
///
/// A main arena is found by its link to the next arena. The link is the address of the main arena
/// itself, or of an arena at the start of a heap.
pub(super) fn main_arenas(memory: &dyn Memory) -> Vec<ArenaState> {
    let mut found: Vec<ArenaState> = Vec::new();
    let mut candidates = 0..MAX_CANDIDATES;
    for mapping in memory.mappings().iter().filter(|mapping| is_data(mapping)) {
        memory.visit(mapping.range, &mut |address, bytes| {
            let words = bytes.as_chunks().0.iter().zip((address..).step_by(8));
            for (link, at) in words {
                let link = u64::from_le_bytes(*link);
                let arenas = StateLayout::ALL.into_iter().filter_map(|layout| {
                    let arena = at.checked_sub(layout.next())?;
                    let is_link = link == arena || is_in_heap_header(link);
                    let is_candidate = is_link && candidates.next().is_some();
                    is_candidate.then(|| main_arena(memory, arena, layout)).flatten()
                });
                found.extend(arenas);
            }
        });
    }
    found
}

fn is_in_heap_header(address: u64) -> bool {
    HEAP_ALIGNMENTS.iter().any(|alignment| {
        let header = address % alignment;
        address > header
            && (UNIT..=MAX_HEAP_HEADER).contains(&header)
            && header.is_multiple_of(UNIT)
    })
}

/// True if a mapping holds the initialized data of a program or library.
fn is_data(mapping: &Mapping) -> bool {
    // A core file records neither inodes nor which mappings are shared.
    mapping.sharing != Sharing::Shared
        && mapping.prot.write
        && mapping.file_key().is_some()
        && mapping.range.end <= MAX_ADDRESS
}

fn main_arena(memory: &dyn Memory, address: u64, layout: StateLayout) -> Option<ArenaState> {
    let state = ArenaState::read(memory, address, layout)?;
    let is_ring = state.next == address || ThreadArena::read(memory, state.next, layout).is_some();
    is_ring.then_some(state)
}

/// A thread arena: its state is at the start of its first heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadArena {
    pub(super) state: ArenaState,
    /// Alignment of the heaps in bytes.
    alignment: u64,
}

/// Fields of a `heap_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeapInfo {
    start: u64,
    arena: u64,
    previous: u64,
    bytes: u64,
}

impl HeapInfo {
    fn read(memory: &dyn Memory, start: u64, alignment: u64) -> Option<HeapInfo> {
        let mut raw = [0; 32];
        if start == 0 || start > MAX_ADDRESS || !memory.read(start, &mut raw) {
            return None;
        }
        let [arena, previous, bytes, accessible] = [0, 8, 16, 24].map(|at| word(&raw, at));
        let makes_sense = (1..=accessible).contains(&bytes)
            && accessible <= alignment
            && previous.is_multiple_of(alignment);
        makes_sense.then_some(HeapInfo { start, arena, previous, bytes })
    }
}

/// A contiguous range of chunks of one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapSegment {
    /// Index of the arena.
    pub(super) arena: usize,
    /// Start of the arena's memory that contains the chunks.
    pub(super) start: u64,
    /// Range from the start of the first chunk to the end of the last chunk.
    pub(super) chunks: AddrRange,
}

impl ThreadArena {
    fn read(memory: &dyn Memory, address: u64, layout: StateLayout) -> Option<ThreadArena> {
        let alignment = HEAP_ALIGNMENTS.into_iter().find(|alignment| {
            let header = address % alignment;
            let info = HeapInfo::read(memory, address - header, *alignment);
            (UNIT..=MAX_HEAP_HEADER).contains(&header)
                && info.is_some_and(|info| info.arena == address && info.previous == 0)
        })?;
        Some(ThreadArena { state: ArenaState::read(memory, address, layout)?, alignment })
    }

    /// Returns the heaps of the arena, beginning with the heap that contains `top`.
    pub(super) fn segments(
        &self,
        memory: &dyn Memory,
        arena: usize,
        log: &mut CorruptionLog,
        unread: &mut Vec<AddrRange>,
    ) -> Vec<HeapSegment> {
        let header = self.state.address % self.alignment;
        let first_heap = self.state.address - header;
        let mut segments: Vec<HeapSegment> = Vec::new();
        let mut known = HashSet::new();
        let mut start = self.state.top - self.state.top % self.alignment;
        let mut link = self.state.address + self.state.layout.top();
        loop {
            let info = HeapInfo::read(memory, start, self.alignment);
            let info = info.filter(|info| info.arena == self.state.address);
            let is_new = segments.len() < MAX_HEAPS && known.insert(start);
            let Some(info) = info.filter(|_| is_new) else {
                if note_unread(memory, start, unread) {
                    break;
                }
                let expected = "an address in a heap of this arena";
                log.add(self.state.address, link, expected, start);
                break;
            };
            let first = if start == first_heap {
                self.state.range().end.next_multiple_of(UNIT)
            } else {
                start + header
            };
            let chunks = AddrRange { start: first, end: start + info.bytes };
            segments.push(HeapSegment { arena, start, chunks });
            if info.previous == 0 {
                break;
            }
            link = info.start + 8;
            start = info.previous;
        }
        segments
    }
}

/// Adds the mapping that contains `address` to `unread` if the page of `address` is unknown.
/// Returns true if the mapping was added.
fn note_unread(memory: &dyn Memory, address: u64, unread: &mut Vec<AddrRange>) -> bool {
    let range = unread_mapping(memory, address).filter(|range| !unread.contains(range));
    unread.extend(range);
    range.is_some()
}

/// The mapping that contains `address` if the page of `address` is unknown; `None` otherwise.
fn unread_mapping(memory: &dyn Memory, address: u64) -> Option<AddrRange> {
    let page_start = address & !(MIN_PAGE - 1);
    let mapping = memory.mappings().iter().find(|it| it.range.contains(address))?;
    memory.word(page_start).is_none().then_some(mapping.range)
}

/// Returns the thread arenas in the ring of arenas that begins at `main`.
pub(super) fn thread_arenas(
    memory: &dyn Memory,
    main: &ArenaState,
    log: &mut CorruptionLog,
    unread: &mut Vec<AddrRange>,
) -> Vec<ThreadArena> {
    let mut arenas: Vec<ThreadArena> = Vec::new();
    let mut known = HashSet::new();
    let mut last = main;
    while last.next != main.address {
        let is_new = arenas.len() < MAX_ARENAS && known.insert(last.next);
        let arena = ThreadArena::read(memory, last.next, main.layout).filter(|_| is_new);
        let Some(arena) = arena else {
            if note_unread(memory, last.next, unread) {
                break;
            }
            log.add(last.address, last.next_link(), "the address of another arena", last.next);
            break;
        };
        arenas.push(arena);
        last = arenas.last().map_or(main, |arena| &arena.state);
    }
    arenas
}

/// Fields of `malloc_par` that the walk needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MallocParameters {
    /// First address of the brk heap.
    pub(super) heap_start: u64,
    /// Number and bytes of the blocks with their own mappings.
    pub(super) mapped: LiveAmount,
    /// Size in bytes of the huge pages that malloc requests, which is also the unit in which the
    /// end of the brk heap is released. 0 if malloc requests no huge pages, and before glibc 2.35.
    pub(super) huge_page: u64,
    /// Number of usable bytes of the largest block that a thread cache holds.
    pub(super) largest_cached: u64,
    /// Maximum number of entries in a bin of a thread cache.
    pub(super) cached_entries: u64,
}

/// Distances in bytes from fields of `malloc_par` to the later field with the start of the brk
/// heap, until glibc 2.34 and since 2.35. The fields are the number of mappings now, the permitted
/// number, the maximum so far, and the flag of a fixed threshold.
const MAPPING_COUNTS: [[u64; 4]; 2] = [[32, 28, 24, 20], [36, 32, 28, 24]];
/// Distance in bytes from the huge page size to the start of the brk heap in `malloc_par`, since
/// 2.35.
const HUGE_PAGE: u64 = 56;
/// Number of bytes of `malloc_par` that are read before the field with the start of the brk heap,
/// and in total.
const BEFORE: u64 = 40;
const CHECKED: usize = 72;

/// Searches the mapping of the main arena for `malloc_par`. `is_start` is true for addresses at
/// which the main arena may have begun.
pub(super) fn parameters(
    memory: &dyn Memory,
    main: &ArenaState,
    is_start: &dyn Fn(u64) -> bool,
) -> Option<MallocParameters> {
    let data = memory.mappings().iter().find(|it| it.range.contains(main.address))?;
    let mut found = None;
    memory.visit(data.range, &mut |address, bytes| {
        let words = bytes.chunks_exact(8).zip((address..).step_by(8));
        let starts = words.filter(|(bytes, _)| is_start(word(bytes, 0)));
        for (_, at) in starts {
            found = found.or_else(|| parameters_at(memory, at));
        }
    });
    found
}

/// Reads the parameters if the word at `at` can be the start of the brk heap; `None` otherwise.
fn parameters_at(memory: &dyn Memory, at: u64) -> Option<MallocParameters> {
    let mut raw = [0; CHECKED];
    if !memory.read(at.checked_sub(BEFORE)?, &mut raw) {
        return None;
    }
    let [bytes, most_bytes] = [16, 8].map(|before| word(&raw, BEFORE - before));
    let [bins, most_cached, entries] = [8, 16, 24].map(|behind| word(&raw, BEFORE + behind));
    let makes_sense = bytes <= most_bytes
        // Since glibc 2.43 each `realloc` of a mapped block counts 16 bytes too many, so the number
        // of mapped bytes need not be a multiple of the page size.
        && bytes.is_multiple_of(UNIT)
        && (1..=1024).contains(&bins)
        && most_cached < 1 << 32
        && entries <= 1 << 16;
    let blocks = MAPPING_COUNTS.into_iter().enumerate().find_map(|(layout, offsets)| {
        let [now, permitted, most, fixed] = offsets.map(|before| half(&raw, BEFORE - before));
        (now <= most && most <= permitted && fixed <= 1).then_some((layout, now))
    });
    let (layout, blocks) = blocks?;
    let huge_page = if layout > 0 { memory.word(at.checked_sub(HUGE_PAGE)?)? } else { 0 };
    makes_sense.then_some(MallocParameters {
        heap_start: word(&raw, BEFORE),
        mapped: LiveAmount { blocks: blocks.into(), bytes },
        huge_page: if huge_page.is_power_of_two() { huge_page } else { 0 },
        largest_cached: most_cached,
        cached_entries: entries,
    })
}

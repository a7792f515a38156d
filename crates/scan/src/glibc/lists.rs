//! Free lists: fastbins, bins and thread caches. Each list is followed until its end or the first
//! contradiction.

use std::ops::RangeInclusive;

use pagewise_heaplog::glibc_arena::BIN_COUNT;
use pagewise_heaplog::glibc_chunk::{self, HEADER, MIN_CHUNK, UNIT};
use pagewise_model::AddrRange;

use super::arena::{ArenaState, HeapSegment};
use super::mapped::MappedChunk;
use super::thread_cache::ThreadCache;
use crate::corruption::CorruptionLog;
use crate::memory::Memory;

/// Index of the first bin of large chunks; the unsorted bin has index 0.
const FIRST_LARGE_BIN: usize = 63;

/// The free list that contains a chunk, or the use of the chunk by the allocator itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ChunkList {
    Tcache = 1,
    Fastbin = 2,
    Unsorted = 3,
    Small = 4,
    Large = 5,
    /// The chunk is in no list: it contains a thread cache.
    CacheItself = 6,
}

impl ChunkList {
    const ALL: [ChunkList; 6] = [
        ChunkList::Tcache,
        ChunkList::Fastbin,
        ChunkList::Unsorted,
        ChunkList::Small,
        ChunkList::Large,
        ChunkList::CacheItself,
    ];

    /// True if the header after a chunk of this list marks the chunk as in use.
    pub(super) const fn looks_used(self) -> bool {
        matches!(self, ChunkList::Tcache | ChunkList::Fastbin | ChunkList::CacheItself)
    }
}

/// The chunks of all free lists, in order of address.
#[derive(Debug, Default)]
pub(super) struct ListedChunks {
    /// Addresses of chunks. The low bits, which are 0 in an address, contain the [`ChunkList`].
    entries: Vec<u64>,
}

impl ListedChunks {
    pub(super) fn add(&mut self, chunk: u64, list: ChunkList) {
        self.entries.push(chunk & !(UNIT - 1) | list as u64);
    }

    pub(super) fn sort(&mut self) {
        self.entries.sort_unstable();
    }

    pub(super) fn get(&self, index: usize) -> Option<(u64, ChunkList)> {
        let entry = *self.entries.get(index)?;
        let list = ChunkList::ALL.into_iter().find(|list| *list as u64 == entry % UNIT)?;
        Some((entry - entry % UNIT, list))
    }
}

/// Follows free lists.
pub(super) struct FreeListReader<'a> {
    memory: &'a dyn Memory,
    /// Segments in order of address.
    segments: &'a [HeapSegment],
    /// Chunks with mappings of their own that thread caches may hold, in order of address.
    mapped: &'a [MappedChunk],
    /// True if the links of singly linked lists are mangled with their address (safe-linking, since
    /// glibc 2.32). `None` if the first entries of all lists leave it undecided.
    pub(super) mangles: Option<bool>,
    /// Maximum number of further entries to follow, initially derived from the maximum number of
    /// chunks.
    budget: u64,
    /// Lists that continue in unknown memory.
    pub(super) cut: Vec<CutList>,
}

/// A list of a thread cache, or a fastbin, that continues in unknown memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CutList {
    /// Address of the thread cache; `None` for a fastbin.
    pub(super) cache: Option<u64>,
    /// Sizes in bytes of the chunks in the list.
    pub(super) sizes: RangeInclusive<u64>,
    /// Number of entries that were not reached; `None` if the list has no count.
    pub(super) left: Option<u64>,
}

/// State of Brent's cycle detection in a singly linked list.
struct CycleDetector {
    tortoise: u64,
    steps: u64,
    power: u64,
}

impl CycleDetector {
    const fn new() -> CycleDetector {
        CycleDetector { tortoise: 0, steps: 0, power: 1 }
    }

    /// True if the list contained `address` before.
    fn has_met(&mut self, address: u64) -> bool {
        if address == self.tortoise {
            return true;
        }
        self.steps += 1;
        if self.steps == self.power {
            self.tortoise = address;
            self.power = self.power.saturating_mul(2);
            self.steps = 0;
        }
        false
    }
}

impl<'a> FreeListReader<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        segments: &'a [HeapSegment],
        mapped: &'a [MappedChunk],
        arenas: &[ArenaState],
        caches: &[ThreadCache],
    ) -> FreeListReader<'a> {
        let bytes: u64 = segments.iter().map(|it| it.chunks.len().0).sum();
        let budget = bytes / MIN_CHUNK + mapped.len() as u64 + 1;
        let cut = Vec::new();
        let mut reader = FreeListReader { memory, segments, mapped, mangles: None, budget, cut };
        let cached = caches.iter().flat_map(|cache| &cache.heads).map(|head| head.entry);
        let fast = arenas.iter().flat_map(|arena| &arena.fastbins);
        let fast = fast.filter(|chunk| **chunk != 0).map(|chunk| chunk.wrapping_add(HEADER));
        reader.mangles = reader.detect_mangling(cached.chain(fast));
        reader
    }

    pub(super) fn is_in_heap(&self, address: u64) -> bool {
        is_in_segments(self.segments, address)
    }

    fn is_mapped_chunk(&self, chunk: u64) -> bool {
        self.mapped.binary_search_by_key(&chunk, MappedChunk::chunk).is_ok()
    }

    /// Determines from the first entries of lists whether links are mangled; `None` if neither
    /// mangled nor plain links prevail.
    fn detect_mangling(&self, entries: impl Iterator<Item = u64>) -> Option<bool> {
        let is_block = |at: u64| {
            at.is_multiple_of(UNIT)
                && (self.is_in_heap(at) || self.is_mapped_chunk(at.wrapping_sub(HEADER)))
        };
        let is_link = |link: u64| link == 0 || is_block(link);
        let (mut plain, mut mangled) = (0_u64, 0_u64);
        for entry in entries {
            let Some(word) = self.memory.word(entry) else { continue };
            match (is_link(word), is_link(word ^ (entry >> 12))) {
                (true, false) => plain += 1,
                (false, true) => mangled += 1,
                _ => {}
            }
        }
        (plain != mangled).then_some(mangled > plain)
    }

    fn link(&self, at: u64) -> Option<u64> {
        let word = self.memory.word(at)?;
        Some(if self.mangles == Some(true) { word ^ (at >> 12) } else { word })
    }

    fn may_follow(&mut self) -> bool {
        self.budget = self.budget.saturating_sub(1);
        self.budget > 0
    }

    /// Adds the chunks of an arena's fastbins and bins. Returns true if all these lists were
    /// followed to their ends.
    pub(super) fn add_arena(
        &mut self,
        arena: &ArenaState,
        chunks: &mut ListedChunks,
        log: &mut CorruptionLog,
    ) -> bool {
        let mut whole = true;
        for index in 0..arena.fastbins.len() {
            whole &= self.add_fastbin(arena, index, chunks, log);
        }
        for index in 0..BIN_COUNT {
            whole &= self.add_bin(arena, index, chunks, log);
        }
        whole
    }

    fn add_fastbin(
        &mut self,
        arena: &ArenaState,
        index: usize,
        chunks: &mut ListedChunks,
        log: &mut CorruptionLog,
    ) -> bool {
        let size = MIN_CHUNK + UNIT * index as u64;
        let mut link_at = arena.fastbin(index);
        let mut chunk = arena.fastbins[index];
        let mut cycle = CycleDetector::new();
        while chunk != 0 {
            let block = chunk.wrapping_add(HEADER);
            if cycle.has_met(chunk) || !self.may_follow() {
                log.add(link_at, link_at, "a fastbin without a cycle", chunk);
                return false;
            }
            let head = self.chunk_head(chunk);
            let Some(head) = head.filter(|_| chunk.is_multiple_of(UNIT)) else {
                if self.is_unknown(chunk) {
                    self.cut.push(CutList { cache: None, sizes: size..=size, left: None });
                    return false;
                }
                log.add(link_at, link_at, "the address of a chunk in a fastbin", chunk);
                return false;
            };
            if glibc_chunk::size(head) != size {
                log.add(block, chunk + 8, &format!("the size {size} of its fastbin"), head);
                return false;
            }
            chunks.add(chunk, ChunkList::Fastbin);
            let Some(next) = self.link(block) else {
                self.cut.push(CutList { cache: None, sizes: size..=size, left: None });
                return false;
            };
            (link_at, chunk) = (block, next);
        }
        true
    }

    fn chunk_head(&self, chunk: u64) -> Option<u64> {
        let is_inside = self.is_in_heap(chunk) && self.is_in_heap(chunk.checked_add(UNIT)?);
        (is_inside || self.is_mapped_chunk(chunk)).then(|| self.memory.word(chunk + 8)).flatten()
    }

    /// True if `chunk` is the address of a chunk in a heap, and the page of its header is unknown.
    fn is_unknown(&self, chunk: u64) -> bool {
        let is_known = |at: u64| self.memory.word(at).is_some();
        let end = chunk.checked_add(HEADER).filter(|_| chunk.is_multiple_of(UNIT));
        end.is_some_and(|end| self.is_in_heap(chunk) && !(is_known(chunk) && is_known(end - 8)))
    }

    fn add_bin(
        &mut self,
        arena: &ArenaState,
        index: usize,
        chunks: &mut ListedChunks,
        log: &mut CorruptionLog,
    ) -> bool {
        let bin = arena.bin(index);
        let list = match index {
            0 => ChunkList::Unsorted,
            1..FIRST_LARGE_BIN => ChunkList::Small,
            _ => ChunkList::Large,
        };
        let [mut chunk, last] = arena.bins[index];
        let (mut before, mut link_at) = (bin, bin.wrapping_add(16));
        while chunk != bin {
            let mut words = [0; 32];
            let is_inside = chunk.is_multiple_of(UNIT) && self.is_in_heap(chunk);
            if is_inside && !self.memory.read(chunk, &mut words) {
                return false;
            }
            if !is_inside || !self.may_follow() {
                log.add(link_at, link_at, "the address of a chunk in a bin", chunk);
                return false;
            }
            let word =
                |at: usize| words[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            // Each chunk has one back link, so a list in which all back links agree has no cycle.
            if word(24) != before {
                log.add(
                    chunk + HEADER,
                    chunk + 24,
                    "the address of the chunk before it in its bin",
                    word(24),
                );
                return false;
            }
            if list == ChunkList::Small && glibc_chunk::size(word(8)) != 16 * (index as u64 + 1) {
                let expected = format!("the size {} of its bin", 16 * (index + 1));
                log.add(chunk + HEADER, chunk + 8, &expected, word(8));
            }
            chunks.add(chunk, list);
            before = chunk;
            link_at = chunk + 16;
            chunk = word(16);
        }
        if last != before {
            log.add(bin, bin.wrapping_add(24), "the address of the last chunk of its bin", last);
            return false;
        }
        true
    }

    /// Adds the chunks of a thread cache. Returns true if all lists of the cache were followed to
    /// their ends.
    pub(super) fn add_cache(
        &mut self,
        cache: &ThreadCache,
        chunks: &mut ListedChunks,
        log: &mut CorruptionLog,
    ) -> bool {
        chunks.add(cache.address - HEADER, ChunkList::CacheItself);
        let mut whole = true;
        for head in &cache.heads {
            let (mut entry, mut link_at, mut count) = (head.entry, head.address, 0);
            let mut cycle = CycleDetector::new();
            let mut is_sound = true;
            while entry != 0 {
                if cycle.has_met(entry) || !self.may_follow() {
                    log.add(link_at, link_at, "a thread cache without a cycle", entry);
                    is_sound = false;
                    break;
                }
                let chunk = entry.wrapping_sub(HEADER);
                let size = self.chunk_head(chunk).filter(|_| entry.is_multiple_of(UNIT));
                let left = head.count.map(|counted| counted.saturating_sub(count));
                let cut = CutList { cache: Some(cache.address), sizes: head.sizes.clone(), left };
                let Some(size) = size.map(glibc_chunk::size) else {
                    is_sound = false;
                    if self.is_unknown(chunk) {
                        self.cut.push(cut);
                        break;
                    }
                    log.add(link_at, link_at, "the address of a block in a thread cache", entry);
                    break;
                };
                if !head.sizes.contains(&size) {
                    let expected =
                        format!("a size of {} to {}", head.sizes.start(), head.sizes.end());
                    log.add(entry, entry - 8, &expected, size);
                    is_sound = false;
                    break;
                }
                chunks.add(chunk, ChunkList::Tcache);
                count += 1;
                let Some(next) = self.link(entry) else {
                    self.cut.push(cut);
                    is_sound = false;
                    break;
                };
                (link_at, entry) = (entry, next);
            }
            if let Some(counted) = head.count.filter(|counted| is_sound && *counted != count) {
                let expected = format!("the number {count} of cached blocks");
                log.add(head.address, head.count_address, &expected, counted);
            }
            whole &= is_sound;
        }
        whole
    }
}

/// True if the chunks of one of `segments`, which are in order of address, contain `address`.
pub(super) fn is_in_segments(segments: &[HeapSegment], address: u64) -> bool {
    let at = segments.partition_point(|it| it.chunks.end <= address);
    segments.get(at).is_some_and(|segment| segment.chunks.contains(address))
}

/// Returns the segments in order of address, without those that overlap an earlier segment.
pub(super) fn without_overlaps(
    mut segments: Vec<HeapSegment>,
    log: &mut CorruptionLog,
) -> Vec<HeapSegment> {
    segments.sort_by_key(|segment| segment.start);
    let mut end = 0;
    segments.retain(|segment| {
        let AddrRange { start: first, end: own_end } = segment.chunks;
        let is_apart = segment.start >= end && first < own_end;
        if is_apart {
            end = own_end;
        } else {
            log.add(segment.start, segment.start, "a heap behind other heaps", first);
        }
        is_apart
    });
    segments
}

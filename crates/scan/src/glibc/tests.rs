//! Heaps in synthetic memory, with the layouts of all supported versions of glibc.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagewise_model::Pid;
use pagewise_model::heap_scan::LiveAmount;
use pagewise_proc::ProcRoot;
use pagewise_skip::{Lack, skip};

use super::*;
use crate::blocks::LiveBlock;
use crate::live::{CopyRequest, CopyScope, copy_running};
use crate::made::{MadeProcess, MemoryPiece, mapping};
use crate::memory::MaskedMemory;

const PAGE: u64 = 1 << 12;
const HEAP: u64 = 0x5555_0000_0000;
const HEAP_BYTES: u64 = 33 * PAGE;
const LIBC: u64 = 0x7f00_0000_0000;
const MAIN: u64 = LIBC + 0x880;
const PARAMETERS: u64 = LIBC + 0x240;
const THREAD_HEAP: u64 = 0x7f10_0000_0000;
const THREAD_HEAP_BYTES: u64 = 33 * PAGE;
const MAPPED: u64 = 0x7f20_0000_0000;
const TLS: u64 = 0x7f30_0000_0000;
const POINTER: u64 = TLS + 0x740;

/// Layout of a glibc version.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    cache_bins: u64,
    count_width: u64,
    mangles: bool,
    heap_header: u64,
    /// Offset of `top` in `malloc_state`.
    top: u64,
    /// Number of bytes between the end of a mapped chunk and the end of its mapping.
    mapped_end: u64,
    /// Offsets in `malloc_par` of the number of mappings, of the maximum number, of the mapped
    /// bytes, and of the start of the brk heap.
    parameters: [u64; 4],
}

const OLD: [u64; 4] = [40, 44, 56, 72];
const NEW: [u64; 4] = [60, 64, 80, 96];
const NEWEST: [u64; 4] = [68, 72, 88, 104];
const V2_27: Version = Version {
    name: "2.27",
    cache_bins: 64,
    count_width: 1,
    mangles: false,
    heap_header: 32,
    top: 96,
    mapped_end: 0,
    parameters: OLD,
};
const V2_31: Version = Version { name: "2.31", count_width: 2, ..V2_27 };
const V2_33: Version = Version { name: "2.33", mangles: true, ..V2_31 };
const V2_36: Version = Version { name: "2.36", heap_header: 48, parameters: NEW, ..V2_33 };
const V2_42: Version = Version { name: "2.42", cache_bins: 76, ..V2_36 };
const V2_43: Version =
    Version { name: "2.43", top: 8, mapped_end: 16, parameters: NEWEST, ..V2_42 };
const VERSIONS: [Version; 6] = [V2_27, V2_31, V2_33, V2_36, V2_42, V2_43];

impl Version {
    const fn has_fastbins(self) -> bool {
        self.top == 96
    }

    /// Address of the pseudo chunk of a bin.
    const fn bin(self, arena: u64, bin: u64) -> u64 {
        arena + self.top + 16 * bin
    }
}

impl MadeProcess {
    /// Stores an arena with empty bins.
    fn put_arena(&mut self, version: Version, at: u64, top: u64, next: u64, bytes: u64) {
        for bin in (0..127).map(|bin| version.bin(at, bin)) {
            self.put(bin + 16, bin);
            self.put(bin + 24, bin);
        }
        for (offset, word) in [(0, top), (2064, next), (2080, 1), (2088, bytes), (2096, bytes)] {
            self.put(at + version.top + offset, word);
        }
    }

    /// Stores adjacent chunks with the given sizes, and true for chunks in use. The last chunk is
    /// `top`. Returns the chunk addresses.
    fn put_chunks(&mut self, first: u64, flags: u64, chunks: &[(u64, bool)]) -> Vec<u64> {
        let (mut at, mut before) = (first, (0, true));
        let mut all = Vec::new();
        for &(size, is_used) in chunks {
            let own_flags = if is_used { flags } else { 0 };
            self.put(at + 8, size | own_flags | u64::from(before.1));
            if !before.1 {
                self.put(at, before.0);
            }
            all.push(at);
            at += size;
            before = (size, is_used);
        }
        all
    }

    /// Stores a bin that contains one chunk.
    fn put_bin(&mut self, head: u64, chunk: u64) {
        for (at, word) in
            [(head + 16, chunk), (head + 24, chunk), (chunk + 16, head), (chunk + 24, head)]
        {
            self.put(at, word);
        }
    }

    /// Stores a singly linked list whose links are at the addresses `links`.
    fn put_list(&mut self, version: Version, head: u64, links: &[u64], offset: u64) {
        self.put(head, links[0] - offset);
        let nexts = links[1..].iter().map(|next| next - offset).chain([0]);
        for (&at, next) in links.iter().zip(nexts) {
            self.put(at, if version.mangles { next ^ (at >> 12) } else { next });
        }
    }
}

/// Creates a process with two arenas, one chunk in each kind of free list, and mapped blocks.
fn made(version: Version) -> MadeProcess {
    let mappings = vec![
        mapping(HEAP, HEAP_BYTES, "[heap]", 0),
        mapping(LIBC, 2 * PAGE, "/lib/libc.so.6", 7),
        mapping(THREAD_HEAP, THREAD_HEAP_BYTES, "", 0),
        mapping(MAPPED, 40 * PAGE, "", 0),
        mapping(TLS, PAGE, "", 0),
    ];
    let mut made = MadeProcess::new(mappings, &[POINTER]);
    put_main(&mut made, version);
    put_thread_arena(&mut made, version);
    // A mapped block, a mapped block with an alignment, whose chunk begins later, and other memory.
    let end = version.mapped_end;
    made.put(MAPPED + 8, (33 * PAGE - end) | 2);
    let aligned = MAPPED + 33 * PAGE;
    made.put(aligned + 8, (5 * PAGE - end) | 2);
    made.put(aligned + 3 * PAGE - 16, 3 * PAGE - 16);
    made.put(aligned + 3 * PAGE - 8, (2 * PAGE + 16 - end) | 2);
    made.put(POINTER - 0x48, HEAP + 16);
    made.put(POINTER - 0x30, MAIN);
    made
}

fn put_main(made: &mut MadeProcess, version: Version) {
    // This chunk is larger than requested because the remainder was too small to be split off;
    // since 2.43 the requested size is rounded up twice.
    let too_much = if version.has_fastbins() { 16 } else { 32 };
    let cache = version.cache_bins * (version.count_width + 8) + 8;
    let cache = cache.next_multiple_of(16) + too_much;
    let sizes = [
        (cache, true),
        (48, true),
        // Chunks in the thread cache.
        (64, true),
        (64, true),
        (112, true),
        // Chunks in a fastbin.
        (80, true),
        (80, true),
        (2000, true),
        // Chunks in the unsorted, a small and a large bin, separated by live chunks.
        (9008, false),
        (32, true),
        (512, false),
        (64, true),
        (20000, false),
        (48, true),
    ];
    let used: u64 = sizes.iter().map(|(size, _)| size).sum();
    let top = HEAP_BYTES - used;
    let chunks = made.put_chunks(HEAP, 0, &[sizes.as_slice(), &[(top, true)]].concat());
    made.put_arena(version, MAIN, chunks[14], THREAD_HEAP + version.heap_header, HEAP_BYTES);
    if version.has_fastbins() {
        made.put_list(version, MAIN + 16 + 8 * 3, &[chunks[5] + 16, chunks[6] + 16], 16);
    }
    for (bin, chunk) in [(0, 8), (31, 10), (110, 12)] {
        made.put_bin(version.bin(MAIN, bin), chunks[chunk]);
    }
    let lists = HEAP + 16 + version.cache_bins * version.count_width;
    made.put_list(version, lists + 8 * 2, &[chunks[3] + 16, chunks[2] + 16], 0);
    let counts_entries = version.cache_bins == 64;
    for bin in 0..version.cache_bins {
        let entries = if bin == 2 { 2 } else { 0 };
        let count = if counts_entries { entries } else { 7 - entries };
        let at = HEAP + 16 + bin * version.count_width;
        made.put_narrow(at, count, version.count_width);
    }
    let [mappings, most, bytes, start] = version.parameters;
    made.put_narrow(PARAMETERS + mappings, 2, 4);
    made.put_narrow(PARAMETERS + most, 65536, 4);
    made.put_narrow(PARAMETERS + most + 4, 3, 4);
    made.put(PARAMETERS + bytes, 38 * PAGE);
    made.put(PARAMETERS + bytes + 8, 40 * PAGE);
    for (offset, word) in [(0, HEAP), (8, version.cache_bins), (16, 1032), (24, 7)] {
        made.put(PARAMETERS + start + offset, word);
    }
}

fn put_thread_arena(made: &mut MadeProcess, version: Version) {
    let arena = THREAD_HEAP + version.heap_header;
    let first = (arena + version.top + 2104).next_multiple_of(16);
    let top = THREAD_HEAP + THREAD_HEAP_BYTES - first - 96 - 160;
    let chunks = made.put_chunks(first, 4, &[(96, true), (160, true), (top, true)]);
    // The header of `top` has no flag of its arena.
    made.put(chunks[2] + 8, top | 1);
    made.put_arena(version, arena, chunks[2], MAIN, THREAD_HEAP_BYTES);
    for (offset, word) in [(0, arena), (8, 0), (16, THREAD_HEAP_BYTES), (24, THREAD_HEAP_BYTES)] {
        made.put(THREAD_HEAP + offset, word);
    }
}

fn walked(made: &MadeProcess) -> AllocatorWalk {
    walk(made, PageSize::new(PAGE).unwrap()).unwrap()
}

#[test]
fn the_layouts_of_all_versions_are_detected() {
    for version in VERSIONS {
        let AllocatorWalk { heap, blocks, .. } = walked(&made(version));
        let name = version.name;
        assert_eq!(heap.corruption, [], "{name}");
        assert_eq!(heap.gaps, [], "{name}");
        assert_eq!(heap.allocators[0].mangles_links, Some(version.mangles), "{name}");
        assert!(!heap.allocators[0].thread_caches.is_empty(), "{name}");
        let sizes: Vec<u64> = (0..blocks.len()).map(|at| blocks.get(at).unwrap().size).collect();
        let end = version.mapped_end / 2;
        let mapped = [33 * PAGE - 16 - end, 2 * PAGE - end];
        let main = [40, 104, 1992, 24, 56, 40];
        let main = if version.has_fastbins() {
            main.to_vec()
        } else {
            [&main[..2], &[72, 72], &main[2..]].concat()
        };
        assert_eq!(sizes, [&main[..], &[88, 152], &mapped].concat(), "{name}");
        let last = LiveBlock { start: MAPPED + 36 * PAGE, size: 2 * PAGE - end };
        assert_eq!(blocks.last(), Some(last), "{name}");
        let free = heap.arenas[0].free;
        let lists = [free.tcache, free.fastbins, free.unsorted, free.small_bins, free.large_bins];
        let fastbins = if version.has_fastbins() { 160 } else { 0 };
        assert_eq!(lists, [128, fastbins, 9008, 512, 20000], "{name}");
        assert_eq!(free.unlisted, 0, "{name}");
        assert_eq!(heap.arenas.len(), 2, "{name}");
        let bytes = |arena: &WalkedArena| arena.live_chunks.0 + arena.own.0 + arena.free.total();
        for arena in &heap.arenas {
            assert_eq!(bytes(arena), arena.held.0, "{name}: all bytes are one or the other");
            assert_eq!(arena.held, arena.system, "{name}");
        }
        assert_eq!(heap.arenas[0].threads, 1, "{name}");
        assert_eq!(heap.mapped.counted.unwrap().blocks, 2, "{name}");
        assert_eq!(heap.mapped.counted.unwrap().bytes, heap.mapped.held.0, "{name}");
    }
}

const SECOND_POINTER: u64 = TLS + PAGE + 0x740;
const MARK: u64 = 0x1234_5678_9abc_def0;

/// Creates the process of [`made`] with a second thread, whose cache is in its own arena and
/// contains two blocks. `marks` are the second words of the cached blocks, for each thread.
fn made_with_two_caches(version: Version, marks: [u64; 2]) -> MadeProcess {
    let mut made = made(version);
    let more = MadeProcess::new(vec![mapping(TLS + PAGE, PAGE, "", 0)], &[SECOND_POINTER]);
    made.mappings.extend(more.mappings);
    made.pieces.extend(more.pieces);
    made.threads.extend(more.threads);
    let arena = THREAD_HEAP + version.heap_header;
    let cache = (version.cache_bins * (version.count_width + 8) + 8).next_multiple_of(16);
    let first = (arena + version.top + 2104).next_multiple_of(16);
    let top = THREAD_HEAP + THREAD_HEAP_BYTES - first - 96 - cache - 128;
    let sizes = [(96, true), (cache, true), (64, true), (64, true), (top, true)];
    // This clears the header of the former last chunk.
    made.put(first + 96 + 160 + 8, 0);
    let chunks = made.put_chunks(first, 4, &sizes);
    made.put(chunks[4] + 8, top | 1);
    made.put(arena + version.top, chunks[4]);
    let lists = chunks[1] + 16 + version.cache_bins * version.count_width;
    made.put_list(version, lists + 8 * 2, &[chunks[3] + 16, chunks[2] + 16], 0);
    made.put_narrow(chunks[1] + 16 + 2 * version.count_width, 2, version.count_width);
    made.put(SECOND_POINTER - 0x48, chunks[1] + 16);
    made.put(SECOND_POINTER - 0x30, arena);
    let cache = version.cache_bins * (version.count_width + 8) + 8;
    let cached = HEAP + cache.next_multiple_of(16) + 16 + 48;
    for (at, mark) in
        [(cached, marks[0]), (cached + 64, marks[0]), (chunks[2], marks[1]), (chunks[3], marks[1])]
    {
        made.put(at + 24, mark);
    }
    made
}

#[test]
fn blocks_of_a_cache_that_cannot_be_read_are_recognized_by_their_marks() {
    let whole = walked(&made_with_two_caches(V2_36, [MARK; 2])).heap;
    assert_eq!(whole.unread_lists, UnreadLists::default());
    assert_eq!(whole.corruption, []);
    let known = made_with_two_caches(V2_36, [MARK; 2]);
    // First the TLS of the first thread is unknown; then several bins of its cache contradict their
    // counts.
    let hidden = [AddrRange { start: TLS, end: TLS + PAGE }];
    let masked = MaskedMemory::new(&known, &hidden);
    let mut damaged = known.clone();
    for bin in [5, 6] {
        damaged.put_narrow(HEAP + 16 + 2 * bin, 1, 2);
    }
    // Until glibc 2.33 the mark is the address of the cache.
    let mut old = made_with_two_caches(V2_33, [HEAP + 16, 0]);
    let of_second = old.word(SECOND_POINTER - 0x48).unwrap();
    for cached in [0, 64] {
        let chunk = of_second - 16 + 656 + cached;
        old.put(chunk + 24, of_second);
    }
    for bin in [5, 6] {
        old.put_narrow(HEAP + 16 + 2 * bin, 1, 2);
    }
    let all: [(&dyn Memory, bool); 3] = [(&masked, true), (&damaged, false), (&old, false)];
    for (memory, is_sound) in all {
        let heap = walk(memory, PageSize::new(PAGE).unwrap()).unwrap().heap;
        assert_eq!(heap.free().tcache, whole.free().tcache);
        let marked = LiveAmount { blocks: 2, bytes: 2 * 56 };
        let caches = UnreadLists { threads: 1, marked, ..UnreadLists::default() };
        assert_eq!(heap.unread_lists, caches);
        // The block that contains a damaged cache counts as live.
        let more = u64::from(!is_sound);
        assert_eq!(heap.live().blocks, whole.live().blocks + more);
        assert_eq!(heap.corruption, []);
    }
}

#[test]
fn without_marks_the_blocks_that_a_cache_may_hold_are_unclear() {
    // Before 2.29 blocks have no mark, so the second word can be data of the program. With a single
    // thread, no mark is known.
    for known in [made_with_two_caches(V2_27, [7; 2]), made(V2_36)] {
        let hidden = [AddrRange { start: TLS, end: TLS + PAGE }];
        let heap =
            walk(&MaskedMemory::new(&known, &hidden), PageSize::new(PAGE).unwrap()).unwrap().heap;
        let UnreadLists { threads, marked, unclear, .. } = heap.unread_lists;
        assert_eq!((threads, marked), (1, LiveAmount::default()));
        let small = heap.sizes.iter().filter(|it| it.size <= 1032);
        assert_eq!(unclear.blocks, small.map(|it| it.blocks).sum::<u64>());
    }
}

#[test]
fn a_list_that_leads_into_an_unknown_page_is_no_contradiction() {
    let hidden = |known: &MadeProcess, page: u64| {
        let hidden = [AddrRange { start: page, end: page + PAGE }];
        walk(&MaskedMemory::new(known, &hidden), PageSize::new(PAGE).unwrap()).unwrap().heap
    };
    for mark in [MARK, 7] {
        let mut known = made_with_two_caches(V2_36, [mark; 2]);
        // The cache contains three blocks in this order: the second of the two original blocks, a
        // block in a page of its own, and the first original block.
        let lists = HEAP + 16 + V2_36.cache_bins * V2_36.count_width;
        let cached = HEAP + 672 + 48 + 16;
        let far = HEAP + 20 * PAGE + 512;
        known.put_list(V2_36, lists + 8 * 2, &[cached + 64, far, cached], 0);
        known.put_narrow(HEAP + 16 + 2 * 2, 3, 2);
        let heap = hidden(&known, HEAP + 20 * PAGE);
        assert_eq!(heap.corruption, []);
        // The walk recognizes the first original block by its mark.
        assert_eq!(heap.arenas[0].free.tcache, 128);
        let marked = LiveAmount { blocks: 1, bytes: 56 };
        assert_eq!(heap.unread_lists, UnreadLists { lists: 1, marked, ..UnreadLists::default() });
    }
    // Without marks, the first original block may be any live block of its size.
    let mut known = made_with_two_caches(V2_27, [7; 2]);
    let cached = HEAP + 608 + 48 + 16;
    let far = HEAP + 20 * PAGE + 512;
    let lists = HEAP + 16 + V2_27.cache_bins * V2_27.count_width;
    known.put_list(V2_27, lists + 8 * 2, &[cached + 64, far, cached], 0);
    known.put_narrow(HEAP + 16 + 2, 3, 1);
    let heap = hidden(&known, HEAP + 20 * PAGE);
    assert_eq!((heap.corruption, heap.arenas[0].free.tcache), (vec![], 64));
    // The cache counts two further blocks, of which one is in the unknown page.
    let unclear = LiveAmount { blocks: 2, bytes: 2 * 56 };
    assert_eq!(heap.unread_lists, UnreadLists { lists: 1, unclear, ..UnreadLists::default() });
}

#[test]
fn a_thread_that_is_changing_its_cache_has_one() {
    let mut made = made_with_two_caches(V2_36, [MARK; 2]);
    // The thread has taken the last block and has not changed the count yet.
    let lists = HEAP + 16 + V2_36.cache_bins * V2_36.count_width;
    made.put(lists + 8 * 2, 0);
    let heap = walked(&made).heap;
    assert_eq!(heap.unread_lists, UnreadLists::default());
    assert_eq!(heap.free().tcache, 128);
}

#[test]
fn a_mapped_block_in_a_thread_cache_is_free() {
    let mut made = made(V2_43);
    // Bin 68 contains chunks of up to 256 KiB.
    let lists = HEAP + 16 + V2_43.cache_bins * V2_43.count_width;
    made.put_list(V2_43, lists + 8 * 68, &[MAPPED + 16], 0);
    let AllocatorWalk { heap, blocks, .. } = walked(&made);
    assert_eq!(heap.corruption, []);
    assert_eq!(heap.mapped.cached, LiveAmount { blocks: 1, bytes: 33 * PAGE - 24 });
    assert_eq!(heap.mapped.live, LiveAmount { blocks: 1, bytes: 2 * PAGE - 8 });
    assert_eq!(heap.mapped.held.0, 38 * PAGE);
    assert_eq!(blocks.containing(MAPPED + 16), None);
}

#[test]
fn parts_of_the_brk_heap_are_walked_if_the_last_chunk_lies_elsewhere() {
    let mut made = made(V2_36);
    // The last chunk is in a mapping. Three fenceposts precede the second part of the brk heap.
    let last = made.word(MAIN + V2_36.top).unwrap();
    let size = made.word(last + 8).unwrap() - 1;
    made.put(MAIN + V2_36.top, MAPPED + 38 * PAGE);
    made.put(MAPPED + 38 * PAGE + 8, (2 * PAGE) | 1);
    let used =
        made.put_chunks(last, 0, &[(size / 32 * 16, true), (16, true), (16, true), (16, true)]);
    let second = used[3] + 16;
    let rest = HEAP + HEAP_BYTES - second - 80;
    let sizes = [(80, true), (rest - 32, true), (16, true), (16, true)];
    made.put_chunks(second, 0, &sizes);
    let heap = walked(&made).heap;
    assert_eq!((heap.corruption, heap.gaps), (vec![], vec![]));
    let main = &heap.arenas[0];
    assert_eq!(main.live.blocks, 6 + 3);
    assert_eq!(main.live_chunks.0 + main.own.0 + main.free.total(), main.held.0);
}

#[test]
fn a_mapped_block_with_a_small_alignment_begins_in_the_first_bytes_since_2_43() {
    let mut made = made(V2_43);
    made.put(MAPPED + 16, 16);
    made.put(MAPPED + 24, (33 * PAGE - 32) | 2);
    let AllocatorWalk { heap, blocks, .. } = walked(&made);
    assert_eq!(heap.corruption, []);
    let block = blocks.containing(MAPPED + 32).and_then(|index| blocks.get(index));
    assert_eq!(block, Some(LiveBlock { start: MAPPED + 32, size: 33 * PAGE - 40 }));
}

#[test]
fn trimmable_are_the_whole_pages_of_free_chunks_and_of_the_end() {
    let heap = walked(&made(V2_36)).heap;
    let main = &heap.arenas[0];
    let top = main.free.top;
    assert_eq!(main.trimmable_top.0, (top - 33) / PAGE * PAGE);
    // `malloc_trim` would release one page of the unsorted chunk and some pages of the large chunk,
    // without the headers.
    let chunk = |start: u64, size: u64| {
        let first = (start + 48).next_multiple_of(PAGE);
        (start + size - first) / PAGE * PAGE
    };
    let unsorted = HEAP + 672 + 48 + 64 * 2 + 112 + 80 * 2 + 2000;
    let large = unsorted + 9008 + 32 + 512 + 64;
    let expected = chunk(unsorted, 9008) + chunk(large, 20000);
    assert!(expected > 2 * PAGE);
    assert_eq!(main.trimmable.0 - main.trimmable_top.0, expected);
    assert_eq!(heap.arenas[1].trimmable.0, 0, "malloc_trim leaves the end of thread arenas");
}

/// Original value of a word that a test changed.
struct ChangedWord {
    piece: usize,
    at: usize,
    before: [u8; 8],
}

impl MadeProcess {
    fn replace(&mut self, piece: usize, at: usize, word: u64) -> ChangedWord {
        let bytes = &mut self.pieces[piece].bytes[at..at + 8];
        let before = *bytes.first_chunk().unwrap();
        bytes.copy_from_slice(&word.to_le_bytes());
        ChangedWord { piece, at, before }
    }

    /// Changes some words, to values that are plausible for an allocator and to random values.
    fn change(&mut self, random: &mut fastrand::Rng) -> Vec<ChangedWord> {
        let mut changes = Vec::new();
        for _ in 0..random.usize(1..20) {
            let piece = random.usize(..self.pieces.len());
            let bytes = self.pieces[piece].bytes.len();
            // The start of a mapping contains more data of the allocator.
            let limit = if random.bool() { bytes.min(4000) } else { bytes };
            let at = random.usize(..limit / 8) * 8;
            let other = &self.pieces[random.usize(..self.pieces.len())];
            let other_at = random.usize(..other.bytes.len() / 8) * 8;
            let word = match random.u8(..6) {
                0 => random.u64(..),
                1 => random.u64(..1 << 16),
                2 => u64::MAX - random.u64(..64),
                3 => other.start + other_at as u64 / 16 * 16,
                4 => u64::from_le_bytes(*other.bytes[other_at..].first_chunk().unwrap()),
                _ => 0,
            };
            changes.push(self.replace(piece, at, word));
        }
        changes
    }

    fn restore(&mut self, changes: &[ChangedWord]) {
        for change in changes.iter().rev() {
            self.replace(change.piece, change.at, u64::from_le_bytes(change.before));
        }
    }

    /// Walks the heap of `images` copies with changed words. Returns the number of copies in which
    /// the walk reported a contradiction.
    fn walk_changed(&mut self, images: usize, random: &mut fastrand::Rng) -> usize {
        let all: u64 = self.mappings.iter().map(|mapping| mapping.range.len().0).sum();
        let mut noticed = 0;
        for _ in 0..images {
            let changes = self.change(random);
            if let Some(found) = walk(self, PageSize::new(PAGE).unwrap()) {
                noticed += usize::from(found.heap.corrupted > 0);
                let blocks = (0..found.blocks.len()).map(|at| found.blocks.get(at).unwrap());
                assert!(blocks.map(|block| block.size).sum::<u64>() <= all);
            }
            self.restore(&changes);
        }
        noticed
    }
}

#[test]
fn changed_words_are_contradictions_and_the_walk_ends() {
    const IMAGES: usize = 500;
    let mut random = fastrand::Rng::with_seed(1);
    for version in VERSIONS {
        let noticed = made(version).walk_changed(IMAGES, &mut random);
        assert!(noticed > IMAGES / 4, "{}: {noticed}", version.name);
    }
}

/// Copies the memory of a shell with some variables while the shell waits for input.
fn captured() -> Option<MadeProcess> {
    let script = "for i in {1..400}; do a[i]=$i$i$i; done; for i in {1..400..3}; do unset 'a[i]'; done; echo; read";
    let mut bash = Command::new("bash");
    let child = bash.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        skip(&Lack::Tool("bash"));
        return None;
    };
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let request = CopyRequest {
        scope: CopyScope::Heap,
        max_pause: Duration::from_secs(60),
        busy_code: &[],
        announce: &|_| {},
    };
    let copy = copy_running(&ProcRoot::live(), Pid(child.id()), &request);
    drop(child.stdin.take());
    child.wait().unwrap();
    let copy = copy.unwrap();
    let mut pieces = Vec::new();
    for mapping in copy.mappings() {
        copy.visit(mapping.range, &mut |start, bytes| {
            pieces.push(MemoryPiece { start, bytes: bytes.to_vec() });
        });
    }
    let (mappings, threads) = (copy.mappings().to_vec(), copy.threads().to_vec());
    Some(MadeProcess { mappings, threads, pieces })
}

/// The environment variable `PAGEWISE_RUNS` is the number of images, and `PAGEWISE_SEED` is the
/// seed of the changes.
#[test]
fn changed_words_of_a_real_heap_are_contradictions_and_the_walk_ends() {
    let Some(mut captured) = captured() else { return };
    let whole = walked(&captured);
    assert_eq!(whole.heap.corruption, []);
    assert!(whole.blocks.len() > 400, "{}", whole.blocks.len());
    let given = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u32>().unwrap());
    let images = given("PAGEWISE_RUNS").map_or(300, |runs| runs as usize);
    let seed = given("PAGEWISE_SEED").unwrap_or_else(std::process::id);
    eprintln!("PAGEWISE_SEED={seed}");
    let noticed = captured.walk_changed(images, &mut fastrand::Rng::with_seed(seed.into()));
    assert!(noticed > images / 20, "{noticed}");
    assert_eq!(walked(&captured), whole, "all changes are restored");
}

#[test]
fn pages_that_all_lead_through_the_others_are_searched_in_time() {
    let mut made = made(V2_36);
    // If the last chunk of a main arena is outside of the brk heap, the arena has parts there.
    made.put(MAIN + V2_36.top, MAPPED + (1 << 40));
    let bytes = 64 << 20;
    let index = made.mappings.iter().position(|it| it.range.start == MAPPED).unwrap();
    made.mappings[index].range.end = MAPPED + bytes;
    let chunks = [[0, 0x21_u64, 0, 0], [0, (1 << 40) | 2, 0, 0]];
    for chunk in chunks.map(|words| words.map(u64::to_le_bytes).concat()) {
        made.pieces[index].bytes = chunk.repeat(usize::try_from(bytes).unwrap() / chunk.len());
        let heap = walked(&made).heap;
        let page = heap.corruption.iter().find(|it| it.expected.starts_with("fewer headers"));
        assert!(page.is_some(), "{:?}", heap.corruption);
    }
}

#[test]
fn memory_of_nothing_but_equal_small_sizes_is_walked_in_time() {
    let mut made = made(V2_36);
    for word in made.pieces[0].bytes.chunks_exact_mut(16) {
        word[8..].copy_from_slice(&0x21_u64.to_le_bytes());
    }
    let heap = walked(&made).heap;
    assert!(heap.corrupted > 0);
    assert!(heap.corruption.len() <= 100);
}

/// Creates a main arena of some MiB whose chunk contents look like data of the allocator. Large
/// free chunks are in the last bins, and all other free chunks in the unsorted bin.
fn large_heap(random: &mut fastrand::Rng, live: f64, fast: bool) -> MadeProcess {
    const BYTES: u64 = 6 << 20;
    let mappings =
        vec![mapping(HEAP, BYTES, "[heap]", 0), mapping(LIBC, 2 * PAGE, "/libc.so.6", 7)];
    let mut made = MadeProcess::new(mappings, &[]);
    for word in made.pieces[0].bytes.as_chunks_mut::<8>().0 {
        *word = match random.u8(..6) {
            0 => random.u64(..),
            1 => random.u64(..1 << 12),
            2 => HEAP + random.u64(..BYTES),
            3 => 0x31,
            _ => 0,
        }
        .to_le_bytes();
    }
    let (mut chunks, mut left) = (Vec::new(), BYTES - (1 << 18));
    while left > 0 {
        let size = match random.u8(..100) {
            0 => random.u64(1 << 12..600_000),
            1..10 => random.u64(200..1 << 13),
            _ => random.u64(32..200),
        };
        let size = (size & !15).clamp(32, left);
        let size = if left - size < 32 { left } else { size };
        let is_free = random.f64() > live
            && size < left
            && chunks.last().is_none_or(|last: &(u64, bool)| last.1);
        chunks.push((size, !is_free));
        left -= size;
    }
    chunks.push((1 << 18, true));
    let addresses = made.put_chunks(HEAP, 0, &chunks);
    let top = *addresses.last().unwrap();
    made.put(top + 8, 1 << 18 | u64::from(chunks[chunks.len() - 2].1));
    made.put_arena(V2_36, MAIN, top, MAIN, BYTES);
    let all = || addresses.iter().copied().zip(chunks.iter().copied());
    let free = || all().filter(|(_, (_, is_used))| !is_used);
    let is_large = |size: u64| size >= 40 << 10;
    for (bin, large) in [(0, false), (125, true)] {
        let listed: Vec<u64> =
            free().filter(|(_, (size, _))| is_large(*size) == large).map(|it| it.0).collect();
        made.put_ring(MAIN + 96 + 16 * bin, &listed);
    }
    let cached: Vec<u64> = all()
        .filter(|(_, (size, is_used))| *is_used && *size == 64)
        .filter(|_| fast && random.bool())
        .map(|(at, _)| at + 16)
        .collect();
    if !cached.is_empty() {
        made.put_list(VERSIONS[3], MAIN + 16 + 8 * 2, &cached, 16);
    }
    made
}

impl MadeProcess {
    /// Stores a bin that contains `chunks`.
    fn put_ring(&mut self, head: u64, chunks: &[u64]) {
        let ring: Vec<u64> = [&[head], chunks, &[head]].concat();
        for pair in ring.windows(2) {
            self.put(pair[0] + 16, pair[1]);
            self.put(pair[1] + 24, pair[0]);
        }
    }
}

#[test]
fn a_sample_of_all_windows_is_the_walk_and_one_of_some_contains_it() {
    let mut random = fastrand::Rng::with_seed(3);
    for (number, live) in [0.95, 0.6, 0.3, 0.05, 0.9, 0.5].into_iter().enumerate() {
        let made = large_heap(&mut random, live, number % 2 == 0);
        let heap = walked(&made).heap;
        assert_eq!(heap.corruption, [], "{live}");
        let truth = |trimmable: bool| match trimmable {
            true => heap.arenas[0].trimmable.0 - heap.arenas[0].trimmable_top.0,
            false => heap.arenas[0].free.total(),
        };
        for count in [u64::MAX, 40] {
            let page = PageSize::new(PAGE).unwrap();
            let found = sample(&made, page, &|_| true, &|read| read < count).unwrap().unwrap();
            let resident = found.sample.resident();
            assert!(resident.0.abs_diff(6 << 20) <= 1, "{resident}");
            let free = found.sample.estimate(resident, |window| window.free);
            let trimmable = found.sample.estimate(resident, |window| window.trimmable);
            for (estimate, truth) in [(free, truth(false)), (trimmable, truth(true))] {
                let is_inside = estimate.low.0 <= truth + 1 && truth <= estimate.high.0 + 1;
                assert!(is_inside, "{live} {count}: {truth} {estimate:?}");
            }
            // The excerpts stand for all pages that certainly contain only free blocks.
            let released: u64 = found.sample.windows.iter().map(|it| it.trimmable.low).sum();
            let excerpts = &found.sample.free_pages;
            let weight: u64 = excerpts.iter().map(|it| it.weight).sum();
            assert_eq!(weight * PAGE, released, "{live} {count}");
            assert!(excerpts.iter().all(|it| it.bytes.len() == 256));
            if count == u64::MAX {
                let unsettled: u64 = found.sample.windows.iter().map(|it| it.unsettled).sum();
                assert!(unsettled < 100 << 10, "{live}: {unsettled}");
                assert!(free.high.0 - free.low.0 < 200 << 10, "{live}: {free:?}");
            }
        }
    }
}

#[test]
fn a_sample_of_a_heap_that_is_damaged_ends_and_claims_less() {
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..10 {
        let mut made = large_heap(&mut random, 0.5, true);
        for _ in 0..random.usize(1..2000) {
            let at = random.usize(..made.pieces[0].bytes.len() / 8) * 8;
            let word = [0, u64::MAX, 0x21, random.u64(..), HEAP + random.u64(..1 << 22)];
            let word = word[random.usize(..word.len())];
            made.pieces[0].bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let page = PageSize::new(PAGE).unwrap();
        if let Ok(Some(found)) = sample(&made, page, &|_| true, &|_| true) {
            for window in &found.sample.windows {
                for bounds in [window.free, window.trimmable, window.pinned, window.top] {
                    assert!(bounds.low <= bounds.high && bounds.high <= window.resident);
                }
            }
        }
    }
}

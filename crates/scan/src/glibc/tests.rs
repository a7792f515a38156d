//! Heaps in made memory, with the layouts of all supported versions of glibc.

use super::*;
use crate::blocks::LiveBlock;
use crate::made::{MadeProcess, mapping};

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

/// Differences between versions.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    cache_bins: u64,
    count_width: u64,
    mangles: bool,
    heap_header: u64,
    /// Offsets of the number of mappings, of their most, of the mapped bytes, and of the start of
    /// the heap in `malloc_par`.
    parameters: [u64; 4],
}

const OLD: [u64; 4] = [40, 44, 56, 72];
const NEW: [u64; 4] = [60, 64, 80, 96];
const VERSIONS: [Version; 5] = [
    version("2.27", 64, 1, false, 32, OLD),
    version("2.31", 64, 2, false, 32, OLD),
    version("2.33", 64, 2, true, 32, OLD),
    version("2.36", 64, 2, true, 48, NEW),
    version("2.42", 76, 2, true, 48, NEW),
];

const fn version(
    name: &'static str,
    cache_bins: u64,
    count_width: u64,
    mangles: bool,
    heap_header: u64,
    parameters: [u64; 4],
) -> Version {
    Version { name, cache_bins, count_width, mangles, heap_header, parameters }
}

impl MadeProcess {
    /// An arena with empty bins.
    fn put_arena(&mut self, at: u64, top: u64, next: u64, bytes: u64) {
        for bin in 0..127 {
            self.put(at + 112 + 16 * bin, at + 96 + 16 * bin);
            self.put(at + 120 + 16 * bin, at + 96 + 16 * bin);
        }
        for (offset, word) in [(96, top), (2160, next), (2176, 1), (2184, bytes), (2192, bytes)] {
            self.put(at + offset, word);
        }
    }

    /// Chunks one behind the other: their sizes, and true if they are in use. The last is `top`.
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

    /// A bin with one chunk.
    fn put_bin(&mut self, arena: u64, bin: u64, chunk: u64) {
        let head = arena + 96 + 16 * bin;
        for (at, word) in
            [(head + 16, chunk), (head + 24, chunk), (chunk + 16, head), (chunk + 24, head)]
        {
            self.put(at, word);
        }
    }

    /// A singly linked list of words at these addresses.
    fn put_list(&mut self, version: Version, head: u64, links: &[u64], offset: u64) {
        self.put(head, links[0] - offset);
        let nexts = links[1..].iter().map(|next| next - offset).chain([0]);
        for (&at, next) in links.iter().zip(nexts) {
            self.put(at, if version.mangles { next ^ (at >> 12) } else { next });
        }
    }
}

/// A process with two arenas, one of each kind of free chunk, and a mapped block.
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
    // A block of its own, an aligned one whose chunk begins further behind, and other memory.
    made.put(MAPPED + 8, (33 * PAGE) | 2);
    let aligned = MAPPED + 33 * PAGE;
    made.put(aligned + 8, (5 * PAGE) | 2);
    made.put(aligned + 3 * PAGE - 16, 3 * PAGE - 16);
    made.put(aligned + 3 * PAGE - 8, (2 * PAGE + 16) | 2);
    made.put(POINTER - 0x48, HEAP + 16);
    made.put(POINTER - 0x30, MAIN);
    made
}

fn put_main(made: &mut MadeProcess, version: Version) {
    let cache = (version.cache_bins * (version.count_width + 8) + 8).next_multiple_of(16);
    let sizes = [
        (cache, true),
        (48, true),
        // In the thread cache.
        (64, true),
        (64, true),
        (112, true),
        // In a fastbin.
        (80, true),
        (80, true),
        (2000, true),
        // Unsorted, small, large.
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
    made.put_arena(MAIN, chunks[14], THREAD_HEAP + version.heap_header, HEAP_BYTES);
    made.put_list(version, MAIN + 16 + 8 * 3, &[chunks[5] + 16, chunks[6] + 16], 16);
    made.put_bin(MAIN, 0, chunks[8]);
    made.put_bin(MAIN, 31, chunks[10]);
    made.put_bin(MAIN, 110, chunks[12]);
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
    let first = (arena + 2200).next_multiple_of(16);
    let top = THREAD_HEAP + THREAD_HEAP_BYTES - first - 96 - 160;
    let chunks = made.put_chunks(first, 4, &[(96, true), (160, true), (top, true)]);
    // `top` has no flag of its arena.
    made.put(chunks[2] + 8, top | 1);
    made.put_arena(arena, chunks[2], MAIN, THREAD_HEAP_BYTES);
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
        let mapped = [33 * PAGE - 16, 2 * PAGE];
        let main = [40, 104, 1992, 24, 56, 40];
        assert_eq!(sizes, [&main[..], &[88, 152], &mapped].concat(), "{name}");
        assert_eq!(
            blocks.last(),
            Some(LiveBlock { start: MAPPED + 36 * PAGE, size: 2 * PAGE }),
            "{name}"
        );
        let free = heap.arenas[0].free;
        let lists = [free.tcache, free.fastbins, free.unsorted, free.small_bins, free.large_bins];
        assert_eq!(lists, [128, 160, 9008, 512, 20000], "{name}");
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

#[test]
fn trimmable_are_the_whole_pages_of_free_chunks_and_of_the_end() {
    let heap = walked(&made(VERSIONS[3])).heap;
    let main = &heap.arenas[0];
    let top = main.free.top;
    assert_eq!(main.trimmable_top.0, (top - 33) / PAGE * PAGE);
    // One page of the unsorted chunk, and some of the large one: headers stay.
    let chunk = |start: u64, size: u64| {
        let first = (start + 48).next_multiple_of(PAGE);
        (start + size - first) / PAGE * PAGE
    };
    let unsorted = HEAP + 656 + 48 + 64 * 2 + 112 + 80 * 2 + 2000;
    let large = unsorted + 9008 + 32 + 512 + 64;
    let expected = chunk(unsorted, 9008) + chunk(large, 20000);
    assert!(expected > 2 * PAGE);
    assert_eq!(main.trimmable.0 - main.trimmable_top.0, expected);
    assert_eq!(heap.arenas[1].trimmable.0, 0, "malloc_trim leaves the end of thread arenas");
}

#[test]
fn changed_words_are_contradictions_and_the_walk_ends() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut noticed = 0;
    const IMAGES: usize = 3000;
    for number in 0..IMAGES {
        let mut made = made(VERSIONS[number % VERSIONS.len()]);
        let first = made.bytes[0].clone();
        for _ in 0..random.usize(1..20) {
            // The start of a mapping has more of the allocator's data.
            let index = random.usize(..made.bytes.len());
            let limit = if random.bool() { 4000 } else { made.bytes[index].len() };
            let at = random.usize(..limit / 8) * 8;
            let base = made.mappings[random.usize(..made.mappings.len())].range.start;
            let word = match random.u8(..6) {
                0 => random.u64(..),
                1 => random.u64(..1 << 16),
                2 => u64::MAX - random.u64(..64),
                3 => base + random.u64(..PAGE) * 16,
                4 => u64::from_le_bytes(*first[at % first.len()..].first_chunk().unwrap()),
                _ => 0,
            };
            made.bytes[index][at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(found) = walk(&made, PageSize::new(PAGE).unwrap()) {
            noticed += usize::from(found.heap.corrupted > 0);
            let blocks = (0..found.blocks.len()).map(|at| found.blocks.get(at).unwrap());
            assert!(blocks.map(|block| block.size).sum::<u64>() < 200 * PAGE);
        }
    }
    assert!(noticed > IMAGES / 4, "{noticed}");
}

#[test]
fn memory_of_nothing_but_equal_small_sizes_is_walked_in_time() {
    let mut made = made(VERSIONS[3]);
    for word in made.bytes[0].chunks_exact_mut(16) {
        word[8..].copy_from_slice(&0x21_u64.to_le_bytes());
    }
    let heap = walked(&made).heap;
    assert!(heap.corrupted > 0);
    assert!(heap.corruption.len() <= 100);
}

/// Chunks of a main arena of some MiB, with contents that look like the allocator's data. All free
/// chunks are in the unsorted bin, or in the last ones if they are large.
fn large_heap(random: &mut fastrand::Rng, live: f64, fast: bool) -> MadeProcess {
    const BYTES: u64 = 6 << 20;
    let mappings =
        vec![mapping(HEAP, BYTES, "[heap]", 0), mapping(LIBC, 2 * PAGE, "/libc.so.6", 7)];
    let lengths = mappings.iter().map(|it| usize::try_from(it.range.len().0).unwrap());
    let bytes = lengths.map(|length| vec![0; length]).collect();
    let mut made = MadeProcess { mappings, threads: Vec::new(), bytes };
    for word in made.bytes[0].as_chunks_mut::<8>().0 {
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
    made.put_arena(MAIN, top, MAIN, BYTES);
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
    /// A bin with chunks.
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
            let at = random.usize(..made.bytes[0].len() / 8) * 8;
            let word = [0, u64::MAX, 0x21, random.u64(..), HEAP + random.u64(..1 << 22)];
            let word = word[random.usize(..word.len())];
            made.bytes[0][at..at + 8].copy_from_slice(&word.to_le_bytes());
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

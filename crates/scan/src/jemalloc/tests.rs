//! Heaps in synthetic memory, with the layouts of all supported versions of jemalloc.

use super::*;
use crate::graph::image::TestImage;

const LIBRARY: u64 = 0x7f00_0000_0000;
const ROOT: u64 = LIBRARY + 0x40;
const BASE: u64 = 0x7f10_0000_0000;
const BASE_BYTES: u64 = 6 << 20;
const ARENA: u64 = BASE + 0x1000;
const EDATA: u64 = BASE + 0x8000;
const LEAF: u64 = BASE + (2 << 20);
const NODE: u64 = BASE + (4 << 20);
const HEAP: u64 = 0x7f20_0020_0000;
const HEAP_BYTES: u64 = 1 << 20;
const CACHE: u64 = 0x7f30_0000_0100;

/// Differences between versions and builds.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    state_shift: u32,
    class_shift: u32,
    free_shift: u32,
    /// Bits of each level of the tree, and bytes of an element of a leaf.
    level_bits: u32,
    element: u64,
}

const VERSIONS: [Version; 3] = [
    version("jemalloc 5.2", [16, 18, 26], 18),
    version("jemalloc 5.3", [17, 20, 28], 18),
    version("jemalloc 5.3", [17, 20, 28], 15),
];

const fn version(name: &'static str, shifts: [u32; 3], level_bits: u32) -> Version {
    let [state_shift, class_shift, free_shift] = shifts;
    let element = if level_bits == 18 { 8 } else { 16 };
    Version { name, state_shift, class_shift, free_shift, level_bits, element }
}

/// An extent to be made.
#[derive(Clone, Copy, Debug)]
struct MadeExtent {
    start: u64,
    pages: u64,
    /// Distance of its block from the start.
    offset: u64,
    is_slab: bool,
    state: u64,
    class: u64,
    free: u64,
}

const SLOTS: u64 = 64;
/// A slab of 64 slots of 64 bytes, of which 0 and 5 are free; a large block; a dirty and a retained
/// extent.
const EXTENTS: [MadeExtent; 4] = [
    MadeExtent {
        start: HEAP,
        pages: 1,
        offset: 0,
        is_slab: true,
        state: 0,
        class: 4,
        free: 0b10_0001,
    },
    MadeExtent {
        start: HEAP + 0x1000,
        pages: 5,
        offset: 0x240,
        is_slab: false,
        state: 0,
        class: 36,
        free: 0,
    },
    MadeExtent {
        start: HEAP + 0x6000,
        pages: 2,
        offset: 0,
        is_slab: false,
        state: 1,
        class: 232,
        free: 0,
    },
    MadeExtent {
        start: HEAP + 0x8000,
        pages: 4,
        offset: 0,
        is_slab: false,
        state: 3,
        class: 232,
        free: 0,
    },
];

struct MadeHeap {
    image: TestImage,
    version: Version,
}

impl MadeHeap {
    fn new(version: Version) -> MadeHeap {
        let mut image = TestImage::default();
        image.map(LIBRARY, (2 << 20) + 0x1000, "/lib/libjemalloc.so.2");
        image.map(BASE, BASE_BYTES, "");
        image.map(HEAP, HEAP_BYTES, "");
        image.map(CACHE & !0xfff, 0x3000, "");
        let mut made = MadeHeap { image, version };
        made.store_all(BASE, &[BASE_BYTES, 0, 0, BASE + 0x100_000, BASE_BYTES - 0x100_000]);
        for (edata, extent) in (EDATA..).step_by(128).zip(EXTENTS) {
            made.put_extent(edata, &extent);
        }
        // Bits behind those of the slots are of earlier uses.
        made.image.store(EDATA + 72, 0xff);
        made.put_cache(&[HEAP + 64, HEAP + 7 * 64]);
        made
    }

    fn store_all(&mut self, address: u64, words: &[u64]) {
        for (at, word) in (address..).step_by(8).zip(words) {
            self.image.store(at, *word);
        }
    }

    fn put_extent(&mut self, edata: u64, extent: &MadeExtent) {
        let Version { state_shift, class_shift, free_shift, .. } = self.version;
        let bits = u64::from(extent.is_slab) << 12
            | extent.state << state_shift
            | extent.class << class_shift
            | u64::from(extent.free.count_ones()) << free_shift;
        self.store_all(edata, &[bits, extent.start + extent.offset, extent.pages << 12]);
        self.image.store(edata + 64, extent.free);
        for page in [0, extent.pages - 1] {
            self.put_element((extent.start >> 12) + page, edata, extent);
        }
    }

    fn put_element(&mut self, page: u64, edata: u64, extent: &MadeExtent) {
        let Version { level_bits, element, name, .. } = self.version;
        let mask = (1 << level_bits) - 1;
        let leaf = LEAF + (page & mask) * element;
        if element == 8 {
            self.image.store(ROOT + 8 * (page >> 18), LEAF);
            self.image.store(leaf, extent.class << 48 | edata | u64::from(extent.is_slab));
            return;
        }
        assert_eq!(name, "jemalloc 5.3");
        self.image.store(ROOT + 8 * (page >> 30), NODE);
        self.image.store(NODE + 8 * (page >> 15 & mask), LEAF);
        self.store_all(leaf, &[edata, extent.class << 5 | u64::from(extent.is_slab)]);
    }

    /// A thread cache with these blocks of 64 bytes, and its arena.
    fn put_cache(&mut self, blocks: &[u64]) {
        let stack = CACHE + 0x2000;
        self.store_all(stack, blocks);
        let end = stack + 8 * blocks.len() as u64;
        if self.version.name == "jemalloc 5.3" {
            let bins = CACHE + 0x208;
            self.store_all(ARENA, &[CACHE, CACHE + 16]);
            self.store_all(CACHE, &[CACHE, CACHE, CACHE + 16, CACHE + 16, bins, ARENA]);
            self.image.store(bins - 8, CACHE);
            for class in 0..5 {
                let first = if class == 4 { stack } else { end };
                self.store_all(bins + 24 * class, &[first, 1, (end & 0xffff) << 32]);
            }
            return;
        }
        self.store_all(ARENA, &[CACHE, CACHE + 920]);
        for class in 0..5 {
            let count = if class == 4 { blocks.len() as u64 } else { 0 };
            self.store_all(CACHE + 16 + 24 * class, &[count << 32, 0, end]);
        }
        self.store_all(CACHE + 880, &[CACHE, CACHE]);
        self.store_all(CACHE + 936, &[CACHE + 16, CACHE + 1000, ARENA]);
    }

    fn walked(&self) -> AllocatorWalk {
        walk(&self.image, PageSize::new(PAGE).unwrap()).unwrap().unwrap()
    }
}

#[test]
fn the_layouts_of_all_versions_are_detected() {
    for version in VERSIONS {
        let AllocatorWalk { heap, blocks, managed } = MadeHeap::new(version).walked();
        assert_eq!(heap.corruption, [], "{version:?}");
        assert_eq!(heap.gaps, [], "{version:?}");
        assert_eq!(heap.allocators[0].thread_caches, version.name);
        let starts: Vec<u64> = blocks.iter().map(|block| block.start).collect();
        let slots = (0..SLOTS).filter(|slot| ![0, 1, 5, 7].contains(slot));
        let expected = slots.map(|slot| HEAP + slot * 64).chain([HEAP + 0x1240]);
        assert_eq!(starts, expected.collect::<Vec<u64>>(), "{version:?}");
        assert_eq!(blocks.last().unwrap().size, 16 << 10);
        let arena = &heap.arenas[0];
        assert_eq!((arena.free.slots, arena.free.tcache), (128, 128), "{version:?}");
        // All of the made memory is resident.
        assert_eq!((arena.free.pages, arena.free.retained), (6 << 12, 0), "{version:?}");
        assert_eq!(arena.trimmable.0, 2 << 12, "only dirty extents are purged");
        assert_eq!(arena.live_chunks.0 + arena.own.0 + arena.free.total(), arena.held.0);
        assert_eq!(arena.threads, 1, "{version:?}");
        assert!(managed.iter().any(|range| range.contains(EDATA)), "{managed:x?}");
        assert!(managed.iter().any(|range| range.contains(ROOT)), "{managed:x?}");
    }
}

#[test]
fn a_heap_whose_slabs_are_mostly_freed_is_walked() {
    const FREED: u64 = 40;
    for version in VERSIONS {
        let mut made = MadeHeap::new(version);
        for (number, edata) in (0..FREED).zip((EDATA + 0x1000..).step_by(128)) {
            let start = HEAP + 0x1_0000 + 0x1000 * number;
            let [state, class] = [1, 232];
            let freed =
                MadeExtent { start, pages: 1, offset: 0, is_slab: true, state, class, free: 0 };
            made.put_extent(edata, &freed);
            // Its element still has the class of the slab.
            made.put_element(start >> 12, edata, &MadeExtent { class: 4, ..freed });
        }
        let heap = made.walked().heap;
        assert_eq!(heap.corruption, [], "{version:?}");
        assert_eq!(heap.live().blocks, SLOTS - 4 + 1, "{version:?}");
        assert_eq!(heap.trimmable().0, (FREED + 2) << 12, "{version:?}");
    }
}

#[test]
fn words_that_look_like_a_tree_by_chance_hide_no_tree() {
    const FAKE: u64 = BASE + 0x7000;
    for version in VERSIONS {
        let mut made = MadeHeap::new(version);
        let (node, leaf) = (BASE + (9 << 19), BASE + (10 << 19));
        // The root would begin before the true one, and have the entries of that one.
        let index = 0x100;
        let (top, shift) = match version.element {
            8 => (BASE + (4 << 20), 30),
            _ => (node, 42),
        };
        made.image.store(LIBRARY + 8 * index, top);
        made.image.store(node, leaf);
        // The class in the tree is not that of the extent.
        match version.element {
            8 => made.image.store(top, 7 << 48 | FAKE),
            _ => made.store_all(leaf, &[FAKE, 7 << 5]),
        }
        made.store_all(FAKE + 8, &[index << shift, 0x1000]);
        let walk = made.walked();
        assert_eq!(walk.heap.live().blocks, SLOTS - 4 + 1, "{version:?}");
    }
}

#[test]
fn a_tree_with_many_contradictions_and_few_extents_is_none() {
    let with = |contradictions: u64| {
        let mut made = MadeHeap::new(VERSIONS[1]);
        for page in 0x1000..0x1000 + contradictions {
            made.image.store(LEAF + page * 8, HEAP + 0x8000 + page % 512 * 64);
        }
        walk(&made.image, PageSize::new(PAGE).unwrap())
    };
    let damaged = with(900).unwrap().unwrap();
    assert!(damaged.heap.corrupted >= 900, "{}", damaged.heap.corrupted);
    assert!(with(3000).unwrap_err().to_string().contains("tree of extents"));
}

#[test]
fn a_process_without_a_tree_of_extents_uses_another_allocator() {
    let mut image = TestImage::default();
    image.map(LIBRARY, 0x1000, "/lib/libother.so");
    let page_size = PageSize::new(PAGE).unwrap();
    assert_eq!(walk(&image, page_size).unwrap(), None);
    let mut image = TestImage::default();
    image.map(LIBRARY, 0x1000, "/lib/libjemalloc.so.2");
    let refused = walk(&image, page_size).unwrap_err().to_string();
    assert!(refused.contains("tree of extents of jemalloc 5.2 or 5.3"), "{refused}");
}

#[test]
fn data_that_contradicts_itself_is_reported() {
    let contradictions: [(u64, u64, &str); 5] = [
        (CACHE + 0x2000, HEAP + 5 * 64, "neither free"),
        (CACHE + 0x2000, HEAP + 65, "a block of 64 bytes"),
        (CACHE + 0x2000, HEAP + 0x6000, "a block of 64 bytes"),
        (EDATA + 64, 0b111, "the number 3 of free slots"),
        (EDATA + 128, 40 << 20, "a size class that fits"),
    ];
    for (address, word, expected) in contradictions {
        let mut made = MadeHeap::new(VERSIONS[1]);
        made.image.store(address, word);
        let heap = made.walked().heap;
        let entries = format!("{:?}", heap.corruption);
        assert!(entries.contains(expected), "{address:x} {word:x}: {entries}");
    }
}

#[test]
fn changed_words_end_no_walk() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut noticed = 0;
    const IMAGES: usize = 30;
    for number in 0..IMAGES {
        let version = VERSIONS[number % VERSIONS.len()];
        let mut made = MadeHeap::new(version);
        for _ in 0..random.usize(1..6) {
            let areas = [
                (EDATA, 24),
                (EDATA + 64, 8),
                (EDATA + 128, 24),
                (ARENA, 16),
                (CACHE, 64),
                (CACHE + 0x2000, 16),
            ];
            let (start, bytes) = areas[random.usize(..areas.len())];
            let word = match random.u8(..4) {
                0 => random.u64(..),
                1 => random.u64(..1 << 16),
                2 => u64::MAX - random.u64(..64),
                _ => HEAP + random.u64(..HEAP_BYTES),
            };
            made.image.store(start + random.u64(..bytes / 8) * 8, word);
        }
        if let Ok(Some(walk)) = walk(&made.image, PageSize::new(PAGE).unwrap()) {
            noticed += usize::from(walk.heap.corrupted > 0);
            assert!(walk.blocks.iter().map(|it| it.size).sum::<u64>() <= HEAP_BYTES);
        }
    }
    assert!(noticed > IMAGES / 5, "{noticed}");
}

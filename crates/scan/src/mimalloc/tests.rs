//! Segments in synthetic memory, with the layouts of all supported versions of mimalloc.

use super::layout::{CAPACITY, FREE, RESERVED, SLICE, SLICE_COUNT, SLICE_DISTANCE, SegmentLayout};
use super::pages::{ListKeys, encoded};
use super::*;
use crate::made::{MadeProcess, mapping};

const PAGE: u64 = 1 << 12;
const SEGMENT: u64 = 0x2000_0000_0000;
const HUGE: u64 = SEGMENT + (64 << 20);
const HEAP: u64 = 0x3000_0000_0000;
const STACK: u64 = 0x7f30_0000_0000;
const THREAD: u64 = STACK + 64;
const SECRET: u64 = 0x1234_5678_9abc_def0;
const KEYS: ListKeys = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// Blocks of 56 bytes: 20 are ready, 5 of them free, each list has one or two.
const SMALL: u64 = SEGMENT + SLICE;
const SMALL_BLOCKS: u64 = 20;
const SMALL_BYTES: u64 = 56;
const FREE_BLOCKS: [u64; 2] = [2, 1];
const LOCAL_BLOCK: u64 = 5;
const OTHERS_BLOCK: u64 = 7;
const DELAYED_BLOCK: u64 = 9;
/// Two blocks of 20 KiB.
const MEDIUM: u64 = SEGMENT + 2 * SLICE;
const MEDIUM_BYTES: u64 = 20 << 10;
const HUGE_SLICES: u64 = 600;

/// A version and its build options.
#[derive(Clone, Copy, Debug)]
struct MadeVersion {
    layout: SegmentLayout,
    /// Distance of the first small block from its page.
    first: u64,
    is_padded: bool,
}

fn versions() -> Vec<MadeVersion> {
    let mut all = Vec::new();
    for layout in SegmentLayout::ALL {
        let firsts: &[u64] = match (layout.page.first_block, layout.bytes >> 20) {
            (Some(_), _) => &[168],
            (None, 64) => &[128],
            (None, _) => &[168, 384],
        };
        for &first in firsts {
            all.push(MadeVersion { layout, first, is_padded: false });
            if layout.page.keys.is_some() {
                all.push(MadeVersion { layout, first, is_padded: true });
            }
        }
    }
    all
}

struct MadeHeap {
    made: MadeProcess,
    version: MadeVersion,
}

impl MadeHeap {
    /// Address of an entry of the table.
    fn entry(&self, segment: u64, index: u64) -> u64 {
        segment + self.version.layout.slices + index * self.version.layout.page.bytes
    }

    fn put_segment(&mut self, segment: u64, slices: u64, is_huge: bool) {
        let layout = self.version.layout;
        for (offset, word) in [
            (layout.cookie, SECRET ^ segment),
            (layout.slice_count, slices),
            (layout.info_slices, 1),
            (layout.entries, slices.min(layout.max_entries())),
            (layout.thread, THREAD),
            (layout.is_huge, u64::from(is_huge)),
        ] {
            self.made.put(segment + offset, word);
        }
        self.put_span(segment, 0, 1, SLICE);
    }

    fn put_span(&mut self, segment: u64, index: u64, slices: u64, block_size: u64) {
        let entry = self.entry(segment, index);
        let page = self.version.layout.page;
        self.made.put_narrow(entry + SLICE_COUNT, slices, 4);
        self.made.put_narrow(entry + SLICE_DISTANCE, 0, 4);
        if page.has_halves {
            self.made.put_narrow(entry + page.block_size, block_size.min(2 << 30), 4);
        } else {
            self.made.put(entry + page.block_size, block_size);
        }
    }

    fn put_page(&mut self, segment: u64, index: u64, first: u64, [ready, used]: [u64; 2]) {
        let (entry, page) = (self.entry(segment, index), self.version.layout.page);
        self.made.put_narrow(entry + CAPACITY, ready, 2);
        self.made.put_narrow(entry + RESERVED, ready, 2);
        self.made.put_narrow(entry + page.used, used, if page.has_halves { 4 } else { 2 });
        self.made.put(entry + page.heap, HEAP);
        if let Some(at) = page.first_block {
            self.made.put(entry + at, first);
        }
        if let Some(at) = page.keys {
            self.made.put(entry + at, KEYS[0]);
            self.made.put(entry + at + 8, KEYS[1]);
        }
    }

    /// A list of blocks from `head` on; `end` stands for its end in encoded lists.
    fn put_list(&mut self, head: u64, flags: u64, blocks: &[u64], end: u64) {
        self.made.put(head, blocks[0] | flags);
        let nexts = blocks[1..].iter().copied().chain([0]);
        for (&block, next) in blocks.iter().zip(nexts) {
            let word = match self.version.layout.page.keys {
                Some(_) => encoded(if next == 0 { end } else { next }, KEYS),
                None => next,
            };
            self.made.put(block, word);
        }
    }

    fn put_padding(&mut self, block: u64, block_size: u64, unused: u64) {
        let canary = encoded(block, KEYS) & 0xffff_ff00;
        self.made.put(block + block_size - 8, canary | unused << 32);
    }

    fn small(&self, index: u64) -> u64 {
        SMALL + self.version.first + SMALL_BYTES * index
    }
}

fn made(version: MadeVersion) -> MadeProcess {
    let mappings = vec![
        mapping(SEGMENT, 6 * SLICE, "", 0),
        mapping(HUGE, SLICE, "", 0),
        mapping(HEAP, PAGE, "", 0),
        mapping(STACK, PAGE, "[stack]", 0),
    ];
    let mut heap = MadeHeap { made: MadeProcess::new(mappings, &[THREAD]), version };
    let layout = version.layout;
    heap.put_segment(SEGMENT, layout.max_entries(), false);
    heap.put_span(SEGMENT, 1, 1, SMALL_BYTES);
    heap.put_page(SEGMENT, 1, SMALL + version.first, [SMALL_BLOCKS, SMALL_BLOCKS - 3]);
    heap.put_span(SEGMENT, 2, 3, MEDIUM_BYTES);
    heap.put_page(SEGMENT, 2, MEDIUM, [2, 2]);
    heap.put_span(SEGMENT, 5, layout.max_entries() - 5, 0);
    let entry = heap.entry(SEGMENT, 1);
    let (page, small) = (layout.page, |heap: &MadeHeap, index| heap.small(index));
    let free = FREE_BLOCKS.map(|index| small(&heap, index));
    heap.put_list(entry + FREE, 0, &free, entry);
    heap.put_list(entry + page.local_free, 0, &[small(&heap, LOCAL_BLOCK)], entry);
    heap.put_list(entry + page.thread_free, 2, &[small(&heap, OTHERS_BLOCK)], entry);
    let delayed = if page.first_block.is_some() { HEAP + 8 } else { HEAP + 2840 };
    heap.made.put(delayed + 8, THREAD);
    heap.made.put(delayed + 32, KEYS[0]);
    heap.made.put(delayed + 40, KEYS[1]);
    heap.put_list(delayed, 0, &[small(&heap, DELAYED_BLOCK)], HEAP);
    heap.put_segment(HUGE, HUGE_SLICES, true);
    heap.put_span(HUGE, 1, HUGE_SLICES - 1, (HUGE_SLICES - 1) * SLICE);
    heap.put_page(HUGE, 1, HUGE + SLICE, [1, 1]);
    if version.is_padded {
        for index in 0..SMALL_BLOCKS {
            heap.put_padding(small(&heap, index), SMALL_BYTES, index);
        }
        heap.put_padding(MEDIUM, MEDIUM_BYTES, 100);
        heap.put_padding(MEDIUM + MEDIUM_BYTES, MEDIUM_BYTES, 0);
    }
    heap.made
}

fn walked(memory: &MadeProcess) -> AllocatorWalk {
    walk(memory, PageSize::new(PAGE).unwrap()).unwrap().unwrap()
}

fn live_small() -> impl Iterator<Item = u64> {
    let free = [&FREE_BLOCKS[..], &[LOCAL_BLOCK, OTHERS_BLOCK, DELAYED_BLOCK]].concat();
    (0..SMALL_BLOCKS).filter(move |index| !free.contains(index))
}

#[test]
fn blocks_are_those_in_no_list() {
    for version in versions() {
        let walk = walked(&made(version));
        let padding = |unused: u64| if version.is_padded { 8 + unused } else { 0 };
        let mut expected: Vec<(u64, u64)> = live_small()
            .map(|index| {
                (SMALL + version.first + SMALL_BYTES * index, SMALL_BYTES - padding(index))
            })
            .collect();
        expected.push((MEDIUM, MEDIUM_BYTES - padding(100)));
        expected.push((MEDIUM + MEDIUM_BYTES, MEDIUM_BYTES - padding(0)));
        expected.push((HUGE + SLICE, (HUGE_SLICES - 1) * SLICE));
        let found: Vec<(u64, u64)> = walk.blocks.iter().map(|it| (it.start, it.size)).collect();
        assert_eq!(found, expected, "{version:?}");
        assert_eq!(walk.heap.corruption, [], "{version:?}");
        assert_eq!(walk.heap.allocators[0].thread_caches, version.layout.name);
        assert_eq!(walk.heap.mapped.live.blocks, 1);
        let arena = &walk.heap.arenas[0];
        assert_eq!((arena.live.blocks, arena.threads), (17, 1));
        let free = (version.layout.max_entries() - 5) * SLICE;
        assert_eq!((arena.free.slots, arena.free.pages), (5 * SMALL_BYTES, free));
    }
}

#[test]
fn a_contradiction_is_reported_and_the_walk_goes_on() {
    for version in versions().into_iter().filter(|version| !version.is_padded) {
        let layout = version.layout;
        let entry = SEGMENT + layout.slices + layout.page.bytes;
        let small = |index: u64| SMALL + version.first + SMALL_BYTES * index;
        let loops = if layout.page.keys.is_some() { encoded(small(2), KEYS) } else { small(2) };
        let damages: [(&str, u64, u64); 4] = [
            ("a list that ends outside", entry + FREE, 0x6666_0000_0000),
            ("a list that loops", small(1), loops),
            ("a list that leads into a block", entry + layout.page.local_free, small(3) + 8),
            ("a block in two lists", entry + layout.page.thread_free, small(1) | 2),
        ];
        for (name, address, word) in damages {
            let mut memory = made(version);
            memory.put(address, word);
            let walk = walked(&memory);
            assert!(walk.heap.corrupted > 0, "{name}, {version:?}");
            assert!((18..=22).contains(&walk.blocks.len()), "{name}, {version:?}");
        }
    }
}

#[test]
fn a_table_that_contradicts_leaves_a_gap() {
    for version in versions() {
        let layout = version.layout;
        let mut memory = made(version);
        memory.put_narrow(SEGMENT + layout.slices + 2 * layout.page.bytes, 0, 4);
        let walk = walked(&memory);
        assert_eq!(walk.heap.corrupted, 1, "{:?}", walk.heap.corruption);
        assert_eq!(walk.heap.gaps[0].start, MEDIUM);
        assert!(walk.managed.iter().all(|range| !range.contains(MEDIUM)));
        assert_eq!(walk.blocks.len() as u64, SMALL_BLOCKS - 5 + 1);
    }
}

#[test]
fn blocks_with_an_overwritten_check_value_are_reported() {
    for version in versions().into_iter().filter(|version| version.is_padded) {
        let mut memory = made(version);
        memory.put(SMALL + version.first + SMALL_BYTES - 8, 0x4141_4141_4141_4141);
        let walk = walked(&memory);
        assert_eq!(walk.heap.corrupted, 1, "{:?}", walk.heap.corruption);
        assert_eq!(walk.heap.corruption[0].block, SMALL + version.first);
    }
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let library = mapping(SEGMENT, SLICE, "/usr/lib/libmimalloc.so.3.0", 7);
    let memory = MadeProcess::new(vec![library], &[]);
    let refused = walk(&memory, PageSize::new(PAGE).unwrap()).unwrap_err();
    assert!(matches!(refused, ScanError::NotWalked { allocator: "mimalloc", .. }), "{refused}");
    let other = MadeProcess::new(vec![mapping(SEGMENT, SLICE, "", 0)], &[]);
    assert_eq!(walk(&other, PageSize::new(PAGE).unwrap()).unwrap(), None);
}

#[test]
fn any_bytes_are_walked_to_an_end() {
    let mut random = fastrand::Rng::with_seed(1);
    for version in versions() {
        let whole = made(version);
        for words in (0..20).map(|round| 1 << (round % 12)) {
            let mut memory = whole.clone();
            memory.damage(&mut random, words);
            let Some(walk) = walk(&memory, PageSize::new(PAGE).unwrap()).unwrap() else { continue };
            let mut end = 0;
            for block in walk.blocks.iter() {
                assert!(block.start >= end, "{block:?}");
                end = block.start + block.size;
            }
        }
    }
}

#[test]
fn a_segment_that_is_kept_for_later_is_free() {
    const KEPT: u64 = SEGMENT + (256 << 20);
    for version in versions() {
        let layout = version.layout;
        let mappings = vec![
            mapping(SEGMENT, 6 * SLICE, "", 0),
            mapping(KEPT, SLICE, "", 0),
            mapping(STACK, PAGE, "[stack]", 0),
        ];
        let mut heap = MadeHeap { made: MadeProcess::new(mappings, &[THREAD]), version };
        heap.put_segment(SEGMENT, layout.max_entries(), false);
        heap.put_span(SEGMENT, 1, layout.max_entries() - 1, 0);
        heap.put_segment(KEPT, layout.max_entries(), false);
        heap.made.put(KEPT + layout.thread, 0);
        // Its only run of slices is in no queue.
        heap.put_span(KEPT, 1, layout.max_entries() - 1, 1);
        let walk = walked(&heap.made);
        assert_eq!(walk.heap.corruption, [], "{version:?}");
        let free: Vec<u64> = walk.heap.arenas.iter().map(|arena| arena.free.pages).collect();
        assert_eq!(free, [(layout.max_entries() - 1) * SLICE; 2], "{version:?}");
    }
}

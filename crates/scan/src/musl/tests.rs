//! Heaps of mallocng in synthetic memory.

use super::*;
use crate::made::{MadeProcess, mapping};

const PAGE: u64 = 1 << 12;
const LIBC: u64 = 0x7f00_0000_0000;
const BSS: u64 = LIBC + PAGE;
const CONTEXT: u64 = BSS + 0x340;
const AREA: u64 = 0x5555_0000_1000;
const GROUPS: u64 = 0x7f20_0000_0000;
const SECRET: u64 = 0x1234_5678_9abc_def0;
const STACK: u64 = 0x7f30_0000_0000;

/// Slots of 48 bytes; a block that begins at its slot, and one that begins 16 bytes behind.
const SMALL: u64 = GROUPS;
/// A block with a mapping of its own.
const SINGLE: u64 = GROUPS + 2 * PAGE;
/// Slots of 672 bytes, of which one holds a group.
const OUTER: u64 = GROUPS + 64 * PAGE;
const NESTED: u64 = OUTER + 16 + 672;
/// A slot in memory of the library.
const DONATED: u64 = LIBC + 0x800;

/// A descriptor.
struct MadeGroup {
    meta: u64,
    group: u64,
    free: [u32; 2],
    last: u64,
    can_be_freed: bool,
    class: u64,
    units: u64,
}

struct MadeHeap {
    made: MadeProcess,
    shift: u64,
    metas: u64,
}

impl MadeHeap {
    fn new(shift: u64) -> MadeHeap {
        let mappings = vec![
            mapping(LIBC, PAGE, "/lib/ld-musl-x86_64.so.1", 7),
            mapping(BSS, PAGE, "", 0),
            mapping(AREA - PAGE, 3 * PAGE, "[heap]", 0),
            mapping(GROUPS, 80 * PAGE, "", 0),
            mapping(STACK, PAGE, "[stack]", 0),
        ];
        let mut made = MadeProcess::new(mappings, &[STACK + 64]);
        made.put(CONTEXT, SECRET);
        if shift > 0 {
            made.put(CONTEXT + 8, 64 << 10);
        }
        for (offset, word) in [(8, 1), (56, AREA), (64, AREA)] {
            made.put(CONTEXT + shift + offset, word);
        }
        made.put(AREA, SECRET);
        made.put(AREA + 16, 101);
        MadeHeap { made, shift, metas: 0 }
    }

    fn next_meta(&mut self) -> u64 {
        self.metas += 1;
        AREA + 24 + 40 * (self.metas - 1)
    }

    fn add(&mut self, it: &MadeGroup) {
        let bits = it.last | u64::from(it.can_be_freed) << 5 | it.class << 6 | it.units << 12;
        let free = u64::from(it.free[0]) | u64::from(it.free[1]) << 32;
        for (offset, word) in [(16, it.group), (24, free), (32, bits)] {
            self.made.put(it.meta + offset, word);
        }
        self.made.put(it.group, it.meta);
        if it.can_be_freed && it.class < 48 {
            let usage = CONTEXT + self.shift + 464 + 8 * it.class;
            let slots = self.made.word(usage).unwrap() + it.last + 1;
            self.made.put(usage, slots);
        }
    }

    /// The header and the end of a block. `slot` is the first byte of its slot, and `first` that of
    /// the first slot of the group.
    fn put_block(&mut self, first: u64, slot: (u64, u64, u64), moved: u64, size: u64) {
        let (start, index, bytes) = slot;
        let block = start + 16 * moved;
        let end = start + bytes - 4;
        let reserved = end - block - size;
        let distance = u16::try_from((block - first) / 16).unwrap();
        if moved > 0 {
            self.made.put_bytes(start - 3, &[7 << 5, u8::try_from(moved).unwrap(), 0]);
        }
        let tag = index | reserved.min(5) << 5;
        self.made.put_bytes(block - 4, &[0, u8::try_from(tag).unwrap()]);
        self.made.put_bytes(block - 2, &distance.to_le_bytes());
        if reserved >= 5 {
            self.made.put_bytes(end - 4, &u32::try_from(reserved).unwrap().to_le_bytes());
        }
    }
}

/// A heap with one of each kind of group.
fn made(shift: u64) -> MadeProcess {
    let mut heap = MadeHeap::new(shift);
    let group = |meta, group, free, last, class, units| MadeGroup {
        meta,
        group,
        free,
        last,
        can_be_freed: true,
        class,
        units,
    };
    let small = heap.next_meta();
    heap.add(&group(small, SMALL, [0b1_1111_0110, 0b10_0000_0000], 9, 2, 1));
    heap.put_block(SMALL + 16, (SMALL + 16, 0, 48), 0, 30);
    heap.put_block(SMALL + 16, (SMALL + 16 + 3 * 48, 3, 48), 1, 9);
    let single = heap.next_meta();
    heap.add(&group(single, SINGLE, [0, 0], 0, 63, 40));
    heap.put_block(SINGLE + 16, (SINGLE + 16, 0, 40 * PAGE - 16), 3, 150_000);
    let outer = heap.next_meta();
    heap.add(&group(outer, OUTER, [0b1000, 0], 3, 17, 1));
    heap.put_block(OUTER + 16, (OUTER + 16, 0, 672), 0, 668);
    heap.made.put_bytes(NESTED - 3, &[1 | 6 << 5, 42, 0]);
    heap.put_block(OUTER + 16, (OUTER + 16 + 2 * 672, 2, 672), 0, 0);
    let nested = heap.next_meta();
    heap.add(&group(nested, NESTED, [0b10, 0b1_1111_1111_1000], 12, 2, 0));
    heap.put_block(NESTED + 16, (NESTED + 16, 0, 48), 0, 44);
    heap.put_block(NESTED + 16, (NESTED + 16 + 2 * 48, 2, 48), 0, 1);
    let donated = heap.next_meta();
    let unfreeable = group(donated, DONATED, [0, 0], 0, 11, 0);
    heap.add(&MadeGroup { can_be_freed: false, ..unfreeable });
    heap.put_block(DONATED + 16, (DONATED + 16, 0, 240), 0, 201);
    heap.made
}

fn walked(memory: &MadeProcess) -> AllocatorWalk {
    walk(memory, PageSize::new(PAGE).unwrap()).unwrap().unwrap()
}

fn sizes(walk: &AllocatorWalk) -> Vec<(u64, u64)> {
    walk.blocks.iter().map(|block| (block.start, block.size)).collect()
}

const BLOCKS: [(u64, u64); 8] = [
    (DONATED + 16, 201),
    (SMALL + 16, 30),
    (SMALL + 16 + 3 * 48 + 16, 9),
    (SINGLE + 16 + 48, 150_000),
    (OUTER + 16, 668),
    (NESTED + 16, 44),
    (NESTED + 16 + 2 * 48, 1),
    (OUTER + 16 + 2 * 672, 0),
];

#[test]
fn blocks_have_the_sizes_that_were_requested() {
    for shift in [0, 8] {
        let walk = walked(&made(shift));
        assert_eq!(sizes(&walk), BLOCKS);
        assert_eq!(walk.heap.corruption, []);
        assert_eq!(walk.heap.gaps, []);
        let mapped = walk.heap.mapped;
        assert_eq!((mapped.live.blocks, mapped.live.bytes), (1, 150_000));
        assert_eq!(mapped.held.0, 40 * PAGE);
        let arena = &walk.heap.arenas[0];
        assert_eq!((arena.live.blocks, arena.live.bytes), (7, 953));
        // 8 free slots of 48 bytes, 1 of 672, and 11 of 48 in the nested group.
        assert_eq!(arena.free.total(), 8 * 48 + 672 + 11 * 48);
        assert_eq!(arena.held.0, 2 * PAGE + PAGE + 256);
        assert_eq!(arena.live_chunks.0, 4 * 48 + 2 * 672 + 240);
        assert!(!arena.is_locked);
        let managed: Vec<(u64, u64)> =
            walk.managed.iter().map(|range| (range.start, range.len().0)).collect();
        let expected =
            [(AREA, PAGE), (DONATED, 256), (SMALL, PAGE), (SINGLE, 40 * PAGE), (OUTER, PAGE)];
        assert_eq!(managed, expected);
    }
}

#[test]
fn a_process_without_mallocng_is_left_to_other_walkers() {
    let mut memory = made(0);
    memory.put(AREA, 1);
    assert_eq!(walk(&memory, PageSize::new(PAGE).unwrap()).unwrap(), None);
}

#[test]
fn a_contradiction_is_reported_and_costs_no_block() {
    let meta = |index: u64| AREA + 24 + 40 * index;
    let damages: [(&str, u64, u64, u64); 7] = [
        ("byte behind a block", SMALL + 16 + 30, 7, 1),
        ("index of a slot", SMALL + 16 + 3 * 48 + 16 - 3, 4 | 5 << 5, 1),
        ("distance to the group", NESTED + 16 + 2 * 48 - 2, 9, 2),
        ("size at the end", SINGLE + 40 * PAGE - 8, 1 << 31, 4),
        ("descriptor of a group", SMALL, 0, 4),
        ("next group", meta(0) + 8, 4096, 4),
        ("number of slots", CONTEXT + 464 + 16, 1, 4),
    ];
    for (name, address, value, width) in damages {
        let mut memory = made(0);
        memory.put_narrow(address, value, width);
        let walk = walked(&memory);
        assert_eq!(walk.heap.corrupted, 1, "{name}: {:?}", walk.heap.corruption);
        assert_eq!(walk.blocks.len(), BLOCKS.len(), "{name}");
    }
}

#[test]
fn a_descriptor_that_contradicts_is_left_out() {
    let meta = |index: u64| AREA + 24 + 40 * index;
    let damages: [(&str, u64, u64); 4] = [
        ("address", meta(2) + 16, 0x6666_0000_0000),
        ("both free", meta(2) + 24, 0b1000 | 0b1000 << 32),
        ("class", meta(2) + 32, 3 | 1 << 5 | 55 << 6 | 1 << 12),
        ("size", meta(2) + 32, 31 | 1 << 5 | 17 << 6 | 1 << 12),
    ];
    for (name, address, value) in damages {
        let mut memory = made(0);
        memory.put(address, value);
        let walk = walked(&memory);
        assert!(walk.heap.corrupted > 0, "{name}");
        // The nested group is known by its own descriptor.
        assert_eq!(walk.blocks.len(), BLOCKS.len() - 2, "{name}");
    }
}

#[test]
fn a_slot_that_a_thread_changes_is_no_contradiction() {
    let mut memory = made(0);
    memory.put_bytes(SMALL + 16 + 3 * 48 + 16 - 3, &[255, 0, 0]);
    let walk = walked(&memory);
    assert_eq!(walk.heap.corrupted, 0, "{:?}", walk.heap.corruption);
    assert!(walk.heap.arenas[0].is_locked);
    assert_eq!(walk.blocks.len(), BLOCKS.len() - 1);
}

#[test]
fn any_bytes_are_walked_to_an_end() {
    let mut random = fastrand::Rng::with_seed(1);
    for words in (0..400).map(|round| 1 + round % 40) {
        let mut memory = made(0);
        memory.damage(&mut random, words);
        let Some(walk) = walk(&memory, PageSize::new(PAGE).unwrap()).unwrap() else { continue };
        let mut end = 0;
        for block in walk.blocks.iter() {
            assert!(block.start >= end, "{block:?}");
            end = block.start + block.size;
        }
    }
}

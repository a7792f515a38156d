//! Arenas in synthetic memory, with the layouts of all supported versions of CPython.

use super::*;
use crate::graph::image::TestImage;

const PAGE: u64 = 1 << 12;
const DATA: u64 = 0x55_0000_0000;
const HEAP: u64 = 0x56_0000_0000;
const VECTOR: u64 = HEAP + 0x10;
const ENTRY: u64 = 48;
const TYPES: u64 = HEAP + 0x1000;
const ARENA: u64 = 0x7f00_0000_1000;

/// Sizes of arenas and pools in bytes, and true for the state layout of 3.12 and later.
const LAYOUTS: [(u64, u64, bool); 4] = [
    (256 << 10, 4 << 10, false),
    (1 << 20, 16 << 10, false),
    (1 << 20, 16 << 10, true),
    (1 << 20, 4 << 10, true),
];

/// Contents of a pool in a test image.
struct MadePool {
    class: u64,
    /// Number of blocks that were ever used, and the indices of the blocks that were freed.
    used: u64,
    freed: &'static [u64],
}

const LARGE: MadePool = MadePool { class: 3, used: 5, freed: &[4, 1] };
const SMALL: MadePool = MadePool { class: 0, used: 2, freed: &[1] };

fn put_pool(image: &mut TestImage, start: u64, index: u64, pool_bytes: u64, pool: &MadePool) {
    let size = 16 * (pool.class + 1);
    let block = |number: u64| start + HEADER_BYTES + number * size;
    let mut link_at = start + 8;
    for &freed in pool.freed {
        image.store(link_at, block(freed));
        link_at = block(freed);
    }
    image.store(link_at, 0);
    image.store(start, pool.used - pool.freed.len() as u64);
    image.store(start + 32, index | pool.class << 32);
    let next = HEADER_BYTES + pool.used * size;
    image.store(start + 40, next | (pool_bytes - size) << 32);
}

/// Creates a process with one arena, which has the second entry of its vector: two pools with live
/// blocks, one freed pool, and pools that were never used.
fn python(arena: u64, pool: u64, has_management: bool) -> TestImage {
    let mut image = TestImage::default();
    image.map(DATA, 2 * PAGE, "/usr/bin/python3");
    image.map(HEAP, 4 * PAGE, "[heap]");
    image.map(ARENA, arena, "");
    let first = ARENA.next_multiple_of(pool);
    let total = (ARENA + arena - first) / pool;
    for entry in 0..16 {
        let next = if entry == 15 { 0 } else { VECTOR + (entry + 1) * ENTRY };
        image.store(VECTOR + entry * ENTRY + 32, next);
    }
    let entry = VECTOR + ENTRY;
    let freed = first + 2 * pool;
    for (offset, word) in
        [(0, ARENA), (8, first + 3 * pool), (16, (total - 2) | total << 32), (24, freed), (32, 0)]
    {
        image.store(entry + offset, word);
    }
    put_pool(&mut image, first, 1, pool, &LARGE);
    put_pool(&mut image, first + pool, 1, pool, &SMALL);
    image.store(freed + 32, 1);
    // The words include another pointer into the vector, and a pointer to zero-filled memory.
    let state = [VECTOR, 16, VECTOR, entry, 0, 0];
    for (at, word) in (DATA + 0x100..).step_by(8).zip(state) {
        image.store(at, if has_management || word == VECTOR { word } else { 0 });
    }
    image.store(DATA + 0x80, HEAP + 0x2000);
    image
}

fn walked(image: &TestImage) -> AllocatorWalk {
    walk(image, PageSize::new(PAGE).unwrap()).unwrap().unwrap()
}

#[test]
fn arenas_of_all_layouts_are_walked() {
    for (arena, pool, has_management) in LAYOUTS {
        let AllocatorWalk { heap, blocks, managed } = walked(&python(arena, pool, has_management));
        assert_eq!((heap.corruption, heap.gaps), (vec![], vec![]));
        let first = ARENA.next_multiple_of(pool);
        let [large, small] = [first + HEADER_BYTES, first + pool + HEADER_BYTES];
        let live = [large, large + 128, large + 192, small];
        assert_eq!(blocks.iter().map(|block| block.start).collect::<Vec<_>>(), live);
        let [sum] = &heap.arenas[..] else { panic!("{:?}", heap.arenas) };
        assert_eq!(sum.live, LiveAmount { blocks: 4, bytes: 3 * 64 + 16 });
        assert_eq!((sum.start, sum.state, sum.parts, sum.is_locked), (ARENA, VECTOR, 1, false));
        assert_eq!(sum.held.0, sum.live.bytes + sum.free.total() + sum.own.0);
        assert_eq!(sum.free.pages % pool, 0);
        assert_eq!(sum.largest_gap.0, pool - 256);
        assert_eq!(managed, [AddrRange { start: ARENA, end: ARENA + arena }]);
        assert_eq!(heap.density.iter().sum::<u64>(), arena / PAGE);
    }
}

#[test]
fn another_interpreter_has_its_state_in_a_block_of_malloc() {
    for has_management in [false, true] {
        let mut image = python(1 << 20, 16 << 10, has_management);
        let other: u64 = 0x7f80_0000_0000;
        image.map(other, 1 << 20, "");
        let vector = HEAP + 0x800;
        for entry in 0..16 {
            image.store(vector + entry * ENTRY + 32, 0);
        }
        for (offset, word) in [(0, other), (8, other + (16 << 10)), (16, 63 | 64 << 32)] {
            image.store(vector + offset, word);
        }
        put_pool(&mut image, other, 0, 16 << 10, &SMALL);
        for (at, word) in (HEAP + 0x3000..).step_by(8).zip([vector, 16, vector + ENTRY, vector]) {
            image.store(at, word);
        }
        let heap = walked(&image).heap;
        assert_eq!(heap.arenas.len(), if has_management { 2 } else { 1 });
        assert_eq!(heap.corruption, []);
    }
}

#[test]
fn a_damaged_pool_is_reported_and_the_next_one_walked() {
    let pool = 16 << 10;
    let first = ARENA.next_multiple_of(pool);
    let block = |number: u64| first + HEADER_BYTES + 64 * number;
    let damages = [
        ("a cycle in the free list", block(1), block(4)),
        ("a link into a block", block(1), block(2) + 8),
        ("a link to a block that was never used", block(1), block(6)),
        ("a link out of the pool", block(1), ARENA + (1 << 19)),
        ("a number of live blocks", first, 40),
        ("a size class", first + 32, 1 | 33 << 32),
        ("the next unused block", first + 40, (48 + 5 * 64 + 8) | ((pool - 64) << 32)),
        ("the last offset", first + 40, (48 + 5 * 64) | ((pool - 48) << 32)),
    ];
    for (name, address, word) in damages {
        let mut image = python(1 << 20, pool, true);
        image.store(address, word);
        let AllocatorWalk { heap, blocks, managed } = walked(&image);
        assert_eq!(heap.corrupted, 1, "{name}: {:?}", heap.corruption);
        assert!(!heap.arenas[0].is_locked, "{name}");
        assert!(blocks.containing(first + pool + HEADER_BYTES).is_some(), "{name}");
        // Ranges with unknown live blocks are not managed memory, so pointers in them still count
        // as roots.
        let is_managed = managed.iter().any(|range| range.contains(first));
        assert_eq!(is_managed, heap.gaps.is_empty(), "{name}");
    }
}

#[test]
fn a_count_that_is_wrong_by_one_may_be_in_change() {
    let pool = 16 << 10;
    let mut image = python(1 << 20, pool, true);
    image.store(ARENA.next_multiple_of(pool), 4);
    let heap = walked(&image).heap;
    assert_eq!((heap.corrupted, heap.arenas[0].is_locked), (1, true));
}

#[test]
fn changed_words_never_stop_the_walk() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut noticed = 0;
    for round in 0..600 {
        let (arena, pool, has_management) = LAYOUTS[round % LAYOUTS.len()];
        let mut image = python(arena, pool, has_management);
        let first = ARENA.next_multiple_of(pool);
        for _ in 0..1 + round % 3 {
            let starts = [VECTOR, VECTOR + ENTRY, first, first + pool, DATA + 0x100];
            let at = random.choice(starts).unwrap() + 8 * random.u64(..6);
            let words = [0, 1, 16, u64::MAX, random.u64(..), VECTOR, first, ARENA + 8, 1 << 62];
            image.store(at, random.choice(words).unwrap());
        }
        if let Some(found) = walk(&image, PageSize::new(PAGE).unwrap()).unwrap() {
            noticed += usize::from(found.heap.corrupted > 0);
            assert!(found.blocks.len() as u64 <= arena / 16);
        }
    }
    assert!(noticed > 50, "{noticed} of 600");
}

#[test]
fn a_python_without_the_global_lock_is_refused() {
    let mut image = TestImage::default();
    image.map(DATA, PAGE, "/usr/bin/python3.13t");
    image.store(DATA + 0x40, u64::from_le_bytes(*b"xdebugpy"));
    image.store(DATA + 0x50, 1);
    let refused = walk(&image, PageSize::new(PAGE).unwrap());
    assert!(matches!(refused, Err(ScanError::NotWalked { allocator: NAME, .. })), "{refused:?}");
    image.store(DATA + 0x50, 0);
    assert_eq!(walk(&image, PageSize::new(PAGE).unwrap()).unwrap(), None);
}

/// Stores a type at `address`, followed by its metaclass `type`.
fn put_type(image: &mut TestImage, address: u64, name: &str, size: u64, flags: u64) {
    let metaclass = address + 0x100;
    let name_at = address + 0x200;
    for (at, class, flags) in [(address, metaclass, flags), (metaclass, metaclass, 0)] {
        image.store(at, 2);
        image.store(at + 8, class);
        image.store(at + 32, size);
        image.store(at + 168, flags | 1 << 12);
    }
    image.store(address + 24, name_at);
    let offset = usize::try_from(name_at - HEAP).unwrap();
    image.bytes(1)[offset..offset + name.len()].copy_from_slice(name.as_bytes());
}

#[test]
fn objects_are_counted_by_the_name_of_their_type() {
    let pool = 16 << 10;
    let mut image = python(1 << 20, pool, true);
    let blocks = walked(&image).blocks;
    let starts: Vec<u64> = blocks.iter().map(|block| block.start).collect();
    put_type(&mut image, TYPES, "dict", 48, 1 << 14);
    put_type(&mut image, TYPES + 0x400, "str", 40, 0);
    for (object, references, class) in [
        (starts[0] + 16, 1, TYPES),
        (starts[1], u64::from(u32::MAX), TYPES + 0x400),
        // The third block begins with a pointer, not a reference count. The fourth block has no
        // prefix, which an object of a garbage-collected type must have.
        (starts[2], HEAP + 8, TYPES + 0x400),
        (starts[3], 1, TYPES),
    ] {
        image.store(object, references);
        image.store(object + 8, class);
    }
    let types = live_types(&image, &blocks);
    let found: Vec<(&[u8], u64)> =
        types.iter().map(|it| (it.name.as_bytes(), it.live.blocks)).collect();
    assert_eq!(found, [(&b"dict"[..], 1), (b"str", 1)]);
    assert_eq!(types[0].live.bytes, 64);
}

#[test]
fn memory_that_is_not_a_vector_is_none() {
    let mut image = python(1 << 20, 16 << 10, true);
    // The pools have the index of another entry.
    let first = ARENA.next_multiple_of(16 << 10);
    (0..3).for_each(|pool| image.store(first + pool * (16 << 10) + 32, 2 | 3 << 32));
    assert_eq!(walk(&image, PageSize::new(PAGE).unwrap()).unwrap(), None);
}

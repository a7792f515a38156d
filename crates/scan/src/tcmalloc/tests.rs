//! A heap in synthetic memory.

use super::*;
use crate::graph::image::TestImage;

const LIBRARY: u64 = 0x7f00_0000_0000;
const ROOT: u64 = LIBRARY + 0x40;
const CENTRAL: u64 = LIBRARY + 0x11_0000;
const VARIABLE: u64 = LIBRARY + 0x8;
const LEAF: u64 = 0x7f10_0000_0000;
const SPANS: u64 = LEAF + (2 << 20);
const CACHE: u64 = SPANS + 0x1000;
const HEAP: u64 = 0x7f20_0000_0000;
const PAGE: u64 = 8 << 10;
const SLOT: u64 = 4096;
/// Class of slots of 4,096 bytes, the second of three.
const CLASS: u64 = 2;

fn store_all(image: &mut TestImage, address: u64, words: &[u64]) {
    for (at, word) in (address..).step_by(8).zip(words) {
        image.store(at, *word);
    }
}

/// A span of four slots, of which the span's list, the thread cache and a transfer cache have one
/// each; a large block, and a free span.
fn made() -> TestImage {
    let mut image = TestImage::default();
    image.map(LIBRARY, 0x12_0000, "/lib/libtcmalloc.so.4");
    image.map(LEAF, (2 << 20) + 0x4000, "");
    image.map(HEAP, 8 * PAGE, "");
    let page = HEAP / PAGE;
    image.store(ROOT + 8 * (page >> 18), LEAF);
    let next = CENTRAL + 1216 * CLASS + 64;
    let spans = [(0, 2, HEAP, CLASS << 16 | 3), (2, 3, 0, 0), (5, 3, 0, 1 << 24)];
    for (at, (first, length, objects, bits)) in (SPANS..).step_by(48).zip(spans) {
        store_all(&mut image, at, &[page + first, length, next, next, objects, bits]);
        image.store(LEAF + 8 * ((page & 0x3ffff) + first), at);
        image.store(LEAF + 8 * ((page & 0x3ffff) + first + length - 1), at);
    }
    for (class, size) in [(1, 8), (CLASS, SLOT), (3, 256 << 10)] {
        image.store(CACHE + 32 * class + 24, size);
        image.store(CENTRAL + 1216 * class + 8, class);
    }
    store_all(&mut image, CACHE + 32 * CLASS, &[HEAP + SLOT, 1]);
    image.store(VARIABLE, CACHE);
    image.store(CENTRAL + 1216 * CLASS + 128, HEAP + 2 * SLOT);
    image.store(CENTRAL + 1216 * CLASS + 1152, 1);
    image
}

fn walked(image: &TestImage) -> AllocatorWalk {
    walk(image, PageSize::new(4096).unwrap()).unwrap().unwrap()
}

#[test]
fn slots_in_lists_and_caches_are_free() {
    let AllocatorWalk { heap, blocks, .. } = walked(&made());
    assert_eq!(heap.corruption, []);
    let found: Vec<(u64, u64)> = blocks.iter().map(|it| (it.start, it.size)).collect();
    assert_eq!(found, [(HEAP + 3 * SLOT, SLOT), (HEAP + 2 * PAGE, 3 * PAGE)]);
    let arena = &heap.arenas[0];
    let free = arena.free;
    assert_eq!((free.slots, free.tcache, free.pages), (2 * SLOT, SLOT, 3 * PAGE));
    assert_eq!(arena.trimmable.0, 3 * PAGE);
    assert_eq!(arena.live_chunks.0 + arena.own.0 + free.total(), arena.held.0);
    assert_eq!(arena.threads, 1);
}

#[test]
fn data_that_contradicts_itself_is_reported() {
    let contradictions = [
        (HEAP, HEAP, "which its list has once"),
        (SPANS + 40, CLASS << 16 | 2, "the number 3 of slots in use"),
        (SPANS + 40, 90 << 16, "the size class of a span"),
        (CACHE + 32 * CLASS, HEAP + 8, "a slot of 4096 bytes"),
        (CACHE + 32 * CLASS + 8, 7, "the number 1 of cached slots"),
        (CENTRAL + 1216 * CLASS + 128, HEAP + SLOT, "a slot of 4096 bytes"),
        (LEAF + 8 * ((HEAP / PAGE + 2) & 0x3ffff), SPANS, "a span that begins on this page"),
    ];
    for (address, word, expected) in contradictions {
        let mut image = made();
        image.store(address, word);
        let entries = format!("{:?}", walked(&image).heap.corruption);
        assert!(entries.contains(expected), "{address:x} {word:x}: {entries}");
    }
}

#[test]
fn a_library_with_another_layout_is_refused() {
    let page_size = PageSize::new(4096).unwrap();
    let mut image = TestImage::default();
    image.map(LIBRARY, 0x1000, "/lib/libtcmalloc.so.4");
    let refused = walk(&image, page_size).unwrap_err().to_string();
    assert!(refused.contains("no map of pages of 8 KiB of gperftools"), "{refused}");
    let mut image = made();
    image.store(VARIABLE, 0);
    let refused = walk(&image, page_size).unwrap_err().to_string();
    assert!(refused.contains("no thread cache of gperftools"), "{refused}");
    let mut image = TestImage::default();
    image.map(LIBRARY, 0x1000, "/lib/libother.so");
    assert_eq!(walk(&image, page_size).unwrap(), None);
}

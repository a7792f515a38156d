//! Tests of TLSF pools, in addition to the tests that every pool passes.

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pagewise_alloc::source::{FailAfter, FixedBuffer};
use pagewise_alloc::{LockedTlsf, Source, Tlsf};

const KIB: usize = 1024;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn bytes(size: usize) -> Layout {
    layout(size, 8)
}

fn memory(size: usize) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); size]
}

/// Allocates until the pool is exhausted.
fn fill<S: Source, const N: usize>(pool: &mut Tlsf<S, N>, size: usize) -> Vec<NonNull<u8>> {
    std::iter::from_fn(|| pool.allocate(bytes(size))).collect()
}

fn free_all<S: Source, const N: usize>(
    pool: &mut Tlsf<S, N>,
    blocks: impl IntoIterator<Item = NonNull<u8>>,
    size: usize,
) {
    for block in blocks {
        // SAFETY: tests pass each block of this pool once, with its size.
        unsafe { pool.free(block, bytes(size)) };
    }
    pool.check();
}

fn resize<S: Source, const N: usize>(
    pool: &mut Tlsf<S, N>,
    block: NonNull<u8>,
    old: usize,
    new: usize,
) -> Option<NonNull<u8>> {
    // SAFETY: tests pass blocks of this pool with their size, and use only the returned block
    // afterwards.
    let resized = unsafe { pool.reallocate(block, bytes(old), new) };
    pool.check();
    resized
}

#[test]
fn a_block_costs_a_word_and_the_rest_up_to_a_multiple_of_sixteen() {
    let mut buffer = memory(64 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let blocks = fill(&mut pool, 24);
    assert!((2046..=2047).contains(&blocks.len()), "{}", blocks.len());
    let distance = blocks[1].addr().get() - blocks[0].addr().get();
    assert_eq!(distance, 32);
}

#[test]
fn free_neighbors_become_one_block_in_whatever_order_they_are_freed() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut buffer = memory(4 * KIB);
        let mut pool: Tlsf<_, 0> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
        let blocks: Vec<_> = (0..3).map(|_| pool.allocate(bytes(1000)).unwrap()).collect();
        assert_eq!(pool.allocate(bytes(1500)), None);
        free_all(&mut pool, order.map(|at| blocks[at]), 1000);
        let large = pool.allocate(bytes(3500)).unwrap();
        assert_eq!(large, blocks[0]);
        free_all(&mut pool, [large], 3500);
    }
}

#[test]
fn cached_blocks_are_merged_before_the_pool_is_out_of_memory() {
    let mut buffer = memory(16 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let blocks = fill(&mut pool, 500);
    free_all(&mut pool, blocks, 500);
    let whole = pool.allocate(bytes(15 * KIB)).unwrap();
    pool.check();
    free_all(&mut pool, [whole], 15 * KIB);
}

#[test]
fn a_pool_that_was_emptied_can_be_filled_as_far_as_before() {
    let mut buffer = memory(64 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    for size in [1, 100, 528, 5000] {
        let blocks = fill(&mut pool, size);
        let count = blocks.len();
        free_all(&mut pool, blocks, size);
        let again = fill(&mut pool, size);
        assert!(again.len() >= count, "{} < {count}", again.len());
        free_all(&mut pool, again.into_iter().rev(), size);
    }
}

#[test]
fn a_block_that_shrinks_or_has_room_behind_it_stays_where_it_is() {
    let mut buffer = memory(16 * KIB);
    let mut pool: Tlsf<_, 0> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let first = pool.allocate(bytes(1000)).unwrap();
    let second = pool.allocate(bytes(1000)).unwrap();
    let third = pool.allocate(bytes(1000)).unwrap();
    assert_eq!(resize(&mut pool, first, 1000, 100), Some(first));
    assert_eq!(resize(&mut pool, first, 100, 900), Some(first));
    free_all(&mut pool, [second], 1000);
    assert_eq!(resize(&mut pool, first, 900, 2000), Some(first));
    let moved = resize(&mut pool, first, 2000, 2100).unwrap();
    assert_ne!(moved, first);
    free_all(&mut pool, [third], 1000);
    free_all(&mut pool, [moved], 2100);
}

#[test]
fn a_block_that_cannot_grow_keeps_its_contents_elsewhere_or_where_it_is() {
    let mut buffer = memory(4 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let block = pool.allocate(bytes(700)).unwrap();
    let _wall = pool.allocate(bytes(700)).unwrap();
    // SAFETY: the block has this number of bytes.
    unsafe { block.write_bytes(7, 700) };
    let moved = resize(&mut pool, block, 700, 1500).unwrap();
    assert_ne!(moved, block);
    assert_eq!(resize(&mut pool, moved, 1500, 5000), None);
    assert_eq!(resize(&mut pool, moved, 1500, usize::MAX / 4), None);
    // SAFETY: the block is long enough, and these bytes were written.
    let kept = unsafe { std::slice::from_raw_parts(moved.as_ptr(), 700) };
    assert!(kept.iter().all(|byte| *byte == 7));
}

#[test]
fn any_alignment_is_obeyed_and_the_gap_before_is_used() {
    let mut buffer = memory(256 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let mut blocks = Vec::new();
    for log in 0..16 {
        let layout = layout(40, 1 << log);
        let block = pool.allocate(layout).unwrap();
        assert!(block.addr().get().is_multiple_of(layout.align()), "{layout:?}");
        pool.check();
        blocks.push((block, layout));
    }
    for (block, layout) in blocks {
        // SAFETY: each block is of this pool, and is freed once with its layout.
        unsafe { pool.free(block, layout) };
        pool.check();
    }
    assert!(pool.allocate(bytes(120 * KIB)).is_some());
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let mut buffer = memory(4 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    for log in 20..63 {
        assert_eq!(pool.allocate(layout(1 << log, 1)), None);
        assert_eq!(pool.allocate(layout(isize::MAX as usize - (1 << log) + 1, 1)), None);
        assert_eq!(pool.allocate(layout(0, 1 << log)), None);
    }
    assert!(pool.allocate(bytes(0)).is_some());
    pool.check();
}

#[test]
fn a_reset_pool_has_all_its_memory_and_asks_for_no_more() {
    let mut buffer = memory(256 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FailAfter::new(FixedBuffer::new(&mut buffer), 3));
    let count = fill(&mut pool, 2000).len();
    let held = pool.held();
    // SAFETY: no block is used any more.
    unsafe { pool.reset() };
    pool.check();
    assert_eq!(fill(&mut pool, 2000).len(), count);
    assert_eq!(pool.held(), held);
}

#[test]
fn trimming_releases_only_regions_without_a_block_in_use() {
    let mut buffer = memory(256 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let first = pool.allocate(bytes(40 * KIB)).unwrap();
    let held = pool.held();
    let second = pool.allocate(bytes(60 * KIB)).unwrap();
    assert!(pool.held() > held);
    free_all(&mut pool, [second], 60 * KIB);
    pool.trim();
    pool.check();
    assert_eq!(pool.held(), held);
    free_all(&mut pool, [first], 40 * KIB);
    pool.trim();
    assert_eq!(pool.held(), 0);
    assert!(pool.allocate(bytes(40 * KIB)).is_some());
}

#[test]
fn regions_grow_with_the_heap_and_shrink_to_what_the_source_has() {
    let mut buffer = memory(200 * KIB);
    let mut pool: Tlsf<_> = Tlsf::unguarded(FixedBuffer::new(&mut buffer));
    let blocks = fill(&mut pool, KIB);
    assert!(blocks.len() >= 190, "{}", blocks.len());
    assert!(pool.held() > 198 * KIB);
}

#[test]
#[cfg_attr(miri, ignore = "many threads and blocks")]
fn threads_share_a_locked_pool() {
    static POOL: LockedTlsf<pagewise_alloc::source::Os> =
        LockedTlsf::new(pagewise_alloc::source::Os);
    let worker = |seed: u8| {
        let mut live = Vec::new();
        for step in 0..20_000_usize {
            let layout = layout(1 + step * 7 % 700, 1 << (step % 7));
            // SAFETY: the size of the layout is not 0.
            let block = unsafe { POOL.alloc(layout) };
            // SAFETY: the block has this size, and no other code uses it.
            unsafe { block.write_bytes(seed, layout.size()) };
            live.push((block, layout));
            if live.len() > 100 {
                let (block, layout) = live.swap_remove(step * 31 % live.len());
                // SAFETY: the block belongs to this thread, and all of it was written.
                let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
                assert!(bytes.iter().all(|byte| *byte == seed));
                // SAFETY: the block came from this allocator with this layout, and is not used any
                // more.
                unsafe { POOL.dealloc(block, layout) };
            }
        }
        for (block, layout) in live {
            // SAFETY: the block came from this allocator with this layout, and is not used any
            // more.
            unsafe { POOL.dealloc(block, layout) };
        }
    };
    std::thread::scope(|scope| (1..=4).for_each(|seed| drop(scope.spawn(move || worker(seed)))));
    POOL.with(|pool| pool.check());
}

mod misuse {
    use super::*;

    fn in_a_pool(body: impl FnOnce(&mut Tlsf<FixedBuffer<'_>>)) {
        let mut buffer = memory(16 * KIB);
        body(&mut Tlsf::guarded(FixedBuffer::new(&mut buffer)));
    }

    #[test]
    #[should_panic(expected = "was freed before")]
    fn a_small_block_that_is_freed_twice_is_caught() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(100)).unwrap();
            free_all(pool, [block, block], 100);
        });
    }

    #[test]
    #[should_panic(expected = "was freed before")]
    fn a_large_block_that_is_freed_twice_is_caught() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(5000)).unwrap();
            free_all(pool, [block, block], 5000);
        });
    }

    #[test]
    #[should_panic(expected = "is not a block of this pool")]
    fn a_pointer_from_elsewhere_is_caught() {
        in_a_pool(|pool| {
            let _ = pool.allocate(bytes(100));
            let mut other = [0_u64; 20];
            free_all(pool, [NonNull::from(&mut other).cast()], 100);
        });
    }

    #[test]
    #[should_panic(expected = "is not a block of this pool")]
    fn a_pointer_into_a_block_is_caught() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(100)).unwrap();
            // SAFETY: the block has this number of bytes.
            unsafe { block.write_bytes(0x41, 100) };
            // SAFETY: the block has 100 bytes.
            free_all(pool, [unsafe { block.add(32) }], 100);
        });
    }

    #[test]
    #[should_panic(expected = "was not allocated with 100 bytes")]
    fn a_wrong_size_is_caught() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(300)).unwrap();
            free_all(pool, [block], 100);
        });
    }

    #[test]
    #[should_panic(expected = "was written to after it was freed")]
    fn a_write_after_free_is_caught() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(100)).unwrap();
            free_all(pool, [block], 100);
            // SAFETY: violated on purpose, since the block was freed; its memory still belongs to
            // the pool.
            unsafe { block.write_bytes(1, 50) };
            let _ = pool.allocate(bytes(100));
        });
    }

    #[test]
    #[should_panic(expected = "was written beyond its bounds")]
    fn a_write_past_the_end_is_found_by_a_check() {
        in_a_pool(|pool| {
            let block = pool.allocate(bytes(24)).unwrap();
            let _ = pool.allocate(bytes(24)).unwrap();
            // SAFETY: violated on purpose, since the byte is behind the block; its memory still
            // belongs to the pool.
            unsafe { block.write_bytes(0xff, 25) };
            pool.check();
        });
    }
}

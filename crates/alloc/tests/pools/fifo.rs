//! Tests of FIFO pools: frees in any order, compared with a model of the live blocks; pages under
//! every policy; exhausted memory.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;

use pagewise_alloc::source::{FailAfter, Os};
use pagewise_alloc::{Fifo, Source, fifo};
use proptest::prelude::*;

const PAGE: usize = 1 << 16;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn pattern(seed: u8) -> impl Iterator<Item = u8> {
    (0..=250).cycle().map(move |at| seed ^ at)
}

/// A live block and its expected content.
#[derive(Clone, Copy)]
struct ShadowBlock {
    block: NonNull<u8>,
    layout: Layout,
    seed: u8,
}

impl ShadowBlock {
    fn range(&self) -> std::ops::Range<usize> {
        self.block.addr().get()..self.block.addr().get() + self.layout.size()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block is live and has this size.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr(), self.layout.size()) }
    }

    fn fill(&mut self) {
        let seed = self.seed;
        self.bytes().iter_mut().zip(pattern(seed)).for_each(|(byte, value)| *byte = value);
    }

    fn check(&mut self, upto: usize) {
        let seed = self.seed;
        let mut bytes = self.bytes().iter().take(upto).zip(pattern(seed));
        assert!(bytes.all(|(byte, written)| *byte == written), "a block changed");
    }
}

/// A pool and its expected live blocks.
struct Mirrored<S: Source> {
    pool: Fifo<S>,
    live: VecDeque<ShadowBlock>,
    guarded: bool,
}

impl<S: Source> Mirrored<S> {
    fn new(source: S, guarded: bool) -> Mirrored<S> {
        let pool = if guarded { Fifo::guarded(source) } else { Fifo::unguarded(source) };
        Mirrored { pool: pool.unwrap(), live: VecDeque::new(), guarded }
    }

    fn add(&mut self, mut new: ShadowBlock) {
        assert!(new.block.addr().get().is_multiple_of(new.layout.align()));
        let range = new.range();
        let overlaps =
            |old: &ShadowBlock| old.range().start < range.end && range.start < old.range().end;
        assert!(!self.live.iter().any(overlaps), "two blocks overlap");
        new.fill();
        self.live.push_back(new);
    }

    fn allocate(&mut self, layout: Layout, seed: u8, zeroed: bool) -> bool {
        let block = match zeroed {
            true => self.pool.allocate_zeroed(layout),
            false => self.pool.allocate(layout),
        };
        let Some(block) = block else { return false };
        let mut new = ShadowBlock { block, layout, seed };
        assert!(!zeroed || new.bytes().iter().all(|byte| *byte == 0), "not zeroed");
        self.add(new);
        true
    }

    fn free(&mut self, index: usize) {
        if let Some(mut old) = self.live.remove(index) {
            old.check(usize::MAX);
            // SAFETY: the block is live and was allocated with this layout.
            unsafe { self.pool.free(old.block, old.layout) };
        }
    }

    fn reallocate(&mut self, index: usize, size: usize) {
        let Some(mut old) = self.live.remove(index) else { return };
        old.check(usize::MAX);
        // SAFETY: the block is live and was allocated with this layout.
        let moved = unsafe { self.pool.reallocate(old.block, old.layout, size) };
        let Some(block) = moved else { return self.live.push_back(old) };
        if size <= old.layout.size() && !self.guarded {
            assert_eq!(block, old.block, "it moved while it shrank");
        }
        let kept = size.min(old.layout.size());
        let mut new = ShadowBlock { block, layout: layout(size, old.layout.align()), ..old };
        new.check(kept);
        self.add(new);
    }

    fn check(&self) {
        self.pool.check();
    }
}

#[derive(Clone, Debug)]
enum FifoStep {
    Allocate { size: usize, align: usize, zeroed: bool },
    Oldest,
    Any(usize),
    Reallocate(usize, usize),
    Last(usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..600_usize, 2 => 0..9000_usize, 1 => 0..3 * PAGE]
}

fn steps() -> impl Strategy<Value = Vec<FifoStep>> {
    let align = prop_oneof![8 => Just(0_u32), 2 => 0..8_u32, 1 => 0..19_u32];
    let allocate = (size(), align, any::<bool>())
        .prop_map(|(size, align, zeroed)| FifoStep::Allocate { size, align: 1 << align, zeroed });
    let step = prop_oneof![
        8 => allocate,
        3 => Just(FifoStep::Oldest),
        3 => any::<usize>().prop_map(FifoStep::Any),
        1 => (any::<usize>(), size()).prop_map(|(index, size)| FifoStep::Reallocate(index, size)),
        1 => size().prop_map(FifoStep::Last),
    ];
    prop::collection::vec(step, 0..400)
}

fn run<S: Source>(heap: &mut Mirrored<S>, steps: &[FifoStep]) {
    for (step, seed) in steps.iter().zip((0..=255).cycle()) {
        let n = heap.live.len().max(1);
        match *step {
            FifoStep::Allocate { size, align, zeroed } => {
                heap.allocate(layout(size, align), seed, zeroed);
            }
            FifoStep::Oldest => heap.free(0),
            FifoStep::Any(index) => heap.free(index % n),
            FifoStep::Reallocate(index, size) => heap.reallocate(index % n, size),
            FifoStep::Last(size) => heap.reallocate(n - 1, size),
        }
        heap.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_neither_overlap_nor_change_whatever_is_freed(steps in steps(), guarded: bool) {
        let mut heap = Mirrored::new(Os, guarded);
        run(&mut heap, &steps);
        while !heap.live.is_empty() {
            heap.free(heap.live.len() / 2);
            heap.check();
        }
    }

    #[test]
    fn memory_may_run_out_at_any_time(steps in steps(), n in 1..12_usize, guarded: bool) {
        let mut heap = Mirrored::new(FailAfter::new(Os, n), guarded);
        run(&mut heap, &steps);
    }
}

/// Replaces live blocks by new blocks of 16 to 512 bytes: always the oldest block, or a random one.
fn replace<S: Source>(heap: &mut Mirrored<S>, steps: usize, oldest: bool) {
    let mut seed = 1_u64;
    for _ in 0..steps {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let random = usize::try_from(seed >> 33).unwrap();
        let n = heap.live.len();
        let old =
            if oldest { heap.live.pop_front() } else { heap.live.swap_remove_back(random % n) };
        let old = old.unwrap();
        // SAFETY: the block is live and was allocated with this layout.
        unsafe { heap.pool.free(old.block, old.layout) };
        push(heap, 16 + random / n % 497);
    }
}

fn push<S: Source>(heap: &mut Mirrored<S>, size: usize) {
    let layout = layout(size, 8);
    let block = heap.pool.allocate(layout).unwrap();
    heap.live.push_back(ShadowBlock { block, layout, seed: 0 });
}

fn live_bytes<S: Source>(heap: &Mirrored<S>) -> usize {
    heap.live.iter().map(|live| live.layout.size()).sum()
}

/// Creates a pool with many live blocks.
fn filled() -> Mirrored<Os> {
    let mut heap = Mirrored::new(Os, false);
    (0..20_000).for_each(|at| push(&mut heap, 16 + at % 497));
    heap
}

#[test]
fn a_pool_used_in_order_of_age_holds_three_pages_more_than_is_alive() {
    let mut heap = filled();
    for _ in 0..20 {
        replace(&mut heap, 10_000, true);
        // Sizes are rounded up by 4 bytes on average, and a page of 64 KiB has space for 62 KiB of
        // blocks.
        let live = (live_bytes(&heap) + 4 * heap.live.len()) * 64 / 62;
        assert!(heap.pool.held() <= live + 3 * PAGE, "{} for {live}", heap.pool.held());
    }
}

#[test]
fn a_pool_used_in_no_order_holds_at_most_half_more_than_is_alive() {
    let mut heap = filled();
    for _ in 0..20 {
        replace(&mut heap, 10_000, false);
        heap.check();
        let live = live_bytes(&heap);
        assert!(heap.pool.held() <= live + live / 2, "{} for {live}", heap.pool.held());
    }
}

fn free_all<S: Source>(heap: &mut Mirrored<S>) {
    while let Some(old) = heap.live.swap_remove_back(heap.live.len() / 2) {
        // SAFETY: the block is live and was allocated with this layout.
        unsafe { heap.pool.free(old.block, old.layout) };
    }
    heap.check();
}

#[test]
fn a_pool_that_empties_in_no_order_gives_nearly_all_back_and_is_as_before_when_it_fills_again() {
    let mut heap = filled();
    replace(&mut heap, 100_000, false);
    free_all(&mut heap);
    assert!(heap.pool.held() <= 34 * PAGE, "{}", heap.pool.held());
    (0..20_000).for_each(|at| push(&mut heap, 16 + at % 497));
    replace(&mut heap, 100_000, true);
    let live = (live_bytes(&heap) + 4 * heap.live.len()) * 64 / 62;
    assert!(heap.pool.held() <= live + 4 * PAGE, "{} for {live}", heap.pool.held());
}

#[test]
fn blocks_may_outlive_their_pool() {
    let mut heap = filled();
    replace(&mut heap, 100_000, false);
    let Mirrored { pool, live, .. } = heap;
    drop(pool);
    for (at, mut old) in live.into_iter().enumerate() {
        old.bytes().fill(u8::try_from(at % 256).unwrap());
        // SAFETY: the block is live and was allocated with this layout.
        unsafe { fifo::free(old.block, old.layout) };
    }
}

/// Allocates ten blocks of 64 bytes.
fn ten(pool: &Fifo<Os>) -> Vec<NonNull<u8>> {
    (0..10).map(|_| pool.allocate(layout(64, 8)).unwrap()).collect()
}

#[test]
#[should_panic(expected = "was freed before")]
fn a_second_free_is_caught() {
    let pool = Fifo::guarded(Os).unwrap();
    let blocks = ten(&pool);
    for at in [3, 5, 3] {
        // SAFETY: the second free violates the contract on purpose: the pool must detect it.
        unsafe { pool.free(blocks[at], layout(64, 8)) };
    }
}

#[test]
#[should_panic(expected = "was not allocated with")]
fn a_wrong_size_is_caught() {
    let pool = Fifo::guarded(Os).unwrap();
    // SAFETY: violated on purpose by a wrong size: the pool must detect it.
    unsafe { pool.free(ten(&pool)[3], layout(56, 8)) };
}

#[test]
#[should_panic(expected = "was written beyond its bounds")]
fn a_write_past_the_end_is_caught() {
    let pool = Fifo::guarded(Os).unwrap();
    let block = ten(&pool)[3];
    // SAFETY: violated on purpose: the byte is a canary byte behind the block.
    unsafe { block.as_ptr().wrapping_add(64).write(1) };
    // SAFETY: the block is live and has this size.
    unsafe { pool.free(block, layout(64, 8)) };
}

#[test]
#[should_panic(expected = "is not a block")]
fn an_address_in_a_block_is_caught() {
    let pool = Fifo::guarded(Os).unwrap();
    // SAFETY: violated on purpose: the pool must detect it.
    unsafe {
        pool.free(NonNull::new(ten(&pool)[3].as_ptr().wrapping_add(8)).unwrap(), layout(56, 8))
    };
}

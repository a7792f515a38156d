//! FIFO: 4096 live blocks of 16 to 512 bytes, the oldest replaced; the same with zeroed memory; and
//! 100,000 live blocks replaced at random, which the pool is not made for.

#[cfg(feature = "ablation")]
mod ablation;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;

use pagewise_alloc::{Fifo, Os};
use pagewise_bench_allocators::{BenchRunner, black_box, for_each_malloc, race, verdict};

const LIVE: usize = 4096;
const STEPS: usize = 256 * LIVE;
const RANDOM_LIVE: usize = 100_000;
/// Each block is replaced a hundred times in a round: to fetch again what others' rounds drove out
/// of the caches takes as long as to replace each five times.
const RANDOM_STEPS: usize = 100 * RANDOM_LIVE;
const ROUNDS: usize = 15;
const SIZES: usize = 1 << 15;

/// Interface of a pool in the benchmark. Layouts have a size.
trait FifoPool {
    fn allocate(&self, layout: Layout) -> *mut u8;
    fn allocate_zeroed(&self, layout: Layout) -> *mut u8;

    /// # Safety
    /// `block` came from here with this layout, and is not used any more.
    unsafe fn free(&self, block: *mut u8, layout: Layout);
}

impl FifoPool for Fifo<Os> {
    #[inline(always)]
    fn allocate(&self, layout: Layout) -> *mut u8 {
        Fifo::allocate(self, layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    fn allocate_zeroed(&self, layout: Layout) -> *mut u8 {
        Fifo::allocate_zeroed(self, layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was null would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Fifo::free(self, block, layout) };
    }
}

/// A general allocator.
struct FifoMalloc<M>(M);

impl<M: GlobalAlloc> FifoPool for FifoMalloc<M> {
    #[inline(always)]
    fn allocate(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        black_box(unsafe { self.0.alloc(layout) })
    }

    #[inline(always)]
    fn allocate_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        black_box(unsafe { self.0.alloc_zeroed(layout) })
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator with this layout.
        unsafe { self.0.dealloc(black_box(block), layout) };
    }
}

/// No allocator: every block that is freed is the next that is handed out, and the first ones lie
/// side by side.
struct NoFifo {
    last: Cell<*mut u8>,
    rest: Cell<usize>,
}

impl FifoPool for NoFifo {
    #[inline(always)]
    fn allocate(&self, _layout: Layout) -> *mut u8 {
        if self.rest.get() > 0 {
            self.rest.set(self.rest.get() - 1);
            // SAFETY: the memory was for as many blocks.
            self.last.set(unsafe { self.last.get().add(264) });
        }
        self.last.get()
    }

    #[inline(always)]
    fn allocate_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout)
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8, _layout: Layout) {
        self.last.set(block);
    }
}

/// A pool and its live blocks. The block of step n is of size n, and takes the place of another.
struct LiveFifoBlocks<P: FifoPool> {
    pool: P,
    blocks: Vec<(*mut u8, u32)>,
    sizes: Vec<u16>,
    step: usize,
    seed: u64,
}

impl<P: FifoPool> LiveFifoBlocks<P> {
    fn new(pool: P, live: usize) -> LiveFifoBlocks<P> {
        let mut seed = 0x2545_f491_4f6c_dd1d;
        let sizes = (0..SIZES).map(|_| 16 + below(497, &mut seed) as u16).collect();
        let mut new =
            LiveFifoBlocks { pool, blocks: Vec::with_capacity(live), sizes, step: 0, seed };
        for _ in 0..live {
            let block = new.next_block(P::allocate);
            new.blocks.push(block);
        }
        new
    }

    /// A block of the next size, its first 8 bytes written.
    #[inline(always)]
    fn next_block(&mut self, allocate: impl Fn(&P, Layout) -> *mut u8) -> (*mut u8, u32) {
        let size = self.sizes[self.step % SIZES].into();
        self.step += 1;
        let block = allocate(&self.pool, layout(size));
        // SAFETY: the block has 16 bytes at least.
        unsafe { block.cast::<u32>().write(size) };
        (block, size)
    }

    #[inline(always)]
    fn replace(&mut self, at: usize, allocate: impl Fn(&P, Layout) -> *mut u8) {
        let (block, size) = self.blocks[at];
        // SAFETY: the block is live, and another takes its place.
        unsafe { self.pool.free(block, layout(size)) };
        self.blocks[at] = self.next_block(allocate);
    }

    fn replace_oldest(&mut self, allocate: impl Fn(&P, Layout) -> *mut u8) {
        for _ in 0..STEPS / LIVE {
            (0..LIVE).for_each(|at| self.replace(at, &allocate));
        }
    }

    fn replace_any(&mut self) {
        (0..RANDOM_STEPS).for_each(|_| self.replace_one());
    }

    /// Replaces a block at random.
    #[inline(always)]
    fn replace_one(&mut self) {
        let at = below(self.blocks.len(), &mut self.seed);
        self.replace(at, P::allocate);
    }

    /// Bytes that are alive.
    fn bytes(&self) -> usize {
        self.blocks.iter().map(|(_, size)| *size as usize).sum()
    }
}

#[cfg(feature = "ablation")]
impl LiveFifoBlocks<Fifo<Os>> {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn replace_at(&mut self, at: usize) {
        self.replace(at, <Fifo<Os> as FifoPool>::allocate);
    }

    fn push(&mut self) {
        let block = self.next_block(<Fifo<Os> as FifoPool>::allocate);
        self.blocks.push(block);
    }

    /// Frees all, the oldest first.
    fn pop_all(&mut self) {
        for (block, size) in self.blocks.drain(..) {
            // SAFETY: it is live, and used no more.
            unsafe { FifoPool::free(&self.pool, block, layout(size)) };
        }
    }

    fn held(&self) -> usize {
        self.pool.held()
    }
}

/// A random number below `n`.
#[inline(always)]
fn below(n: usize, seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    ((*seed >> 32) as usize * n) >> 32
}

#[inline(always)]
fn layout(size: u32) -> Layout {
    // SAFETY: 8 is a power of two, and sizes here are small.
    unsafe { Layout::from_size_align_unchecked(size as usize, 8) }
}

fn pool() -> Fifo<Os> {
    Fifo::new(Os).expect("memory for a pool")
}

/// Ours, and every general allocator, each with as many live blocks.
macro_rules! runners {
    ($units:expr, $live:expr, $round:expr) => {{
        let mut ours = LiveFifoBlocks::new(pool(), $live);
        let mut runners = vec![BenchRunner::new("pagewise", $units, move || $round(&mut ours))];
        macro_rules! general {
            ($name:literal, $malloc:expr) => {
                let mut peer = LiveFifoBlocks::new(FifoMalloc($malloc), $live);
                runners.push(BenchRunner::new($name, $units, move || $round(&mut peer)));
            };
        }
        for_each_malloc!(general);
        let mut memory = vec![0_u8; 264 * ($live + 1)];
        let nothing = NoFifo { last: Cell::new(memory.as_mut_ptr()), rest: Cell::new($live) };
        let mut floor = LiveFifoBlocks::new(nothing, $live);
        runners.push(BenchRunner::new("floor: nothing is allocated", $units, move || {
            $round(&mut floor)
        }));
        std::mem::forget(memory);
        runners
    }};
}

fn oldest<P: FifoPool>(live: &mut LiveFifoBlocks<P>) {
    live.replace_oldest(P::allocate);
}

fn oldest_zeroed<P: FifoPool>(live: &mut LiveFifoBlocks<P>) {
    live.replace_oldest(P::allocate_zeroed);
}

fn any<P: FifoPool>(live: &mut LiveFifoBlocks<P>) {
    live.replace_any();
}

fn main() {
    let results = race("4096 live, the oldest replaced", ROUNDS, runners!(STEPS, LIVE, oldest));
    results.goal_of_best("pagewise", 0.55, &["floor"]);

    let results = race("the same, zeroed", ROUNDS, runners!(STEPS, LIVE, oldest_zeroed));
    results.goal_of_best("pagewise", 0.85, &["floor"]);

    let title = "100,000 live, replaced at random";
    let results = race(title, 5, runners!(RANDOM_STEPS, RANDOM_LIVE, any));
    results.goal_of_best("pagewise", 1.0, &["floor"]);
    let mut ours = LiveFifoBlocks::new(pool(), RANDOM_LIVE);
    any(&mut ours);
    let ratio = ours.pool.held() as f64 / ours.bytes() as f64;
    verdict(ratio <= 1.5, &format!("pagewise holds <= 1.5x the live memory: {ratio:.2}x"));
    #[cfg(feature = "ablation")]
    ablation::ablation();
}

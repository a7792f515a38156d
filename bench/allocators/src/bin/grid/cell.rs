//! A program of the grid: which sizes, how many live blocks, which of them is freed next.

use std::alloc::Layout;
use std::fmt;
use std::time::Duration;

use crate::Maker;

/// Distribution of sizes, in bytes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum SizeLaw {
    Fixed(usize),
    /// Each size from the first to the last as often as any other.
    Uniform(usize, usize),
    /// Each power of two as often as any other, and all sizes in between.
    LogUniform(usize, usize),
    /// Half from 24 to 64, half from 4000 to 8200.
    Bimodal,
}

impl SizeLaw {
    pub(crate) const ALL: &[SizeLaw] = &[
        SizeLaw::Fixed(16),
        SizeLaw::Fixed(256),
        SizeLaw::Fixed(4096),
        SizeLaw::Fixed(65_536),
        SizeLaw::Fixed(1 << 20),
        SizeLaw::Uniform(16, 512),
        SizeLaw::Uniform(64, 8192),
        SizeLaw::Uniform(60_000, 100_000),
        SizeLaw::LogUniform(16, 4096),
        SizeLaw::LogUniform(16, 1 << 20),
        SizeLaw::Bimodal,
    ];

    fn mean(self) -> usize {
        match self {
            SizeLaw::Fixed(size) => size,
            SizeLaw::Uniform(low, high) => (low + high) / 2,
            SizeLaw::LogUniform(low, high) => {
                ((high - low) as f64 / (high as f64 / low as f64).ln()) as usize
            }
            SizeLaw::Bimodal => (44 + 6100) / 2,
        }
    }

    fn draw(self, seed: &mut u64) -> usize {
        match self {
            SizeLaw::Fixed(size) => size,
            SizeLaw::Uniform(low, high) => low + below(high - low + 1, seed),
            SizeLaw::LogUniform(low, high) => {
                let share = below(1 << 30, seed) as f64 / f64::from(1 << 30);
                (low as f64 * (high as f64 / low as f64).powf(share)) as usize
            }
            SizeLaw::Bimodal if below(2, seed) == 0 => 24 + below(41, seed),
            SizeLaw::Bimodal => 4000 + below(4201, seed),
        }
    }
}

impl fmt::Display for SizeLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeLaw::Fixed(size) => write!(f, "{size} B"),
            SizeLaw::Uniform(low, high) => write!(f, "{low} to {high} B"),
            SizeLaw::LogUniform(low, high) => write!(f, "{low} to {high} B, log"),
            SizeLaw::Bimodal => f.write_str("24-64 or 4000-8200 B"),
        }
    }
}

/// Which block is freed next.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// The oldest.
    InOrder,
    /// One of the oldest 64.
    NearlyInOrder,
    Random,
}

impl Order {
    pub(crate) const ALL: &[Order] = &[Order::InOrder, Order::NearlyInOrder, Order::Random];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::InOrder => "in order",
            Order::NearlyInOrder => "nearly",
            Order::Random => "random",
        })
    }
}

/// A program.
#[derive(Clone, Copy)]
pub(crate) struct GridCell {
    pub(crate) sizes: SizeLaw,
    pub(crate) live: usize,
    pub(crate) align: usize,
    pub(crate) order: Order,
    pub(crate) threads: usize,
    pub(crate) touched: bool,
}

impl fmt::Display for GridCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let touched = if self.touched { "touched" } else { "" };
        let GridCell { sizes, live, align, order, threads, .. } = self;
        write!(f, "{sizes}, {live} live, align {align}, {order}, {threads} T {touched}")
    }
}

/// Number of different sizes that are drawn in advance.
const DRAWN: usize = 1 << 14;
/// CPU time for which a cell runs in a round, at least.
const RUN: Duration = Duration::from_millis(8);
/// Replaced blocks between two looks at the clock, which is a system call: fewer if the program
/// writes more than 16 MiB into them.
const STEPS: std::ops::RangeInclusive<usize> = 16..=2048;
const WRITTEN: usize = 16 << 20;

/// A pool for one thread.
pub(crate) trait GridPool {
    fn allocate(&mut self, layout: Layout) -> *mut u8;

    /// # Safety
    /// The block came from here with this layout, and is not used any more.
    unsafe fn free(&mut self, block: *mut u8, layout: Layout);
}

impl GridCell {
    pub(crate) fn live_bytes(&self) -> usize {
        self.live * self.sizes.mean().max(self.align)
    }

    fn steps(&self) -> usize {
        let written = if self.touched { self.sizes.mean() } else { 8 };
        (WRITTEN / written).clamp(*STEPS.start(), *STEPS.end())
    }

    /// Nanoseconds for a free and an allocation: the mean of the threads.
    pub(crate) fn time<P: GridPool>(&self, make: Maker<P>) -> f64 {
        if self.threads == 1 {
            return LiveGrid::new(*self, make(), 1).run();
        }
        let barrier = std::sync::Barrier::new(self.threads);
        let work = |thread: usize| {
            let mut live = LiveGrid::new(*self, make(), thread as u64 + 1);
            barrier.wait();
            let time = live.run();
            barrier.wait();
            time
        };
        let (work, threads) = (&work, self.threads);
        let sum: f64 = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|at| scope.spawn(move || work(at))).collect();
            all.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
        });
        sum / threads as f64
    }
}

/// A pool and its live blocks.
struct LiveGrid<P: GridPool> {
    cell: GridCell,
    pool: P,
    sizes: Vec<u32>,
    blocks: Vec<(*mut u8, u32)>,
    cursor: usize,
    step: usize,
    seed: u64,
}

impl<P: GridPool> LiveGrid<P> {
    fn new(cell: GridCell, pool: P, thread: u64) -> LiveGrid<P> {
        let mut seed = 0x2545_f491_4f6c_dd1d * thread;
        let sizes = (0..DRAWN).map(|_| cell.sizes.draw(&mut seed) as u32).collect();
        let blocks = Vec::with_capacity(cell.live);
        let mut live = LiveGrid { cell, pool, sizes, blocks, cursor: 0, step: 0, seed };
        for _ in 0..cell.live {
            let block = live.next_block();
            live.blocks.push(block);
        }
        live
    }

    #[inline(always)]
    fn layout(&self, size: u32) -> Layout {
        // SAFETY: alignments are powers of two, and sizes small.
        unsafe { Layout::from_size_align_unchecked(size as usize, self.cell.align) }
    }

    #[inline(always)]
    fn next_block(&mut self) -> (*mut u8, u32) {
        let size = self.sizes[self.step % DRAWN];
        self.step += 1;
        let block = self.pool.allocate(self.layout(size));
        let touched = if self.cell.touched { size as usize } else { 8 };
        // SAFETY: the block has this size, and at least 16 bytes.
        unsafe { block.write_bytes(1, touched) };
        (block, size)
    }

    #[inline(always)]
    fn replace(&mut self) {
        let live = self.blocks.len();
        let at = match self.cell.order {
            Order::InOrder => self.cursor,
            Order::NearlyInOrder => {
                let other = self.cursor + below(64.min(live), &mut self.seed);
                self.blocks.swap(self.cursor, if other < live { other } else { other - live });
                self.cursor
            }
            Order::Random => below(live, &mut self.seed),
        };
        self.cursor = if self.cursor + 1 == live { 0 } else { self.cursor + 1 };
        let (block, size) = self.blocks[at];
        let layout = self.layout(size);
        // SAFETY: the block is live, and another takes its place.
        unsafe { self.pool.free(block, layout) };
        self.blocks[at] = self.next_block();
    }

    /// Runs for a time that does not count, and then for one that does. The mean, since rare slow
    /// calls are part of the cost; of CPU time, since other programs run on the machine.
    fn run(&mut self) -> f64 {
        let (mut mean, batch) = (f64::NAN, self.cell.steps());
        for _ in 0..2 {
            let begin = cpu_time();
            let mut steps = 0;
            let time = loop {
                (0..batch).for_each(|_| self.replace());
                steps += batch;
                let time = cpu_time() - begin;
                if time >= RUN {
                    break time;
                }
            };
            mean = time.as_secs_f64() * 1e9 / steps as f64;
        }
        mean
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl<P: GridPool> Drop for LiveGrid<P> {
    fn drop(&mut self) {
        for (block, size) in std::mem::take(&mut self.blocks) {
            let layout = self.layout(size);
            // SAFETY: the block is live, and not used any more.
            unsafe { self.pool.free(block, layout) };
        }
    }
}

/// A random number below `n`.
#[inline(always)]
fn below(n: usize, seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    ((*seed >> 32) as usize * n) >> 32
}

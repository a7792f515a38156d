//! Programs that free a block at random and allocate another in its place.

use std::alloc::Layout;

use crate::pool::TlsfPool;
use crate::tail::cycles;

/// A pool and its live blocks.
pub(crate) struct LiveTlsfBlocks<P> {
    pool: P,
    blocks: Vec<(*mut u8, Layout)>,
    seed: u64,
}

impl<P: TlsfPool> LiveTlsfBlocks<P> {
    pub(crate) fn new(mut pool: P, live: usize) -> LiveTlsfBlocks<P> {
        let mut seed = 0x2545_f491_4f6c_dd1d;
        let blocks = (0..live).map(|_| new_block(&mut pool, random(&mut seed))).collect();
        LiveTlsfBlocks { pool, blocks, seed }
    }

    /// Which block is replaced next, and the size of the new one.
    fn next(&mut self) -> (usize, u64) {
        let random = random(&mut self.seed);
        (((random >> 32) as usize * self.blocks.len()) >> 32, random)
    }

    pub(crate) fn replace(&mut self, steps: usize) {
        for _ in 0..steps {
            let (at, random) = self.next();
            let (block, layout) = self.blocks[at];
            // SAFETY: the block is live, and another takes its place.
            unsafe { self.pool.free(block, layout) };
            self.blocks[at] = new_block(&mut self.pool, random);
        }
    }

    /// Replaces blocks by calls of functions that have a name.
    pub(crate) fn replace_measured(&mut self, steps: usize) {
        for _ in 0..steps {
            let (at, random) = self.next();
            let (block, layout) = self.blocks[at];
            let new = layout_of(random);
            measured_free(&mut self.pool, block, layout);
            self.blocks[at] = (touch(measured_allocate(&mut self.pool, new)), new);
        }
    }

    /// The cycles of each `malloc` and of each `free`, sorted.
    pub(crate) fn replace_timed(&mut self, steps: usize) -> [Vec<u64>; 2] {
        let mut times = [Vec::with_capacity(steps), Vec::with_capacity(steps)];
        for _ in 0..steps {
            let (at, random) = self.next();
            let (block, layout) = self.blocks[at];
            let new = layout_of(random);
            let begin = cycles();
            // SAFETY: the block is live, and another takes its place.
            unsafe { self.pool.free(block, layout) };
            let between = cycles();
            let block = self.pool.allocate(new);
            let end = cycles();
            self.blocks[at] = (touch(block), new);
            times[0].push(end - between);
            times[1].push(between - begin);
        }
        times.iter_mut().for_each(|times| times.sort_unstable());
        times
    }
}

/// Function that a tool which counts instructions observes.
#[inline(never)]
#[unsafe(no_mangle)]
fn measured_allocate(pool: &mut dyn TlsfPool, layout: Layout) -> *mut u8 {
    pool.allocate(layout)
}

/// As [`measured_allocate`].
#[inline(never)]
#[unsafe(no_mangle)]
fn measured_free(pool: &mut dyn TlsfPool, block: *mut u8, layout: Layout) {
    // SAFETY: the block is live, and another takes its place.
    unsafe { pool.free(block, layout) };
}

fn layout_of(random: u64) -> Layout {
    let size = 16 + (((random & 0xffff_ffff) * 497) >> 32) as usize;
    Layout::from_size_align(size, 8).expect("small, and a power of two")
}

fn new_block(pool: &mut impl TlsfPool, random: u64) -> (*mut u8, Layout) {
    let layout = layout_of(random);
    (touch(pool.allocate(layout)), layout)
}

/// The user writes to a block.
fn touch(block: *mut u8) -> *mut u8 {
    // SAFETY: it was allocated, with 16 bytes or more; without memory the program would have ended
    // before.
    unsafe { block.write(1) };
    block
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

//! A pool and what must be true of it: which blocks are live, and every byte of theirs.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use pagewise_alloc::DisciplinedAllocator;

use crate::program::{ProgramStep, which};

/// A block that was handed out.
#[derive(Clone, Copy, Debug)]
struct MirroredBlock {
    start: NonNull<u8>,
    layout: Layout,
    seed: u8,
}

/// Length of the pattern: a prime, so that bytes at a distance of a power of two differ.
const PERIOD: usize = 251;

/// Pattern written into blocks, from `seed` on: any `PERIOD` bytes of it.
const PATTERN: [u8; 2 * PERIOD] = {
    let mut pattern = [0; 2 * PERIOD];
    let mut at = 1;
    while at < pattern.len() {
        pattern[at] = if at == PERIOD { 0 } else { pattern[at - 1] + 1 };
        at += 1;
    }
    pattern
};

impl MirroredBlock {
    fn pattern(&self) -> &'static [u8] {
        &PATTERN[usize::from(self.seed)..][..PERIOD]
    }

    fn write(&self) {
        // SAFETY: the pool handed the block out for writing, and it is live.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) };
        let chunks = memory.chunks_mut(PERIOD);
        chunks.for_each(|chunk| chunk.copy_from_slice(&self.pattern()[..chunk.len()]));
    }

    /// The block holds what was written, at least up to a size.
    fn assert_intact(&self, size: usize) {
        // SAFETY: the pool handed the block out, it is live and was written throughout.
        let memory = unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), size.min(self.layout.size()))
        };
        let intact = memory.chunks(PERIOD).all(|chunk| *chunk == self.pattern()[..chunk.len()]);
        assert!(intact, "a block does not hold what was written: {self:?}");
    }

    fn assert_zero(&self) {
        // SAFETY: the pool handed the block out and says that it is written, with zeros.
        let memory = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) };
        assert!(memory.iter().all(|byte| *byte == 0), "a block is not zero: {self:?}");
    }
}

/// A pool, and its live blocks, the oldest first.
#[derive(Debug)]
pub(crate) struct Mirror<A: DisciplinedAllocator> {
    pool: A,
    live: Vec<MirroredBlock>,
    /// Start and end of the live blocks that are not empty.
    ranges: BTreeMap<usize, usize>,
    seed: u8,
    refused: usize,
}

impl<A: DisciplinedAllocator> Mirror<A> {
    pub(crate) fn new(pool: A) -> Mirror<A> {
        pool.check();
        Mirror { pool, live: Vec::new(), ranges: BTreeMap::new(), seed: 0, refused: 0 }
    }

    /// Number of times the pool was out of memory.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    pub(crate) fn run(&mut self, program: &[ProgramStep]) {
        for step in program {
            self.step(step);
            self.pool.check();
        }
        self.live.iter().for_each(|live| live.assert_intact(usize::MAX));
    }

    fn step(&mut self, step: &ProgramStep) {
        match step {
            ProgramStep::Allocate(layout) => self.allocate(*layout),
            _ if self.live.is_empty() => {}
            ProgramStep::Free(index) => self.free(which(A::FREES, index, self.live.len())),
            ProgramStep::Resize(index, size) => {
                self.resize(which(A::FREES, index, self.live.len()), *size);
            }
        }
    }

    fn allocate(&mut self, layout: Layout) {
        let Some(start) = self.pool.allocate(layout) else {
            self.refused += 1;
            return;
        };
        self.seed = (self.seed + 1) % 251;
        let live = MirroredBlock { start, layout, seed: self.seed };
        self.enter(&live);
        if A::ZEROED {
            live.assert_zero();
        }
        live.write();
        self.live.push(live);
    }

    fn free(&mut self, at: usize) {
        let live = self.live.remove(at);
        live.assert_intact(usize::MAX);
        self.leave(&live);
        // SAFETY: the block is live, and the one that the discipline allows.
        unsafe { self.pool.free(live.start, live.layout) };
    }

    fn resize(&mut self, at: usize, size: usize) {
        let old = self.live[at];
        let layout = Layout::from_size_align(size, old.layout.align()).unwrap();
        // SAFETY: the block is live, and the one that the discipline allows.
        let Some(start) = (unsafe { self.pool.resize(old.start, old.layout, layout) }) else {
            self.refused += 1;
            old.assert_intact(usize::MAX);
            return;
        };
        self.leave(&old);
        let new = MirroredBlock { start, layout, seed: old.seed };
        self.enter(&new);
        new.assert_intact(old.layout.size());
        new.write();
        self.live[at] = new;
    }

    /// Another block is live: it is aligned and overlaps none.
    fn enter(&mut self, live: &MirroredBlock) {
        let start = live.start.addr().get();
        assert!(start.is_multiple_of(live.layout.align()), "a block is not aligned: {live:?}");
        if live.layout.size() == 0 {
            return;
        }
        let end = start + live.layout.size();
        let before = self.ranges.range(..end).next_back();
        assert!(before.is_none_or(|(_, end)| *end <= start), "blocks overlap: {live:?}");
        self.ranges.insert(start, end);
    }

    fn leave(&mut self, live: &MirroredBlock) {
        if live.layout.size() > 0 {
            self.ranges.remove(&live.start.addr().get());
        }
    }

    /// Frees what is live, the last first, which every discipline allows.
    pub(crate) fn free_all(&mut self) {
        while !self.live.is_empty() {
            self.free(self.live.len() - 1);
            self.pool.check();
        }
    }
}

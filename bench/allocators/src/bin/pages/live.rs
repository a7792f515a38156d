//! Programs that free a run at random and take another in its place.

use std::fmt;

use crate::pool::{PAGE, PagePool};

/// Live runs.
pub(crate) const RUNS: usize = 256;

/// Distribution of run lengths.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RunLengths {
    /// 1 to 256 pages, one as often as the other.
    Even,
    /// 1, 2, 4 .. 256 pages.
    Powers,
}

impl fmt::Display for RunLengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunLengths::Even => "4 KiB to 1 MiB",
            RunLengths::Powers => "4, 8, 16 .. 1024 KiB",
        })
    }
}

/// A pool and its live runs.
pub(crate) struct LivePageRuns<'a> {
    pool: &'a dyn PagePool,
    sizes: RunLengths,
    runs: Vec<(*mut u8, usize)>,
    seed: u64,
}

impl<'a> LivePageRuns<'a> {
    pub(crate) fn new(pool: &'a dyn PagePool, sizes: RunLengths) -> LivePageRuns<'a> {
        let mut live = LivePageRuns { pool, sizes, runs: Vec::new(), seed: 0x2545_f491_4f6c_dd1d };
        for _ in 0..RUNS {
            let pages = live.next().1;
            live.runs.push((pool.take(pages), pages));
        }
        live
    }

    /// Which run is replaced next, and how many pages the new one has.
    fn next(&mut self) -> (usize, usize) {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let (which, random) = ((self.seed >> 32) as usize % RUNS, self.seed as u32 as usize);
        let pages = match self.sizes {
            RunLengths::Even => 1 + random * 256 / (1 << 32),
            RunLengths::Powers => 1 << (random * 9 / (1 << 32)),
        };
        (which, pages)
    }

    pub(crate) fn replace(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    fn step(&mut self) -> (*mut u8, usize) {
        let (which, pages) = self.next();
        let (run, old) = self.runs[which];
        // SAFETY: the run is live, and another takes its place.
        unsafe { self.pool.free(run, old) };
        self.runs[which] = (self.pool.take(pages), pages);
        self.runs[which]
    }

    /// As [`LivePageRuns::replace`], with a byte written to every page.
    pub(crate) fn replace_touched(&mut self, steps: usize) {
        for _ in 0..steps {
            let (run, pages) = self.step();
            touch(run, pages);
        }
    }

    /// Writes a byte to every page of all runs.
    pub(crate) fn touch(&self) {
        self.runs.iter().for_each(|(run, pages)| touch(*run, *pages));
    }

    /// Bytes of all runs.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|(_, pages)| pages * PAGE).sum()
    }
}

fn touch(run: *mut u8, pages: usize) {
    for page in 0..pages {
        // SAFETY: the run was allocated with this number of pages.
        unsafe { run.add(page * PAGE).write(1) };
    }
}

impl Drop for LivePageRuns<'_> {
    fn drop(&mut self) {
        for (run, pages) in &self.runs {
            // SAFETY: the runs are live, and are not used any more.
            unsafe { self.pool.free(*run, *pages) };
        }
    }
}

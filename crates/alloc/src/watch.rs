//! What pools tell those who watch memory: valgrind and AddressSanitizer, found when the program runs, and statistics,
//! where the feature `stats` is on.
//!
//! Fast paths know nothing of this, the inlined ones in C programs that were compiled long ago included. Two rules make
//! up for it:
//! - A pool that is watched closely ([`checked`]) keeps its fast paths closed: every call finds no room and comes to a slow
//!   path, which tells of each block.
//! - Statistics alone leave the fast paths open. Pools of a few instructions a call tell of their [`Progress`] when a slow
//!   path comes anyway; pools that take longer count each call.

mod checker;
#[cfg(feature = "stats")]
mod entry;
#[cfg(feature = "stats")]
mod table;

use core::cell::Cell;
use core::ptr::NonNull;

use crate::source::Block;

pub use checker::{GAP, Quiet, checked, quiet};
#[cfg(feature = "stats")]
pub use entry::{Entry, SAMPLES, SIZES};
#[cfg(feature = "stats")]
pub use table::{MAGIC, Table};

/// A pool, as its watchers know it. Lies in what its fast paths do not touch.
#[derive(Debug)]
pub struct Pool {
    /// By what valgrind knows it; 0 before it does.
    id: Cell<usize>,
    #[cfg(feature = "stats")]
    kind: &'static str,
    #[cfg(feature = "stats")]
    entry: Cell<Option<&'static Entry>>,
    /// Bytes that may be asked for, and that may come back, before the entry is told.
    #[cfg(feature = "stats")]
    asked: Countdown,
    #[cfg(feature = "stats")]
    returned: Countdown,
}

/// Bytes until something is told. Below 0 that is overdue.
#[cfg(feature = "stats")]
#[derive(Debug)]
struct Countdown {
    left: Cell<isize>,
    /// What `left` was when it began.
    span: Cell<isize>,
}

#[cfg(feature = "stats")]
impl Countdown {
    const fn new() -> Countdown {
        Countdown { left: Cell::new(0), span: Cell::new(0) }
    }

    /// Whether it is time to tell, after so many bytes more.
    #[inline(always)]
    fn is_over(&self, size: usize) -> bool {
        let left = self.left.get().wrapping_sub_unsigned(size);
        self.left.set(left);
        left < 0
    }

    /// Begins again; returns the bytes since it began.
    fn restart(&self, span: usize) -> u64 {
        let span = isize::try_from(span).unwrap_or(isize::MAX);
        let since = self.span.replace(span).wrapping_sub(self.left.replace(span));
        u64::try_from(since).unwrap_or(0)
    }
}

// SAFETY: its entry belongs to this pool alone and is written by who uses the pool, one thread at a time.
unsafe impl Send for Pool {}

/// What happened in a pool since it told the last time.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Blocks that were asked for.
    pub requests: usize,
    /// Their bytes; what aligns them may be in it.
    pub requested: usize,
    /// Bytes that came back.
    pub returned: usize,
    /// The size of one of the blocks, which stands for all: that at hand when the pool tells.
    pub size: usize,
}

/// A pool begins.
#[inline(always)]
pub const fn created(kind: &'static str) -> Pool {
    #[cfg(not(feature = "stats"))]
    let _ = kind;
    Pool {
        id: Cell::new(0),
        #[cfg(feature = "stats")]
        kind,
        #[cfg(feature = "stats")]
        entry: Cell::new(None),
        #[cfg(feature = "stats")]
        asked: Countdown::new(),
        #[cfg(feature = "stats")]
        returned: Countdown::new(),
    }
}

/// Its user gives it a name, of which the first 32 bytes count.
pub fn named(pool: &Pool, name: &str) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.rename(name);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, name);
}

/// A pool ends, and with it all that it handed out. Its blocks were given back.
pub fn destroyed(pool: &Pool) {
    checker::destroyed(&pool.id);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.take() {
        entry.end();
    }
}

/// A pool has a block of its source: nobody may touch it but the pool, in slow paths. See [`ours`].
pub fn taken(pool: &Pool, block: Block) {
    checker::taken(&pool.id, block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.taken(block);
    }
}

/// These bytes of a block are the pool's own, and fast paths touch them too.
pub fn ours(start: NonNull<u8>, size: usize) {
    checker::defined(start, size);
}

/// These bytes were [`ours`], and are nobody's now.
pub fn hidden(start: NonNull<u8>, size: usize) {
    checker::hidden(start, size);
}

/// Memory was handed out that is to be divided further: no block of its own, with anything in it.
pub fn opened(start: NonNull<u8>, size: usize) {
    checker::given_back(Block { start, size, zeroed: false });
}

/// Such memory, or a part of it, came back.
pub fn closed(pool: &Pool, start: NonNull<u8>, size: usize) {
    checker::taken(&pool.id, Block { start, size, zeroed: false });
}

/// A pool is about to give a block back, in which nothing is handed out.
pub fn given_back(pool: &Pool, block: Block) {
    checker::given_back(block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.given_back(block);
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

/// Memory was handed out, with nothing defined in it. Where [`checked`], and in slow paths.
pub fn allocated(pool: &Pool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
}

/// Memory was handed out that is all 0. Where [`checked`], and in slow paths.
pub fn allocated_zeroed(pool: &Pool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
    checker::defined(start, size);
}

/// Memory that was handed out has another size in its place. Where [`checked`], and in slow paths.
pub fn resized(pool: &Pool, start: NonNull<u8>, old: usize, new: usize) {
    checker::resized(&pool.id, start, old, new);
}

/// Memory that was handed out came back. Where [`checked`], and in slow paths.
pub fn freed(pool: &Pool, start: NonNull<u8>, size: usize) {
    checker::freed(&pool.id, start, size);
}

/// Counts what happened since the last time, for a pool that does not count each call. In slow paths.
#[inline(always)]
pub fn progress(pool: &Pool, progress: Progress) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.progress(progress);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, progress);
}

/// Counts a block that is handed out: a number goes down, and nothing else happens until it is below 0.
#[inline(always)]
pub fn counted(pool: &Pool, size: usize) {
    #[cfg(feature = "stats")]
    if pool.asked.is_over(size) {
        pool.tell(size);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, size);
}

/// Counts of blocks for a pool with few sizes, which says itself when it is time to tell them.
#[derive(Debug)]
pub struct Classes<const N: usize> {
    #[cfg(feature = "stats")]
    asked: [Cell<u32>; N],
    #[cfg(feature = "stats")]
    returned: [Cell<u32>; N],
}

impl<const N: usize> Default for Classes<N> {
    fn default() -> Classes<N> {
        Classes {
            #[cfg(feature = "stats")]
            asked: [const { Cell::new(0) }; N],
            #[cfg(feature = "stats")]
            returned: [const { Cell::new(0) }; N],
        }
    }
}

impl<const N: usize> Classes<N> {
    /// Counts a block that is handed out.
    #[inline(always)]
    pub fn asked(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.asked[class].set(self.asked[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Counts a block that came back.
    #[inline(always)]
    pub fn returned(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.returned[class].set(self.returned[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Tells all that was counted, of blocks of these sizes.
    pub fn tell(&self, pool: &Pool, size: impl Fn(usize) -> usize) {
        #[cfg(feature = "stats")]
        if let Some(entry) = pool.entry.get() {
            let mut sum = Progress { requests: 0, requested: 0, returned: 0, size: 0 };
            for class in 0..N {
                let [asked, returned] =
                    [&self.asked, &self.returned].map(|count| count[class].take() as usize);
                let size = size(class);
                entry.sized(size, asked as u64);
                sum.requests += asked;
                sum.requested += asked * size;
                sum.returned += returned * size;
            }
            entry.moved(sum);
        }
        #[cfg(not(feature = "stats"))]
        let _ = (pool, size);
    }
}

/// Counts a block that has another size.
#[inline(always)]
pub fn recounted(pool: &Pool, old: usize, new: usize) {
    #[cfg(feature = "stats")]
    {
        let _ = pool.asked.is_over(new.saturating_sub(old));
        uncounted(pool, old.saturating_sub(new));
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, old, new);
}

/// Counts a block that came back.
#[inline(always)]
pub fn uncounted(pool: &Pool, size: usize) {
    #[cfg(feature = "stats")]
    if pool.returned.is_over(size) {
        pool.tell(0);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, size);
}

/// Counts that all that was out came back.
pub fn forgotten(pool: &Pool) {
    #[cfg(feature = "stats")]
    {
        pool.tell(0);
        if let Some(entry) = pool.entry.get() {
            entry.forgotten();
        }
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

/// Counts a slow path that takes more than a few instructions longer.
#[inline(always)]
pub fn slow(pool: &Pool) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.slow();
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

#[cfg(feature = "stats")]
impl Pool {
    /// Its entry, from its first block or its name on.
    #[cold]
    fn enter(&self) -> Option<&'static Entry> {
        self.entry.set(self.entry.get().or_else(|| table::enter(self.kind)));
        self.entry.get()
    }

    /// Tells the entry what happened since the last time, and the size of a block that was asked for, if there is one.
    #[cold]
    #[inline(never)]
    fn tell(&self, size: usize) {
        let span = self.entry.get().map_or(0, Entry::span);
        let [asked, returned] = [&self.asked, &self.returned].map(|count| count.restart(span));
        if let Some(entry) = self.entry.get() {
            entry.told(asked, returned, size);
        }
    }
}

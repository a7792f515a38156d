//! Reports of pools to memory checkers: valgrind and AddressSanitizer, detected at run time, and to
//! statistics with the feature `stats`.
//!
//! Fast paths do not report, nor do their copies that are inlined into C programs. Two rules
//! compensate for this:
//! - A pool under a checker ([`checked`]) keeps its fast paths closed: every call finds no free
//!   space and takes a slow path, which reports each block.
//! - Statistics alone leave the fast paths open. Pools with calls of a few instructions report
//!   their [`PoolProgress`] when a slow path is taken anyway; slower pools count each call.

mod checker;
#[cfg(feature = "stats")]
mod entry;
#[cfg(feature = "stats")]
mod table;

use core::cell::Cell;
use core::ptr::NonNull;

use crate::source::SourceBlock;

#[cfg(feature = "os")]
pub use checker::ignore_checkers;
pub use checker::{GAP, Quiet, checked, quiet};
#[cfg(feature = "stats")]
pub use entry::{PoolEntry, SAMPLES, SIZES};
#[cfg(feature = "stats")]
pub use table::{MAGIC, PoolTable};

/// Identity of a pool for checkers and statistics. Fast paths do not access the memory where it
/// lies.
#[derive(Debug)]
pub struct WatchedPool {
    /// The pool's identifier for valgrind; 0 before the first report.
    id: Cell<usize>,
    #[cfg(feature = "stats")]
    kind: &'static str,
    #[cfg(feature = "stats")]
    entry: Cell<Option<&'static PoolEntry>>,
    /// Bytes that may be allocated, and freed, before the next report.
    #[cfg(feature = "stats")]
    asked: Countdown,
    #[cfg(feature = "stats")]
    returned: Countdown,
}

/// Bytes until the next report. Below 0 the report is overdue.
#[cfg(feature = "stats")]
#[derive(Debug)]
struct Countdown {
    left: Cell<isize>,
    /// Value of `left` at the beginning.
    span: Cell<isize>,
}

#[cfg(feature = "stats")]
impl Countdown {
    const fn new() -> Countdown {
        Countdown { left: Cell::new(0), span: Cell::new(0) }
    }

    /// Counts `size` further bytes. Returns true if a report is due.
    #[inline(always)]
    fn is_over(&self, size: usize) -> bool {
        let left = self.left.get().wrapping_sub_unsigned(size);
        self.left.set(left);
        left < 0
    }

    /// Restarts the countdown; returns the bytes that were counted since the last restart.
    fn restart(&self, span: usize) -> u64 {
        let span = isize::try_from(span).unwrap_or(isize::MAX);
        let since = self.span.replace(span).wrapping_sub(self.left.replace(span));
        u64::try_from(since).unwrap_or(0)
    }
}

// SAFETY: its entry belongs to this pool alone; the thread that uses the pool writes it, one thread
// at a time.
unsafe impl Send for WatchedPool {}

/// Events of a pool since its last report.
#[derive(Clone, Copy, Debug)]
pub struct PoolProgress {
    /// Number of requested blocks.
    pub requests: usize,
    /// Their bytes, with or without alignment padding.
    pub requested: usize,
    /// Freed bytes.
    pub returned: usize,
    /// The size of one block, as a sample of all: the block that is requested at the report.
    pub size: usize,
}

/// Record of a new pool of this kind.
#[inline(always)]
pub const fn created(kind: &'static str) -> WatchedPool {
    #[cfg(not(feature = "stats"))]
    let _ = kind;
    WatchedPool {
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

/// Record of a new pool that statistics do not list, because other pools count its memory.
#[inline(always)]
pub const fn hidden_pool() -> WatchedPool {
    created("")
}

/// Sets the name of a pool; the first 32 bytes count.
pub fn named(pool: &WatchedPool, name: &str) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.rename(name);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, name);
}

/// Reports the end of a pool, and of all its allocations. Its blocks were returned.
pub fn destroyed(pool: &WatchedPool) {
    checker::destroyed(&pool.id);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.take() {
        entry.end();
    }
}

/// A pool has obtained a block from its source: only the pool may access it, in slow paths. See
/// [`ours`].
pub fn taken(pool: &WatchedPool, block: SourceBlock) {
    checker::taken(&pool.id, block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.taken(block);
    }
}

/// These bytes of a block belong to the pool, and fast paths access them too.
pub fn ours(start: NonNull<u8>, size: usize) {
    checker::defined(start, size);
}

/// These bytes were [`ours`], and are inaccessible now.
pub fn hidden(start: NonNull<u8>, size: usize) {
    checker::hidden(start, size);
}

/// Memory was allocated to a user that divides it further: that memory is not a block, and its
/// contents are undefined.
pub fn opened(start: NonNull<u8>, size: usize) {
    checker::given_back(SourceBlock { start, size, zeroed: false });
}

/// Such memory, or a part of it, was freed.
pub fn closed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::taken(&pool.id, SourceBlock { start, size, zeroed: false });
}

/// A pool is about to return a block without allocations to its source.
pub fn given_back(pool: &WatchedPool, block: SourceBlock) {
    checker::given_back(block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.given_back(block);
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

/// Memory was allocated, with undefined contents. Called if [`checked`], and in slow paths.
pub fn allocated(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
}

/// Zeroed memory was allocated. Called if [`checked`], and in slow paths.
pub fn allocated_zeroed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
    checker::defined(start, size);
}

/// An allocation was resized in place. Called if [`checked`], and in slow paths.
pub fn resized(pool: &WatchedPool, start: NonNull<u8>, old: usize, new: usize) {
    checker::resized(&pool.id, start, old, new);
}

/// An allocation was freed. Called if [`checked`], and in slow paths.
pub fn freed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::freed(&pool.id, start, size);
}

/// An address was freed that is not a live block: checkers may report it with a call stack.
pub fn misused(pool: &WatchedPool, start: NonNull<u8>) {
    checker::misused(&pool.id, start);
}

/// Counts the events since the last call, for a pool that does not count each event. Called in slow
/// paths.
#[inline(always)]
pub fn progress(pool: &WatchedPool, progress: PoolProgress) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.progress(progress);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, progress);
}

/// Counts an allocated block: decrements a countdown, and reports only when it is below 0.
#[inline(always)]
pub fn counted(pool: &WatchedPool, size: usize) {
    #[cfg(feature = "stats")]
    if pool.asked.is_over(size) {
        pool.tell(size);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, size);
}

/// Counts of blocks for a pool with few sizes, which decides itself when to report them.
#[derive(Debug)]
pub struct ClassCounts<const N: usize> {
    #[cfg(feature = "stats")]
    asked: [Cell<u32>; N],
    #[cfg(feature = "stats")]
    returned: [Cell<u32>; N],
}

impl<const N: usize> Default for ClassCounts<N> {
    fn default() -> ClassCounts<N> {
        ClassCounts {
            #[cfg(feature = "stats")]
            asked: [const { Cell::new(0) }; N],
            #[cfg(feature = "stats")]
            returned: [const { Cell::new(0) }; N],
        }
    }
}

impl<const N: usize> ClassCounts<N> {
    /// Counts an allocated block.
    #[inline(always)]
    pub fn asked(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.asked[class].set(self.asked[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Counts a freed block.
    #[inline(always)]
    pub fn returned(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.returned[class].set(self.returned[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Reports all counts, for blocks of these sizes.
    pub fn tell(&self, pool: &WatchedPool, size: impl Fn(usize) -> usize) {
        #[cfg(feature = "stats")]
        if let Some(entry) = pool.entry.get() {
            let mut sum = PoolProgress { requests: 0, requested: 0, returned: 0, size: 0 };
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

/// Counts a resized block.
#[inline(always)]
pub fn recounted(pool: &WatchedPool, old: usize, new: usize) {
    #[cfg(feature = "stats")]
    {
        let _ = pool.asked.is_over(new.saturating_sub(old));
        uncounted(pool, old.saturating_sub(new));
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, old, new);
}

/// Counts a freed block.
#[inline(always)]
pub fn uncounted(pool: &WatchedPool, size: usize) {
    #[cfg(feature = "stats")]
    if pool.returned.is_over(size) {
        pool.tell(0);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, size);
}

/// Counts all live blocks as freed.
pub fn forgotten(pool: &WatchedPool) {
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
pub fn slow(pool: &WatchedPool) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.slow();
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

#[cfg(feature = "stats")]
impl WatchedPool {
    /// The pool's entry in the table, which its first block or its name creates.
    #[cold]
    fn enter(&self) -> Option<&'static PoolEntry> {
        if !self.kind.is_empty() {
            self.entry.set(self.entry.get().or_else(|| table::enter(self.kind)));
        }
        self.entry.get()
    }

    /// Reports the events since the last report, and the size of one requested block, if there is
    /// one.
    #[cold]
    #[inline(never)]
    fn tell(&self, size: usize) {
        let span = self.entry.get().map_or(0, PoolEntry::span);
        let [asked, returned] = [&self.asked, &self.returned].map(|count| count.restart(span));
        if let Some(entry) = self.entry.get() {
            entry.told(asked, returned, size);
        }
    }
}

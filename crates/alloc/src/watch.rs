//! Reports of pools to memory checkers: valgrind and AddressSanitizer, detected at run time, and to
//! statistics with the feature `stats`.
//!
//! Fast paths do not report, nor do their copies that are inlined into C programs. Two rules
//! compensate for this:
//! - If a memory checker is present ([`checked`]), the fast paths of a pool stay closed: every call
//!   finds no free space and takes a slow path, which reports each block.
//! - Statistics alone leave the fast paths open. A pool whose calls take a few instructions reports
//!   its [`PoolProgress`] only in slow paths; a slower pool counts each call.

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

/// Identity of a pool for checkers and statistics. Fast paths do not access this value.
#[derive(Debug)]
pub struct WatchedPool {
    /// Identifier of the pool in requests to valgrind; 0 before the first report.
    id: Cell<usize>,
    #[cfg(feature = "stats")]
    kind: &'static str,
    #[cfg(feature = "stats")]
    entry: Cell<Option<&'static PoolEntry>>,
    /// Countdowns of the bytes that the pool may allocate, or free, before the next report.
    #[cfg(feature = "stats")]
    asked: Countdown,
    #[cfg(feature = "stats")]
    returned: Countdown,
}

/// Number of bytes until the next report. If `left` is below 0, the report is due.
#[cfg(feature = "stats")]
#[derive(Debug)]
struct Countdown {
    left: Cell<isize>,
    /// Value of `left` at the last restart.
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

    /// Restarts the countdown with `span` bytes. Returns the number of bytes that were counted
    /// since the last restart.
    fn restart(&self, span: usize) -> u64 {
        let span = isize::try_from(span).unwrap_or(isize::MAX);
        let since = self.span.replace(span).wrapping_sub(self.left.replace(span));
        u64::try_from(since).unwrap_or(0)
    }
}

// SAFETY: the table entry belongs to this pool alone, and only the thread that uses the pool writes
// it, one thread at a time.
unsafe impl Send for WatchedPool {}

/// Events of a pool since its last report.
#[derive(Clone, Copy, Debug)]
pub struct PoolProgress {
    /// Number of requested blocks.
    pub requests: usize,
    /// Total size of the requested blocks in bytes, with or without alignment padding.
    pub requested: usize,
    /// Number of freed bytes.
    pub returned: usize,
    /// Size in bytes of the block that is requested at the report, as a sample of all requests.
    pub size: usize,
}

/// Creates the record of a new pool of this kind.
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

/// Creates the record of a pool that statistics do not list, because other pools count its memory.
#[inline(always)]
pub const fn hidden_pool() -> WatchedPool {
    created("")
}

/// Sets the name of a pool in statistics; only the first 32 bytes are used.
pub fn named(pool: &WatchedPool, name: &str) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.rename(name);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, name);
}

/// Reports the end of a pool and of all its allocations. Requires that the pool has returned its
/// blocks to the source.
pub fn destroyed(pool: &WatchedPool) {
    checker::destroyed(&pool.id);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.take() {
        entry.end();
    }
}

/// Reports that a pool has taken a block from its source. Only slow paths of the pool may access
/// the block, until [`ours`] is called for a part of it.
pub fn taken(pool: &WatchedPool, block: SourceBlock) {
    checker::taken(&pool.id, block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.enter() {
        entry.taken(block);
    }
}

/// Reports that the pool uses these bytes of a block, and that its fast paths access them too.
pub fn ours(start: NonNull<u8>, size: usize) {
    checker::defined(start, size);
}

/// Reports that bytes for which [`ours`] was called are inaccessible again.
pub fn hidden(start: NonNull<u8>, size: usize) {
    checker::hidden(start, size);
}

/// Reports that memory with undefined contents was allocated to another pool, which divides it into
/// blocks: the memory itself is not a block.
pub fn opened(start: NonNull<u8>, size: usize) {
    checker::given_back(SourceBlock { start, size, zeroed: false });
}

/// Reports that memory for which [`opened`] was called, or a part of it, was freed.
pub fn closed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::taken(&pool.id, SourceBlock { start, size, zeroed: false });
}

/// Reports that a pool is about to return a block to its source. No allocation in the block is
/// live.
pub fn given_back(pool: &WatchedPool, block: SourceBlock) {
    checker::given_back(block);
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.given_back(block);
    }
    #[cfg(not(feature = "stats"))]
    let _ = pool;
}

/// Reports that memory with undefined contents was allocated. Called in every slow path; if
/// [`checked`], every call takes a slow path.
pub fn allocated(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
}

/// Reports that zeroed memory was allocated. Called like [`allocated`].
pub fn allocated_zeroed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::allocated(&pool.id, start, size);
    checker::defined(start, size);
}

/// Reports that an allocation was resized in place. Called like [`allocated`].
pub fn resized(pool: &WatchedPool, start: NonNull<u8>, old: usize, new: usize) {
    checker::resized(&pool.id, start, old, new);
}

/// Reports that an allocation was freed. Called like [`allocated`].
pub fn freed(pool: &WatchedPool, start: NonNull<u8>, size: usize) {
    checker::freed(&pool.id, start, size);
}

/// Reports the free of an address at which no live block begins. A checker may then print a call
/// stack.
pub fn misused(pool: &WatchedPool, start: NonNull<u8>) {
    checker::misused(&pool.id, start);
}

/// Counts the events since the last call, for a pool that does not count each event. Called only in
/// slow paths.
#[inline(always)]
pub fn progress(pool: &WatchedPool, progress: PoolProgress) {
    #[cfg(feature = "stats")]
    if let Some(entry) = pool.entry.get() {
        entry.progress(progress);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, progress);
}

/// Counts an allocated block of `size` bytes. Reports to the statistics only when a countdown has
/// fallen below 0.
#[inline(always)]
pub fn counted(pool: &WatchedPool, size: usize) {
    #[cfg(feature = "stats")]
    if pool.asked.is_over(size) {
        pool.tell(size);
    }
    #[cfg(not(feature = "stats"))]
    let _ = (pool, size);
}

/// Numbers of allocated and freed blocks by size class, for a pool with few block sizes. The pool
/// decides when to report them.
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
    /// Counts an allocated block of a size class.
    #[inline(always)]
    pub fn asked(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.asked[class].set(self.asked[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Counts a freed block of a size class.
    #[inline(always)]
    pub fn returned(&self, class: usize) {
        #[cfg(feature = "stats")]
        self.returned[class].set(self.returned[class].get().wrapping_add(1));
        #[cfg(not(feature = "stats"))]
        let _ = class;
    }

    /// Reports all counts to the statistics, and sets them to 0. `size` returns the block size of a
    /// size class.
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

/// Counts a block whose size has changed from `old` to `new` bytes.
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

/// Counts a freed block of `size` bytes.
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

/// Counts a slow path that takes more than a few instructions.
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
    /// Returns the pool's entry in the table. The first block or the name of the pool creates the
    /// entry.
    #[cold]
    fn enter(&self) -> Option<&'static PoolEntry> {
        if !self.kind.is_empty() {
            self.entry.set(self.entry.get().or_else(|| table::enter(self.kind)));
        }
        self.entry.get()
    }

    /// Reports the bytes that were counted since the last report. `size` is the size of one
    /// requested block as a sample, or 0 without a request.
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

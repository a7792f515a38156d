//! Cache of a thread: for each common length, some freed runs, which the thread allocates again
//! without the lock.
//!
//! ```text
//!  Slots   owner front          one for each thread, found by its thread pointer
//!          ..... ─────> cache   in pages of the pool: the thread's alone
//!                       │ 1 page │ 2 pages │ 3 pages │ .. │ 240 │ 256 pages      KEPT of each; the last in is the first out
//! ```
//!
//! - The `owner` of a slot is the thread pointer of its thread. Live threads have different thread
//!   pointers; a new thread with the thread pointer of an ended thread takes over the slot of the
//!   ended thread. So only one thread at a time accesses a cache, without atomic read-modify-write
//!   instructions.
//! - Cached runs count as allocated in the heap.

use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of cached runs of each length.
const KEPT: usize = 24;

/// Maximum number of frees between two reports of a cache to the pool. The pool needs the reports
/// because it measures time by the number of allocations and frees.
const FREES: u32 = 1 << 10;

/// Approximate number of cached runs that are sampled to estimate the share of backed pages.
const SAMPLES: usize = 8;

/// Maximum length of a cached run in pages: 1 MiB.
pub(super) const MAX_CACHED_PAGES: u32 = 256;

/// Number of run lengths per power of two. From 32 pages on, run lengths are rounded up to one of
/// these.
const STEPS: u32 = 16;

const CLASSES: usize = class(MAX_CACHED_PAGES) + 1;

/// Returns the binary logarithm of the unit to which a length is rounded up.
#[inline(always)]
const fn shift(pages: u32) -> u32 {
    (pages | STEPS).ilog2() - STEPS.ilog2()
}

/// Returns the size class of a length that [`rounded`] has returned; `usize::MAX` for a length
/// above `MAX_CACHED_PAGES`.
#[inline(always)]
const fn class(pages: u32) -> usize {
    if pages > MAX_CACHED_PAGES {
        return usize::MAX;
    }
    let shift = shift(pages);
    (shift * STEPS + (pages >> shift)) as usize
}

/// Returns the length of the run for a number of pages: at most a sixteenth more, and exactly this
/// number below 32 pages and above `MAX_CACHED_PAGES`.
#[inline(always)]
pub(super) const fn rounded(pages: u32) -> u32 {
    if pages > MAX_CACHED_PAGES {
        return pages;
    }
    let low = (1 << shift(pages)) - 1;
    (pages + low) & !low
}

/// Events of a cache since its last report: number of allocated runs, of allocated pages and of
/// freed pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PublishedCounts {
    pub(super) runs: usize,
    pub(super) taken: usize,
    pub(super) freed: usize,
}

/// The cached runs of one thread.
#[derive(Debug)]
pub(super) struct ThreadRunCache {
    counts: [Cell<u8>; CLASSES],
    runs: [[Cell<Option<NonNull<u8>>>; KEPT]; CLASSES],
    /// Number of cached pages. Other threads read only this field.
    pages: AtomicUsize,
    /// Maximum number of cached pages.
    most: Cell<usize>,
    /// Number of frees before the next report.
    left: Cell<u32>,
    told: Cell<PublishedCounts>,
}

impl ThreadRunCache {
    /// Creates an empty cache.
    pub(super) const fn new() -> ThreadRunCache {
        ThreadRunCache {
            counts: [const { Cell::new(0) }; CLASSES],
            runs: [const { [const { Cell::new(None) }; KEPT] }; CLASSES],
            pages: AtomicUsize::new(0),
            most: Cell::new(0),
            left: Cell::new(FREES),
            told: Cell::new(PublishedCounts { runs: 0, taken: 0, freed: 0 }),
        }
    }

    /// Removes and returns the last cached run of `pages` pages, which is a rounded length.
    #[inline(always)]
    pub(super) fn pop(&self, pages: u32) -> Option<NonNull<u8>> {
        let class = class(pages);
        let count = self.counts.get(class)?;
        let last = count.get().checked_sub(1)?;
        let run = self.runs[class].get(usize::from(last))?.get()?;
        count.set(last);
        self.note_taken(pages);
        Some(run)
    }

    /// Removes and returns the run that was cached last among those with this rounded length whose
    /// start has this alignment.
    #[inline]
    pub(super) fn pop_aligned(&self, pages: u32, align: usize) -> Option<NonNull<u8>> {
        let class = class(pages);
        let count = self.counts.get(class)?;
        let cached = self.runs[class].get(..usize::from(count.get()))?;
        let fits = |run: &Cell<Option<NonNull<u8>>>| {
            run.get().is_some_and(|run| run.addr().get() & (align - 1) == 0)
        };
        let at = cached.iter().rposition(fits)?;
        let run = cached[at].get();
        cached[at].set(cached.last()?.get());
        count.set(count.get() - 1);
        self.note_taken(pages);
        run
    }

    #[inline(always)]
    fn note_taken(&self, pages: u32) {
        self.pages.store(self.pages() - pages as usize, Ordering::Relaxed);
        let PublishedCounts { runs, taken, freed } = self.told.get();
        self.told.set(PublishedCounts { runs: runs + 1, taken: taken + pages as usize, freed });
    }

    /// Adds a run of a rounded length. Returns false if the cache is full or its report is due.
    #[inline(always)]
    pub(super) fn push(&self, run: NonNull<u8>, pages: u32) -> bool {
        let class = class(pages);
        let Some(count) = self.counts.get(class) else { return false };
        let Some(place) = self.runs[class].get(usize::from(count.get())) else { return false };
        let at_hand = self.pages() + pages as usize;
        let left = self.left.get();
        if at_hand > self.most.get() || left == 0 {
            return false;
        }
        self.left.set(left - 1);
        place.set(Some(run));
        count.set(count.get() + 1);
        self.pages.store(at_hand, Ordering::Relaxed);
        let told = self.told.get();
        self.told.set(PublishedCounts { freed: told.freed + pages as usize, ..told });
        true
    }

    /// Removes and returns one of the longest cached runs.
    pub(super) fn give_up(&self) -> Option<(NonNull<u8>, u32)> {
        let class = self.counts.iter().rposition(|count| count.get() > 0)?;
        let last = self.counts[class].get() - 1;
        self.counts[class].set(last);
        let pages = length(class);
        self.pages.store(self.pages() - pages as usize, Ordering::Relaxed);
        Some((self.runs[class][usize::from(last)].get()?, pages))
    }

    /// Returns about `SAMPLES` cached runs of different lengths: each with its length in pages, and
    /// the total number of cached pages in runs of this length.
    pub(super) fn samples(&self) -> impl Iterator<Item = (NonNull<u8>, u32, usize)> {
        let cached = (0..CLASSES).filter(|class| self.counts[*class].get() > 0);
        let apart = (cached.clone().count() / SAMPLES).max(1);
        cached.step_by(apart).filter_map(|class| {
            let count = usize::from(self.counts[class].get());
            let run = self.runs[class].get(count - 1)?.get()?;
            Some((run, length(class), count * length(class) as usize))
        })
    }

    /// True if the cache contains this run of a rounded length.
    #[inline(always)]
    pub(super) fn holds(&self, run: NonNull<u8>, pages: u32) -> bool {
        let class = class(pages);
        let count = self.counts.get(class).map_or(0, |count| usize::from(count.get()));
        let cached = self.runs.get(class).and_then(|runs| runs.get(..count));
        cached.is_some_and(|runs| runs.iter().any(|cached| cached.get() == Some(run)))
    }

    /// Sets the maximum number of cached pages.
    pub(super) fn allow(&self, most: usize) {
        self.most.set(most);
    }

    /// True if the cache exceeds its limit.
    pub(super) fn has_too_many(&self) -> bool {
        self.pages() > self.most.get()
    }

    /// Number of cached pages.
    #[inline(always)]
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Returns the events since the last report, and starts a new count.
    pub(super) fn told(&self) -> PublishedCounts {
        self.left.set(FREES);
        self.told.take()
    }
}

/// Returns the length in pages of the runs of a size class.
#[expect(clippy::cast_possible_truncation, reason = "there are fewer than 100 classes")]
const fn length(class: usize) -> u32 {
    let class = class as u32;
    if class < 2 * STEPS {
        return class;
    }
    let shift = class / STEPS - 1;
    (class - shift * STEPS) << shift
}

/// Maximum number of threads with a cache.
const SLOTS: usize = 64;
/// Number of consecutive slots that a thread may take. A hash of the thread pointer selects the
/// first.
const LOOKED_AT: usize = 4;

/// The slots for the caches of all threads.
#[derive(Debug)]
pub(super) struct Fronts {
    slots: [CacheSlot; SLOTS],
    /// Bitmap of the slots that have an owner.
    owned: AtomicU64,
}

const _: () = assert!(SLOTS == u64::BITS as usize);

#[derive(Debug)]
struct CacheSlot {
    /// Thread pointer of the thread that owns the slot; 0 for a free slot.
    owner: AtomicUsize,
    front: AtomicPtr<ThreadRunCache>,
}

impl CacheSlot {
    const fn nobodys() -> CacheSlot {
        CacheSlot { owner: AtomicUsize::new(0), front: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl Fronts {
    pub(super) const fn new() -> Fronts {
        Fronts { slots: [const { CacheSlot::nobodys() }; SLOTS], owned: AtomicU64::new(0) }
    }

    /// Returns the slots that a thread may take.
    #[inline(always)]
    fn slots_of_thread(&self, thread: usize) -> impl Iterator<Item = &CacheSlot> {
        // The multiplication mixes the middle bits, in which thread pointers differ, into the upper
        // bits.
        let first = (thread >> 6).wrapping_mul(usize::MAX / 11) >> (usize::BITS - SLOTS.ilog2());
        (first..first + LOOKED_AT).map(|slot| &self.slots[slot % SLOTS])
    }

    /// Records in the bitmap `owned` whether a slot has an owner. Requires that the caller holds
    /// the lock of the pool.
    fn set_owned(&self, slot: &CacheSlot, owned: bool) {
        if let Some(at) = self.slots.iter().position(|other| ptr::eq(other, slot)) {
            let slots = self.owned.load(Ordering::Relaxed);
            let bit = 1_u64 << at;
            self.owned.store(if owned { slots | bit } else { slots & !bit }, Ordering::Relaxed);
        }
    }

    /// Returns the number of cached pages of all threads, and the number of threads with a cache.
    pub(super) fn total(&self) -> (usize, usize) {
        let pages: usize = self.all().map(ThreadRunCache::pages).sum();
        (pages, self.owned.load(Ordering::Relaxed).count_ones() as usize)
    }

    /// Returns the cache of this thread; `None` if it has none.
    #[inline(always)]
    pub(super) fn mine(&self) -> Option<&ThreadRunCache> {
        let thread = thread()?;
        let mut slots = self.slots_of_thread(thread);
        let slot = slots.find(|slot| slot.owner.load(Ordering::Relaxed) == thread)?;
        // SAFETY: a slot with an owner has a cache, and only the owner, which is this thread,
        // removes it.
        unsafe { slot.front.load(Ordering::Relaxed).as_ref() }
    }

    /// True if a slot for this thread is free. Requires that the caller holds the lock until it
    /// calls [`Fronts::claim`].
    pub(super) fn vacancy(&self) -> bool {
        self.vacant().is_some()
    }

    fn vacant(&self) -> Option<&CacheSlot> {
        self.slots_of_thread(thread()?).find(|slot| slot.owner.load(Ordering::Relaxed) == 0)
    }

    /// Makes `front` the cache of this thread, if a slot is free.
    ///
    /// # Safety
    /// `front` is memory for a cache that no other code uses until [`Fronts::leave`].
    pub(super) unsafe fn claim(&self, front: NonNull<ThreadRunCache>) {
        // SAFETY: the caller passes memory for a cache.
        unsafe { front.write(ThreadRunCache::new()) };
        if let (Some(slot), Some(thread)) = (self.vacant(), thread()) {
            slot.front.store(front.as_ptr(), Ordering::Relaxed);
            slot.owner.store(thread, Ordering::Release);
            self.set_owned(slot, true);
        }
    }

    /// Removes this thread's cache from its slot, and returns its memory.
    pub(super) fn leave(&self) -> Option<NonNull<ThreadRunCache>> {
        let thread = thread()?;
        let slot = self
            .slots_of_thread(thread)
            .find(|slot| slot.owner.load(Ordering::Relaxed) == thread)?;
        slot.owner.store(0, Ordering::Relaxed);
        self.set_owned(slot, false);
        NonNull::new(slot.front.swap(ptr::null_mut(), Ordering::Relaxed))
    }

    /// Returns the caches of all threads. Requires that the caller holds the lock, so that no cache
    /// is removed, and reads only the fields that other threads may read.
    pub(super) fn all(&self) -> impl Iterator<Item = &ThreadRunCache> {
        let mut left = self.owned.load(Ordering::Acquire);
        let owned = core::iter::from_fn(move || {
            let slot = self.slots.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(slot)
        });
        // SAFETY: a slot with an owner has a cache, and no cache is removed while the caller holds
        // the lock.
        owned.filter_map(|slot| unsafe { slot.front.load(Ordering::Relaxed).as_ref() })
    }
}

/// Returns the address of this thread's control block, which differs between all live threads.
/// `None` if the target has no single instruction that returns this address.
#[cfg(all(feature = "os", target_os = "linux", target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn thread() -> Option<usize> {
    let thread: usize;
    // SAFETY: by the ABI of thread-local storage, the first word of the control block is its own
    // address.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
    }
    Some(thread)
}

#[cfg(all(feature = "os", target_os = "linux", target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn thread() -> Option<usize> {
    let thread: usize;
    // SAFETY: the instruction reads a register and accesses no memory.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(pure, nomem, nostack, preserves_flags));
    }
    Some(thread)
}

#[cfg(not(all(
    feature = "os",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
)))]
const fn thread() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_by_a_sixteenth_at_most_and_no_further() {
        for pages in 1..=MAX_CACHED_PAGES {
            let run = rounded(pages);
            assert!(run >= pages && run - pages <= pages / STEPS, "{pages}");
            assert_eq!((rounded(run), length(class(run))), (run, run));
            assert!(pages >= 2 * STEPS || run == pages);
        }
        assert_eq!((rounded(257), class(MAX_CACHED_PAGES)), (257, CLASSES - 1));
    }

    #[test]
    fn a_run_longer_than_any_in_a_cache_is_never_one_of_the_cache() {
        let front = ThreadRunCache::new();
        let run = NonNull::<u64>::dangling().cast();
        front.allow(10_000);
        assert!(front.push(run, MAX_CACHED_PAGES));
        for pages in MAX_CACHED_PAGES + 1..2 * MAX_CACHED_PAGES {
            assert!(front.pop(pages).is_none() && front.pop_aligned(pages, 1).is_none());
            assert!(!front.push(run, pages), "{pages}");
        }
    }

    #[test]
    fn a_front_keeps_what_it_may_and_gives_it_up() {
        let front = ThreadRunCache::new();
        let run = NonNull::<u64>::dangling().cast();
        assert!(!front.push(run, 4));
        front.allow(12);
        assert!(front.push(run, 8) && front.push(run, 4) && !front.push(run, 1));
        assert_eq!((front.pop(8), front.pop(8)), (Some(run), None));
        assert_eq!(front.give_up(), Some((run, 4)));
        assert_eq!((front.give_up(), front.pages()), (None, 0));
        assert_eq!(front.told().runs, 1);
    }
}

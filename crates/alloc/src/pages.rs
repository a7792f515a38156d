//! Runs of pages for several threads: memory for other pools and for code that needs whole pages.
//!
//! ```
//! use pagewise_alloc::{Pages, Tlsf, source::Os};
//! use core::alloc::Layout;
//!
//! static PAGES: Pages<Os> = Pages::new(Os);
//!
//! let layout = Layout::array::<u8>(1 << 20)?;
//! let run = PAGES.allocate(layout).expect("the system has memory");
//! // SAFETY: the second half is of whole pages, and nobody uses it any more: a part of a run may come back.
//! unsafe { PAGES.free_part(run.add(1 << 19), 1 << 19) };
//!
//! let mut pool: Tlsf<&Pages<Os>> = Tlsf::new(&PAGES); // Other pools may take their memory there.
//! assert!(pool.allocate(layout).is_some());
//! # Ok::<(), core::alloc::LayoutError>(())
//! ```
//!
//! ```text
//!  allocate ─┐                                          ┌─ free: a run, or some pages of one
//!            ▼                                          ▼
//!        cached runs       <────── up to 1 MiB ───── cached runs        of this thread
//!        idle runs, by length                        merged with idle neighbors
//!        clean runs, by length   <─── memory ────    too much idle: the longest lose their memory
//!        a new region            <── addresses ──    Source
//! ```
//!
//! - A run consists of consecutive pages. An idle run is free and may be backed by memory; a clean
//!   run is free and not backed. The pool stores its data about pages in separate descriptors of 24
//!   bytes, not in or before the run, so that an untouched run needs no memory.
//! - Each thread caches some freed runs of each length up to 1 MiB, and allocates them again
//!   without the lock. Without the cache, an allocation or a free takes a fixed number of steps. If
//!   more idle memory is backed than [`Pages::keep`] permits, a free also returns the memory of
//!   idle runs to the source: on average at most one run for each free.
//! - Signal handlers must not use the pool, because its functions take a lock. A child of `fork`
//!   may use a pool that is a static variable.
//! - The pool takes memory from the source in regions. If unused memory of the source costs
//!   nothing, the first region has at least 64 MiB of addresses, and each later one has at least as
//!   many bytes as all earlier ones together, if the source can provide them.

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::discipline::{Discipline, DisciplinedAllocator};
#[cfg(feature = "os")]
use crate::fork::ForkOrder;
use crate::lock::Locked;
use crate::misuse::{CallSite, Misuse};
use crate::source::{Source, SourceBlock};
use crate::watch::{self, PoolProgress};
use front::{Fronts, PublishedCounts, ThreadRunCache};
use heap::{PageHeap, RunPart, Taken};
#[cfg(not(feature = "ablation"))]
use policy::PagesPolicy;

#[cfg(feature = "allocator-api2")]
mod api;
mod front;
mod guard;
mod guarded;
mod heap;
mod page;
mod policy;
mod region;
mod retention;
mod runs;

#[cfg(feature = "ablation")]
pub use policy::PagesPolicy;

/// Bytes of a page of a run: 4 KiB, independent of the kernel's page size. If the kernel's pages
/// are larger, the pool returns memory only in whole pages of the kernel.
pub const PAGE: usize = 4 << 10;

/// Number of pages of the memory of a thread's cache.
#[expect(clippy::cast_possible_truncation, reason = "a front has few pages")]
const FRONT: u32 = size_of::<ThreadRunCache>().div_ceil(PAGE) as u32;

/// A pool of runs of pages, which any thread may use.
#[derive(Debug)]
pub struct Pages<S: Source> {
    fronts: Fronts,
    heap: Locked<PageHeap<S>>,
    guarded: bool,
    #[cfg(feature = "os")]
    forks: ForkOrder,
}

/// Returns the number of pages for a size in bytes, at least one; `None` if no run is this long.
#[inline(always)]
fn whole_pages(size: usize) -> Option<u32> {
    u32::try_from(size.div_ceil(PAGE).max(1)).ok().filter(|pages| *pages < runs::MAX_RUN_PAGES / 2)
}

/// Returns the number of pages of a run for a size in bytes; `None` if no run is this long.
#[inline(always)]
fn run_pages(size: usize) -> Option<u32> {
    whole_pages(size).map(front::rounded)
}

/// Returns the length in bytes of a run for a size in bytes: whole pages, at most a sixteenth more
/// than the size needs. Returns `None` if no run is this long.
pub fn run_size(size: usize) -> Option<usize> {
    run_pages(size).map(|pages| pages as usize * PAGE)
}

impl<S: Source> Pages<S> {
    /// Creates a pool without pages, which takes nothing from the source before the first
    /// allocation. The pool is guarded in debug builds.
    pub const fn new(source: S) -> Pages<S> {
        if cfg!(debug_assertions) { Pages::guarded(source) } else { Pages::unguarded(source) }
    }

    /// Creates a pool with a guard page behind each run, which is checked when the run is freed.
    /// Freed pages are filled, if they are backed by memory. The pool panics on a double free, a
    /// wrong size, an address at which no run begins, and a write into the first 4 KiB behind a
    /// run. In debug builds the message names the source locations that allocated and freed the
    /// run. Threads have no caches. Under a memory checker the pool has no guards.
    pub const fn guarded(source: S) -> Pages<S> {
        let policy = PagesPolicy { at_hand: false, ..PagesPolicy::ALL };
        Pages::of_heap(PageHeap::new(source, policy), true)
    }

    /// Creates a pool without guards, also in debug builds.
    pub const fn unguarded(source: S) -> Pages<S> {
        Pages::of_heap(PageHeap::new(source, PagesPolicy::ALL), false)
    }

    const fn of_heap(heap: PageHeap<S>, guarded: bool) -> Pages<S> {
        Pages {
            fronts: Fronts::new(),
            heap: Locked::new(heap),
            guarded,
            #[cfg(feature = "os")]
            forks: ForkOrder::Pages,
        }
    }

    /// Creates the pool of pages of the source `Os`.
    #[cfg(feature = "os")]
    pub(crate) const fn system(source: S) -> Pages<S> {
        let policy = PagesPolicy { hidden: true, ..PagesPolicy::ALL };
        Pages {
            fronts: Fronts::new(),
            heap: Locked::new(PageHeap::new(source, policy)),
            guarded: false,
            forks: ForkOrder::System,
        }
    }

    /// Creates a pool with other policies, for measurements of their effect.
    #[cfg(feature = "ablation")]
    pub const fn with_policy(source: S, policy: PagesPolicy) -> Pages<S> {
        Pages::of_heap(PageHeap::new(source, policy), false)
    }

    /// Allocates a run of [`run_size`] bytes, aligned to a page or to the alignment of `layout` if
    /// that is larger. Returns `None` if the source is exhausted.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        Some(self.take_run(layout)?.start)
    }

    /// Like [`Pages::allocate`], but every byte up to the size of `layout` is 0. Unbacked pages
    /// stay unbacked.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let taken = self.take_run(layout)?;
        if !taken.zeroed {
            // SAFETY: the run is at least as long as `layout`, and no other code uses it.
            unsafe { taken.start.write_bytes(0, layout.size()) };
        }
        Some(taken.start)
    }

    /// True if runs have guards.
    #[inline(always)]
    fn is_guarded(&self) -> bool {
        self.guarded && !watch::checked()
    }

    /// Like [`Pages::allocate`], but with an explicit call site: `track_caller` cannot record
    /// callers in C.
    #[doc(hidden)]
    pub fn allocate_at(&self, layout: Layout, site: CallSite) -> Option<NonNull<u8>> {
        if self.is_guarded() {
            return Some(self.take_guarded(layout, site)?.start);
        }
        self.allocate(layout)
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn take_run(&self, layout: Layout) -> Option<Taken> {
        if self.is_guarded() {
            return self.take_guarded(layout, CallSite::caller());
        }
        let pages = run_pages(layout.size())?;
        let at_hand = || match (self.fronts.mine()?, layout.align()) {
            (front, ..=PAGE) => front.pop(pages),
            (front, align) => front.pop_aligned(pages, align),
        };
        let taken = match at_hand() {
            Some(start) => Taken { start, zeroed: false },
            None => self.take_of_heap(pages, layout.align())?,
        };
        self.mark(taken.start, pages, true).unwrap_or_else(|misuse| misuse.panic());
        Some(taken)
    }

    #[inline(never)]
    fn take_of_heap(&self, pages: u32, align: usize) -> Option<Taken> {
        #[cfg(feature = "os")]
        self.heap.survive_fork(self.forks);
        self.heap.with(|heap| {
            heap.count(1);
            let take = |heap: &mut _| {
                if align > PAGE {
                    PageHeap::allocate_aligned(heap, pages, align)
                } else {
                    PageHeap::allocate_run(heap, pages)
                }
            };
            // The cached runs of this thread may coalesce to a run that is long enough and backed.
            if heap.is_mostly_backed()
                && !heap.has_idle(pages, align)
                && let Some(front) = self.fronts.mine()
            {
                give_up(front, heap, 0);
            }
            // If the source is exhausted, the memory of this thread's cache and of its cached runs
            // may suffice.
            let taken = take(heap).or_else(|| self.end_front(heap).then(|| take(heap))?)?;
            watch::counted(&heap.watch, pages as usize * PAGE);
            watch::opened(taken.start, pages as usize * PAGE);
            self.tend(heap);
            Some(taken)
        })
    }

    /// Frees a run.
    ///
    /// # Safety
    /// This pool allocated the run at `start`, or last reallocated it, with this size, and the run
    /// is not used any more.
    ///
    /// # Panics
    /// Panics if the pool detects that `start` is not an allocated run of this pool. Release builds
    /// detect a free run in the cache of this thread or in the heap, but not in the cache of
    /// another thread; debug builds detect every free page of the run.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn free(&self, start: NonNull<u8>, size: usize) {
        // SAFETY: the caller passes a run of this pool with this size.
        unsafe { self.try_free(start, size) }.unwrap_or_else(|misuse| misuse.panic());
    }

    /// As [`Pages::free`], but returns the memory error instead of a panic.
    ///
    /// # Safety
    /// As for [`Pages::free`].
    ///
    /// # Errors
    /// Returns the error where [`Pages::free`] panics.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn try_free(&self, start: NonNull<u8>, size: usize) -> Result<(), Misuse> {
        if self.is_guarded() {
            return self.free_guarded(start, size, CallSite::caller());
        }
        let pages = run_pages(size).unwrap_or(runs::MAX_RUN_PAGES);
        self.mark(start, pages, false)?;
        if let Some(front) = self.fronts.mine() {
            if front.holds(start, pages) {
                return Err(Misuse::freed_before("pages", start.addr().get()));
            }
            if front.push(start, pages) {
                return Ok(());
            }
        }
        self.put_into_heap(start, pages, RunPart::Whole)
    }

    /// Like [`Pages::free`], but with an explicit call site: `track_caller` cannot record callers
    /// in C.
    ///
    /// # Safety
    /// As for [`Pages::free`].
    #[doc(hidden)]
    pub unsafe fn free_at(&self, start: NonNull<u8>, size: usize, site: CallSite) {
        if self.is_guarded() {
            return self.free_guarded(start, size, site).unwrap_or_else(|misuse| misuse.panic());
        }
        // SAFETY: the caller passes a run of this pool with this size.
        unsafe { self.free(start, size) };
    }

    /// Frees some whole pages of a run. All pages of the run, [`run_size`] bytes in total, must be
    /// freed by calls of this function.
    ///
    /// # Safety
    /// The pages from `start` on, as many as `size` bytes need, were allocated from this pool, and
    /// are not used any more.
    ///
    /// # Panics
    /// Panics if the pool detects that the pages are not its own, and in debug builds also if one
    /// of the pages is free.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn free_part(&self, start: NonNull<u8>, size: usize) {
        if self.is_guarded() {
            let freed = self.free_part_guarded(start, size, CallSite::caller());
            return freed.unwrap_or_else(|misuse| misuse.panic());
        }
        let pages = whole_pages(size).unwrap_or(runs::MAX_RUN_PAGES);
        let marked = self.mark(start, pages, false);
        let freed = marked.and_then(|()| self.put_into_heap(start, pages, RunPart::Part));
        freed.unwrap_or_else(|misuse| misuse.panic());
    }

    #[inline(never)]
    fn put_into_heap(&self, start: NonNull<u8>, pages: u32, part: RunPart) -> Result<(), Misuse> {
        self.heap.with(|heap| {
            heap.count(1);
            if heap.passed(pages as usize) && self.fronts.mine().is_none() {
                heap.look(start, pages);
            }
            heap.put(start, pages, part)?;
            watch::uncounted(&heap.watch, pages as usize * PAGE);
            watch::closed(&heap.watch, start, pages as usize * PAGE);
            self.tend(heap);
            Ok(())
        })
    }

    /// In debug builds, records that the user allocated or freed these pages.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn mark(&self, start: NonNull<u8>, pages: u32, handed_out: bool) -> Result<(), Misuse> {
        if cfg!(debug_assertions) {
            let site = CallSite::caller();
            self.heap.with(|heap| heap.mark(start, pages, handed_out, site))?;
        }
        Ok(())
    }

    /// Enforces the limits of the heap and of this thread's cache, and reports the counts of the
    /// cache.
    fn tend(&self, heap: &mut PageHeap<S>) {
        let (cached, fronts) = self.fronts.total();
        heap.tell_retention(cached);
        heap.keep_within_limits();
        let Some(front) = self.fronts.mine() else { return self.begin_front(heap) };
        let PublishedCounts { runs, taken, freed } = front.told();
        heap.count(2 * runs);
        if heap.passed(freed) {
            heap.look_at(front.samples());
        }
        watch::progress(
            &heap.watch,
            PoolProgress {
                requests: runs,
                requested: taken * PAGE,
                returned: freed * PAGE,
                size: taken / runs.max(1) * PAGE,
            },
        );
        give_up(front, heap, heap.at_hand() / fronts.max(1));
    }

    /// Creates a cache for this thread, if the cache is small compared with the pool, a slot is
    /// free, and no memory checker must observe every call.
    #[cold]
    fn begin_front(&self, heap: &mut PageHeap<S>) {
        if !heap.has_fronts() || watch::checked() || !self.fronts.vacancy() {
            return;
        }
        if let Some(taken) = heap.allocate_run(FRONT) {
            // SAFETY: the run is long enough for a cache, and no other code uses it.
            unsafe { self.fronts.claim(taken.start.cast()) };
        }
    }

    /// Removes this thread's cache; returns true if the thread had one.
    fn end_front(&self, heap: &mut PageHeap<S>) -> bool {
        if let Some(front) = self.fronts.mine() {
            give_up(front, heap, 0);
        }
        let ended = self.fronts.leave();
        ended.inspect(|front| _ = heap.put(front.cast(), FRONT, RunPart::Part)).is_some()
    }

    /// Makes a run longer in place, if the pages behind it are free; returns true if the run has at
    /// least the new size. The contents of the added pages are undefined. Runs with guards are
    /// never extended.
    ///
    /// # Safety
    /// As for [`Pages::free`], except that the run stays in use. If the function returns true, the
    /// run has the new size from then on.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn extend(&self, start: NonNull<u8>, old: usize, new: usize) -> bool {
        let (Some(old), Some(new)) = (run_pages(old), run_pages(new)) else { return false };
        let more = new.saturating_sub(old);
        if more == 0 || self.is_guarded() {
            return more == 0;
        }
        // SAFETY: the run had this number of pages.
        let added = unsafe { start.add(old as usize * PAGE) };
        let extended = self.heap.with(|heap| {
            let extended = heap.extend(start, old, more);
            if extended {
                watch::counted(&heap.watch, more as usize * PAGE);
                watch::opened(added, more as usize * PAGE);
            }
            extended
        });
        if extended {
            self.mark(added, more, true).unwrap_or_else(|misuse| misuse.panic());
        }
        extended
    }

    /// Resizes a run: in place if it shrinks or if the pages behind it are free, else by moving its
    /// contents. Returns `None`, and leaves the run unchanged, if memory is exhausted.
    ///
    /// # Safety
    /// As for [`Pages::free`]. After a successful call the run has the new size and the old
    /// alignment.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn reallocate(
        &self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        let (old, new) = (run_pages(layout.size())?, run_pages(size)?);
        if new < old {
            // SAFETY: the run has more than `new` pages.
            let unused = unsafe { start.add(new as usize * PAGE) };
            // SAFETY: the caller gives up the pages that the run loses.
            unsafe { self.free_part(unused, (old - new) as usize * PAGE) };
            return Some(start);
        }
        // SAFETY: the caller passes a run of this pool with this layout.
        if unsafe { self.extend(start, layout.size(), size) } {
            return Some(start);
        }
        let moved = self.allocate(Layout::from_size_align(size, layout.align()).ok()?)?;
        // SAFETY: the new run is longer than the old run, and the runs do not overlap.
        unsafe { moved.copy_from_nonoverlapping(start, layout.size()) };
        // SAFETY: the caller passes a run of this pool with this layout; its contents were copied
        // to `moved`.
        unsafe { self.free(start, layout.size()) };
        Some(moved)
    }

    /// Discards the memory of all free pages, and returns regions without a used page to the
    /// source. The time is proportional to the number of free runs. Runs in the caches of other
    /// threads stay.
    pub fn trim(&self) {
        self.heap.with(|heap| {
            self.tend(heap);
            self.end_front(heap);
            heap.trim();
        });
    }

    /// Sets the amount of free memory that the pool keeps, in percent of the high-water mark of the
    /// memory in use during the last 16,384 to 32,768 allocations and frees; the amount is never
    /// less than 2 MiB. A higher percentage saves page faults for runs that are freed and allocated
    /// again. The default is 20: used and kept memory together are at most 1.2 times the high-water
    /// mark. Free memory that was not needed during 16,384 allocations and frees is released,
    /// except for half of `percent` of the memory in use, or 2 MiB if that is more.
    pub fn keep(&self, percent: u8) {
        self.heap.with(|heap| heap.keep(percent.into()));
    }

    /// Returns the numbers of used, idle and taken bytes of the pool.
    pub fn usage(&self) -> PagesUsage {
        self.heap.with(|heap| {
            let at_hand: usize =
                self.fronts.all().map(|front| front.pages() + FRONT as usize).sum();
            let live = heap.live().saturating_sub((at_hand + heap.guards) * PAGE);
            PagesUsage { live, idle: heap.idle() + at_hand * PAGE, held: heap.held() }
        })
    }

    /// Sets the name of the pool in statistics.
    pub fn set_name(&self, name: &str) {
        self.heap.with(|heap| watch::named(&heap.watch, name));
    }

    /// Calls `body` with the source, while the lock of the pool is held.
    pub fn with_source<T>(&self, body: impl FnOnce(&S) -> T) -> T {
        self.heap.with(|heap| body(heap.source()))
    }

    /// Checks all regions, descriptors and lists.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        self.heap.with(|heap| heap.check());
    }
}

/// Moves runs from a cache to the heap until the cache has at most `most` pages.
fn give_up<S: Source>(front: &ThreadRunCache, heap: &mut PageHeap<S>, most: usize) {
    front.allow(most);
    while front.has_too_many() {
        let Some((run, pages)) = front.give_up() else { return };
        // A run that two threads have freed is in both of their caches; the heap rejects the second
        // free.
        _ = heap.put(run, pages, RunPart::Whole);
    }
}

/// Numbers of bytes of a pool of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesUsage {
    /// Bytes of allocated runs.
    pub live: usize,
    /// Bytes of free pages that may be backed by memory.
    pub idle: usize,
    /// Bytes of address space that the pool has taken from the source, backed by memory or not.
    pub held: usize,
}

// SAFETY: runs are cut from regions without overlap, and belong to their user until they are freed.
// Runs are reported as zeroed only if their pages are clean.
unsafe impl<S: Source> Source for Pages<S> {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let taken = self.take_run(layout)?;
        let size = run_size(layout.size())?;
        Some(SourceBlock { start: taken.start, size, zeroed: taken.zeroed })
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: the caller promises that this pool allocated the block, and that it is not used
        // any more.
        unsafe { self.free(block.start, block.size) };
    }
}

// SAFETY: runs have the requested alignment, do not overlap, and stay allocated until freed.
unsafe impl<S: Source> DisciplinedAllocator for Pages<S> {
    const NAME: &'static str = "pages";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Pages::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a run of this pool with this layout.
        unsafe { Pages::free(self, block, layout.size()) };
    }

    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a run of this pool with this layout.
        unsafe { self.reallocate(block, layout, new.size()) }
    }

    fn check(&self) {
        Pages::check(self);
    }
}

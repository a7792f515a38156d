//! Runs of pages, for several threads: memory for other pools and for code that needs whole pages.
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
//! - A run consists of consecutive pages. Nothing is written into or before it: page data is in
//!   separate descriptors of 24 bytes, so that an untouched run needs no memory.
//! - Each thread caches some freed runs of each length up to 1 MiB, and allocates them again
//!   without the lock. Behind the cache, allocation and free take a fixed number of steps. In
//!   addition, a free may return the memory of some runs to the source, on average of at most one,
//!   if more than [`Pages::keep`] permits is idle and backed.
//! - The lock is not for signal handlers. A child of `fork` may use a pool that is a static
//!   variable.
//! - If unused memory of the source costs nothing, regions are taken ahead of need: 64 MiB of
//!   addresses first, then each time as many as the pool has.

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

/// Bytes of a page of a run: 4 KiB, independent of the kernel's page size. With a larger kernel
/// page, only whole kernel pages are returned.
pub const PAGE: usize = 4 << 10;

/// Pages of a thread's cache.
#[expect(clippy::cast_possible_truncation, reason = "a front has few pages")]
const FRONT: u32 = size_of::<ThreadRunCache>().div_ceil(PAGE) as u32;

/// Runs of pages of a source. Any thread may use them.
#[derive(Debug)]
pub struct Pages<S: Source> {
    fronts: Fronts,
    heap: Locked<PageHeap<S>>,
    guarded: bool,
    #[cfg(feature = "os")]
    forks: ForkOrder,
}

/// Number of pages for a size in bytes, at least one; `None` if no run is this long.
#[inline(always)]
fn whole_pages(size: usize) -> Option<u32> {
    u32::try_from(size.div_ceil(PAGE).max(1)).ok().filter(|pages| *pages < runs::MAX_RUN_PAGES / 2)
}

/// Number of pages of a run for a size in bytes.
#[inline(always)]
fn run_pages(size: usize) -> Option<u32> {
    whole_pages(size).map(front::rounded)
}

/// Length of a run for a size in bytes: whole pages, at most a sixteenth longer; `None` if no run
/// is this long.
pub fn run_size(size: usize) -> Option<usize> {
    run_pages(size).map(|pages| pages as usize * PAGE)
}

impl<S: Source> Pages<S> {
    /// A pool without pages. It takes nothing from the source before something is allocated.
    /// Guarded in debug builds.
    pub const fn new(source: S) -> Pages<S> {
        if cfg!(debug_assertions) { Pages::guarded(source) } else { Pages::unguarded(source) }
    }

    /// A pool with a guard page behind each run, which is checked when the run is freed. Freed
    /// pages are filled, if they are backed by memory. It panics on a double free, a wrong size, a
    /// foreign address, and a write into the first 4 KiB behind a run; the message names where the
    /// run was allocated and freed in debug builds. Threads have no caches. Under a memory checker
    /// the pool is like an unguarded one.
    pub const fn guarded(source: S) -> Pages<S> {
        let policy = PagesPolicy { at_hand: false, ..PagesPolicy::ALL };
        Pages::of_heap(PageHeap::new(source, policy), true)
    }

    /// A pool without guards, also in debug builds.
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

    /// The pool behind the system's source.
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

    /// A pool with other policies, to measure their effect.
    #[cfg(feature = "ablation")]
    pub const fn with_policy(source: S, policy: PagesPolicy) -> Pages<S> {
        Pages::of_heap(PageHeap::new(source, policy), false)
    }

    /// A run of [`run_size`] bytes, aligned as asked and to pages at least; `None` where the source
    /// has no more.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        Some(self.take_run(layout)?.start)
    }

    /// Like [`Pages::allocate`], with every byte of `layout` 0. Unbacked pages stay unbacked.
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

    /// As [`Pages::allocate`], for a call site that the compiler does not know: one in C.
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
            // The cached runs of this thread may coalesce to one that is long enough, and is
            // backed.
            if heap.is_mostly_backed()
                && !heap.has_idle(pages, align)
                && let Some(front) = self.fronts.mine()
            {
                give_up(front, heap, 0);
            }
            // If the source is exhausted, the runs cached by this thread and its cache may suffice.
            let taken = take(heap).or_else(|| self.end_front(heap).then(|| take(heap))?)?;
            watch::counted(&heap.watch, pages as usize * PAGE);
            watch::opened(taken.start, pages as usize * PAGE);
            self.tend(heap);
            Some(taken)
        })
    }

    /// Takes a run back.
    ///
    /// # Safety
    /// `start` is a run of this pool that was allocated, or last reallocated, with this size, and
    /// is not used any more.
    ///
    /// # Panics
    /// Panics if it is recognizably not a run of this pool, or free: in release builds if it is in
    /// the cache of this thread or was merged; in debug builds if any page of it is free.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn free(&self, start: NonNull<u8>, size: usize) {
        // SAFETY: the caller passes a run of this pool with this size.
        unsafe { self.try_free(start, size) }.unwrap_or_else(|misuse| misuse.panic());
    }

    /// As [`Pages::free`], and returns the memory error that the pool found.
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

    /// As [`Pages::free`], for a call site that the compiler does not know: one in C.
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

    /// Frees any whole pages of a run. The rest of the run, [`run_size`] in total, is freed in the
    /// same way.
    ///
    /// # Safety
    /// As many pages as `size` bytes need, from `start` on, were allocated from this pool, and are
    /// not used any more.
    ///
    /// # Panics
    /// Panics if they are recognizably not pages of this pool; in debug builds, also if one is
    /// free.
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

    /// In debug builds: records that the user has these pages, or has freed them.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn mark(&self, start: NonNull<u8>, pages: u32, handed_out: bool) -> Result<(), Misuse> {
        if cfg!(debug_assertions) {
            let site = CallSite::caller();
            self.heap.with(|heap| heap.mark(start, pages, handed_out, site))?;
        }
        Ok(())
    }

    /// Enforces the limits of the heap and of this thread's cache, and reports their counts.
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

    /// Creates a cache for this thread, if it is small compared with the pool and not every call
    /// must be observed.
    #[cold]
    fn begin_front(&self, heap: &mut PageHeap<S>) {
        if !heap.has_fronts() || watch::checked() || !self.fronts.vacancy() {
            return;
        }
        if let Some(taken) = heap.allocate_run(FRONT) {
            // SAFETY: the run is long enough for it, and no other code uses it.
            unsafe { self.fronts.claim(taken.start.cast()) };
        }
    }

    /// Removes this thread's cache; returns true if it had one.
    fn end_front(&self, heap: &mut PageHeap<S>) -> bool {
        if let Some(front) = self.fronts.mine() {
            give_up(front, heap, 0);
        }
        let ended = self.fronts.leave();
        ended.inspect(|front| _ = heap.put(front.cast(), FRONT, RunPart::Part)).is_some()
    }

    /// Makes a run longer in its place, if the pages behind it are free. Their contents are not
    /// known. Runs with guards stay as long as they are.
    ///
    /// # Safety
    /// As for [`Pages::free`]; where it is `true`, the run has the new size from then on.
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
    /// contents. Returns `None` if memory is exhausted: then the run is unchanged.
    ///
    /// # Safety
    /// As for [`Pages::free`]. From then on the run has the new size and the old alignment.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn reallocate(
        &self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        let (old, new) = (run_pages(layout.size())?, run_pages(size)?);
        if new < old {
            // SAFETY: the run has more pages than this.
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
        // SAFETY: the new run is longer, and they are apart.
        unsafe { moved.copy_from_nonoverlapping(start, layout.size()) };
        // SAFETY: the caller passes a run of this pool with this layout; its contents were copied
        // to `moved`.
        unsafe { self.free(start, layout.size()) };
        Some(moved)
    }

    /// Returns all unused memory to the source, and regions without a used page. The time is
    /// proportional to the number of free runs. The caches of other threads stay.
    pub fn trim(&self) {
        self.heap.with(|heap| {
            self.tend(heap);
            self.end_front(heap);
            heap.trim();
        });
    }

    /// Sets the amount of free memory that the pool keeps, in percent of the high-water mark of the
    /// last 16,384 to 32,768 allocations and frees; it is never less than 2 MiB. A higher
    /// percentage saves page faults for runs that are freed and allocated again. The default is 20:
    /// used and kept memory together are at most 1.2 times the high-water mark. Free memory that
    /// was not needed in this time is released down to half of this percentage of the memory in
    /// use.
    pub fn keep(&self, percent: u8) {
        self.heap.with(|heap| heap.keep(percent.into()));
    }

    /// Memory of the pool in bytes.
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

    /// Calls `body` with the source, while the pool is locked.
    pub fn with_source<T>(&self, body: impl FnOnce(&S) -> T) -> T {
        self.heap.with(|heap| body(heap.source()))
    }

    /// Walks all regions, descriptors and lists.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        self.heap.with(|heap| heap.check());
    }
}

/// Reduces a cache to at most this number of pages.
fn give_up<S: Source>(front: &ThreadRunCache, heap: &mut PageHeap<S>, most: usize) {
    front.allow(most);
    while front.has_too_many() {
        let Some((run, pages)) = front.give_up() else { return };
        // A run that was freed twice by different threads is in two caches: it is left out.
        _ = heap.put(run, pages, RunPart::Whole);
    }
}

/// Memory of a pool of pages, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesUsage {
    /// Allocated.
    pub live: usize,
    /// Free, and maybe backed by memory.
    pub idle: usize,
    /// Taken from the source: address space, which need not be backed by memory.
    pub held: usize,
}

// SAFETY: runs are cut from regions without overlap, and belong to their user until they are freed.
// Only clean runs are reported as zeroed.
unsafe impl<S: Source> Source for Pages<S> {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let taken = self.take_run(layout)?;
        let size = run_size(layout.size())?;
        Some(SourceBlock { start: taken.start, size, zeroed: taken.zeroed })
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: the caller promises that the block came from here, and is not used any more.
        unsafe { self.free(block.start, block.size) };
    }
}

// SAFETY: runs are aligned to what is asked, do not overlap, and stay in use until freed.
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

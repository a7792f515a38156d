//! The calls of a guarded pool. Each call takes the lock and places, checks or moves guard pages.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::guard::{self, PageGuard};
use super::heap::{PageHeap, RunPart, Taken};
use super::page::PageDescriptorRef;
use super::{PAGE, Pages, run_pages, whole_pages};
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::Source;
use crate::watch;

impl<S: Source> Pages<S> {
    /// Allocates a run with a guard page behind it.
    pub(super) fn take_guarded(&self, layout: Layout, site: CallSite) -> Option<Taken> {
        let pages = run_pages(layout.size())?;
        #[cfg(feature = "os")]
        self.heap.survive_fork(self.forks);
        let taken = self.heap.with(|heap| {
            heap.count(1);
            let taken = heap.allocate_guarded(pages, layout.align())?;
            // SAFETY: the allocated run has `pages` pages and one more for the guard.
            unsafe { PageGuard::place(behind(taken.start, pages), layout.size(), site) };
            watch::counted(&heap.watch, pages as usize * PAGE);
            self.tend(heap);
            Some(taken)
        })?;
        let marked = self.heap.with(|heap| heap.mark(taken.start, pages, true, site));
        marked.unwrap_or_else(|misuse| misuse.panic());
        Some(taken)
    }

    /// Checks the guard of a run, and frees and fills the run.
    pub(super) fn free_guarded(
        &self,
        start: NonNull<u8>,
        size: usize,
        site: CallSite,
    ) -> Result<(), Misuse> {
        let pages = run_pages(size).ok_or(Misuse::not_a_block("pages", start.addr().get()))?;
        self.heap.with(|heap| {
            let first = heap.guarded_run(start, (pages, size))?;
            heap.free_with_guard((start, pages), first, site)
        })
    }

    /// Frees some pages of a run. If they include the last page of the run, the guard moves to the
    /// first freed page.
    pub(super) fn free_part_guarded(
        &self,
        start: NonNull<u8>,
        size: usize,
        site: CallSite,
    ) -> Result<(), Misuse> {
        let none = Misuse::not_a_block("pages", start.addr().get());
        let pages = whole_pages(size).ok_or(none)?;
        self.heap.with(|heap| {
            let (_, first) = heap.find(start, pages).ok_or(none)?;
            let Some(guard) = heap.guard_at(start, pages).filter(|guard| guard.is_live()) else {
                heap.mark(start, pages, false, site)?;
                return heap.put_filled(start, pages, pages);
            };
            guard.check(start)?;
            if !first.sub(1).handed_out.get() {
                return heap.free_with_guard((start, pages), first, site);
            }
            heap.mark(start, pages, false, site)?;
            let asked = guard.asked().saturating_sub(pages as usize * PAGE);
            let allocated = guard.allocated();
            guard.set_freed(site);
            // SAFETY: the page was freed just now, and becomes the guard of the rest of the run.
            unsafe { PageGuard::place(start, asked, allocated) };
            // SAFETY: at least one page was freed, and the old guard lies behind the freed pages.
            heap.put_filled(unsafe { start.add(PAGE) }, pages - 1, pages)
        })
    }
}

/// Returns the page behind a run.
fn behind(start: NonNull<u8>, pages: u32) -> NonNull<u8> {
    // SAFETY: callers pass a range of pages in a region that continues with at least one more page.
    unsafe { start.add(pages as usize * PAGE) }
}

impl<S: Source> PageHeap<S> {
    /// Returns the guard in the page behind a range of pages, of a live or a freed run; `None` if
    /// the page contains no guard.
    fn guard_at<'a>(&self, start: NonNull<u8>, pages: u32) -> Option<&'a mut PageGuard> {
        self.find(start, pages + 1)?;
        // SAFETY: `find` checked that the page lies in a region, and the lock is held.
        unsafe { PageGuard::at(behind(start, pages)) }
    }

    /// Returns the first page of a live run of this length, after a check of its guard.
    ///
    /// # Errors
    /// Returns the memory error if the address, the size or the guard is wrong.
    fn guarded_run(
        &self,
        start: NonNull<u8>,
        (pages, size): (u32, usize),
    ) -> Result<PageDescriptorRef, Misuse> {
        let none = Misuse::not_a_block("pages", start.addr().get());
        let is_page = start.addr().get().is_multiple_of(PAGE);
        let (_, first) = self.find(start, 1).filter(|_| is_page).ok_or(none)?;
        let guard = self.guard_at(start, pages);
        if !first.handed_out.get() {
            let known = guard.map(|guard| guard.misuse(start, MemoryError::FreedBefore));
            let sites = first.noted_sites();
            return Err(known.unwrap_or(Misuse { error: MemoryError::FreedBefore, sites, ..none }));
        }
        if !first.starts_run.get() {
            return Err(none);
        }
        match guard.filter(|guard| guard.is_live()) {
            Some(guard) => guard.check(start).map(|()| first),
            None => Err(self.wrong_size(start, (pages, size))),
        }
    }

    /// Returns the memory error of a free with a size other than that of the allocation, or of a
    /// run whose guard was overwritten.
    #[cold]
    fn wrong_size(&self, start: NonNull<u8>, (pages, size): (u32, usize)) -> Misuse {
        let none = Misuse::not_a_block("pages", start.addr().get());
        let is_out = |pages: u32| {
            let found = self.find(start, pages + 1);
            found.is_some_and(|(_, first)| first.add(pages).handed_out.get())
        };
        let length = (1..).find(|pages| !is_out(*pages)).unwrap_or(1);
        match self.guard_at(start, length) {
            Some(guard) if length != pages => guard.misuse(start, MemoryError::WrongSize(size)),
            _ => Misuse { error: MemoryError::Overwritten, ..none },
        }
    }

    /// Frees a run and its guard.
    fn free_with_guard(
        &mut self,
        (start, pages): (NonNull<u8>, u32),
        first: PageDescriptorRef,
        site: CallSite,
    ) -> Result<(), Misuse> {
        self.mark(start, pages, false, site)?;
        if let Some(guard) = self.guard_at(start, pages) {
            guard.set_freed(site);
        }
        self.guards -= 1;
        first.starts_run.set(false);
        self.put_filled(start, pages, pages + 1)
    }

    /// Fills the first `filled` of the freed pages, and returns all `pages` to the heap.
    fn put_filled(&mut self, start: NonNull<u8>, filled: u32, pages: u32) -> Result<(), Misuse> {
        // SAFETY: the pages were freed and not allocated again, so no other code uses them.
        unsafe { guard::fill(self.source(), start, filled as usize) };
        self.count(1);
        watch::uncounted(&self.watch, filled as usize * PAGE);
        self.put(start, pages, RunPart::Part)
    }

    /// Allocates a run and one more page for its guard.
    fn allocate_guarded(&mut self, pages: u32, align: usize) -> Option<Taken> {
        let taken = if align > PAGE {
            self.allocate_aligned(pages + 1, align)
        } else {
            self.allocate_run(pages + 1)
        };
        self.guards += usize::from(taken.is_some());
        taken
    }
}

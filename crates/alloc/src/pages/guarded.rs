//! The calls of a guarded pool: each takes the lock, and places, checks and moves the guard pages.

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
    /// A run with a guard behind it.
    pub(super) fn take_guarded(&self, layout: Layout, site: CallSite) -> Option<Taken> {
        let pages = run_pages(layout.size())?;
        #[cfg(feature = "os")]
        self.heap.survive_fork(self.forks);
        let taken = self.heap.with(|heap| {
            heap.count(1);
            let taken = heap.allocate_guarded(pages, layout.align())?;
            // SAFETY: the run has this number of pages, and one for the guard.
            unsafe { PageGuard::place(behind(taken.start, pages), layout.size(), site) };
            watch::counted(&heap.watch, pages as usize * PAGE);
            self.tend(heap);
            Some(taken)
        })?;
        let marked = self.heap.with(|heap| heap.mark(taken.start, pages, true, site));
        marked.unwrap_or_else(|misuse| misuse.panic());
        Some(taken)
    }

    /// Frees a run whose guard is intact, and fills it.
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

    /// Frees any pages of a run. If they are its last, its guard moves.
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
            // SAFETY: the page was freed just now, and stays with the rest of the run.
            unsafe { PageGuard::place(start, asked, allocated) };
            // SAFETY: the run has at least one page here, and the old guard behind the last.
            heap.put_filled(unsafe { start.add(PAGE) }, pages - 1, pages)
        })
    }
}

/// The page behind a run.
fn behind(start: NonNull<u8>, pages: u32) -> NonNull<u8> {
    // SAFETY: callers pass a run and its length, and a guard lies behind it.
    unsafe { start.add(pages as usize * PAGE) }
}

impl<S: Source> PageHeap<S> {
    /// The guard behind pages, of a live or a freed run, if there is one.
    fn guard_at<'a>(&self, start: NonNull<u8>, pages: u32) -> Option<&'a mut PageGuard> {
        self.find(start, pages + 1)?;
        // SAFETY: the page lies in a region, as was checked, and the lock is held.
        unsafe { PageGuard::at(behind(start, pages)) }
    }

    /// The first page of a live run of this length with an intact guard.
    ///
    /// # Errors
    /// Returns the error if the address, the size or the guard is wrong.
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

    /// The error in a free with another size than the allocation's, or of a run whose guard was
    /// overwritten.
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
        // SAFETY: the pages were freed, and belong to no one until they are handed out again.
        unsafe { guard::fill(self.source(), start, filled as usize) };
        self.count(1);
        watch::uncounted(&self.watch, filled as usize * PAGE);
        self.put(start, pages, RunPart::Part)
    }

    /// A run and a page behind it.
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

//! Free runs of one state, by length. The lookup of a size class, and of a run in it, takes a fixed
//! number of steps.

use super::page::{PageDescriptorRef, RunPageState};
use crate::classes::{self, EXACT, ROW, SizeClassBitmap};

/// Maximum number of pages of a run: descriptors have 32 bits for the number.
pub(super) const MAX_RUN_PAGES: u32 = u32::MAX;

/// Maximum number of runs that [`FreeRuns::remove_where`] examines one by one, because each of them
/// may be unsuitable.
const LOOKED_AT: usize = 8;

const LEVELS: usize = classes::levels(MAX_RUN_PAGES as usize + 1);

/// A free run: its first page, and its number of pages.
pub(super) type FreeRun = (PageDescriptorRef, u32);

/// Free runs of one state.
#[derive(Debug)]
pub(super) struct FreeRuns {
    state: RunPageState,
    /// Total number of pages in all runs.
    pages: usize,
    classes: SizeClassBitmap<LEVELS>,
    heads: [[Option<PageDescriptorRef>; ROW]; LEVELS],
}

impl FreeRuns {
    pub(super) const fn new(state: RunPageState) -> FreeRuns {
        FreeRuns { state, pages: 0, classes: SizeClassBitmap::EMPTY, heads: [[None; ROW]; LEVELS] }
    }

    /// Number of pages in all runs.
    pub(super) const fn pages(&self) -> usize {
        self.pages
    }

    /// Adds a run. Requires that the run has no free neighbor of this state.
    #[inline(always)]
    pub(super) fn insert(&mut self, (first, pages): FreeRun) {
        let class = classes::class(pages as usize);
        let next = self.heads[class / ROW][class % ROW].replace(first);
        match next {
            Some(next) => next.previous.set(Some(first)),
            None => self.classes.set(class),
        }
        first.next.set(next);
        first.previous.set(None);
        for end in [first, first.add(pages - 1)] {
            end.pages.set(pages);
            end.state.set(self.state);
        }
        self.pages += pages as usize;
    }

    /// Removes a run, wherever it is in its list.
    #[inline(always)]
    pub(super) fn remove(&mut self, (first, pages): FreeRun) {
        let (next, previous) = (first.next.get(), first.previous.get());
        if let Some(next) = next {
            next.previous.set(previous);
        }
        match previous {
            Some(previous) => previous.next.set(next),
            None => self.set_head(classes::class(pages as usize), next),
        }
        first.state.set(RunPageState::Used);
        first.add(pages - 1).state.set(RunPageState::Used);
        self.pages -= pages as usize;
    }

    #[inline(always)]
    fn set_head(&mut self, class: usize, head: Option<PageDescriptorRef>) {
        self.heads[class / ROW][class % ROW] = head;
        if head.is_none() {
            self.classes.clear(class);
        }
    }

    /// Removes and returns a run of at least `pages` pages. Searches no list: every run of the
    /// chosen size class is long enough.
    #[inline(always)]
    pub(super) fn remove_run(&mut self, pages: u32) -> Option<FreeRun> {
        let class = self.classes.first_from(classes::class_above(pages as usize))?;
        let first = self.heads[class / ROW][class % ROW]?;
        let run = (first, first.pages.get());
        self.remove(run);
        Some(run)
    }

    /// True if [`FreeRuns::remove_run`] would return a run.
    #[inline(always)]
    pub(super) fn has_run(&self, pages: u32) -> bool {
        self.classes.first_from(classes::class_above(pages as usize)).is_some()
    }

    /// Removes and returns a run for which `fit` returns a value, with this value. Examines at most
    /// `LOOKED_AT` runs that may have `pages` pages. If `fit` rejects them all, takes a run of at
    /// least `enough` pages, for which `fit` always returns a value.
    pub(super) fn remove_where<T>(
        &mut self,
        (pages, enough): (u32, u32),
        fit: impl Fn(FreeRun) -> Option<T>,
    ) -> Option<(FreeRun, T)> {
        let few = self.candidates(pages).take(LOOKED_AT);
        let found = few.filter(|run| run.1 >= pages).find_map(|run| Some((run, fit(run)?)));
        if let Some((run, fitted)) = found {
            self.remove(run);
            return Some((run, fitted));
        }
        let run = self.remove_run(enough)?;
        Some((run, fit(run)?))
    }

    /// Returns the runs of the size class of a length, and then those of the larger size classes.
    fn candidates(&self, pages: u32) -> impl Iterator<Item = FreeRun> {
        let first_from = |class| self.classes.first_from(class);
        let classes =
            core::iter::successors(first_from(classes::class(pages as usize)), move |class| {
                first_from(class + 1)
            });
        classes.flat_map(|class| {
            let head = self.heads[class / ROW][class % ROW];
            core::iter::successors(head, |first| first.next.get())
                .map(|first| (first, first.pages.get()))
        })
    }

    /// Removes and returns one of the longest runs.
    pub(super) fn take_longest(&mut self) -> Option<FreeRun> {
        let class = self.classes.last()?;
        let first = self.heads[class / ROW][class % ROW]?;
        let run = (first, first.pages.get());
        self.remove(run);
        Some(run)
    }

    /// Removes and returns the run that ends just before a page.
    #[inline(always)]
    pub(super) fn take_before(&mut self, page: PageDescriptorRef) -> Option<FreeRun> {
        let last = page.sub(1);
        if last.state.get() != self.state {
            return None;
        }
        let run = (last.sub(last.pages.get() - 1), last.pages.get());
        self.remove(run);
        Some(run)
    }

    /// Removes and returns the run that begins with a page.
    #[inline(always)]
    pub(super) fn take_at(&mut self, page: PageDescriptorRef) -> Option<FreeRun> {
        if page.state.get() != self.state {
            return None;
        }
        let run = (page, page.pages.get());
        self.remove(run);
        Some(run)
    }

    /// Checks all lists.
    ///
    /// # Panics
    /// Panics if a list, the bitmap or the size class of a run is wrong.
    pub(super) fn check(&self) {
        self.classes.check(|class| self.heads[class / ROW][class % ROW].is_some());
        let mut found = 0;
        for (class, head) in self.heads.iter().flatten().enumerate() {
            let (mut at, mut before) = (*head, None);
            while let Some(first) = at {
                let pages = first.pages.get();
                assert_eq!(classes::class(pages as usize), class, "a run is in the wrong list");
                assert!(class >= EXACT || pages as usize == class, "a class is not exact");
                assert_eq!(first.previous.get(), before, "a list has come apart");
                let states = [first.state.get(), first.add(pages - 1).state.get()];
                assert_eq!(states, [self.state; 2], "a run in a list has another state");
                assert_eq!(first.add(pages - 1).pages.get(), pages, "a run has two lengths");
                found += pages as usize;
                (at, before) = (first.next.get(), at);
            }
        }
        assert_eq!(found, self.pages, "pages of free runs, and their sum");
    }
}

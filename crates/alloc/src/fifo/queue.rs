//! The pages of a pool that are neither current nor spare, in the order in which they were last filled.

use core::cell::Cell;
use core::iter::successors;

use super::page::PageRef;

/// A list through the headers of its pages, each in it once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    first: Cell<Option<PageRef>>,
    last: Cell<Option<PageRef>>,
}

impl Queue {
    pub(super) fn first(&self) -> Option<PageRef> {
        self.first.get()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PageRef> {
        successors(self.first(), |page| page.next.get())
    }

    pub(super) fn push(&self, page: PageRef) {
        let last = self.last.replace(Some(page));
        page.previous.set(last);
        page.next.set(None);
        self.next_of(last).set(Some(page));
    }

    /// Takes a page out that is in it.
    pub(super) fn remove(&self, page: PageRef) {
        let (previous, next) = (page.previous.take(), page.next.take());
        self.next_of(previous).set(next);
        self.previous_of(next).set(previous);
    }

    fn next_of(&self, page: Option<PageRef>) -> &Cell<Option<PageRef>> {
        page.map_or(&self.first, |page| &page.header().next)
    }

    fn previous_of(&self, page: Option<PageRef>) -> &Cell<Option<PageRef>> {
        page.map_or(&self.last, |page| &page.header().previous)
    }
}

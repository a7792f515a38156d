//! Lists of pages of a FIFO pool. The main list is the queue of the pages that are neither current
//! nor spare, in the order in which they were last filled.

use core::cell::Cell;
use core::iter::successors;

use super::page::FifoPageRef;

/// A list of pages, linked through their headers. A page is in the list at most once.
#[derive(Debug, Default)]
pub(super) struct PageQueue {
    first: Cell<Option<FifoPageRef>>,
    last: Cell<Option<FifoPageRef>>,
}

impl PageQueue {
    pub(super) fn first(&self) -> Option<FifoPageRef> {
        self.first.get()
    }

    pub(super) fn last(&self) -> Option<FifoPageRef> {
        self.last.get()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = FifoPageRef> {
        successors(self.first(), |page| page.next.get())
    }

    pub(super) fn push(&self, page: FifoPageRef) {
        let last = self.last.replace(Some(page));
        page.previous.set(last);
        page.next.set(None);
        self.next_of(last).set(Some(page));
    }

    /// Removes a page. Requires that the page is in the list.
    pub(super) fn remove(&self, page: FifoPageRef) {
        let (previous, next) = (page.previous.take(), page.next.take());
        self.next_of(previous).set(next);
        self.previous_of(next).set(previous);
    }

    fn next_of(&self, page: Option<FifoPageRef>) -> &Cell<Option<FifoPageRef>> {
        page.map_or(&self.first, |page| &page.header().next)
    }

    fn previous_of(&self, page: Option<FifoPageRef>) -> &Cell<Option<FifoPageRef>> {
        page.map_or(&self.last, |page| &page.header().previous)
    }
}

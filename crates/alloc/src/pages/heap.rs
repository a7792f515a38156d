//! The heap behind the lock: runs are cut from regions, and merged with their free neighbours when
//! they come back.
//!
//! Free runs are of two kinds, which do not merge with each other. *Idle* ones were used, and may
//! be backed by memory: they are handed out first. *Clean* ones are not: the source has taken the
//! memory, or never gave it.
//!
//! The heap does not know which part of the idle runs is backed, since touches are not reported to
//! it. It samples: for one window of freed pages in [`EVERY`] it queries the source, and it
//! estimates the total from these.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::PAGE;
use super::page::RunPageState;
use super::policy::PagesPolicy;
use super::region::{self, PageRegions};
use super::runs::{FreeRun, FreeRuns};
use crate::source::{Source, SourceBlock};
use crate::watch;

/// Idle pages that are always kept, in the heap and in caches each: 1 MiB.
const KEPT: usize = (1 << 20) / PAGE;
/// Backed idle pages that are kept if nothing else is said, for 100 that are handed out.
const PERCENT: usize = 6;
/// Runs that one call cleans at most.
const CLEANED: usize = 4;

/// Pages that come back between two looks at them: 64 MiB.
const EVERY: usize = (64 << 20) / PAGE;
/// Pages of a look.
const WINDOW: u32 = 16;
/// All pages of a look.
const ALL: usize = 1 << 8;

/// The first region of a source of which memory costs nothing before it is used: 64 MiB.
const AHEAD: usize = 64 << 20;
/// The smallest and the largest region ahead of need, where memory costs at once.
const PAID: core::ops::RangeInclusive<usize> = 1 << 18..=1 << 24;

/// An allocated run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) start: NonNull<u8>,
    pub(super) zeroed: bool,
}

/// Regions and their free runs.
#[derive(Debug)]
pub(super) struct PageHeap<S: Source> {
    idle: FreeRuns,
    clean: FreeRuns,
    regions: PageRegions,
    /// Pages that are handed out.
    live: usize,
    /// Number of pages to be freed before the next sample.
    unseen: usize,
    /// Backed idle pages that are kept for 100 allocated pages: half of them here, half in caches.
    percent: usize,
    /// Estimated number of ALL idle pages that are backed.
    backed: usize,
    policy: PagesPolicy,
    pub(super) watch: watch::WatchedPool,
    source: S,
}

// SAFETY: its pointers lead to memory that the source gave to this heap alone.
unsafe impl<S: Source + Send> Send for PageHeap<S> {}

impl<S: Source> PageHeap<S> {
    pub(super) const fn new(source: S, policy: PagesPolicy) -> PageHeap<S> {
        PageHeap {
            idle: FreeRuns::new(RunPageState::Idle),
            clean: FreeRuns::new(RunPageState::Clean),
            regions: PageRegions::EMPTY,
            live: 0,
            unseen: EVERY,
            percent: PERCENT,
            backed: ALL,
            policy,
            watch: watch::created("pages"),
            source,
        }
    }

    pub(super) const fn source(&self) -> &S {
        &self.source
    }

    /// Bytes of all regions.
    pub(super) const fn held(&self) -> usize {
        self.regions.held()
    }

    /// Bytes handed out.
    pub(super) const fn live(&self) -> usize {
        self.live * PAGE
    }

    /// Bytes that are free and may be backed by memory.
    pub(super) const fn idle(&self) -> usize {
        self.idle.pages() * PAGE
    }

    /// A run of this length, of what there is or of more.
    #[inline]
    pub(super) fn allocate_run(&mut self, pages: u32) -> Option<Taken> {
        match self.take_free(pages) {
            None => self.take_more(pages),
            taken => taken,
        }
    }

    /// A run of what there is: idle ones first, since clean ones need memory.
    #[inline]
    fn take_free(&mut self, pages: u32) -> Option<Taken> {
        if let Some(run) = self.idle.remove_run(pages) {
            return self.hand_out(run, pages, RunPageState::Idle);
        }
        let run = self.clean.remove_run(pages)?;
        self.hand_out(run, pages, RunPageState::Clean)
    }

    /// Hands out the first pages of a run that was taken out of its list. The rest stays free.
    #[inline]
    fn hand_out(&mut self, run: FreeRun, pages: u32, state: RunPageState) -> Option<Taken> {
        self.cut(run, pages, state);
        self.live += pages as usize;
        let start = self.regions.region_at(run.0.region.get())?.address(run.0);
        Some(Taken { start, zeroed: state == RunPageState::Clean })
    }

    /// Frees the pages of a run beyond the given number.
    #[inline]
    fn cut(&mut self, (first, whole): FreeRun, pages: u32, state: RunPageState) {
        if whole > pages {
            let rest = first.add(pages);
            rest.region.set(first.region.get());
            self.runs(state).insert((rest, whole - pages));
        }
    }

    fn runs(&mut self, state: RunPageState) -> &mut FreeRuns {
        if state == RunPageState::Clean { &mut self.clean } else { &mut self.idle }
    }

    /// A run that needs a new region, or idle runs and clean ones to become one.
    #[cold]
    fn take_more(&mut self, pages: u32) -> Option<Taken> {
        watch::slow(&self.watch);
        while self.grow(pages) || self.clean_all() {
            if let Some(taken) = self.take_free(pages) {
                return Some(taken);
            }
        }
        None
    }

    /// Takes pages back, of one run or of a part of it.
    ///
    /// # Panics
    /// Panics if they are not pages of this heap.
    #[inline]
    pub(super) fn put(&mut self, start: NonNull<u8>, pages: u32) {
        let Some((index, first)) = self.regions.find(start, pages) else {
            panic!("{start:p} is not a run of {pages} pages of this pool");
        };
        first.region.set(index);
        merge(&mut self.idle, (first, pages));
        self.live -= pages as usize;
        if self.keeps_too_much() {
            self.clean_some();
        }
    }

    /// In debug builds: notes that the user of this pool has pages, or had them.
    ///
    /// # Panics
    /// Panics if they have this state already, or if they are not pages of this heap.
    pub(super) fn mark(&mut self, start: NonNull<u8>, pages: u32, handed_out: bool) {
        let found = self.regions.find(start, pages);
        let (_, first) =
            found.unwrap_or_else(|| panic!("{start:p} is not a run of {pages} pages of this pool"));
        for page in 0..pages {
            let before = first.add(page).handed_out.replace(handed_out);
            assert!(
                before != handed_out,
                "some of the {pages} pages from {start:p} are free: freed before, or never allocated"
            );
        }
    }

    /// Maximum number of backed pages that are kept in either place.
    const fn kept(&self) -> usize {
        let part = self.live / 200 * self.percent;
        if part > KEPT { part } else { KEPT }
    }

    /// Says how many backed idle pages are kept for 100 that are handed out.
    pub(super) const fn keep(&mut self, percent: usize) {
        self.percent = percent;
    }

    /// Maximum number of pages in the caches of all threads.
    pub(super) fn at_hand(&self) -> usize {
        (self.kept() * ALL / self.backed.max(1)).min(self.live)
    }

    /// True if threads have caches: if the pool is so large that the cached pages are a small part.
    pub(super) const fn has_fronts(&self) -> bool {
        self.policy.at_hand && self.live >= KEPT
    }

    /// Hands out the pages behind a run as well, if they are free.
    pub(super) fn extend(&mut self, start: NonNull<u8>, pages: u32, more: u32) -> bool {
        let Some((_, first)) = self.regions.find(start, pages) else { return false };
        let behind = first.add(pages);
        let state = behind.state.get();
        if state == RunPageState::Used || behind.pages.get() < more {
            return false;
        }
        let Some(run) = self.runs(state).take_at(behind) else { return false };
        self.hand_out(run, more, state).is_some()
    }

    /// Pages came back: whether it is time for a look.
    #[inline]
    pub(super) fn passed(&mut self, pages: usize) -> bool {
        self.unseen = self.unseen.saturating_sub(pages);
        self.unseen == 0
    }

    #[inline]
    fn keeps_too_much(&self) -> bool {
        let backed = self.idle.pages() * self.backed / ALL;
        backed > self.kept()
    }

    /// Asks how much of a run that came back is backed. A guess that is too low costs memory, so
    /// that it rises at once and falls by and by.
    #[cold]
    pub(super) fn look(&mut self, start: NonNull<u8>, pages: u32) {
        self.unseen = EVERY;
        if !self.policy.looks {
            return;
        }
        if !self.source.discards() {
            self.backed = 0;
            return;
        }
        let window = pages.min(WINDOW);
        // Anywhere in the run, and elsewhere the next time.
        let at = self.live.wrapping_mul(usize::MAX / 11) % (pages - window + 1) as usize;
        // SAFETY: the window is in the run.
        let start = unsafe { start.add(at * PAGE) };
        let seen =
            self.source.resident(start, window as usize * PAGE) / PAGE * ALL / window as usize;
        self.backed = seen.max((3 * self.backed + seen) / 4);
    }

    /// Cleans some of the longest idle runs.
    #[cold]
    fn clean_some(&mut self) {
        watch::slow(&self.watch);
        for _ in 0..CLEANED {
            if !self.keeps_too_much() || !self.clean_longest() {
                return;
            }
        }
    }

    /// Returns the memory of all idle runs; `false` without idle runs, or if the source cannot
    /// discard memory.
    pub(super) fn clean_all(&mut self) -> bool {
        let some = self.clean_longest();
        while self.clean_longest() {}
        some
    }

    /// Has the source take the memory behind one of the longest idle runs.
    fn clean_longest(&mut self) -> bool {
        if !self.source.discards() {
            // There is nothing to be gained, whatever is backed.
            self.backed = 0;
            return false;
        }
        let Some(run) = self.idle.take_longest() else { return false };
        let Some(region) = self.regions.region_at(run.0.region.get()) else { return false };
        // SAFETY: the pages belong to the heap, and are not in use.
        let clean = unsafe { self.source.discard(region.address(run.0), run.1 as usize * PAGE) };
        merge(if clean { &mut self.clean } else { &mut self.idle }, run);
        clean
    }

    /// Obtains a region from the source that has a run of this length. If memory costs nothing
    /// until it is used, the region is as large as all earlier ones together.
    fn grow(&mut self, pages: u32) -> bool {
        // A class may be 1/32 of the length wide, and only the next one is looked at.
        let least = pages.checked_add(pages / 16).and_then(region::layout);
        let Some(least) = least.filter(|_| self.regions.has_room()).map(|layout| layout.size())
        else {
            return false;
        };
        let mut wanted = self.ahead().max(least);
        loop {
            let layout = Layout::from_size_align(wanted, PAGE).ok();
            if let Some(given) = layout.and_then(|layout| self.source.take(layout)) {
                return self.add(given);
            }
            if wanted == least {
                return false;
            }
            wanted = (wanted / 2).next_multiple_of(PAGE).max(least);
        }
    }

    /// Preferred size of a region, whatever the request.
    fn ahead(&self) -> usize {
        let free = self.source.ahead(PAGE) / PAGE * PAGE;
        if free > 0 {
            return self.held().next_multiple_of(PAGE).max(AHEAD).min(free);
        }
        (self.held() / 4).next_multiple_of(PAGE).clamp(*PAID.start(), *PAID.end())
    }

    fn add(&mut self, given: SourceBlock) -> bool {
        watch::taken(&self.watch, given);
        watch::ours(given.start, region::head_of(given));
        // SAFETY: the source gave it to this heap alone, as it was asked: aligned, and large
        // enough.
        let Some(region) = (unsafe { self.regions.add(given) }) else { return false };
        let clean = given.zeroed && self.source.discards();
        let state = if clean { RunPageState::Clean } else { RunPageState::Idle };
        self.runs(state).insert(region.whole());
        true
    }

    /// Cleans all idle runs, and gives regions without a page in use back to the source.
    pub(super) fn trim(&mut self) {
        self.clean_all();
        while let Some(region) = self.regions.remove(|region| {
            let (first, pages) = region.whole();
            first.state.get() != RunPageState::Used && first.pages.get() == pages
        }) {
            let run = region.whole();
            self.runs(run.0.state.get()).remove(run);
            self.give_back(region.block());
        }
    }

    fn give_back(&mut self, block: SourceBlock) {
        watch::given_back(&self.watch, block);
        // SAFETY: the source provided this block, and no page of it is in use.
        unsafe { self.source.give_back(block) };
    }

    /// Walks all regions and lists.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub(super) fn check(&self) {
        self.idle.check();
        self.clean.check();
        let (mut free, mut all) = (0, 0);
        for region in self.regions.iter() {
            let (first, pages) = region.whole();
            let mut at = 0;
            let mut before = RunPageState::Used;
            while at < pages {
                let page = first.add(at);
                let state = page.state.get();
                assert!(
                    state == RunPageState::Used || state != before,
                    "two free runs are neighbours"
                );
                let length = if state == RunPageState::Used { 1 } else { page.pages.get() };
                assert!(length > 0 && length <= pages - at, "a run leaves its region");
                let inside = (1..length - length.min(1))
                    .all(|inside| page.add(inside).state.get() == RunPageState::Used);
                assert!(inside, "a run has an end inside");
                free += if state == RunPageState::Used { 0 } else { length as usize };
                (at, before) = (at + length, state);
            }
            all += pages as usize;
        }
        assert_eq!(free, self.idle.pages() + self.clean.pages(), "free pages, and those in lists");
        assert_eq!(all - free, self.live, "pages in use, and those handed out");
    }
}

impl<S: Source> Drop for PageHeap<S> {
    fn drop(&mut self) {
        while let Some(region) = self.regions.remove(|_| true) {
            self.give_back(region.block());
        }
        watch::destroyed(&self.watch);
    }
}

/// Enters a run that came back, and makes one of it and its free neighbours of the same state.
#[inline]
fn merge(runs: &mut FreeRuns, (mut first, mut pages): FreeRun) {
    if let Some((before, more)) = runs.take_before(first) {
        (first, pages) = (before, pages + more);
    }
    if let Some((_, more)) = runs.take_at(first.add(pages)) {
        pages += more;
    }
    runs.insert((first, pages));
}

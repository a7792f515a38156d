//! The heap of a pool, protected by the lock of the pool. Runs are cut from regions, and freed runs
//! coalesce with their free neighbors.
//!
//! Free runs are idle or clean, and an idle run does not coalesce with a clean one. *Idle* runs
//! were used, and may be backed by memory: they are allocated first. *Clean* runs are not backed,
//! because the source has discarded their memory or never provided it. Cleaning an idle run
//! discards its memory.
//!
//! The heap does not know which idle pages are backed, since users do not report accesses. It
//! samples: after each [`EVERY`] freed pages it queries the source about a window of freed pages,
//! and estimates the total from these samples. [`Retention`] limits the backed memory that may be
//! idle.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::PAGE;
use super::page::{PageDescriptorRef, RunPageState};
use super::policy::PagesPolicy;
use super::region::{self, PageRegions};
use super::retention::{KEPT, Retention};
use super::runs::{FreeRun, FreeRuns, MAX_RUN_PAGES};
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::{Source, SourceBlock};
use crate::watch;

/// Minimum number of pages that are cleaned at once, if the run is long enough.
const AT_ONCE: usize = 64;

/// Number of freed pages between two samples: 64 MiB.
const EVERY: usize = (64 << 20) / PAGE;
/// Maximum number of pages in a sample.
const WINDOW: u32 = 16;
/// Denominator of shares: this value is a share of 100 %.
const ALL: usize = 1 << 8;

/// Size in bytes of the first region, if unused memory of the source costs nothing.
const AHEAD: usize = 64 << 20;
/// Minimum and maximum preferred size in bytes of a region, if unused memory of the source costs
/// something.
const PAID: core::ops::RangeInclusive<usize> = 1 << 18..=1 << 24;

/// Extent of freed pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunPart {
    /// A whole run, as it was allocated.
    Whole,
    /// Some pages of a run.
    Part,
}

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
    /// Number of allocated pages, including cached runs.
    live: usize,
    /// Number of pages to be freed before the next sample.
    unseen: usize,
    retention: Retention,
    /// Number of allocations and frees of runs since the last report to the retention.
    operations: usize,
    /// Estimated share of the idle pages that are backed, in units of 1/[`ALL`].
    backed: usize,
    policy: PagesPolicy,
    /// Number of guard pages; 0 in a pool without guards.
    pub(super) guards: usize,
    pub(super) watch: watch::WatchedPool,
    source: S,
}

// SAFETY: the pointers refer to memory that the source provided to this heap alone.
unsafe impl<S: Source + Send> Send for PageHeap<S> {}

impl<S: Source> PageHeap<S> {
    pub(super) const fn new(source: S, policy: PagesPolicy) -> PageHeap<S> {
        PageHeap {
            idle: FreeRuns::new(RunPageState::Idle),
            clean: FreeRuns::new(RunPageState::Clean),
            regions: PageRegions::EMPTY,
            live: 0,
            unseen: EVERY,
            retention: Retention::new(),
            operations: 0,
            backed: ALL,
            policy,
            guards: 0,
            watch: if policy.hidden { watch::hidden_pool() } else { watch::created("pages") },
            source,
        }
    }

    pub(super) const fn source(&self) -> &S {
        &self.source
    }

    /// Number of bytes in all regions.
    pub(super) const fn held(&self) -> usize {
        self.regions.held()
    }

    /// Number of allocated bytes.
    pub(super) const fn live(&self) -> usize {
        self.live * PAGE
    }

    /// Number of bytes that are free and may be backed by memory.
    pub(super) const fn idle(&self) -> usize {
        self.idle.pages() * PAGE
    }

    /// Allocates a run of this length: a free run, or a part of a new region.
    #[inline]
    pub(super) fn allocate_run(&mut self, pages: u32) -> Option<Taken> {
        match self.take_free(pages) {
            None => self.take_more(pages),
            taken => taken,
        }
    }

    /// True if an idle run is long enough for `pages` pages with this alignment, wherever the run
    /// begins.
    #[inline]
    pub(super) fn has_idle(&self, pages: u32, align: usize) -> bool {
        let spare = u32::try_from(align / PAGE).unwrap_or(u32::MAX).saturating_sub(1);
        self.idle.has_run(pages.saturating_add(spare).min(MAX_RUN_PAGES / 2))
    }

    /// Allocates a free run: an idle run if possible, since a clean run costs page faults.
    #[inline]
    fn take_free(&mut self, pages: u32) -> Option<Taken> {
        if let Some(run) = self.idle.remove_run(pages) {
            return self.hand_out(run, pages, RunPageState::Idle);
        }
        // An idle run of the same size class may be long enough, and costs no page fault.
        if let Some((run, ())) = self.idle.remove_where((pages, pages), |_| Some(())) {
            return self.hand_out(run, pages, RunPageState::Idle);
        }
        let run = self.clean.remove_run(pages)?;
        self.hand_out(run, pages, RunPageState::Clean)
    }

    /// As [`PageHeap::allocate_run`], for an alignment above that of pages.
    pub(super) fn allocate_aligned(&mut self, pages: u32, align: usize) -> Option<Taken> {
        let spare = u32::try_from(align / PAGE - 1).ok()?;
        let longer = pages.checked_add(spare).filter(|pages| *pages < MAX_RUN_PAGES / 2)?;
        loop {
            let take = |heap: &mut Self, state| heap.take_aligned((pages, longer), align, state);
            let taken = take(self, RunPageState::Idle).or_else(|| take(self, RunPageState::Clean));
            if taken.is_some() {
                return taken;
            }
            watch::slow(&self.watch);
            if !self.grow(longer) && !self.clean_all() {
                return None;
            }
        }
    }

    /// Allocates an aligned part of a free run with this state. The rest of the run stays free.
    fn take_aligned(
        &mut self,
        (pages, longer): (u32, u32),
        align: usize,
        state: RunPageState,
    ) -> Option<Taken> {
        let runs = if state == RunPageState::Clean { &mut self.clean } else { &mut self.idle };
        let regions = &self.regions;
        let ((first, whole), before) = runs.remove_where((pages, longer), |(first, whole)| {
            let address = regions.region_at(first.region.get())?.address(first);
            let before = u32::try_from(address.align_offset(align) / PAGE).ok()?;
            (before.checked_add(pages)? <= whole).then_some(before)
        })?;
        let aligned = first.add(before);
        aligned.region.set(first.region.get());
        if before > 0 {
            self.runs(state).insert((first, before));
        }
        self.hand_out((aligned, whole - before), pages, state)
    }

    /// Allocates the first pages of a run that was removed from its list. The rest of the run stays
    /// free.
    #[inline]
    fn hand_out(&mut self, run: FreeRun, pages: u32, state: RunPageState) -> Option<Taken> {
        self.cut(run, pages, state);
        run.0.starts_run.set(true);
        self.live += pages as usize;
        let start = self.regions.region_at(run.0.region.get())?.address(run.0);
        Some(Taken { start, zeroed: state == RunPageState::Clean })
    }

    /// Adds the pages of a run behind the first `pages` to the free runs.
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

    /// Allocates a run after taking a new region, or after cleaning all idle runs, so that they
    /// coalesce with clean ones.
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

    /// Returns the descriptor of the page at an address, and the index of its region; `None` if the
    /// `pages` pages from this address on are not in one region.
    pub(super) fn find(&self, start: NonNull<u8>, pages: u32) -> Option<(u8, PageDescriptorRef)> {
        self.regions.find(start, pages)
    }

    /// Frees a run, or a part of one.
    ///
    /// # Errors
    /// Returns the error if the pages are not in one region of this heap, or if a whole run is
    /// free.
    #[inline]
    pub(super) fn put(
        &mut self,
        start: NonNull<u8>,
        pages: u32,
        part: RunPart,
    ) -> Result<(), Misuse> {
        let none = Misuse::not_a_block("pages", start.addr().get());
        let (index, first) = self.regions.find(start, pages).ok_or(none)?;
        if part == RunPart::Whole && !first.starts_run.get() {
            let sites = first.noted_sites();
            return Err(Misuse { error: MemoryError::FreedBefore, sites, ..none });
        }
        first.starts_run.set(false);
        first.region.set(index);
        merge(&mut self.idle, (first, pages));
        self.live -= pages as usize;
        self.keep_within_limits();
        Ok(())
    }

    /// Cleans idle runs if they exceed the limits. Called after each allocation and each free in
    /// the heap.
    #[inline]
    pub(super) fn keep_within_limits(&mut self) {
        if self.keeps_too_much() {
            self.clean_some();
        }
    }

    /// Counts allocations and frees of runs.
    #[inline]
    pub(super) const fn count(&mut self, operations: usize) {
        self.operations += operations;
    }

    /// Reports to the retention the number of operations since the last report, and the present
    /// numbers of pages. `cached` is the number of pages in caches of threads.
    #[inline]
    pub(super) fn tell_retention(&mut self, cached: usize) {
        let operations = core::mem::take(&mut self.operations);
        let used = self.live.saturating_sub(cached);
        self.retention.passed(operations, [used, cached, self.backed_of(self.idle.pages())]);
    }

    /// In debug builds and guarded pools, records that the user has allocated pages (`handed_out`
    /// is true) or freed them.
    ///
    /// # Errors
    /// Returns the error if a page has this state already, or if the pages are not in one region of
    /// this heap.
    pub(super) fn mark(
        &mut self,
        start: NonNull<u8>,
        pages: u32,
        handed_out: bool,
        site: CallSite,
    ) -> Result<(), Misuse> {
        let none = Misuse::not_a_block("pages", start.addr().get());
        let (_, first) = self.regions.find(start, pages).ok_or(none)?;
        for page in 0..pages {
            let before = first.add(page).handed_out.replace(handed_out);
            if before == handed_out {
                let sites = first.noted_sites();
                return Err(Misuse { error: MemoryError::FreedBefore, sites, ..none });
            }
        }
        first.set_site(usize::from(!handed_out), site);
        if handed_out {
            first.set_site(1, CallSite::NONE);
        }
        Ok(())
    }

    /// Sets the number of backed free pages that are kept, in percent of the recent maximum number
    /// of pages in use.
    pub(super) const fn keep(&mut self, percent: usize) {
        self.retention.keep(percent);
    }

    /// Maximum number of pages in the caches of all threads.
    pub(super) fn at_hand(&self) -> usize {
        (self.retention.cached() * ALL / self.backed.max(1)).min(self.live)
    }

    /// True if threads may have caches: the pool must be large compared with the cached pages.
    pub(super) const fn has_fronts(&self) -> bool {
        self.policy.at_hand && (self.policy.hidden || self.live >= KEPT)
    }

    /// Allocates the `more` pages behind a run, if they are free.
    pub(super) fn extend(&mut self, start: NonNull<u8>, pages: u32, more: u32) -> bool {
        let Some((_, first)) = self.regions.find(start, pages) else { return false };
        let behind = first.add(pages);
        let state = behind.state.get();
        if state == RunPageState::Used || behind.pages.get() < more {
            return false;
        }
        let Some(run) = self.runs(state).take_at(behind) else { return false };
        let extended = self.hand_out(run, more, state).is_some();
        behind.starts_run.set(false);
        extended
    }

    /// Counts freed pages. Returns true if a sample is due.
    #[inline]
    pub(super) fn passed(&mut self, pages: usize) -> bool {
        self.unseen = self.unseen.saturating_sub(pages);
        self.unseen == 0
    }

    #[inline]
    fn keeps_too_much(&self) -> bool {
        let backed = self.backed_of(self.idle.pages());
        backed > self.retention.idle(self.live) || backed > 0 && self.retention.surplus() > 0
    }

    /// Estimates the number of backed pages among `pages` idle pages.
    #[inline]
    const fn backed_of(&self, pages: usize) -> usize {
        pages * self.backed / ALL
    }

    /// Number of idle pages to clean at once: the pages beyond the limits, but at least
    /// [`AT_ONCE`].
    fn too_many(&self) -> usize {
        let beyond =
            self.backed_of(self.idle.pages()).saturating_sub(self.retention.idle(self.live));
        (beyond.max(self.retention.surplus()) * ALL / self.backed.max(1)).max(AT_ONCE)
    }

    /// Updates the estimate of the share of backed pages by a sample of a run that is freed now.
    /// The probability that a run is sampled is proportional to its length.
    #[cold]
    pub(super) fn look(&mut self, start: NonNull<u8>, pages: u32) {
        self.look_at([(start, pages, pages as usize)].into_iter());
    }

    /// As `look`, with samples of cached runs, each with its length in pages and its weight. An
    /// estimate that is too low costs memory, so the estimate rises faster than it falls.
    #[cold]
    pub(super) fn look_at(&mut self, runs: impl Iterator<Item = (NonNull<u8>, u32, usize)>) {
        self.unseen = EVERY;
        if !self.policy.looks {
            return;
        }
        if !self.source.discards() {
            self.backed = 0;
            return;
        }
        let sums = runs.fold((0, 0), |(seen, all), (start, pages, weight)| {
            (seen + self.backed_share(start, pages) * weight, all + weight)
        });
        let Some(seen) = usize::checked_div(sums.0, sums.1) else { return };
        let (old, rises) = (self.backed, seen > self.backed);
        self.backed = if rises { (old + seen).div_ceil(2) } else { (3 * old + seen) / 4 };
    }

    /// Returns the share of backed pages in a window of a run, in units of 1/[`ALL`].
    fn backed_share(&self, start: NonNull<u8>, pages: u32) -> usize {
        let window = pages.min(WINDOW);
        // Pseudo-random position of the window in the run.
        let at = self.live.wrapping_mul(usize::MAX / 11) % (pages - window + 1) as usize;
        // SAFETY: the window lies in the run.
        let start = unsafe { start.add(at * PAGE) };
        self.source.resident(start, window as usize * PAGE) / PAGE * ALL / window as usize
    }

    /// True if most freed pages are backed, so that a page fault costs more than a search for an
    /// idle run.
    pub(super) const fn is_mostly_backed(&self) -> bool {
        self.backed > ALL / 2
    }

    /// Cleans some of the longest idle runs. On average it cleans at most one run for each freed
    /// run, since each idle run was freed before.
    #[cold]
    fn clean_some(&mut self) {
        watch::slow(&self.watch);
        while self.keeps_too_much() && self.clean_longest(self.too_many()) {}
    }

    /// Discards the memory of all idle runs. Returns `false` if no run is idle, or if the source
    /// cannot discard memory.
    pub(super) fn clean_all(&mut self) -> bool {
        let some = self.clean_longest(usize::MAX);
        while self.clean_longest(usize::MAX) {}
        some
    }

    /// Discards the memory of the last pages of one of the longest idle runs, at most `most` pages.
    /// Returns `true` if these pages are clean now.
    fn clean_longest(&mut self, most: usize) -> bool {
        if !self.source.discards() {
            // The source cannot discard memory, so the limits must not count any idle page as
            // backed.
            self.backed = 0;
            return false;
        }
        let Some((first, pages)) = self.idle.take_longest() else { return false };
        let kept = pages.saturating_sub(u32::try_from(most).unwrap_or(u32::MAX));
        let run = (first.add(kept), pages - kept);
        run.0.region.set(first.region.get());
        if kept > 0 {
            self.idle.insert((first, kept));
        }
        let Some(region) = self.regions.region_at(first.region.get()) else { return false };
        self.retention.released(self.backed_of(run.1 as usize));
        // SAFETY: the pages belong to the heap, and are not in use.
        let clean = unsafe { self.source.discard(region.address(run.0), run.1 as usize * PAGE) };
        merge(if clean { &mut self.clean } else { &mut self.idle }, run);
        clean
    }

    /// Takes a region from the source that has a run of this length. If unused memory of the source
    /// costs nothing, the heap first asks for a region as large as all earlier ones together.
    /// Returns `false` if the source is exhausted.
    fn grow(&mut self, pages: u32) -> bool {
        // `remove_run` starts at the first size class in which every run is long enough. The
        // shortest run of this class may be 1/32 longer than requested, so the region gets 1/16
        // more pages.
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

    /// Returns the preferred size of a region in bytes, independent of the request.
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
        // SAFETY: the source provided the block to this heap alone, with the requested alignment
        // and at least the size of a region.
        let Some(region) = (unsafe { self.regions.add(given) }) else { return false };
        let clean = given.zeroed && self.source.discards();
        let state = if clean { RunPageState::Clean } else { RunPageState::Idle };
        self.runs(state).insert(region.whole());
        true
    }

    /// Cleans all idle runs, and returns regions without a page in use to the source.
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

    /// Checks all regions and lists.
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
                    "two free runs are neighbors"
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

/// Coalesces a freed run with its free neighbors of the same state, and adds the result to `runs`.
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

//! Page management of a FIFO pool, and the slow paths for a full current page and for an empty
//! page.
//!
//! Invariants between calls:
//! - Memory between `next` and `end` counts as live in the current page, so that allocating it
//!   accesses no page header.
//! - The pool allocates in the current page. Each other page is an empty spare, or is in the queue
//!   and has live bytes. A hole is a range of a page that does not count as live.
//! - While blocks are freed in an order other than that of age, the shelf (a cache of freed blocks
//!   by size) is open and `end` equals `next`, so that allocations search the shelf first. Blocks
//!   on the shelf count as live.
//! - A closed pool, which its user has dropped, has no current page and no spares. It is destroyed
//!   when its last page is released.

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::offset_of;
use core::ops::Range;
use core::ptr::NonNull;

use super::canary::{self, FifoCanary};
use super::page::{CAPACITY, FifoPageRef, GRAIN, PAGE, rounded};
use super::policy::{FifoPolicy, SPARSE};
use super::queue::PageQueue;
use super::shelf::OpenShelf;
use crate::misuse::{CallSite, Misuse};
use crate::{Source, SourceBlock, watch};

/// Maximum number of pages that are searched for holes before a new page is allocated.
const LOOKED_AT: usize = 8;
/// After a search for holes without a result, the pool takes one new page for every
/// `PAGES_A_SEARCH` of its pages, up to `MAX_UNSEARCHED`, before it searches again. A search reads
/// page headers that are not in the CPU cache.
const PAGES_A_SEARCH: usize = 16;
/// The pool keeps one empty page for every `PAGES_A_SPARE` of its pages, up to `MAX_SPARES`. The
/// number of live bytes of a queue varies, and taking a page from the source costs more than
/// keeping one.
const PAGES_A_SPARE: usize = 16;
const MAX_SPARES: usize = 16;
/// If at least this number of the oldest pages are sparse (at most `SPARSE` live bytes), the pool
/// assumes that blocks are freed in an order other than that of age.
const SPARSE_PAGES: usize = 3;
const MAX_UNSEARCHED: usize = 16;

/// Fields that each call uses, in one cache line. The inline functions of the C API use the first
/// three.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct FifoHot {
    /// Address of the next block; NULL without free space.
    next: Cell<*mut u8>,
    /// End address of the free space that fast paths may use.
    end: Cell<usize>,
    /// Not 0 if the free space is known to be zero-filled.
    zeroed: Cell<usize>,
    /// Shelf of freed blocks that wait for reuse, while blocks are freed in an order other than
    /// that of age.
    pub(super) shelf: Cell<Option<OpenShelf>>,
    current: Cell<Option<FifoPageRef>>,
    /// Callback for slow paths that do not know the source's type.
    call: unsafe fn(NonNull<FifoHot>, FifoEvent),
    /// True if there are guards around blocks.
    guarded: Cell<bool>,
    /// End address of the free space, also while `end` hides it from fast paths.
    limit: Cell<usize>,
}

const _: () = assert!(size_of::<FifoHot>() == 64);
// `struct pw_fifo` of `pagewise/fifo.h` declares the same offsets.
const _: () = assert!(offset_of!(FifoHot, end) == 8 && offset_of!(FifoHot, zeroed) == 16);

/// Event handled by the callback.
#[derive(Clone, Copy, Debug)]
enum FifoEvent {
    /// The last block of a page was freed: no byte of the page counts as live any more.
    Emptied(FifoPageRef),
    /// The pool must close the shelf, and free the blocks on it in their pages.
    Drained,
    /// A guarded block of this size is freed by this call site.
    Freed(NonNull<u8>, usize, CallSite),
}

impl FifoHot {
    /// Number of free bytes that fast paths may use.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.end.get().wrapping_sub(self.next.get().addr())
    }

    #[inline(always)]
    pub(super) fn is_zeroed(&self) -> bool {
        self.zeroed.get() != 0
    }

    #[inline(always)]
    pub(super) fn is_guarded(&self) -> bool {
        self.guarded.get()
    }

    /// Number of free bytes of the current page.
    fn rest(&self) -> usize {
        self.limit.get() - self.next.get().addr()
    }

    /// Lets fast paths use the free space, unless the pool is guarded or its shelf is open.
    fn show_room(&self) {
        let is_closed = self.guarded.get() || self.shelf.get().is_some();
        self.end.set(if is_closed { self.next.get().addr() } else { self.limit.get() });
    }

    /// True if the address of the next block has this alignment.
    #[inline(always)]
    pub(super) fn is_aligned(&self, align: usize) -> bool {
        self.next.get().addr() & (align - 1) == 0
    }

    /// True if a block of this size at this address is the last that was allocated from the free
    /// space.
    #[inline(always)]
    pub(super) fn is_last(&self, block: NonNull<u8>, size: usize) -> bool {
        self.next.get().addr() == block.addr().get().wrapping_add(size)
    }

    /// Allocates the next `size` bytes of the free space.
    ///
    /// # Safety
    /// The current page has `size` bytes left, and `size` is a positive multiple of `GRAIN`.
    #[inline(always)]
    pub(super) unsafe fn bump(&self, size: usize) -> NonNull<u8> {
        let start = self.next.get();
        // SAFETY: the caller promises that the current page has `size` free bytes from `start` on.
        self.next.set(unsafe { start.add(size) });
        // SAFETY: a page has free space, so `next` is an address in that page.
        unsafe { NonNull::new_unchecked(start) }
    }

    /// Moves the end of the last block to `next`, an address in that block or in the free space
    /// behind it.
    pub(super) fn move_last(&self, next: NonNull<u8>) {
        if next.as_ptr() < self.next.get() {
            self.zeroed.set(0);
            self.current.get().inspect(|page| page.zeroed.set(false));
        }
        self.next.set(next.as_ptr());
    }
}

/// A pool, stored in a block of its own source.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FifoCore<S> {
    pub(super) hot: FifoHot,
    queue: PageQueue,
    /// Blocks that are larger than a page; recorded in debug builds only.
    large: PageQueue,
    /// Number of pages to be filled before the oldest pages are searched for holes again.
    unsearched: Cell<usize>,
    /// Empty pages, and their number.
    spares: PageQueue,
    spare_count: Cell<usize>,
    shelf_memory: Cell<Option<SourceBlock>>,
    /// Address in the current page up to which statistics have counted the allocated bytes.
    room_start: Cell<usize>,
    /// Numbers of bytes that were allocated and freed since the last report to the statistics.
    handed_out: Cell<usize>,
    came_back: Cell<usize>,
    pages: Cell<usize>,
    held: Cell<usize>,
    closed: Cell<bool>,
    policy: FifoPolicy,
    block: SourceBlock,
    watch: watch::WatchedPool,
    source: S,
}

impl<S: Source> FifoCore<S> {
    /// Creates a pool without pages; `None` if the source has no memory for it.
    pub(super) fn create(
        source: S,
        guarded: bool,
        policy: FifoPolicy,
    ) -> Option<NonNull<FifoCore<S>>> {
        let block = source.take(Layout::new::<FifoCore<S>>())?;
        let hot = FifoHot {
            next: Cell::new(core::ptr::null_mut()),
            end: Cell::new(0),
            limit: Cell::new(0),
            shelf: Cell::new(None),
            zeroed: Cell::new(0),
            current: Cell::new(None),
            call: |hot, event| {
                // SAFETY: the memory of a pool begins with its hot fields, and a pool lives as long
                // as it has pages.
                unsafe { FifoCore::<S>::hear(hot.cast(), event) }
            },
            guarded: Cell::new(guarded || watch::checked()),
        };
        let pool = FifoCore {
            hot,
            queue: PageQueue::default(),
            large: PageQueue::default(),
            unsearched: Cell::new(0),
            spares: PageQueue::default(),
            spare_count: Cell::new(0),
            shelf_memory: Cell::new(None),
            room_start: Cell::new(0),
            handed_out: Cell::new(0),
            came_back: Cell::new(0),
            pages: Cell::new(0),
            held: Cell::new(block.size),
            closed: Cell::new(false),
            policy,
            block,
            watch: watch::created("fifo"),
            source,
        };
        let start = block.start.cast::<FifoCore<S>>();
        // SAFETY: the pool owns the block, which has the size and alignment of a pool.
        unsafe { start.write(pool) };
        Some(start)
    }

    /// Adds canaries to a pool that has no page yet. Returns true if the pool has canaries now.
    pub(super) fn guard(&self) -> bool {
        if self.pages.get() == 0 {
            self.hot.guarded.set(true);
        }
        self.hot.guarded.get()
    }

    /// In debug builds, searches for the page of a block before the page header is read.
    ///
    /// # Panics
    /// Panics if the address is in no page of this pool.
    pub(super) fn assert_ours(&self, block: NonNull<u8>) {
        let _quiet = watch::quiet();
        let current = self.hot.current.get().into_iter();
        let mut pages =
            current.chain(self.spares.iter()).chain(self.queue.iter()).chain(self.large.iter());
        if !pages.any(|page| page.holds(block)) {
            foreign(block);
        }
    }

    pub(super) fn set_name(&self, name: &str) {
        watch::named(&self.watch, name);
    }

    /// Number of bytes that the pool has taken from the source and not returned.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    /// Slow path of an allocation. `whole` is the number of bytes that the block takes in its page.
    #[inline(never)]
    pub(super) fn allocate(
        &self,
        this: NonNull<FifoHot>,
        layout: Layout,
        (whole, site): (usize, CallSite),
    ) -> Option<NonNull<u8>> {
        let align = layout.align().max(GRAIN);
        if self.hot.guarded.get() {
            return self.allocate_guarded(this, (layout.size(), align), site);
        }
        if fits_page(whole, align) {
            self.allocate_in_page(this, whole, align)
        } else {
            self.own_block(this, whole, align, 0)
        }
    }

    /// As `allocate`, with a canary before the block and canary bytes after it.
    fn allocate_guarded(
        &self,
        this: NonNull<FifoHot>,
        (size, align): (usize, usize),
        site: CallSite,
    ) -> Option<NonNull<u8>> {
        let _quiet = watch::quiet();
        let (before, whole) = canary::around(size, align);
        let (block, region, whole) = if fits_page(whole, align) {
            let region = self.allocate_in_page(this, whole, align)?;
            // SAFETY: `before` is less than the size of the region.
            (unsafe { region.add(before) }, region, whole)
        } else {
            let block = self.own_block(this, whole - before, align, size_of::<FifoCanary>())?;
            (block, block, whole - before)
        };
        // SAFETY: the region was allocated with space for the canaries.
        unsafe { FifoCanary::place(block, size, (region, whole), site) };
        watch::allocated(&self.watch, block, size);
        watch::counted(&self.watch, size);
        Some(block)
    }

    /// Frees a guarded block.
    ///
    /// # Safety
    /// `block` is a live block of this pool.
    unsafe fn free_guarded(&self, block: NonNull<u8>, size: usize, site: CallSite) {
        let _quiet = watch::quiet();
        // SAFETY: the caller passes a block with a canary.
        let (region, whole) = unsafe { FifoCanary::release_guarded(block, size, site) };
        watch::freed(&self.watch, block, size);
        watch::uncounted(&self.watch, size);
        // SAFETY: the region is the memory that was allocated for the block, which is freed.
        unsafe { free_now(region, whole) };
    }

    fn allocate_in_page(
        &self,
        this: NonNull<FifoHot>,
        size: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let need = size + align - GRAIN;
        if self.padding(align) + size > self.hot.rest() {
            self.refill(this, need)?;
        }
        self.pad(self.padding(align));
        // SAFETY: the page has space for the padding and the block: either `padding + size` was
        // checked, or `refill` provided space for any padding.
        let block = unsafe { self.hot.bump(size) };
        self.hot.show_room();
        Some(block)
    }

    /// True if a block that was allocated just now is known to be zero-filled.
    pub(super) fn is_zeroed(&self, block: NonNull<u8>) -> bool {
        let is_fresh = !self.hot.guarded.get() && self.hot.shelf.get().is_none();
        // SAFETY: the block was allocated just now, so it is live.
        is_fresh && unsafe { FifoPageRef::containing(block) }.zeroed.get()
    }

    /// Number of bytes from `next` to the next multiple of `align`.
    fn padding(&self, align: usize) -> usize {
        self.hot.next.get().addr().wrapping_neg() & (align - 1)
    }

    /// Turns the next `size` bytes of the free space into a hole.
    fn pad(&self, size: usize) {
        if let Some(page) = self.hot.current.get().filter(|_| size > 0) {
            // SAFETY: the caller checked that the free space is larger than the padding.
            let start = unsafe { self.hot.bump(size) }.addr().get();
            page.retire_rest(start..start + size);
        }
    }

    /// Takes a separate block of the source for a block that does not fit into a page. `guard`
    /// bytes lie before the block.
    fn own_block(
        &self,
        this: NonNull<FifoHot>,
        size: usize,
        align: usize,
        guard: usize,
    ) -> Option<NonNull<u8>> {
        // The header lies in the page in which the block begins, or in the page that ends there.
        let header = PAGE - CAPACITY + guard;
        let before = if align < PAGE { header.next_multiple_of(align) } else { align };
        let layout = Layout::from_size_align(before.checked_add(size)?, align.max(PAGE)).ok()?;
        let block = self.take_page(layout)?;
        // SAFETY: the block of the source has `before` bytes before the data.
        let start = unsafe { block.start.add(before) };
        // SAFETY: the bytes from the last multiple of `PAGE` before `start` up to `start` include
        // space for a header.
        let page = unsafe { FifoPageRef::create(block, start, this, true) };
        if cfg!(debug_assertions) {
            self.large.push(page);
        }
        self.handed_out.set(self.handed_out.get() + page.own_size());
        Some(start)
    }

    /// Makes a page with a free range of `need` bytes the current one. `need` is at most
    /// `CAPACITY`.
    fn refill(&self, this: NonNull<FifoHot>, need: usize) -> Option<()> {
        self.leave();
        self.tell(need);
        let (page, room) = (self.known_room(need))
            .or_else(|| self.new_page(this))
            .or_else(|| self.known_room_without_shelf(need))
            .or_else(|| self.queue.iter().find_map(|page| self.hole_of(page, need)))?;
        self.enter(page, room);
        Some(())
    }

    /// Returns a page of the pool with a free range of `need` bytes, and this range, without taking
    /// a page from the source.
    fn known_room(&self, need: usize) -> Option<(FifoPageRef, Range<usize>)> {
        (self.rest_of_current(need))
            .or_else(|| self.empty_page())
            .or_else(|| self.hole_of(self.sparse_page()?, need))
    }

    /// Frees the blocks on the shelf (a cache of freed blocks by size) in their pages, and repeats
    /// `known_room`; `None` if no shelf is open.
    fn known_room_without_shelf(&self, need: usize) -> Option<(FifoPageRef, Range<usize>)> {
        self.hot.shelf.get()?;
        self.clear_shelf();
        self.leave();
        self.known_room(need)
    }

    /// Opens the shelf, a cache of freed blocks by size: while it is open, frees may put blocks on
    /// it, and allocations search it first. The shelf stays closed in a guarded pool, under a
    /// policy without a shelf, and if the source has no memory for it.
    fn open_shelf(&self) {
        if self.hot.guarded.get() || !self.policy.has_shelf() {
            return;
        }
        let block = self.shelf_memory.get().or_else(|| self.take(OpenShelf::LAYOUT));
        self.shelf_memory.set(block);
        // SAFETY: the block is reserved for the shelf, and the pool has only one shelf.
        let shelf = block.map(|block| unsafe { OpenShelf::create(block, self.pages.get()) });
        self.hot.shelf.set(shelf);
    }

    /// Closes the shelf (a cache of freed blocks by size), and frees the blocks on it in their
    /// pages.
    fn clear_shelf(&self) {
        let shelf = self.hot.shelf.take();
        while let Some((block, size)) = shelf.and_then(OpenShelf::take_any) {
            // SAFETY: blocks on the shelf count as live, and are not in use.
            unsafe { free_now(block, size) };
        }
        self.hot.show_room();
    }

    /// Returns the whole current page if it contains no live block. Otherwise returns a further
    /// hole of it, if the pool is filling the holes of this page.
    fn rest_of_current(&self, need: usize) -> Option<(FifoPageRef, Range<usize>)> {
        let page = self.hot.current.get()?;
        if page.live() == 0 {
            self.note_came_back(page, PAGE);
            page.reset();
            return Some((page, page.take_all()));
        }
        let hole = page.take_hole(need)?;
        self.note_came_back(page, hole.len());
        Some((page, hole))
    }

    /// Makes a page the current one, with `room` as its free space.
    fn enter(&self, page: FifoPageRef, room: Range<usize>) {
        let left = self.hot.current.replace(Some(page));
        left.filter(|left| *left != page).inspect(|left| self.put(*left));
        self.hot.next.set(page.at(room.start));
        self.hot.limit.set(room.end);
        self.room_start.set(room.start);
        self.hot.show_room();
        self.hot.zeroed.set(page.zeroed.get().into());
    }

    /// Turns the free space of the current page into a hole; the page stays the current one.
    fn leave(&self) {
        self.note_handed_out();
        let rest = self.hot.rest();
        if let Some(page) = self.hot.current.get().filter(|_| rest > 0) {
            page.retire_rest(self.hot.next.get().addr()..self.hot.limit.get());
        }
        self.hot.next.set(core::ptr::null_mut());
        self.hot.limit.set(0);
        self.hot.end.set(0);
    }

    /// Counts, for statistics, the bytes that were allocated in the current page since the last
    /// call.
    fn note_handed_out(&self) {
        if let Some(page) = self.hot.current.get() {
            let next = self.hot.next.get().addr();
            let bytes = next.saturating_sub(self.room_start.replace(next));
            page.handed_out(bytes);
            self.handed_out.set(self.handed_out.get() + bytes);
        }
    }

    /// Counts, for statistics, freed bytes of a page that were counted as allocated.
    fn note_came_back(&self, page: FifoPageRef, bytes: usize) {
        self.came_back.set(self.came_back.get() + page.came_back(bytes));
    }

    /// Reports to the statistics. Called when a request of `size` bytes does not fit into the free
    /// space.
    fn tell(&self, size: usize) {
        let (handed_out, returned) = (self.handed_out.take(), self.came_back.take());
        let served = self.hot.shelf.get().map_or(0, OpenShelf::take_served);
        let requested = handed_out + served;
        let (requests, returned) = (requested / size, returned + served);
        // A pool with canaries counts each call instead.
        if !self.hot.guarded.get() {
            watch::progress(
                &self.watch,
                watch::PoolProgress { requests, requested, returned, size },
            );
        }
    }

    fn empty_page(&self) -> Option<(FifoPageRef, Range<usize>)> {
        let page = self.spares.last()?;
        self.spares.remove(page);
        self.spare_count.set(self.spare_count.get() - 1);
        Some((page, page.take_all()))
    }

    fn new_page(&self, this: NonNull<FifoHot>) -> Option<(FifoPageRef, Range<usize>)> {
        let block = self.take_page(Layout::from_size_align(PAGE, PAGE).ok()?)?;
        // SAFETY: the block has the size of a page, so its second byte is inside.
        let inside = unsafe { block.start.add(1) };
        // SAFETY: the block has the size and alignment of a page, and no other code uses it.
        let page = unsafe { FifoPageRef::create(block, inside, this, false) };
        Some((page, page.take_all()))
    }

    /// Returns a hole of `need` bytes in a page of the queue, and removes the page from the queue.
    fn hole_of(&self, page: FifoPageRef, need: usize) -> Option<(FifoPageRef, Range<usize>)> {
        page.look_again();
        let hole = page.take_hole(need)?;
        self.note_came_back(page, hole.len());
        self.queue.remove(page);
        Some((page, hole))
    }

    /// Returns a page of the queue whose holes are worth filling. If blocks are freed in about the
    /// order of age, only the oldest two pages are partly free, and their holes are not filled.
    /// [`SPARSE_PAGES`] sparse pages show that blocks are freed in another order.
    fn sparse_page(&self) -> Option<FifoPageRef> {
        if let Some(left) = self.unsearched.get().checked_sub(1) {
            self.unsearched.set(left);
            return None;
        }
        let found = self.search_holes();
        if found.is_none() {
            self.unsearched.set((self.pages.get() / PAGES_A_SEARCH).min(MAX_UNSEARCHED));
        }
        found
    }

    fn search_holes(&self) -> Option<FifoPageRef> {
        let mut next = self.queue.first().filter(|_| self.policy.fills_holes());
        let mut found = 0;
        for _ in 0..LOOKED_AT {
            let page = next?;
            next = page.next.get();
            if page.live() > SPARSE {
                self.queue.remove(page);
                self.queue.push(page);
            } else if self.hot.shelf.get().is_some() {
                return Some(page);
            } else if found + 1 == SPARSE_PAGES {
                self.open_shelf();
                return Some(page);
            } else {
                found += 1;
            }
        }
        None
    }

    /// # Safety
    /// `this` is a live pool, and the block or page of the event belongs to it.
    #[cold]
    unsafe fn hear(this: NonNull<FifoCore<S>>, event: FifoEvent) {
        // SAFETY: a pool lives as long as it has pages.
        let pool = unsafe { this.as_ref() };
        match event {
            FifoEvent::Freed(block, size, site) => {
                // SAFETY: the caller passes a live block of this pool.
                return unsafe { pool.free_guarded(block, size, site) };
            }
            FifoEvent::Drained => return pool.clear_shelf(),
            FifoEvent::Emptied(page) => pool.take_back(page),
        }
        if pool.closed.get() && pool.pages.get() == 0 {
            // SAFETY: the pool was closed, and its last page was released.
            unsafe { FifoCore::destroy(this) };
        }
    }

    fn take_back(&self, page: FifoPageRef) {
        if page.is_alone() {
            self.came_back.set(self.came_back.get() + page.own_size());
            if cfg!(debug_assertions) {
                self.large.remove(page);
            }
            return self.release(page);
        }
        if self.hot.current.get() == Some(page) {
            self.note_handed_out();
        }
        self.note_came_back(page, PAGE);
        if self.hot.current.get() == Some(page) {
            page.reset();
            return self.enter(page, page.take_all());
        }
        self.queue.remove(page);
        match self.hot.current.get() {
            Some(_) if self.hot.rest() < self.policy.little_room() => {
                self.leave();
                page.reset();
                self.enter(page, page.take_all());
            }
            _ => self.keep(page),
        }
    }

    /// Puts a page that was the current one into the queue, or keeps it as a spare if it is empty.
    fn put(&self, page: FifoPageRef) {
        if page.live() == 0 { self.keep(page) } else { self.queue.push(page) }
    }

    /// Keeps an empty page as a spare, or returns it to the source.
    fn keep(&self, page: FifoPageRef) {
        let count = self.spare_count.get();
        let most = (self.pages.get() / PAGES_A_SPARE).clamp(1, MAX_SPARES);
        if count >= most || self.closed.get() || !self.policy.keeps_spare() {
            return self.release(page);
        }
        page.reset();
        self.spares.push(page);
        self.spare_count.set(count + 1);
    }

    fn take_page(&self, layout: Layout) -> Option<SourceBlock> {
        let block = self.take(layout)?;
        self.pages.set(self.pages.get() + 1);
        Some(block)
    }

    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let block = self.source.take(layout)?;
        self.held.set(self.held.get() + block.size);
        watch::taken(&self.watch, block);
        Some(block)
    }

    fn give_back(&self, block: SourceBlock) {
        self.held.set(self.held.get() - block.size);
        watch::given_back(&self.watch, block);
        // SAFETY: callers pass blocks of this source that are not in use any more.
        unsafe { self.source.give_back(block) };
    }

    /// Returns a page to the source. Requires that the page is in no list and is not the current
    /// one.
    fn release(&self, page: FifoPageRef) {
        self.pages.set(self.pages.get() - 1);
        self.give_back(page.block());
    }

    /// Releases the empty pages. A page with live blocks is released when its last block is freed.
    ///
    /// # Safety
    /// No allocation from the pool follows.
    pub(super) unsafe fn close(this: NonNull<FifoCore<S>>) {
        // SAFETY: a pool lives until it is closed.
        let pool = unsafe { this.as_ref() };
        pool.clear_shelf();
        pool.shelf_memory.take().inspect(|block| pool.give_back(*block));
        pool.leave();
        pool.closed.set(true);
        while let Some((page, _)) = pool.empty_page() {
            pool.release(page);
        }
        pool.hot.current.take().inspect(|page| pool.put(*page));
        if pool.pages.get() == 0 {
            // SAFETY: the pool has no page, and no allocation from it follows.
            unsafe { FifoCore::destroy(this) };
        }
    }

    /// # Safety
    /// The pool is not used any more.
    unsafe fn destroy(this: NonNull<FifoCore<S>>) {
        // SAFETY: the pool is read for the last time, and the read value is not dropped.
        let FifoCore { source, block, watch, .. } = unsafe { this.read() };
        watch::destroyed(&watch);
        // SAFETY: the block came from this source, and contained only the pool.
        unsafe { source.give_back(block) };
    }

    /// Checks all invariants.
    pub(super) fn check(&self) {
        let current = self.hot.current.get();
        let mut pages = 0;
        for page in self.queue.iter().chain(current) {
            assert_eq!(page.live() + page.holes(), CAPACITY, "bytes are neither live nor holes");
            assert!(page.live() > 0 || Some(page) == current, "an empty page is not given back");
            pages += 1;
        }
        for spare in self.spares.iter() {
            assert_eq!(spare.live() + spare.holes(), 0, "the spare page is not empty");
            pages += 1;
        }
        assert!(pages <= self.pages.get(), "more pages than were taken");
        assert!(self.hot.room() <= self.hot.rest(), "more room is shown than there is");
        if let Some(page) = current.filter(|_| self.hot.rest() > 0) {
            let end = page.data() + CAPACITY;
            assert!(self.hot.limit.get() <= end, "there is room behind the page");
            assert!(page.live() >= self.hot.rest(), "room that is not counted as live");
        }
    }
}

/// The slow path of freeing a block.
///
/// # Safety
/// `block` is a live block of this pool with this layout, and is not used any more.
#[inline(never)]
pub(super) unsafe fn free_slow(
    pool: NonNull<FifoHot>,
    block: NonNull<u8>,
    layout: Layout,
    site: CallSite,
) {
    // SAFETY: a pool lives as long as it has blocks.
    let shelf = unsafe { pool.as_ref() }.shelf.get();
    // SAFETY: the caller passes a live block.
    if unsafe { FifoPageRef::containing(block) }.pool != pool {
        foreign(block);
    }
    if !shelf.is_some_and(|shelf| shelf.put(block, rounded(layout.size()))) {
        // SAFETY: the caller passes a live block of this pool.
        unsafe { free_slower(pool, block, layout, site) }
    }
}

/// Panics with the message for an address at which no block of the pool begins.
///
/// # Panics
/// Always panics.
#[cold]
fn foreign(block: NonNull<u8>) -> ! {
    Misuse::not_a_block("fifo", block.addr().get()).panic();
}

/// Frees a block, as [`free_slow`] does, if the shelf is closed or does not take the block.
///
/// # Safety
/// As for [`free_slow`].
#[inline(never)]
unsafe fn free_slower(pool: NonNull<FifoHot>, block: NonNull<u8>, layout: Layout, site: CallSite) {
    // SAFETY: a pool lives as long as it has blocks.
    let hot = unsafe { pool.as_ref() };
    if hot.guarded.get() {
        // SAFETY: the caller passes a live block of this pool.
        return unsafe { (hot.call)(pool, FifoEvent::Freed(block, layout.size(), site)) };
    }
    if hot.shelf.get().is_some_and(OpenShelf::is_over) {
        // SAFETY: the memory of a pool begins with its hot fields.
        unsafe { (hot.call)(pool, FifoEvent::Drained) };
    }
    // SAFETY: the caller passes a live block of this size.
    unsafe { free_now(block, rounded(layout.size())) }
}

/// True if a page has space for a block of this size with any padding for this alignment.
fn fits_page(size: usize, align: usize) -> bool {
    size.saturating_add(align - GRAIN) <= CAPACITY
}

/// Subtracts freed bytes, a multiple of `GRAIN`, from the live bytes of their page.
///
/// # Safety
/// The bytes are a live block of a pool, including its guard, and are not used any more.
unsafe fn free_now(block: NonNull<u8>, size: usize) {
    // SAFETY: the caller passes a live block.
    let page = unsafe { FifoPageRef::containing(block) };
    if !page.is_alone() {
        if page.live() > size {
            let start = block.addr().get();
            return page.retire(start..start + size);
        }
        debug_assert_eq!(page.live(), size, "a block was freed with a wrong size, or twice");
        page.die();
    }
    // SAFETY: a pool lives as long as it has pages.
    let call = unsafe { page.pool.as_ref() }.call;
    // SAFETY: the page belongs to this pool, and its last block was freed.
    unsafe { call(page.pool, FifoEvent::Emptied(page)) };
}

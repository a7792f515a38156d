//! The slow paths of a stack: the choice of the next block, the size of a new block, and pops that
//! leave a block.
//!
//! ```text
//!  ┌────────┬──────┬──────────────────────────────┬─┐
//!  │ header │ Cold │ allocations                  │ │   Cold in the first block only, which is released last
//!  └────────┴──────┴──────────────────────────────┴─┘
//!  ^ block         ^ begin                        ^ end: no allocation reaches it
//! ```
//!
//! Blocks in use are linked in the order of their use, from the first to the current one. This
//! order never changes, because marks point to the blocks. The order of free blocks may change: a
//! chosen free block is moved directly behind the current block.

use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::{self, NonNull};

use super::canary::report;
use super::policy::{FOLLOWED, PART, REQUESTS, SMALLEST};
use super::{Mark, Stack, StackPolicy};
use crate::source::{Source, SourceBlock};
use crate::watch::{self, PoolProgress};

/// Alignment in bytes of the start and the end of every block. So an allocation with at most this
/// alignment begins at or before `end`.
pub(super) const ALIGN: usize = 16;

/// Header of a block.
#[repr(C, align(16))]
#[derive(Debug)]
pub(super) struct StackBlockHeader {
    next: Cell<Option<NonNull<StackBlockHeader>>>,
    begin: Cell<NonNull<u8>>,
    end: NonNull<u8>,
    /// Address of the block that the source provided.
    place: NonNull<u8>,
    size: usize,
    /// Number of live bytes when the stack entered this block.
    before: Cell<usize>,
}

impl StackBlockHeader {
    /// Writes the header of an empty block, and returns the header.
    fn new(block: SourceBlock) -> NonNull<StackBlockHeader> {
        let header = block.start.cast::<StackBlockHeader>();
        // SAFETY: the requested size of every block includes a header.
        let begin = unsafe { header.add(1) }.cast();
        // SAFETY: the offset is at most the size of the block.
        let end = unsafe { block.start.add(block.size & !(ALIGN - 1)) };
        let (next, begin, before) = (Cell::new(None), Cell::new(begin), Cell::new(0));
        let (place, size) = (block.start, block.size);
        // SAFETY: the block is larger than a header, and has the alignment of a header, which was
        // requested.
        unsafe { header.write(StackBlockHeader { next, begin, end, place, size, before }) };
        header
    }

    /// Returns the address of the header, with the provenance of the whole block.
    pub(super) fn place(&self) -> NonNull<StackBlockHeader> {
        self.place.cast()
    }

    /// Returns the address of the first allocation.
    pub(super) fn begin(&self) -> *mut u8 {
        self.begin.get().as_ptr()
    }

    pub(super) fn end(&self) -> *mut u8 {
        self.end.as_ptr()
    }

    /// Size in bytes of the block that the source provided.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Number of bytes for allocations.
    fn capacity(&self) -> usize {
        self.end().addr() - self.begin().addr()
    }

    pub(super) fn fits(&self, layout: Layout) -> bool {
        let start = self.begin().addr().wrapping_add(layout.align() - 1) & !(layout.align() - 1);
        start.wrapping_add(layout.size()) < self.end().addr()
    }

    /// True if `next` and `end` are possible values of these fields of a stack in this block.
    pub(super) fn holds(&self, next: *mut u8, end: *mut u8) -> bool {
        self.begin() <= next && next <= end && end <= self.end() && next < self.end()
    }

    /// Returns the next block in the list.
    pub(super) fn next(&self) -> Option<&StackBlockHeader> {
        // SAFETY: a block in the list has a header, and stays until it leaves the list.
        self.next.get().map(|next| unsafe { next.as_ref() })
    }

    /// Removes the next block from the list, and returns it.
    pub(super) fn take_next(&self) -> Option<NonNull<StackBlockHeader>> {
        let taken = self.next.get()?;
        self.next.set(self.next()?.next.get());
        Some(taken)
    }

    /// Inserts a block into the list behind this block.
    fn insert(&self, block: NonNull<StackBlockHeader>) -> &StackBlockHeader {
        // SAFETY: the block has a header, and no other reference to it exists.
        let inserted = unsafe { block.as_ref() };
        inserted.next.set(self.next.replace(Some(block)));
        inserted
    }
}

/// Fields that fast paths do not use.
#[repr(align(16))]
#[derive(Debug)]
pub(super) struct Cold {
    first: NonNull<StackBlockHeader>,
    requests: Requests,
    /// Number of bytes that the stack has taken from its source and not returned, and number of
    /// bytes that it has ever taken.
    pub(super) held: Cell<usize>,
    pub(super) taken: Cell<u64>,
    /// Number of live bytes at the last report.
    told: Cell<usize>,
    pub(super) pool: watch::WatchedPool,
}

impl Cold {
    /// Creates the fields of a stack whose first block is `first`.
    fn new(first: SourceBlock) -> Cold {
        Cold {
            first: first.start.cast(),
            requests: Requests::default(),
            held: Cell::new(0),
            taken: Cell::new(0),
            told: Cell::new(0),
            pool: watch::created("stack"),
        }
    }

    /// Counts a block of the source, and writes its header.
    fn adopt(&self, block: SourceBlock) -> NonNull<StackBlockHeader> {
        self.held.set(self.held.get() + block.size);
        self.taken.set(self.taken.get() + block.size as u64);
        watch::taken(&self.pool, block);
        watch::ours(block.start, size_of::<StackBlockHeader>());
        StackBlockHeader::new(block)
    }
}

/// Estimate of the mean request size. Counting every request would slow the fast path down.
/// Instead, a request that does not fit into the rest of a block represents all requests in that
/// block. A large request is more likely than a small one not to fit. To compensate, the request
/// counts as many times as it would fit into the block. So the estimate is the mean of all
/// requests.
#[derive(Debug, Default)]
struct Requests {
    sum: Cell<u64>,
    count: Cell<u64>,
}

impl Requests {
    /// Number of requests at which both sums are divided by 4, so that old requests lose weight.
    const MANY: u64 = 65_535;

    /// Records a request that did not fit into a block of `capacity` bytes.
    fn note(&self, size: usize, capacity: usize) {
        let (size, capacity) = (size.max(1) as u64, capacity as u64);
        let count = self.count.get() + (capacity / size).max(1);
        let sum = self.sum.get().saturating_add(capacity.max(size));
        let shift = if count >= Requests::MANY { 2 } else { 0 };
        self.count.set((count >> shift).max(1));
        self.sum.set(sum >> shift);
    }

    fn mean(&self) -> usize {
        usize::try_from(self.sum.get() / self.count.get().max(1)).unwrap_or(usize::MAX)
    }
}

impl<S: Source, P: StackPolicy> Stack<S, P> {
    pub(super) fn cold(&self) -> Option<&Cold> {
        // SAFETY: the pointer is NULL, or was written with the first block, which stays until the
        // stack is destroyed.
        unsafe { self.cold.get().as_ref() }
    }

    /// Returns the current block.
    pub(super) fn current(&self) -> Option<&StackBlockHeader> {
        let cold = self.cold()?;
        let current = match self.is_guarded() {
            true => self.last_guard().map_or(cold.first, |guard| guard.block),
            false => NonNull::new(self.block.get())?,
        };
        // SAFETY: a stack with cold fields has a current block, and every block has a header.
        Some(unsafe { current.as_ref() })
    }

    /// Iterates over the list, from the first block to the last.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &StackBlockHeader> {
        // SAFETY: the first block has a header, and stays until the stack is destroyed.
        let first = self.cold().map(|cold| unsafe { cold.first.as_ref() });
        core::iter::successors(first, |block| block.next())
    }

    /// Enters a block into which `layout` fits, a free one or a new one, and inserts it behind the
    /// current block.
    pub(super) fn enter_block_for(&self, layout: Layout) -> Option<&StackBlockHeader> {
        let block = match self.current() {
            None => self.first_block(layout)?,
            Some(current) => {
                if let Some(cold) = self.cold() {
                    watch::slow(&cold.pool);
                    cold.requests.note(layout.size(), current.capacity());
                }
                let found = self.free_block_for(layout, current);
                let block = current.insert(found.or_else(|| self.new_block(layout))?);
                block.before.set(self.tell(layout.size()));
                block
            }
        };
        self.enter(block);
        Some(block)
    }

    /// Makes sure that `layout` fits into the current block or into the block behind it.
    pub(super) fn make_room(&self, layout: Layout) -> bool {
        let Some(current) = self.current() else {
            // With canaries, the fields of the stack are set by its first allocation.
            let first = self.first_block(layout);
            first.filter(|_| !self.is_guarded()).inspect(|first| self.enter(first));
            return first.is_some();
        };
        let is_empty = self.next.get().is_null();
        let next = if is_empty { current.begin() } else { self.next.get() };
        if current.end().addr() - next.addr() > layout.size() {
            return true;
        }
        let found = self.free_block_for(layout, current).or_else(|| self.new_block(layout));
        found.inspect(|block| _ = current.insert(*block)).is_some()
    }

    /// Reports the change of the live bytes since the last report to the statistics: an increase as
    /// requests of about `size` bytes, a decrease as returned bytes. Returns the live bytes. Bytes
    /// that were allocated and freed between two reports are not counted. A stack with canaries
    /// counts each request instead: then this function does nothing and returns 0.
    fn tell(&self, size: usize) -> usize {
        let (Some(cold), Some(current)) = (self.cold(), self.current()) else { return 0 };
        if self.is_guarded() {
            return 0;
        }
        let live = current.before.get() + (self.next.get().addr() - current.begin().addr());
        let told = cold.told.replace(live);
        let (requested, returned) = (live.saturating_sub(told), told.saturating_sub(live));
        let requests = requested / size.max(1);
        watch::progress(&cold.pool, PoolProgress { requests, requested, returned, size });
        live
    }

    fn enter(&self, block: &StackBlockHeader) {
        self.next.set(block.begin());
        self.end.set(block.end());
        self.block.set(block.place().as_ptr());
        self.note_block();
    }

    /// Removes the first free block that is large enough from the list, and returns it.
    fn free_block_for(
        &self,
        layout: Layout,
        current: &StackBlockHeader,
    ) -> Option<NonNull<StackBlockHeader>> {
        let mut before = current;
        loop {
            match before.next()? {
                free if free.fits(layout) => return before.take_next(),
                _ if P::GREEDY => {
                    before.take_next().into_iter().for_each(|free| self.give_back(free))
                }
                free => before = free,
            }
        }
    }

    /// Takes a new block into which `layout` fits.
    fn new_block(&self, layout: Layout) -> Option<NonNull<StackBlockHeader>> {
        let cold = self.cold()?;
        Some(cold.adopt(self.allocate_block(layout, 0)?))
    }

    /// Takes a block of the source with space for `layout`, and for `more` bytes before it.
    fn allocate_block(&self, layout: Layout, more: usize) -> Option<SourceBlock> {
        let overhead = size_of::<StackBlockHeader>() + more + layout.align() + 2 * ALIGN;
        let needed = layout.size().checked_add(overhead)?;
        let room = self.mean().saturating_mul(REQUESTS).saturating_add(overhead);
        let usual = if P::SIZED { room.max(self.held() / PART) } else { 0 };
        let wanted = usual.max(SMALLEST).max(needed);
        // If the source has less than the wanted size, smaller sizes are tried.
        let smaller = |size: &usize| (*size > needed).then(|| (size / 2).max(needed));
        let mut sizes = core::iter::successors(Some(wanted), smaller);
        sizes.find_map(|size| self.source.take(Layout::from_size_align(size, ALIGN).ok()?))
    }

    /// Mean size of requests in bytes; 0 without a request.
    fn mean(&self) -> usize {
        self.cold().map_or(0, |cold| cold.requests.mean())
    }

    /// Takes the first block of the stack, and stores the cold fields in it.
    fn first_block(&self, layout: Layout) -> Option<&StackBlockHeader> {
        let block = self.allocate_block(layout, size_of::<Cold>())?;
        P::begins();
        let cold = Cold::new(block);
        let header = cold.adopt(block);
        // SAFETY: the header was written, and no other reference to it exists.
        let header = unsafe { header.as_ref() };
        let place = header.begin.get().cast::<Cold>();
        watch::ours(place.cast(), size_of::<Cold>());
        // SAFETY: the requested size includes the cold fields, and the end of a header has their
        // alignment.
        unsafe { place.write(cold) };
        // SAFETY: the cold fields are inside the block, so the address after them is inside or at
        // its end.
        header.begin.set(unsafe { place.add(1) }.cast());
        self.cold.set(place.as_ptr());
        Some(header)
    }

    /// Returns a block to the source. Requires that the block is in no list.
    pub(super) fn give_back(&self, block: NonNull<StackBlockHeader>) {
        if let Some(cold) = self.cold() {
            let size = self.give_back_of(block, &cold.pool);
            cold.held.set(cold.held.get() - size);
        }
    }

    /// As [`Stack::give_back`], and returns the size of the block in bytes.
    fn give_back_of(&self, block: NonNull<StackBlockHeader>, pool: &watch::WatchedPool) -> usize {
        // SAFETY: a block that was in the list has a header.
        let header = unsafe { block.as_ref() };
        let given = SourceBlock { start: header.place, size: header.size, zeroed: false };
        watch::given_back(pool, given);
        // SAFETY: the block came from this source and is in no list. No mark points to it, since it
        // was free or the stack is being destroyed.
        unsafe { self.source.give_back(given) };
        given.size
    }

    #[cold]
    #[inline(never)]
    pub(super) fn rewind_slow(&self, mark: Mark) {
        if self.is_guarded() {
            return self.rewind_guarded(mark);
        }
        let size = self.mean();
        self.tell(size);
        // SAFETY: the pointer is NULL, or the block that was current when the mark was made. That
        // block has not become free since.
        match unsafe { mark.block.as_ref() } {
            None => self.blocks().take(1).for_each(|first| self.enter(first)),
            Some(marked) => self.leave_for(marked, mark.next),
        }
        self.tell(size);
    }

    /// Returns from a later block to the block of a mark. If that block has little space left,
    /// returns to the block behind it instead.
    fn leave_for(&self, marked: &StackBlockHeader, next: *mut u8) {
        let room = marked.end().addr() - next.addr();
        match marked.next() {
            Some(behind) if P::FOLLOW && room < marked.capacity() / FOLLOWED => self.enter(behind),
            _ => {
                self.enter(marked);
                self.next.set(next);
            }
        }
    }

    /// Returns all blocks to the source. The stack is then as it was when it was created.
    pub(super) fn destroy(&self) {
        let Some(cold) = NonNull::new(self.cold.get()) else { return };
        let intact = self.all_intact();
        // SAFETY: the pointer is not NULL, so the fields were written with the first block, which
        // still exists.
        let first = unsafe { cold.as_ref() }.first;
        // SAFETY: the first block has a header, which is initialized.
        let header = unsafe { first.as_ref() };
        while let Some(block) = header.take_next() {
            self.give_back(block);
        }
        // SAFETY: the fields are initialized. They are read for the last time, since the stack
        // gives up their memory here.
        let pool = unsafe { cold.read() }.pool;
        self.cold.set(ptr::null_mut());
        self.next.set(ptr::null_mut());
        self.end.set(ptr::null_mut());
        self.block.set(ptr::null_mut());
        self.give_back_of(first, &pool);
        watch::destroyed(&pool);
        report(intact);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates blocks of 64 KiB that are filled with requests of these sizes, records the
    /// requests that do not fit, as a stack does, and returns the estimated mean size.
    fn noted(sizes: impl Iterator<Item = usize>) -> usize {
        let (requests, mut left) = (Requests::default(), SMALLEST);
        for size in sizes {
            if size > left {
                requests.note(size, SMALLEST);
                left = SMALLEST.max(size);
            }
            left -= size;
        }
        requests.mean()
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes long")]
    fn the_mean_of_all_requests_is_known_from_those_that_do_not_fit() {
        assert_eq!(noted((0..100_000).map(|_| 100)), 100);
        // Uniformly distributed sizes from 8 to 1007, whose mean is 507.
        let any =
            (0..1_000_000_u64).map(|n| 8 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 1000);
        let mean = noted(any.map(|size| usize::try_from(size).unwrap()));
        assert!((480..535).contains(&mean), "{mean}");
    }

    #[test]
    fn old_requests_are_forgotten() {
        let requests = Requests::default();
        (0..10_000).for_each(|_| requests.note(8, SMALLEST));
        assert_eq!(requests.mean(), 8);
        (0..1000).for_each(|_| requests.note(SMALLEST, SMALLEST));
        (0..200_000).for_each(|_| requests.note(SMALLEST, SMALLEST));
        assert!(requests.mean() > SMALLEST / 2, "{}", requests.mean());
    }
}

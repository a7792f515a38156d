//! The slow paths of a stack: choice of the next block, size of a new one, and popping over blocks.
//!
//! ```text
//!  ┌────────┬──────┬──────────────────────────────┬─┐
//!  │ header │ Cold │ allocations                  │ │   Cold in the first block only, which is released last
//!  └────────┴──────┴──────────────────────────────┴─┘
//!  ^ block         ^ begin                        ^ end: no allocation reaches it
//! ```
//!
//! Blocks in use are in the order of their use, from the first to the current one, and keep this
//! order: marks point to them. Free blocks may change their order: a chosen one is moved behind the
//! current one.

use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::{self, NonNull};

use super::canary::report;
use super::policy::{FOLLOWED, PART, REQUESTS, SMALLEST};
use super::{Mark, Stack, StackPolicy};
use crate::source::{Source, SourceBlock};
use crate::watch::{self, PoolProgress};

/// Alignment of every block and its end: an allocation with at most this alignment begins at or
/// before `end`.
pub(super) const ALIGN: usize = 16;

/// Header of a block.
#[repr(C, align(16))]
#[derive(Debug)]
pub(super) struct StackBlockHeader {
    next: Cell<Option<NonNull<StackBlockHeader>>>,
    begin: Cell<NonNull<u8>>,
    end: NonNull<u8>,
    /// Block that the source provided.
    place: NonNull<u8>,
    size: usize,
    /// Bytes that were live when the stack entered this block.
    before: Cell<usize>,
}

impl StackBlockHeader {
    /// Makes a block of the list: nothing is in it.
    fn new(block: SourceBlock) -> NonNull<StackBlockHeader> {
        let header = block.start.cast::<StackBlockHeader>();
        // SAFETY: every block that is asked for has room for a header.
        let begin = unsafe { header.add(1) }.cast();
        // SAFETY: at most the size of the block.
        let end = unsafe { block.start.add(block.size & !(ALIGN - 1)) };
        let (next, begin, before) = (Cell::new(None), Cell::new(begin), Cell::new(0));
        let (place, size) = (block.start, block.size);
        // SAFETY: the block is large enough for a header, and has its alignment, which was
        // requested.
        unsafe { header.write(StackBlockHeader { next, begin, end, place, size, before }) };
        header
    }

    /// Address as a pointer to the whole block.
    pub(super) fn place(&self) -> NonNull<StackBlockHeader> {
        self.place.cast()
    }

    /// Address of its first allocation.
    pub(super) fn begin(&self) -> *mut u8 {
        self.begin.get().as_ptr()
    }

    pub(super) fn end(&self) -> *mut u8 {
        self.end.as_ptr()
    }

    /// Bytes that the source gave.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Bytes for allocations.
    fn capacity(&self) -> usize {
        self.end().addr() - self.begin().addr()
    }

    pub(super) fn fits(&self, layout: Layout) -> bool {
        let start = self.begin().addr().wrapping_add(layout.align() - 1) & !(layout.align() - 1);
        start.wrapping_add(layout.size()) < self.end().addr()
    }

    /// True if `next` and `end` of a stack may have these values in this block.
    pub(super) fn holds(&self, next: *mut u8, end: *mut u8) -> bool {
        self.begin() <= next && next <= end && end <= self.end() && next < self.end()
    }

    /// The block behind this one.
    pub(super) fn next(&self) -> Option<&StackBlockHeader> {
        // SAFETY: a block in the list has a header, and stays until it leaves the list.
        self.next.get().map(|next| unsafe { next.as_ref() })
    }

    /// Takes the next block out of the list.
    pub(super) fn take_next(&self) -> Option<NonNull<StackBlockHeader>> {
        let taken = self.next.get()?;
        self.next.set(self.next()?.next.get());
        Some(taken)
    }

    /// Puts a block into the list behind this one.
    fn insert(&self, block: NonNull<StackBlockHeader>) -> &StackBlockHeader {
        // SAFETY: it has a header, and no other code knows it.
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
    /// Bytes that the stack has of its source now, and that it ever took.
    pub(super) held: Cell<usize>,
    pub(super) taken: Cell<u64>,
    /// Live bytes at the last report.
    told: Cell<usize>,
    pub(super) pool: watch::WatchedPool,
}

impl Cold {
    /// Those of a stack whose first block this is.
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

    /// Counts a block that was taken, and gives it a header.
    fn adopt(&self, block: SourceBlock) -> NonNull<StackBlockHeader> {
        self.held.set(self.held.get() + block.size);
        self.taken.set(self.taken.get() + block.size as u64);
        watch::taken(&self.pool, block);
        watch::ours(block.start, size_of::<StackBlockHeader>());
        StackBlockHeader::new(block)
    }
}

/// Sizes of requests. Counting each would slow the fast path down, and is not needed: the request
/// that crosses the end of a block represents all requests in it. The probability that a request
/// does so grows with its size; dividing the block by the size compensates this, and the mean is
/// that of all requests.
#[derive(Debug, Default)]
struct Requests {
    sum: Cell<u64>,
    count: Cell<u64>,
}

impl Requests {
    /// Number of requests at which both sums are quartered, so that old requests are forgotten.
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
        // SAFETY: NULL, or written with the first block, which stays until the stack is destroyed.
        unsafe { self.cold.get().as_ref() }
    }

    /// The block that the stack is in.
    pub(super) fn current(&self) -> Option<&StackBlockHeader> {
        let cold = self.cold()?;
        let current = match self.is_guarded() {
            true => self.last_guard().map_or(cold.first, |guard| guard.block),
            false => NonNull::new(self.block.get())?,
        };
        // SAFETY: a stack with cold fields has blocks, and the current one has a header as all
        // have.
        Some(unsafe { current.as_ref() })
    }

    /// The list, from the first block to the last.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &StackBlockHeader> {
        // SAFETY: the first block has a header, and stays until the stack is destroyed.
        let first = self.cold().map(|cold| unsafe { cold.first.as_ref() });
        core::iter::successors(first, |block| block.next())
    }

    /// Continues in a block behind the current one into which `layout` fits: a free one, or a new
    /// one.
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

    /// Makes sure that `layout` fits into the next block, unless the rest of the current one is as
    /// large.
    pub(super) fn make_room(&self, layout: Layout) -> bool {
        let Some(current) = self.current() else {
            // With canaries, the stack's fields are in its first block by its first canary.
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

    /// Reports the live bytes, in requests of about this size, and returns them. Bytes allocated
    /// and freed since the last report are not seen, unless the stack has canaries: then each
    /// request is counted, and this does nothing.
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

    /// Takes the first free block that is large enough out of the list.
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

    /// A new block with room for `layout`.
    fn new_block(&self, layout: Layout) -> Option<NonNull<StackBlockHeader>> {
        let cold = self.cold()?;
        Some(cold.adopt(self.allocate_block(layout, 0)?))
    }

    /// Takes memory of the source, with room for `layout`, and for `more` before it.
    fn allocate_block(&self, layout: Layout, more: usize) -> Option<SourceBlock> {
        let overhead = size_of::<StackBlockHeader>() + more + layout.align() + 2 * ALIGN;
        let needed = layout.size().checked_add(overhead)?;
        let room = self.mean().saturating_mul(REQUESTS).saturating_add(overhead);
        let usual = if P::SIZED { room.max(self.held() / PART) } else { 0 };
        let wanted = usual.max(SMALLEST).max(needed);
        // A source that is nearly empty may have less than is wanted.
        let smaller = |size: &usize| (*size > needed).then(|| (size / 2).max(needed));
        let mut sizes = core::iter::successors(Some(wanted), smaller);
        sizes.find_map(|size| self.source.take(Layout::from_size_align(size, ALIGN).ok()?))
    }

    /// The mean size of requests.
    fn mean(&self) -> usize {
        self.cold().map_or(0, |cold| cold.requests.mean())
    }

    /// Takes the first block of the stack, and puts the cold fields into it.
    fn first_block(&self, layout: Layout) -> Option<&StackBlockHeader> {
        let block = self.allocate_block(layout, size_of::<Cold>())?;
        P::begins();
        let cold = Cold::new(block);
        let header = cold.adopt(block);
        // SAFETY: it was written, and no other code knows the block.
        let header = unsafe { header.as_ref() };
        let place = header.begin.get().cast::<Cold>();
        watch::ours(place.cast(), size_of::<Cold>());
        // SAFETY: room for it was asked for; where a header ends there is its alignment.
        unsafe { place.write(cold) };
        // SAFETY: the header is inside the block, so the address after it is inside or at its end.
        header.begin.set(unsafe { place.add(1) }.cast());
        self.cold.set(place.as_ptr());
        Some(header)
    }

    /// Returns a block that is out of the list to the source.
    pub(super) fn give_back(&self, block: NonNull<StackBlockHeader>) {
        if let Some(cold) = self.cold() {
            let size = self.give_back_of(block, &cold.pool);
            cold.held.set(cold.held.get() - size);
        }
    }

    /// As [`Stack::give_back`], and returns the block's size.
    fn give_back_of(&self, block: NonNull<StackBlockHeader>, pool: &watch::WatchedPool) -> usize {
        // SAFETY: a block that was in the list has a header.
        let header = unsafe { block.as_ref() };
        let given = SourceBlock { start: header.place, size: header.size, zeroed: false };
        watch::given_back(pool, given);
        // SAFETY: it came from there; it is out of the list and no mark is in it: it was free, or
        // the stack ends.
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
        // SAFETY: NULL, or a block that was the current one when the mark was made, and is not free
        // since.
        match unsafe { mark.block.as_ref() } {
            None => self.blocks().take(1).for_each(|first| self.enter(first)),
            Some(marked) => self.leave_for(marked, mark.next),
        }
        self.tell(size);
    }

    /// Returns to the block of a mark from one behind it; or to the one after the marked block, if
    /// the marked one has little room left.
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

    /// Ends the stack: it is like a new one.
    pub(super) fn destroy(&self) {
        let Some(cold) = NonNull::new(self.cold.get()) else { return };
        let intact = self.all_intact();
        // SAFETY: not NULL, so written with the first block, which is still there.
        let first = unsafe { cold.as_ref() }.first;
        // SAFETY: the first block has a header, which is initialized.
        let header = unsafe { first.as_ref() };
        while let Some(block) = header.take_next() {
            self.give_back(block);
        }
        // SAFETY: it is initialized; no copy exists, since the stack forgets it here, together with
        // its memory.
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

    /// Fills blocks of 64 KiB with requests as they come, and notes those that do not fit, as a
    /// stack does.
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
        // Sizes from 8 to 1007, each as often as any other: 507.
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

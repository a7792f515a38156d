//! A page of a FIFO pool. The header is near the start of the page, and is found by masking the
//! address of any block in the page.
//!
//! ```text
//!  multiple of 64 KiB
//!  |     header, 64 bytes  marks, 1 KiB
//!  v     v                 v
//!  [ gap | hole_end, ...    | 0110..   | blocks, bump, bump ....... | rest ]
//!   <--->                              <-------- CAPACITY -------->
//!   0 to 15 cache lines by the page's address: headers of many pages would else fall into one set of the cache
//! ```
//!
//! Invariants:
//! - Each byte of the `CAPACITY` counts as live, or lies in exactly one hole.
//! - A hole is either recorded in the header, and grows as blocks are freed in order of age, or
//!   marked with a bit for each 8 bytes. The recorded hole and marked holes do not overlap.
//! - A single block that is larger than a page has the same header, but neither holes nor marks.

use core::cell::Cell;
use core::ops::{Deref, Range};
use core::ptr::NonNull;

use super::pool::FifoHot;
use crate::{SourceBlock, watch};

/// The size and alignment of a page in bytes.
pub(super) const PAGE: usize = 1 << 16;
/// Alignment and granularity of blocks in bytes: the size of a grain.
pub(super) const GRAIN: usize = 8;
/// Capacity of a page in bytes, for any position of its header.
pub(super) const CAPACITY: usize = PAGE - (COLORS - 1) * LINE - size_of::<FifoPage>();

const LINE: usize = 64;
const COLORS: usize = 16;
const GRAINS: usize = PAGE / GRAIN;
/// Number of words of the marks, which are a bitmap with one bit for each grain of a page.
const WORDS: u8 = 128;
const _: () = assert!(WORDS as usize == GRAINS / 64);

/// Returns a size rounded up to the granularity of blocks. A size of 0 becomes one grain, so that
/// each block has its own address.
pub(super) const fn rounded(size: usize) -> usize {
    let size = if size == 0 { 1 } else { size };
    size.saturating_add(GRAIN - 1) & !(GRAIN - 1)
}

/// The start of a page: its header and its marks.
#[repr(C, align(64))]
#[derive(Debug)]
struct FifoPage {
    header: FifoHeader,
    /// A bit for each grain of the page: 1 if the grain lies in a hole that the header does not
    /// record.
    marks: [Cell<u64>; GRAINS / 64],
}

/// Header of a page. The inline functions of the C API use its first three fields.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct FifoHeader {
    /// End address of the recorded hole; 0 for a single large block, so that no address equals it.
    hole_end: Cell<usize>,
    /// End address that the recorded hole would have if all live bytes of the page became part of
    /// it. For a single large block, the start of the block.
    empty_at: Cell<usize>,
    pub(super) pool: NonNull<FifoHot>,
    pub(super) next: Cell<Option<FifoPageRef>>,
    pub(super) previous: Cell<Option<FifoPageRef>>,
    block_start: NonNull<u8>,
    block_size: usize,
    /// Start of the recorded hole, in grains.
    hole_start: Cell<u16>,
    /// First grain of the next search for marked holes. `GRAINS` if the pool is not filling the
    /// holes of this page.
    scanned: Cell<u16>,
    /// Number of grains that statistics count as allocated and not freed.
    told: Cell<u16>,
    /// True if the memory of this page that was never allocated is zero-filled.
    pub(super) zeroed: Cell<bool>,
    /// Index of the first word of [`FifoPage::marks`] that may differ from 0.
    marked: Cell<u8>,
}

const _: () = assert!(size_of::<FifoPage>() == LINE + GRAINS / 8 && GRAINS <= u16::MAX as usize);
const _: () = assert!(core::mem::offset_of!(FifoPage, marks) == LINE);
// `struct pw_fifo_page_` of `pagewise/fifo.h` declares the same offsets.
const _: () = assert!(core::mem::offset_of!(FifoHeader, empty_at) == 8);
const _: () = assert!(core::mem::offset_of!(FifoHeader, pool) == 16);
const _: () = assert!(CAPACITY == 62 << 10);

/// Reference to the start of a page that its pool has not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FifoPageRef(NonNull<FifoPage>);

impl Deref for FifoPageRef {
    type Target = FifoHeader;

    #[inline(always)]
    fn deref(&self) -> &FifoHeader {
        // SAFETY: the header was written when the page was created, and a pool drops all references
        // to a page when it releases the page.
        unsafe { self.0.cast().as_ref() }
    }
}

impl FifoPageRef {
    /// Writes the header of the page that contains the byte before `data`. `block` is the block of
    /// the source in which the page lies.
    ///
    /// # Safety
    /// No other code uses `block`, and it contains the header of this page.
    pub(super) unsafe fn create(
        block: SourceBlock,
        data: NonNull<u8>,
        pool: NonNull<FifoHot>,
        alone: bool,
    ) -> FifoPageRef {
        let page = header_of(block.start.with_addr(data.addr()));
        let header = FifoHeader {
            hole_end: Cell::new(0),
            empty_at: Cell::new(0),
            pool,
            next: Cell::new(None),
            previous: Cell::new(None),
            block_start: block.start,
            block_size: block.size,
            hole_start: Cell::new(0),
            scanned: Cell::new(0),
            told: Cell::new(0),
            zeroed: Cell::new(block.zeroed),
            marked: Cell::new(if block.zeroed { WORDS } else { 0 }),
        };
        watch::ours(page.cast(), size_of::<FifoPage>());
        // SAFETY: the caller promises that the header lies in the block; its address is a multiple
        // of its alignment.
        unsafe { page.cast::<FifoHeader>().write(header) };
        let page = FifoPageRef(page);
        if alone {
            page.empty_at.set(data.addr().get());
        } else {
            page.forget_holes();
        }
        page
    }

    /// Returns the page of a block.
    ///
    /// # Safety
    /// `block` is the address of a live block of a FIFO pool.
    #[inline(always)]
    pub(super) unsafe fn containing(block: NonNull<u8>) -> FifoPageRef {
        FifoPageRef(header_of(block))
    }

    /// True if an address lies in the block of the source that contains this page.
    pub(super) fn holds(self, block: NonNull<u8>) -> bool {
        let start = self.block_start.addr().get();
        (start..start + self.block_size).contains(&block.addr().get())
    }

    /// Returns the address of the first byte for blocks.
    pub(super) fn data(self) -> usize {
        self.0.addr().get() + size_of::<FifoPage>()
    }

    /// Returns the pointer to an address in the page.
    pub(super) fn at(self, address: usize) -> *mut u8 {
        self.0.cast::<u8>().as_ptr().with_addr(address)
    }

    /// Returns the header, which is valid until the pool releases the page.
    pub(super) fn header<'a>(self) -> &'a FifoHeader {
        // SAFETY: the header lives as long as its page, and callers do not keep the reference
        // longer.
        unsafe { self.0.cast().as_ref() }
    }

    /// Returns the marks of the page ([`FifoPage::marks`]): a bit for each grain, which is 1 in
    /// free ranges that the header does not record. Requires that the page is not a single large
    /// block.
    fn marks(&self) -> &[Cell<u64>; GRAINS / 64] {
        // SAFETY: the marks follow the header inside the page.
        let marks = unsafe { &raw const (*self.0.as_ptr()).marks };
        // SAFETY: every bit pattern is a valid number, and the page outlives this borrow.
        unsafe { &*marks }
    }

    /// True if this is a single block larger than a page.
    pub(super) fn is_alone(self) -> bool {
        self.hole_end.get() == 0
    }

    /// Number of bytes that count as live: in live blocks, and in free space that the pool may
    /// still allocate.
    pub(super) fn live(self) -> usize {
        self.empty_at.get() - self.hole_end.get()
    }

    /// Extends the recorded hole over a block of `last + 1` bytes, if the hole ends where the block
    /// begins and other bytes of the page are live. Returns true if the hole was extended.
    #[inline(always)]
    pub(super) fn extend_hole(self, block: NonNull<u8>, last: usize) -> bool {
        let start = block.addr().get();
        let end = start.wrapping_add(last).wrapping_add(1);
        let is_next = start == self.hole_end.get() && end != self.empty_at.get();
        if is_next {
            self.hole_end.set(end);
        }
        is_next
    }

    /// Resizes a block in place, if it shrinks or if it is a single large block with enough space.
    /// Returns true if the block was resized.
    pub(super) fn resize(self, block: NonNull<u8>, was: usize, now: usize) -> bool {
        let start = block.addr().get();
        if self.is_alone() {
            return start.saturating_add(now) <= self.block_start.addr().get() + self.block_size;
        }
        if now < was {
            self.retire(start + now..start + was);
        }
        now <= was
    }

    /// Adds a number of allocated bytes to the statistics of the page.
    pub(super) fn handed_out(self, bytes: usize) {
        self.told.set(self.told.get() + short(bytes / GRAIN));
    }

    /// Subtracts freed bytes from the statistics of the page: at most `most`, and at most as many
    /// as were allocated. Returns the number of subtracted bytes.
    pub(super) fn came_back(self, most: usize) -> usize {
        let bytes = most.min(usize::from(self.told.get()) * GRAIN);
        self.told.set(self.told.get() - short(bytes / GRAIN));
        bytes
    }

    /// Records that no byte of the page is live any more.
    pub(super) fn die(self) {
        self.empty_at.set(self.hole_end.get());
    }

    /// Size of a single large block in bytes.
    pub(super) fn own_size(self) -> usize {
        self.block_start.addr().get() + self.block_size - self.empty_at.get()
    }

    /// Returns the block of the source that contains this page.
    pub(super) fn block(self) -> SourceBlock {
        SourceBlock { start: self.block_start, size: self.block_size, zeroed: false }
    }

    /// Resets an empty page to a page without holes. Its memory does not count as zero-filled any
    /// more.
    pub(super) fn reset(self) {
        debug_assert_eq!(self.live(), 0, "blocks are alive here");
        self.zeroed.set(false);
        self.forget_holes();
    }

    /// Counts the whole page as live, and returns its address range, which the pool may allocate.
    pub(super) fn take_all(self) -> Range<usize> {
        self.empty_at.set(self.data() + CAPACITY);
        self.data()..self.data() + CAPACITY
    }

    /// Counts a marked hole of at least `need` bytes as live, and returns its address range, which
    /// the pool may allocate.
    pub(super) fn take_hole(self, need: usize) -> Option<Range<usize>> {
        let mut from = self.scanned.get().into();
        while let Some(start) = self.find(from, true) {
            let end = self.find(start, false).unwrap_or(GRAINS);
            self.scanned.set(short(end));
            if (end - start) * GRAIN >= need {
                self.mark(start..end, false);
                self.empty_at.set(self.empty_at.get() + (end - start) * GRAIN);
                self.zeroed.set(false);
                return Some(self.address(start)..self.address(end));
            }
            from = end;
        }
        self.scanned.set(short(GRAINS));
        None
    }

    /// Converts the recorded hole to a marked one, and makes [`FifoPageRef::take_hole`] search all
    /// holes of the page from its start.
    pub(super) fn look_again(self) {
        self.note(self.data()..self.data(), self.live());
        self.scanned.set(0);
    }

    /// Turns a range that counts as live into a hole.
    pub(super) fn retire(self, dead: Range<usize>) {
        debug_assert!(!self.is_hole(&dead), "a block was freed twice");
        if dead.start == self.hole_end.get() {
            self.hole_end.set(dead.end);
        } else {
            self.retire_rest(dead);
        }
        self.absorb();
    }

    /// If a marked hole begins at the end of the recorded hole, extends the recorded hole over it,
    /// so that frees in order of age take the fast path again. Does nothing while the pool is
    /// filling the marked holes of this page.
    fn absorb(self) {
        let end = usize::from(self.grain(self.hole_end.get()));
        let is_marked = |grain: usize| {
            self.marks().get(grain / 64).is_some_and(|word| word.get() >> (grain % 64) & 1 == 1)
        };
        if !is_marked(end)
            || usize::from(self.scanned.get()) < GRAINS
            || self.hole_end.get() == self.hole_start()
        {
            return;
        }
        let marked = end..self.find(end, false).unwrap_or(GRAINS);
        let bytes = marked.len() * GRAIN;
        self.mark(marked, false);
        self.hole_end.set(self.hole_end.get() + bytes);
        self.empty_at.set(self.empty_at.get() + bytes);
    }

    /// As [`FifoPageRef::retire`], but only marks the range and leaves the recorded hole unchanged.
    pub(super) fn retire_rest(self, rest: Range<usize>) {
        self.empty_at.set(self.empty_at.get() - rest.len());
        self.mark(self.grains(&rest), true);
    }

    /// Number of bytes in holes.
    pub(super) fn holes(self) -> usize {
        let marked: u32 = self.marks().iter().map(|word| word.get().count_ones()).sum();
        marked as usize * GRAIN + self.hole_end.get() - self.hole_start()
    }

    /// True if at least one byte of a range lies in a hole.
    pub(super) fn is_hole(self, range: &Range<usize>) -> bool {
        let mut found = range.start < self.hole_end.get() && range.end > self.hole_start();
        each_word(self.grains(range), |word, bits| found |= self.marks()[word].get() & bits != 0);
        found
    }

    fn forget_holes(self) {
        let marked = self.marks().iter().skip(self.marked.replace(WORDS).into());
        marked.for_each(|word| word.set(0));
        self.hole_start.set(self.grain(self.data()));
        self.hole_end.set(self.data());
        self.empty_at.set(self.data());
        self.scanned.set(short(GRAINS));
    }

    fn hole_start(self) -> usize {
        self.address(self.hole_start.get().into())
    }

    /// Converts the recorded hole to a marked one, and records `hole` instead. `live` is the number
    /// of live bytes in the page.
    fn note(self, hole: Range<usize>, live: usize) {
        self.mark(self.grains(&(self.hole_start()..self.hole_end.get())), true);
        self.hole_start.set(self.grain(hole.start));
        self.hole_end.set(hole.end);
        self.empty_at.set(hole.end + live);
    }

    /// Sets the marks of grains if `hole` is true, and clears them otherwise.
    fn mark(self, grains: Range<usize>, hole: bool) {
        if hole && !grains.is_empty() {
            self.marked.set(self.marked.get().min(word_of(grains.start)));
        }
        each_word(grains, |word, bits| {
            let old = self.marks()[word].get();
            self.marks()[word].set(if hole { old | bits } else { old & !bits });
        });
    }

    /// Returns the first grain, from `from` on, that is marked (`marked` is true) or not marked
    /// (false).
    fn find(self, from: usize, marked: bool) -> Option<usize> {
        let flip = if marked { 0 } else { u64::MAX };
        let mut above = u64::MAX << (from % 64);
        for (word, mark) in self.marks().iter().enumerate().skip(from / 64) {
            let bits = (mark.get() ^ flip) & above;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            above = u64::MAX;
        }
        None
    }

    fn address(self, grain: usize) -> usize {
        (self.0.addr().get() & !(PAGE - 1)) + grain * GRAIN
    }

    fn grain(self, address: usize) -> u16 {
        short((address - self.address(0)) / GRAIN)
    }

    fn grains(self, range: &Range<usize>) -> Range<usize> {
        (range.start - self.address(0)) / GRAIN..(range.end - self.address(0)) / GRAIN
    }
}

/// Converts a number of grains in a page to `u16`.
#[expect(clippy::cast_possible_truncation, reason = "a page has fewer than 2^16 grains")]
const fn short(grain: usize) -> u16 {
    grain as u16
}

/// Returns the index of the word of the marks that contains the bit of a grain.
#[expect(clippy::cast_possible_truncation, reason = "a page has 128 words of marks")]
const fn word_of(grain: usize) -> u8 {
    (grain / 64) as u8
}

/// Calls `each` with the index of every word of the marks that contains bits of a range of grains,
/// and with these bits.
fn each_word(range: Range<usize>, mut each: impl FnMut(usize, u64)) {
    let mut from = range.start;
    while from < range.end {
        let (word, low) = (from / 64, from % 64);
        let bits = (range.end - from).min(64 - low);
        each(word, (u64::MAX >> (64 - bits)) << low);
        from += bits;
    }
}

/// Returns the address of the header of a block's page. A block that begins at the end of a page
/// belongs to that page, not to the next one.
#[inline(always)]
fn header_of(block: NonNull<u8>) -> NonNull<FifoPage> {
    let base = (block.addr().get() - 1) & !(PAGE - 1);
    let header = base + ((base / PAGE) % COLORS) * LINE;
    let header = block.as_ptr().with_addr(header).cast::<FifoPage>();
    // SAFETY: no page begins at address 0, where nothing is mapped.
    unsafe { NonNull::new_unchecked(header) }
}

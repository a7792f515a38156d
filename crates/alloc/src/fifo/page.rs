//! A page of a FIFO pool. Its header is near its start: masking the address of any block in the
//! page leads to it.
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
//! - Each byte of the `CAPACITY` is either counted as live or lies in exactly one hole.
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
/// Alignment and granularity of blocks in bytes.
pub(super) const GRAIN: usize = 8;
/// Capacity of a page in bytes, for any position of its header.
pub(super) const CAPACITY: usize = PAGE - (COLORS - 1) * LINE - size_of::<FifoPage>();

const LINE: usize = 64;
const COLORS: usize = 16;
const GRAINS: usize = PAGE / GRAIN;
/// Words of the marks.
const WORDS: u8 = 128;
const _: () = assert!(WORDS as usize == GRAINS / 64);

/// A size rounded up to the granularity of blocks. A size of 0 becomes one grain, so that each
/// block has its own address.
pub(super) const fn rounded(size: usize) -> usize {
    let size = if size == 0 { 1 } else { size };
    size.saturating_add(GRAIN - 1) & !(GRAIN - 1)
}

/// The start of a page: its header and its marks.
#[repr(C, align(64))]
#[derive(Debug)]
struct FifoPage {
    header: FifoHeader,
    marks: [Cell<u64>; GRAINS / 64],
}

/// The header of a page. C knows its first three fields.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct FifoHeader {
    /// End address of the recorded hole; 0 for a page with a single large block, in which no other
    /// block begins.
    hole_end: Cell<usize>,
    /// End address that the recorded hole would have if all live bytes were freed. A single large
    /// block begins here.
    empty_at: Cell<usize>,
    pub(super) pool: NonNull<FifoHot>,
    pub(super) next: Cell<Option<FifoPageRef>>,
    pub(super) previous: Cell<Option<FifoPageRef>>,
    block_start: NonNull<u8>,
    block_size: usize,
    /// Start of the recorded hole, in grains.
    hole_start: Cell<u16>,
    /// First grain of the next search for marked holes; `GRAINS` if the holes of this page are not
    /// being filled.
    scanned: Cell<u16>,
    /// Grains that statistics count as allocated and not as freed.
    told: Cell<u16>,
    /// True if memory of this page that was never allocated is zero.
    pub(super) zeroed: Cell<bool>,
    /// First word of the marks that may not be 0.
    marked: Cell<u8>,
}

const _: () = assert!(size_of::<FifoPage>() == LINE + GRAINS / 8 && GRAINS <= u16::MAX as usize);
const _: () = assert!(core::mem::offset_of!(FifoPage, marks) == LINE);
// As `struct pw_fifo_page_` declares them.
const _: () = assert!(core::mem::offset_of!(FifoHeader, empty_at) == 8);
const _: () = assert!(core::mem::offset_of!(FifoHeader, pool) == 16);
const _: () = assert!(CAPACITY == 62 << 10);

/// A page that its pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FifoPageRef(NonNull<FifoPage>);

impl Deref for FifoPageRef {
    type Target = FifoHeader;

    #[inline(always)]
    fn deref(&self) -> &FifoHeader {
        // SAFETY: the header was written when the page was made, and a pool drops all references
        // with the page.
        unsafe { self.0.cast().as_ref() }
    }
}

impl FifoPageRef {
    /// Writes the header of the page that contains the byte before `data`, in a block of the
    /// source.
    ///
    /// # Safety
    /// No other code uses `block`, and the header of that page lies in it.
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
        // SAFETY: the header lies in the block, as the caller promises, at a multiple of its
        // alignment.
        unsafe { page.cast::<FifoHeader>().write(header) };
        let page = FifoPageRef(page);
        if alone {
            page.empty_at.set(data.addr().get());
        } else {
            page.forget_holes();
        }
        page
    }

    /// The page of a block.
    ///
    /// # Safety
    /// `block` is a live block of a FIFO pool, as it was handed out.
    #[inline(always)]
    pub(super) unsafe fn containing(block: NonNull<u8>) -> FifoPageRef {
        FifoPageRef(header_of(block))
    }

    /// True if an address lies in it.
    pub(super) fn holds(self, block: NonNull<u8>) -> bool {
        let start = self.block_start.addr().get();
        (start..start + self.block_size).contains(&block.addr().get())
    }

    /// Address of the first block.
    pub(super) fn data(self) -> usize {
        self.0.addr().get() + size_of::<FifoPage>()
    }

    /// Pointer to an address in the page.
    pub(super) fn at(self, address: usize) -> *mut u8 {
        self.0.cast::<u8>().as_ptr().with_addr(address)
    }

    /// The header, for as long as the pool holds the page.
    pub(super) fn header<'a>(self) -> &'a FifoHeader {
        // SAFETY: the header lives as long as its page; callers do not keep the reference longer.
        unsafe { self.0.cast().as_ref() }
    }

    /// The marks. The page is not a single large block.
    fn marks(&self) -> &[Cell<u64>; GRAINS / 64] {
        // SAFETY: the marks lie behind the header, and are in the page.
        let marks = unsafe { &raw const (*self.0.as_ptr()).marks };
        // SAFETY: every bit pattern is a number; the page lives longer than this borrow.
        unsafe { &*marks }
    }

    /// True for a single block larger than a page.
    pub(super) fn is_alone(self) -> bool {
        self.hole_end.get() == 0
    }

    /// Bytes that count as live: live blocks, and free space that the pool may still allocate here.
    pub(super) fn live(self) -> usize {
        self.empty_at.get() - self.hole_end.get()
    }

    /// Extends the recorded hole over a block of `last + 1` bytes, if the hole ends where the block
    /// begins and other bytes of the page are live. Returns true if it did.
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

    /// Resizes a block in place, if possible.
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

    /// For statistics: adds bytes that were allocated here.
    pub(super) fn handed_out(self, bytes: usize) {
        self.told.set(self.told.get() + short(bytes / GRAIN));
    }

    /// For statistics: subtracts freed bytes, at most `most`; returns the number of them that were
    /// allocated.
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

    /// Block that the source provided.
    pub(super) fn block(self) -> SourceBlock {
        SourceBlock { start: self.block_start, size: self.block_size, zeroed: false }
    }

    /// Makes an empty page like a new one, except that it is not zeroed any more.
    pub(super) fn reset(self) {
        debug_assert_eq!(self.live(), 0, "blocks are alive here");
        self.zeroed.set(false);
        self.forget_holes();
    }

    /// Counts all of it as live, for the pool to hand out.
    pub(super) fn take_all(self) -> Range<usize> {
        self.empty_at.set(self.data() + CAPACITY);
        self.data()..self.data() + CAPACITY
    }

    /// Counts a marked hole of at least `need` bytes as live, for the pool to hand out.
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

    /// Makes [`FifoPageRef::take_hole`] search all holes of the page from the start: marks the
    /// recorded one too.
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

    /// Extends the recorded hole over a marked one that begins at its end, so that frees in order
    /// of age are fast again. Does nothing while the marked holes of this page are being filled.
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

    /// Bytes in holes.
    pub(super) fn holes(self) -> usize {
        let marked: u32 = self.marks().iter().map(|word| word.get().count_ones()).sum();
        marked as usize * GRAIN + self.hole_end.get() - self.hole_start()
    }

    /// True if some of a range lies in a hole.
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

    /// Marks the recorded hole, and records `hole` instead, with `live` live bytes in the page.
    fn note(self, hole: Range<usize>, live: usize) {
        self.mark(self.grains(&(self.hole_start()..self.hole_end.get())), true);
        self.hole_start.set(self.grain(hole.start));
        self.hole_end.set(hole.end);
        self.empty_at.set(hole.end + live);
    }

    /// Marks grains as a hole, or not.
    fn mark(self, grains: Range<usize>, hole: bool) {
        if hole && !grains.is_empty() {
            self.marked.set(self.marked.get().min(word_of(grains.start)));
        }
        each_word(grains, |word, bits| {
            let old = self.marks()[word].get();
            self.marks()[word].set(if hole { old | bits } else { old & !bits });
        });
    }

    /// The first grain from `from` on that is marked, or is not.
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

/// A number of grains in a page, as `u16`.
#[expect(clippy::cast_possible_truncation, reason = "a page has fewer than 2^16 grains")]
const fn short(grain: usize) -> u16 {
    grain as u16
}

/// The word of the marks in which a grain has its bit.
#[expect(clippy::cast_possible_truncation, reason = "a page has 128 words of marks")]
const fn word_of(grain: usize) -> u8 {
    (grain / 64) as u8
}

/// Calls `each` with every word of the marks that a range of grains touches, and its bits there.
fn each_word(range: Range<usize>, mut each: impl FnMut(usize, u64)) {
    let mut from = range.start;
    while from < range.end {
        let (word, low) = (from / 64, from % 64);
        let bits = (range.end - from).min(64 - low);
        each(word, (u64::MAX >> (64 - bits)) << low);
        from += bits;
    }
}

/// Address of the header of a block's page. A block that begins at the end of a page belongs to the
/// page before.
#[inline(always)]
fn header_of(block: NonNull<u8>) -> NonNull<FifoPage> {
    let base = (block.addr().get() - 1) & !(PAGE - 1);
    let header = base + ((base / PAGE) % COLORS) * LINE;
    let header = block.as_ptr().with_addr(header).cast::<FifoPage>();
    // SAFETY: no page begins at address 0, where nothing is mapped.
    unsafe { NonNull::new_unchecked(header) }
}

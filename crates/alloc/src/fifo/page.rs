//! A page of a FIFO pool: what is known of it stands at its start, found from any block in it by masking its address.
//!
//! ```text
//!  multiple of 64 KiB
//!  |     header, 64 bytes  marks, 1 KiB
//!  v     v                 v
//!  [ gap | live hole pool  | 0110..   | blocks, bump, bump ....... | rest ]
//!   <--->                              <-------- CAPACITY -------->
//!   0 to 15 cache lines by the page's address: headers of many pages would else fall into one set of the cache
//! ```
//!
//! What holds at any time:
//! - Each byte of the `CAPACITY` is either counted in `live` or lies in exactly one hole.
//! - A hole is either the one noted in the header, which grows as blocks are freed in order of age, or marked, a bit for
//!   each 8 bytes. Noted and marked holes do not overlap.
//! - A block of its own, larger than a page, has the same header, and neither holes nor marks.

use core::cell::Cell;
use core::ops::{Deref, Range};
use core::ptr::NonNull;

use super::pool::Hot;
use crate::Block;

/// The size and alignment of a page in bytes.
pub(super) const PAGE: usize = 1 << 16;
/// What sizes and addresses of blocks are multiples of, in bytes.
pub(super) const GRAIN: usize = 8;
/// What a page holds, in bytes, wherever its header lies.
pub(super) const CAPACITY: usize = PAGE - (COLOURS - 1) * LINE - size_of::<Page>();

const LINE: usize = 64;
const COLOURS: usize = 16;
const WORDS: usize = PAGE / GRAIN / 64;

/// A size as blocks have it; no block is empty, so that each has an address of its own.
pub(super) const fn rounded(size: usize) -> usize {
    let size = if size == 0 { 1 } else { size };
    size.saturating_add(GRAIN - 1) & !(GRAIN - 1)
}

/// The header of a page. C knows its first four fields.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Page {
    /// Bytes that are alive, or that the pool may still hand out here without a word.
    pub(super) live: Cell<usize>,
    /// The hole that is growing: from here, as offset in the page,
    pub(super) hole_start: Cell<u32>,
    /// to here.
    pub(super) hole_end: Cell<u32>,
    pub(super) pool: NonNull<Hot>,
    pub(super) next: Cell<Option<PageRef>>,
    pub(super) previous: Cell<Option<PageRef>>,
    block_start: NonNull<u8>,
    block_size: usize,
    /// From which offset on marked holes may still be handed out; `PAGE` where none are.
    scanned: Cell<u32>,
    /// Whether what was never handed out here is 0.
    pub(super) zeroed: Cell<bool>,
    /// Whether it is no page, but a block larger than one.
    pub(super) alone: bool,
    marks: [Cell<u64>; WORDS],
}

const _: () = assert!(size_of::<Page>() == LINE + PAGE / GRAIN / 8);
const _: () = assert!(core::mem::offset_of!(Page, marks) == LINE);
const _: () = assert!(CAPACITY == 62 << 10);

/// A page that its pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRef(NonNull<Page>);

impl Deref for PageRef {
    type Target = Page;

    #[inline(always)]
    fn deref(&self) -> &Page {
        // SAFETY: the header was written when the page was made, and a pool drops all references with the page.
        unsafe { self.0.as_ref() }
    }
}

impl PageRef {
    /// Writes the header for a block of the source whose data begin at most a page before `data`.
    ///
    /// # Safety
    /// `block` is ours, and holds a page that ends no earlier than `data`, at the multiple of `PAGE` before it.
    pub(super) unsafe fn create(
        block: Block,
        data: NonNull<u8>,
        pool: NonNull<Hot>,
        alone: bool,
    ) -> PageRef {
        let page = header_of(block.start.with_addr(data.addr()));
        let header = Page {
            live: Cell::new(0),
            hole_start: Cell::new(0),
            hole_end: Cell::new(0),
            pool,
            next: Cell::new(None),
            previous: Cell::new(None),
            block_start: block.start,
            block_size: block.size,
            scanned: Cell::new(0),
            zeroed: Cell::new(block.zeroed),
            alone,
            marks: [const { Cell::new(0) }; WORDS],
        };
        // SAFETY: the header lies in the block, as the caller promises, at a multiple of its alignment.
        unsafe { page.write(header) };
        let page = PageRef(page);
        page.forget_holes();
        page
    }

    /// The page of a block.
    ///
    /// # Safety
    /// `block` is a live block of a FIFO pool, as it was handed out.
    #[inline(always)]
    pub(super) unsafe fn of(block: NonNull<u8>) -> PageRef {
        PageRef(header_of(block))
    }

    /// Where its blocks begin.
    pub(super) fn data(self) -> NonNull<u8> {
        // SAFETY: a page has `CAPACITY` bytes behind its header, and a block of its own is larger.
        unsafe { self.0.add(1) }.cast()
    }

    /// An address in the page.
    pub(super) fn at(self, offset: u32) -> NonNull<u8> {
        self.0.cast::<u8>().map_addr(|header| base_of(header).saturating_add(offset as usize))
    }

    /// Where an address lies in the page; for a block of its own a number that means nothing.
    #[inline(always)]
    pub(super) fn offset(self, address: usize) -> u32 {
        short(address.wrapping_sub(self.0.addr().get() & !(PAGE - 1)))
    }

    /// The header, for as long as the pool holds the page.
    pub(super) fn header<'a>(self) -> &'a Page {
        // SAFETY: as for `deref`; callers keep it no longer than they could keep the page.
        unsafe { self.0.as_ref() }
    }

    /// Lets the noted hole grow over a block of `last + 1` bytes, if it ends where the block begins. Others must be alive.
    #[inline(always)]
    pub(super) fn extend_hole(self, block: NonNull<u8>, last: usize) -> bool {
        let start = self.offset(block.addr().get());
        let is_next = start == self.hole_end.get();
        if is_next {
            self.live.set(self.live.get() - last - 1);
            self.hole_end.set(start + short(last + 1));
        }
        is_next
    }

    /// Changes the size of a block in place, if that can be.
    pub(super) fn resize(self, block: NonNull<u8>, was: usize, now: usize) -> bool {
        let start = block.addr().get();
        if self.alone {
            let fits = start.saturating_add(now) <= self.block_start.addr().get() + self.block_size;
            self.live.set(if fits { now } else { was });
            return fits;
        }
        if now < was {
            self.retire(self.offset(start + now)..self.offset(start + was));
        }
        now <= was
    }

    /// What the source gave.
    pub(super) fn block(self) -> Block {
        Block { start: self.block_start, size: self.block_size, zeroed: false }
    }

    /// Forgets everything that was handed out: as new, but no longer zeroed.
    pub(super) fn reset(self) {
        debug_assert_eq!(self.live.get(), 0, "blocks are alive here");
        self.zeroed.set(false);
        self.forget_holes();
    }

    /// Counts all of it as live, for the pool to hand out.
    pub(super) fn take_all(self) -> Range<u32> {
        self.live.set(CAPACITY);
        let start = self.hole_end.get();
        start..start + short(CAPACITY)
    }

    /// Counts a marked hole of at least `need` bytes as live, for the pool to hand out.
    pub(super) fn take_hole(self, need: usize) -> Option<Range<u32>> {
        let mut from = self.scanned.get() as usize / GRAIN;
        while let Some(start) = self.find(from, true) {
            let end = self.find(start, false).unwrap_or(PAGE / GRAIN);
            self.scanned.set(short(end * GRAIN));
            if (end - start) * GRAIN >= need {
                let hole = short(start * GRAIN)..short(end * GRAIN);
                self.mark(hole.clone(), false);
                self.live.set(self.live.get() + hole.len());
                self.zeroed.set(false);
                return Some(hole);
            }
            from = end;
        }
        self.scanned.set(short(PAGE));
        None
    }

    /// Has [`PageRef::take_hole`] look at all holes that there are by now.
    pub(super) fn look_again(self) {
        self.mark_noted();
        self.scanned.set(0);
    }

    /// Notes that what was counted as live in this range is not any more.
    pub(super) fn retire(self, dead: Range<u32>) {
        debug_assert!(!self.is_hole(&dead), "a block was freed twice");
        self.live.set(self.live.get() - dead.len());
        if dead.start == self.hole_end.get() {
            self.hole_end.set(dead.end);
        } else if dead.end == self.hole_start.get() {
            self.hole_start.set(dead.start);
        } else {
            self.mark_noted();
            self.hole_start.set(dead.start);
            self.hole_end.set(dead.end);
        }
    }

    /// As [`PageRef::retire`] for what was never handed out: the noted hole goes on growing elsewhere.
    pub(super) fn retire_rest(self, rest: Range<u32>) {
        self.live.set(self.live.get() - rest.len());
        self.mark(rest, true);
    }

    /// Bytes in holes.
    pub(super) fn holes(self) -> usize {
        let marked: u32 = self.marks.iter().map(|word| word.get().count_ones()).sum();
        marked as usize * GRAIN + (self.hole_end.get() - self.hole_start.get()) as usize
    }

    fn forget_holes(self) {
        self.marks.iter().for_each(|word| word.set(0));
        let start = self.offset(self.data().addr().get());
        self.hole_start.set(start);
        self.hole_end.set(start);
        self.scanned.set(short(PAGE));
    }

    fn mark_noted(self) {
        self.mark(self.hole_start.get()..self.hole_end.get(), true);
        self.hole_start.set(0);
        self.hole_end.set(0);
    }

    /// Marks a range as a hole, or not.
    fn mark(self, range: Range<u32>, hole: bool) {
        each_word(range, |word, bits| {
            let old = self.marks[word].get();
            self.marks[word].set(if hole { old | bits } else { old & !bits });
        });
    }

    /// Whether some of a range lies in a hole.
    fn is_hole(self, range: &Range<u32>) -> bool {
        let mut found = range.start < self.hole_end.get() && range.end > self.hole_start.get();
        each_word(range.clone(), |word, bits| found |= self.marks[word].get() & bits != 0);
        found
    }

    /// The first grain from `from` on that is marked, or is not.
    fn find(self, from: usize, marked: bool) -> Option<usize> {
        let flip = if marked { 0 } else { u64::MAX };
        let mut above = u64::MAX << (from % 64);
        for (word, mark) in self.marks.iter().enumerate().skip(from / 64) {
            let bits = (mark.get() ^ flip) & above;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            above = u64::MAX;
        }
        None
    }
}

/// An offset or size in a page. For a block of its own, where nobody looks at it, it may be cut off.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a page is smaller than 2^32")]
pub(super) const fn short(offset: usize) -> u32 {
    offset as u32
}

/// Calls `each` with every word of the marks that a range of offsets touches, and its bits there.
fn each_word(range: Range<u32>, mut each: impl FnMut(usize, u64)) {
    let (mut from, end) = (range.start as usize / GRAIN, range.end as usize / GRAIN);
    while from < end {
        let (word, low) = (from / 64, from % 64);
        let bits = (end - from).min(64 - low);
        each(word, (u64::MAX >> (64 - bits)) << low);
        from += bits;
    }
}

/// The multiple of `PAGE` at or before an address.
fn base_of(address: core::num::NonZeroUsize) -> core::num::NonZeroUsize {
    core::num::NonZeroUsize::new(address.get() & !(PAGE - 1)).expect("no page begins at 0")
}

/// Where the header of a block's page lies. A block that begins where a page ends belongs to the page before.
#[inline(always)]
fn header_of(block: NonNull<u8>) -> NonNull<Page> {
    let base = (block.addr().get() - 1) & !(PAGE - 1);
    let header = base + ((base / PAGE) % COLOURS) * LINE;
    let header = block.as_ptr().with_addr(header).cast::<Page>();
    // SAFETY: no page begins at address 0, where nothing is mapped.
    unsafe { NonNull::new_unchecked(header) }
}

//! The heap, from which the front (the cache of freed blocks) takes blocks: regions of a source,
//! divided into blocks, and lists of the free blocks by size.
//!
//! ```text
//!  regions ─> ┌────────┬───────┬───────┬── ··· ──┬───────┬───┐
//!             │ Region │ block │ block │         │ block │ 0 │   one of them; the source gave it in one piece
//!             └─┬──────┴───────┴───────┴── ··· ──┴───────┴───┘
//!               └─> the region before it
//! ```
//!
//! Adjacent free blocks are always merged. The time of a function does not depend on the size of
//! the heap, unless its documentation says so.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::block::{GRANULE, LIMIT, MIN_BLOCK, TlsfBlock, WORD};
use super::guard::{self, Quarantine};
use super::lists::FreeLists;
use crate::misuse::{MemoryError, Misuse};
use crate::source::{self, Source};
use crate::watch::{self, PoolProgress};

/// Minimum size of a region, and maximum size up to which regions grow with the heap, in bytes.
const REGION: core::ops::RangeInclusive<usize> = 1 << 16..=1 << 24;

/// Header of a region: its size, and the region that was taken before it. The header has three
/// words, so that the first payload, which begins one word later, is aligned.
#[derive(Debug)]
#[repr(C)]
struct TlsfRegion {
    before: Option<NonNull<TlsfRegion>>,
    size: usize,
    /// 1 if the source provided zero-filled memory, else 0. A whole word, so that every byte of the
    /// header is initialized.
    zeroed: usize,
}

/// Number of bytes of a region that do not belong to blocks with a payload.
const AROUND: usize = size_of::<TlsfRegion>() + WORD;

const _: () = assert!(size_of::<TlsfRegion>() == 3 * WORD && AROUND.is_multiple_of(GRANULE));

/// Regions and their free blocks.
#[derive(Debug)]
pub(super) struct TlsfHeap<S: Source> {
    lists: FreeLists,
    regions: Option<NonNull<TlsfRegion>>,
    held: usize,
    /// For statistics: number of bytes of blocks in use, without header words, and the part of it
    /// that was reported.
    used: usize,
    told: usize,
    guarded: bool,
    pub(super) quarantine: Quarantine,
    pub(super) watch: watch::WatchedPool,
    source: S,
}

// SAFETY: the pointers refer to memory that the source provided to this heap alone.
unsafe impl<S: Source + Send> Send for TlsfHeap<S> {}

impl<S: Source> TlsfHeap<S> {
    /// Creates a heap without regions.
    pub(super) const fn new(source: S, guarded: bool) -> TlsfHeap<S> {
        let watch = watch::created("tlsf");
        TlsfHeap {
            lists: FreeLists::EMPTY,
            regions: None,
            held: 0,
            used: 0,
            told: 0,
            guarded,
            quarantine: Quarantine::EMPTY,
            watch,
            source,
        }
    }

    /// True if blocks have guards. In this case the front is closed.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guarded || watch::checked()
    }

    /// Adds guards to a heap that has no region yet. Returns true if the heap is guarded now.
    pub(super) fn guard(&mut self) -> bool {
        self.guarded |= self.regions.is_none();
        self.guarded
    }

    /// Returns the source of the memory.
    pub(super) const fn source(&self) -> &S {
        &self.source
    }

    /// Number of bytes that the heap has taken from the source and not returned.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Allocates a block of `size` bytes, or of a GRANULE more; `None` if no free block fits.
    #[inline]
    pub(super) fn remove_free(&mut self, size: usize) -> Option<TlsfBlock> {
        let block = self.lists.remove_fitting(size)?;
        self.use_up(block, block.size(), size);
        Some(block)
    }

    /// As [`TlsfHeap::remove_free`], for an alignment of the payload above GRANULE.
    pub(super) fn take_aligned(&mut self, size: usize, align: usize) -> Option<TlsfBlock> {
        // The payload moves by less than `align`, or by `align` more if the part before it would be
        // too small for a block.
        let room = size.checked_add(align)?.checked_add(MIN_BLOCK).filter(|room| *room < LIMIT)?;
        let block = self.lists.remove_fitting(room)?;
        let whole = block.size();
        let mut skipped = block.payload().align_offset(align);
        if skipped != 0 && skipped < MIN_BLOCK {
            skipped += align;
        }
        if skipped == 0 {
            self.use_up(block, whole, size);
            return Some(block);
        }
        let aligned = block.split_at(skipped);
        self.use_up(aligned, whole - skipped, size);
        aligned.set_after_free();
        block.set_free(skipped);
        self.lists.insert(block, skipped);
        Some(aligned)
    }

    /// Marks a block of `whole` bytes as used. Requires that the block is in no list. The part
    /// behind `size` bytes becomes a free block, if it is large enough.
    #[inline]
    fn use_up(&mut self, block: TlsfBlock, whole: usize, size: usize) {
        if whole - size < MIN_BLOCK {
            block.set_used(whole, size);
            block.next().set_after_used();
            self.count(whole, 0);
        } else {
            block.set_used(size, size);
            let rest = block.next();
            rest.set_free(whole - size);
            self.lists.insert(rest, whole - size);
            self.count(size, 0);
        }
    }

    /// For statistics: replaces the size `before` of a block in use by `size`; 0 means that the
    /// block was or is not in use. Does nothing in a guarded heap, which uses
    /// [`TlsfHeap::count_guarded`].
    #[inline]
    fn count(&mut self, size: usize, before: usize) {
        if cfg!(feature = "stats") && !self.is_guarded() {
            let bytes = size.saturating_sub(WORD).wrapping_sub(before.saturating_sub(WORD));
            self.used = self.used.wrapping_add(bytes);
        }
    }

    /// For statistics: replaces the requested size `before` of a guarded block by `asked`; 0 means
    /// that the block was or is not in use.
    pub(super) const fn count_guarded(&mut self, asked: usize, before: usize) {
        self.used = self.used.wrapping_add(asked).wrapping_sub(before);
    }

    /// Reports requests to the statistics. `at_hand` is the number of cached bytes, which do not
    /// count as live. The number of freed bytes is computed from the change of the live bytes.
    #[cold]
    pub(super) fn tell(&mut self, requests: usize, requested: usize, at_hand: usize, size: usize) {
        let live = self.used.saturating_sub(at_hand);
        let most = self.told.saturating_add(requested).max(live);
        let (requested, returned) = (most - self.told, most - live);
        self.told = live;
        watch::progress(&self.watch, PoolProgress { requests, requested, returned, size });
    }

    /// Frees a block in use, and coalesces it with its free neighbors.
    #[inline]
    pub(super) fn put(&mut self, block: TlsfBlock) {
        let (mut start, mut size) = (block, block.size());
        self.count(0, size);
        let next = block.next();
        let after_free = block.is_after_free();
        if next.is_free() {
            size += next.size();
            self.lists.remove(next, next.size());
            self.erase(next);
        } else {
            next.set_after_free();
        }
        if after_free {
            start = block.before();
            size += start.size();
            self.lists.remove(start, start.size());
            self.erase(block);
        }
        start.set_free(size);
        self.lists.insert(start, size);
    }

    /// Frees a block of the quarantine; returns `false` if the quarantine is empty.
    pub(super) fn release_waiting(&mut self) -> bool {
        let waiting = self.quarantine.pop();
        waiting.inspect(|block| self.put(*block)).is_some()
    }

    /// Erases the header word of a block that became part of another block, if header words are
    /// checked.
    #[inline]
    fn erase(&self, block: TlsfBlock) {
        if self.guarded || cfg!(debug_assertions) {
            block.erase();
        }
    }

    /// Resizes a block in use in place, if possible. Returns true if the block was resized.
    pub(super) fn resize(&mut self, block: TlsfBlock, size: usize) -> bool {
        let next = block.next();
        let mut whole = block.size();
        let before = whole;
        if (size..size + MIN_BLOCK).contains(&whole) {
            block.resize(whole, size);
            return true;
        }
        if next.is_free() {
            whole += next.size();
        }
        if whole < size {
            return false;
        }
        if next.is_free() {
            self.lists.remove(next, next.size());
        }
        if whole - size < MIN_BLOCK {
            block.resize(whole, size);
            block.next().set_after_used();
            self.count(whole, before);
            return true;
        }
        block.resize(size, size);
        self.count(size, before);
        let rest = block.next();
        rest.set_free(whole - size);
        rest.next().set_after_free();
        self.lists.insert(rest, whole - size);
        true
    }

    /// Takes a region from the source that has space for a block of this size and alignment. The
    /// size of the region grows with the heap, if the source has enough memory. Returns false if
    /// the source is exhausted.
    pub(super) fn grow(&mut self, size: usize, align: usize) -> bool {
        let aligned = if align > GRANULE { align + MIN_BLOCK } else { 0 };
        // `remove_fitting` starts at the first size class in which every block is large enough. The
        // smallest block of this class may be 1/32 larger than requested, so the region gets 1/16
        // more bytes.
        let Some(least) = size.checked_add(aligned).filter(|least| *least < LIMIT / 2) else {
            return false;
        };
        let least = (least + least / 16 + AROUND).next_multiple_of(GRANULE);
        let mut wanted = self.held.clamp(*REGION.start(), *REGION.end()).max(least);
        loop {
            if let Some(given) = region(wanted).and_then(|layout| self.source.take(layout)) {
                self.add(given);
                return true;
            }
            if wanted == least {
                return false;
            }
            wanted = (wanted / 2).next_multiple_of(GRANULE).max(least);
        }
    }

    /// Makes a region of a block of the source; the region has one free block.
    fn add(&mut self, given: source::SourceBlock) {
        watch::taken(&self.watch, given);
        let region = given.start.cast::<TlsfRegion>();
        let head =
            TlsfRegion { before: self.regions, size: given.size, zeroed: given.zeroed.into() };
        // SAFETY: the block was requested with the alignment of a region header and space for one,
        // and belongs to the heap alone.
        unsafe { region.write(head) };
        self.regions = Some(region);
        self.held += given.size;
        self.clear(region, given.size);
    }

    /// Turns the whole memory of a region into one free block.
    fn clear(&mut self, region: NonNull<TlsfRegion>, size: usize) {
        let (block, size) = (first_block(region), (size & !(GRANULE - 1)).min(LIMIT) - AROUND);
        block.set_free(size);
        block.next().set_used(0, 0);
        block.next().set_after_free();
        self.lists.insert(block, size);
    }

    /// Frees all blocks. The time is proportional to the number of regions and, under a memory
    /// checker, to the number of blocks.
    pub(super) fn reset(&mut self) {
        self.used = 0;
        self.tell(0, 0, 0, 0);
        if watch::checked() {
            self.blocks().filter(|block| !block.is_free()).for_each(|block| {
                watch::freed(&self.watch, block.payload(), guard::of(block).0);
            });
        }
        self.quarantine.clear();
        self.lists = FreeLists::EMPTY;
        for region in self.regions() {
            // SAFETY: the header of a region is written when the region is added.
            let size = unsafe { region.as_ref() }.size;
            self.clear(region, size);
        }
    }

    /// Returns regions without a block in use to the source. The time is proportional to the number
    /// of regions.
    pub(super) fn trim(&mut self) {
        let regions = self.regions();
        self.regions = None;
        for region in regions {
            let block = first_block(region);
            if block.is_free() && block.next().size() == 0 {
                self.lists.remove(block, block.size());
                self.give_back(region);
            } else {
                self.keep(region);
            }
        }
    }

    fn keep(&mut self, mut region: NonNull<TlsfRegion>) {
        // SAFETY: the header of a region is written when the region is added, and no other
        // reference to it exists.
        unsafe { region.as_mut() }.before = self.regions;
        self.regions = Some(region);
    }

    fn give_back(&mut self, region: NonNull<TlsfRegion>) {
        // SAFETY: the header of a region is written when the region is added.
        let TlsfRegion { size, zeroed, .. } = *unsafe { region.as_ref() };
        self.held -= size;
        let given = source::SourceBlock { start: region.cast(), size, zeroed: zeroed != 0 };
        watch::given_back(&self.watch, given);
        // SAFETY: the source provided this region, and no block of it is in use or in a list.
        unsafe { self.source.give_back(given) };
    }

    fn regions(&self) -> TlsfRegions {
        TlsfRegions(self.regions)
    }

    /// Iterates over all blocks, in each region from front to back.
    fn blocks(&self) -> impl Iterator<Item = TlsfBlock> {
        self.regions().flat_map(|region| {
            let next = |block: &TlsfBlock| Some(block.next()).filter(|next| next.size() > 0);
            core::iter::successors(Some(first_block(region)), next)
        })
    }

    /// Returns the block of a payload, if the address lies in a region and its word can be a header
    /// word. The time is proportional to the number of regions.
    pub(super) fn block_at(&self, payload: NonNull<u8>) -> Option<TlsfBlock> {
        let word = payload.as_ptr().wrapping_sub(WORD).cast::<usize>();
        let region = self.regions().find(|region| blocks_of(*region).contains(&word.addr()))?;
        if !payload.addr().get().is_multiple_of(GRANULE) {
            return None;
        }
        // SAFETY: the address is inside of a region, whose bytes may all be read.
        let block = unsafe { TlsfBlock::from_payload(payload) };
        let end = block.addr().saturating_add(block.size());
        let fits = block.size() >= WORD + guard::GUARD && end <= blocks_of(region).end;
        (block.is_genuine() && (fits || block.is_free())).then_some(block)
    }

    /// Checks all regions and lists. `at_hand` returns true if the front has cached a block.
    /// Returns the number of blocks for which it has returned true.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub(super) fn check(&self, mut at_hand: impl FnMut(TlsfBlock) -> bool) -> usize {
        let (mut free, mut kept, mut held) = (0, 0, 0);
        for region in self.regions() {
            let mut block = first_block(region);
            let mut before: Option<TlsfBlock> = None;
            while block.size() > 0 {
                let behind_free = before.filter(|before| before.is_free());
                assert!(block.is_genuine(), "a word was overwritten");
                assert_eq!(
                    block.is_after_free(),
                    behind_free.is_some(),
                    "a block does not know its neighbor"
                );
                assert!(
                    behind_free.is_none_or(|before| block.before() == before),
                    "a block has no way back"
                );
                assert!(
                    !(block.is_free() && behind_free.is_some()),
                    "two free blocks are neighbors"
                );
                if self.is_guarded() && !block.is_free() {
                    let found = guard::find(self, block.payload());
                    let waits = |misuse: &Misuse| misuse.error == MemoryError::FreedBefore;
                    found.err().filter(|misuse| !waits(misuse)).inspect(|misuse| misuse.panic());
                }
                free += usize::from(block.is_free());
                kept += usize::from(!block.is_free() && at_hand(block));
                (before, block) = (Some(block), block.next());
            }
            assert_eq!(block.addr(), blocks_of(region).end, "blocks do not fill the region");
            // SAFETY: the header of a region is written when the region is added.
            held += unsafe { region.as_ref() }.size;
        }
        assert_eq!(held, self.held, "bytes of regions, and bytes held");
        self.quarantine.check().unwrap_or_else(|misuse| misuse.panic());
        self.lists.check(free);
        kept
    }
}

impl<S: Source> Drop for TlsfHeap<S> {
    fn drop(&mut self) {
        let _quiet = watch::quiet();
        self.regions().for_each(|region| self.give_back(region));
        watch::destroyed(&self.watch);
    }
}

fn region(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, GRANULE).ok()
}

fn first_block(region: NonNull<TlsfRegion>) -> TlsfBlock {
    // SAFETY: a region is larger than its header.
    let word = unsafe { region.add(1) }.cast();
    // SAFETY: the header word of the first block follows the three words of the region's header,
    // and lies just before a multiple of GRANULE.
    unsafe { TlsfBlock::at(word) }
}

/// Returns the addresses from the header word of the first block to the last word, which has size
/// 0.
fn blocks_of(region: NonNull<TlsfRegion>) -> core::ops::Range<usize> {
    let start = region.addr().get();
    // SAFETY: the header of a region is written when the region is added.
    let size = unsafe { region.as_ref() }.size;
    let size = (size & !(GRANULE - 1)).min(LIMIT);
    start + size_of::<TlsfRegion>()..start + size - WORD
}

/// Iterator over regions, from the last to the first. It reads the link to the next region before
/// it returns a region, so that the caller may release the returned region.
#[derive(Debug)]
struct TlsfRegions(Option<NonNull<TlsfRegion>>);

impl Iterator for TlsfRegions {
    type Item = NonNull<TlsfRegion>;

    fn next(&mut self) -> Option<NonNull<TlsfRegion>> {
        let region = self.0?;
        // SAFETY: the header of a region is written when the region is added, and this region was
        // not released yet.
        self.0 = unsafe { region.as_ref() }.before;
        Some(region)
    }
}

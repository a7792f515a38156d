//! The heap behind the front: regions from a source, cut into blocks, and the free ones by size.
//!
//! ```text
//!  regions ─> ┌────────┬───────┬───────┬── ··· ──┬───────┬───┐
//!             │ Region │ block │ block │         │ block │ 0 │   one of them; the source gave it in one piece
//!             └─┬──────┴───────┴───────┴── ··· ──┴───────┴───┘
//!               └─> the region before it
//! ```
//!
//! Free neighbors are one block at all times. The time of a function does not depend on the heap,
//! unless its documentation says so.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::block::{GRANULE, LIMIT, MIN_BLOCK, TlsfBlock, WORD};
use super::guard::{self, Quarantine};
use super::lists::FreeLists;
use crate::misuse::{MemoryError, Misuse};
use crate::source::{self, Source};
use crate::watch::{self, PoolProgress};

/// The smallest region, and the size up to which regions grow with the heap.
const REGION: core::ops::RangeInclusive<usize> = 1 << 16..=1 << 24;

/// The start of a region: what the source gave, and the region that it gave before. Three words, so
/// that the first payload, a word further, is aligned.
#[derive(Debug)]
#[repr(C)]
struct TlsfRegion {
    before: Option<NonNull<TlsfRegion>>,
    size: usize,
    /// 0 or 1, in a whole word, so that every byte of a region's head is initialized.
    zeroed: usize,
}

/// Overhead of a region beside its blocks.
const AROUND: usize = size_of::<TlsfRegion>() + WORD;

const _: () = assert!(size_of::<TlsfRegion>() == 3 * WORD && AROUND.is_multiple_of(GRANULE));

/// Regions and their free blocks.
#[derive(Debug)]
pub(super) struct TlsfHeap<S: Source> {
    lists: FreeLists,
    regions: Option<NonNull<TlsfRegion>>,
    held: usize,
    /// Bytes of blocks in use without their headers, for statistics; and the part of them that was
    /// reported.
    used: usize,
    told: usize,
    guarded: bool,
    pub(super) quarantine: Quarantine,
    pub(super) watch: watch::WatchedPool,
    source: S,
}

// SAFETY: its pointers lead to memory that the source gave to this heap alone.
unsafe impl<S: Source + Send> Send for TlsfHeap<S> {}

impl<S: Source> TlsfHeap<S> {
    /// A heap that holds nothing yet.
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

    /// True if blocks have guards. The front is closed then.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guarded || watch::checked()
    }

    /// Guards a heap that holds nothing yet; returns true if it is guarded now.
    pub(super) fn guard(&mut self) -> bool {
        self.guarded |= self.regions.is_none();
        self.guarded
    }

    /// Source of the memory.
    pub(super) const fn source(&self) -> &S {
        &self.source
    }

    /// Bytes taken from the source.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// A block in use of this size or 16 bytes more, if there is a free one.
    #[inline]
    pub(super) fn remove_free(&mut self, size: usize) -> Option<TlsfBlock> {
        let block = self.lists.remove_fitting(size)?;
        self.use_up(block, block.size(), size);
        Some(block)
    }

    /// As [`TlsfHeap::remove_free`], with the payload aligned to more than GRANULE.
    pub(super) fn take_aligned(&mut self, size: usize, align: usize) -> Option<TlsfBlock> {
        // The payload moves by less than `align`; by `align` more if the part before it would be
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

    /// Marks a block as used that is in no list and `whole` bytes long. The rest becomes a free
    /// block.
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

    /// For statistics: records the new size of a block in use; 0 for none. Blocks with guards are
    /// counted as they were requested, by [`TlsfHeap::count_guarded`].
    #[inline]
    fn count(&mut self, size: usize, before: usize) {
        if cfg!(feature = "stats") && !self.is_guarded() {
            let bytes = size.saturating_sub(WORD).wrapping_sub(before.saturating_sub(WORD));
            self.used = self.used.wrapping_add(bytes);
        }
    }

    /// For statistics: records the new requested size of a block with a guard; 0 for none.
    pub(super) const fn count_guarded(&mut self, asked: usize, before: usize) {
        self.used = self.used.wrapping_add(asked).wrapping_sub(before);
    }

    /// Reports requests to the statistics, while `at_hand` bytes are cached. The freed bytes are
    /// the difference.
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

    /// Frees a block of the quarantine; `false` if none waits.
    pub(super) fn release_waiting(&mut self) -> bool {
        let waiting = self.quarantine.pop();
        waiting.inspect(|block| self.put(*block)).is_some()
    }

    /// Invalidates the word of a block that became part of another, if words are checked.
    #[inline]
    fn erase(&self, block: TlsfBlock) {
        if self.guarded || cfg!(debug_assertions) {
            block.erase();
        }
    }

    /// Resizes a block in use in place, if possible.
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

    /// Takes a region from the source in which a block of this size and alignment can be had. The
    /// larger the heap, the larger the region, as far as the source has one.
    pub(super) fn grow(&mut self, size: usize, align: usize) -> bool {
        let aligned = if align > GRANULE { align + MIN_BLOCK } else { 0 };
        // A size class may be 1/32 of the size wide, and the search begins at the next one.
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

    /// Makes a region of what the source gave, with one free block.
    fn add(&mut self, given: source::SourceBlock) {
        watch::taken(&self.watch, given);
        let region = given.start.cast::<TlsfRegion>();
        let head =
            TlsfRegion { before: self.regions, size: given.size, zeroed: given.zeroed.into() };
        // SAFETY: it was asked for with the alignment of a region and room for one, and is the
        // heap's alone.
        unsafe { region.write(head) };
        self.regions = Some(region);
        self.held += given.size;
        self.clear(region, given.size);
    }

    /// Makes one free block of a whole region.
    fn clear(&mut self, region: NonNull<TlsfRegion>, size: usize) {
        let (block, size) = (first_block(region), (size & !(GRANULE - 1)).min(LIMIT) - AROUND);
        block.set_free(size);
        block.next().set_used(0, 0);
        block.next().set_after_free();
        self.lists.insert(block, size);
    }

    /// Frees all memory. The time is proportional to the number of regions, and of blocks if
    /// accesses are checked.
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
            // SAFETY: the heads of regions are written when they are added.
            let size = unsafe { region.as_ref() }.size;
            self.clear(region, size);
        }
    }

    /// Gives regions without a block in use back to the source. Takes time for each region.
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
        // SAFETY: the heads of regions are written when they are added, and only the heap knows
        // them.
        unsafe { region.as_mut() }.before = self.regions;
        self.regions = Some(region);
    }

    fn give_back(&mut self, region: NonNull<TlsfRegion>) {
        // SAFETY: the heads of regions are written when they are added.
        let TlsfRegion { size, zeroed, .. } = *unsafe { region.as_ref() };
        self.held -= size;
        let given = source::SourceBlock { start: region.cast(), size, zeroed: zeroed != 0 };
        watch::given_back(&self.watch, given);
        // SAFETY: the source gave this region, and no block of it is in use or in a list.
        unsafe { self.source.give_back(given) };
    }

    fn regions(&self) -> TlsfRegions {
        TlsfRegions(self.regions)
    }

    /// All blocks, of each region from front to back.
    fn blocks(&self) -> impl Iterator<Item = TlsfBlock> {
        self.regions().flat_map(|region| {
            let next = |block: &TlsfBlock| Some(block.next()).filter(|next| next.size() > 0);
            core::iter::successors(Some(first_block(region)), next)
        })
    }

    /// The block of a payload, if its word can be that of a block in a region. The time is
    /// proportional to the number of regions.
    pub(super) fn block_at(&self, payload: NonNull<u8>) -> Option<TlsfBlock> {
        let word = payload.as_ptr().wrapping_sub(WORD).cast::<usize>();
        let region = self.regions().find(|region| blocks_of(*region).contains(&word.addr()))?;
        if !payload.addr().get().is_multiple_of(GRANULE) {
            return None;
        }
        // SAFETY: it is inside of a region, whose bytes may all be read.
        let block = unsafe { TlsfBlock::from_payload(payload) };
        let end = block.addr().saturating_add(block.size());
        let fits = block.size() >= WORD + guard::GUARD && end <= blocks_of(region).end;
        (block.is_genuine() && (fits || block.is_free())).then_some(block)
    }

    /// Walks all regions and lists. `at_hand` returns true if the front has a block. Returns the
    /// number of these blocks.
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
            // SAFETY: the heads of regions are written when they are added.
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
    // SAFETY: a region is larger than its head.
    let word = unsafe { region.add(1) }.cast();
    // SAFETY: behind the three words of the head comes the word of the first block, before a
    // multiple of GRANULE.
    unsafe { TlsfBlock::at(word) }
}

/// The addresses from the word of the first block to the last word, of size 0.
fn blocks_of(region: NonNull<TlsfRegion>) -> core::ops::Range<usize> {
    let start = region.addr().get();
    // SAFETY: the heads of regions are written when they are added.
    let size = unsafe { region.as_ref() }.size;
    let size = (size & !(GRANULE - 1)).min(LIMIT);
    start + size_of::<TlsfRegion>()..start + size - WORD
}

/// Regions, the last first. The next is read before one is returned, so that the caller may release
/// it.
#[derive(Debug)]
struct TlsfRegions(Option<NonNull<TlsfRegion>>);

impl Iterator for TlsfRegions {
    type Item = NonNull<TlsfRegion>;

    fn next(&mut self) -> Option<NonNull<TlsfRegion>> {
        let region = self.0?;
        // SAFETY: the header of a region is written when it is added, and this region was not
        // released yet.
        self.0 = unsafe { region.as_ref() }.before;
        Some(region)
    }
}

//! Regions: what a source gave in one piece.
//!
//! ```text
//!  ┌──────┬─────────────────────────┬──────┬──────┬──────┬── ··· ──┬──────┬┄┄┄┄┄┐
//!  │ edge │ descriptor of each page │ edge │ page │ page │         │ page │     │ less than a page
//!  └──────┴─────────────────────────┴──────┴──────┴──────┴── ··· ──┴──────┴┄┄┄┄┄┘
//!    0.6 % of the region, of which only what is in use is ever touched
//! ```

use core::alloc::Layout;
use core::ptr::NonNull;

use super::PAGE;
use super::page::{Page, PageRef};
use super::runs::{LONGEST, Run};
use crate::source::Block;

/// As many regions as a heap can have. Each is as large as a quarter of all before, or larger.
const MOST: usize = 64;

/// A region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    first: PageRef,
    pages: u32,
    index: u8,
    block: Block,
}

/// Bytes of the descriptors of so many pages, in whole pages.
const fn head(pages: usize) -> usize {
    ((pages + 2) * size_of::<Page>()).next_multiple_of(PAGE)
}

/// What to ask a source for, so that a region has so many pages.
pub(super) fn layout(pages: u32) -> Option<Layout> {
    let pages = pages as usize;
    // As many pages as the head takes have descriptors too.
    let size = pages.checked_mul(PAGE)?.checked_add(head(pages + pages / 64 + 2))?;
    Layout::from_size_align(size, PAGE).ok()
}

/// Bytes of the descriptors in a block.
pub(super) fn head_of(block: Block) -> usize {
    head((block.size / PAGE).min(LONGEST as usize))
}

impl Region {
    /// Makes a region of a block, as the one of an index.
    ///
    /// # Safety
    /// The block is nobody else's, aligned to pages, and large enough for a page and its descriptor.
    unsafe fn new(block: Block, index: u8) -> Region {
        let units = (block.size / PAGE).min(LONGEST as usize);
        let head = head_of(block);
        let pages = u32::try_from(units - head / PAGE).unwrap_or(LONGEST);
        let edge = block.start.cast::<Page>();
        if !block.zeroed {
            for at in 0..pages as usize + 2 {
                // SAFETY: the head has room for so many.
                let page = unsafe { edge.add(at) };
                // SAFETY: as above; it is aligned, as the block is, and nobody else's.
                unsafe { page.write(Page::used()) };
            }
        }
        // SAFETY: the pages lie behind the head, in the block.
        let start = unsafe { block.start.add(head) };
        // SAFETY: behind the first edge.
        let first = unsafe { edge.add(1) };
        // SAFETY: descriptors of used pages were written, or are all 0; there is an edge before and one behind.
        let first = unsafe { PageRef::at(first) };
        first.region.set(index);
        Region { start, first, pages, index, block }
    }

    /// All its pages.
    pub(super) const fn whole(&self) -> Run {
        (self.first, self.pages)
    }

    /// What the source gave.
    pub(super) const fn block(&self) -> Block {
        self.block
    }

    /// Where a page is.
    #[inline(always)]
    pub(super) fn address(&self, page: PageRef) -> NonNull<u8> {
        // SAFETY: the page is one of the region, so that it lies in the block.
        unsafe { self.start.add(page.behind(self.first) * PAGE) }
    }

    /// The page at an address, if it and those that follow are pages of the region.
    #[inline(always)]
    fn page(&self, address: NonNull<u8>, pages: u32) -> Option<PageRef> {
        let index = address.addr().get().wrapping_sub(self.start.addr().get()) / PAGE;
        let index = u32::try_from(index).ok()?;
        let inside = index.checked_add(pages)? <= self.pages;
        inside.then(|| self.first.add(index))
    }
}

/// All regions of a heap.
#[derive(Debug)]
pub(super) struct Regions {
    regions: [Option<Region>; MOST],
    /// All from here on are none.
    used: usize,
    held: usize,
}

impl Regions {
    pub(super) const EMPTY: Regions = Regions { regions: [None; MOST], used: 0, held: 0 };

    /// Bytes of all blocks.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Whether there may be one more.
    pub(super) fn has_room(&self) -> bool {
        self.regions.iter().any(Option::is_none)
    }

    /// Makes a region of a block, where there may be one more.
    ///
    /// # Safety
    /// As for [`Region::new`].
    pub(super) unsafe fn add(&mut self, block: Block) -> Option<Region> {
        let index = self.regions.iter().position(Option::is_none)?;
        // SAFETY: the caller promises the same.
        let region = unsafe { Region::new(block, u8::try_from(index).ok()?) };
        self.regions[index] = Some(region);
        self.used = self.used.max(index + 1);
        self.held += block.size;
        Some(region)
    }

    /// Takes out the first region for which `is_unused` says so.
    pub(super) fn remove(&mut self, is_unused: impl Fn(&Region) -> bool) -> Option<Region> {
        let unused = |region: &&mut Option<Region>| region.as_ref().is_some_and(&is_unused);
        let region = self.regions.iter_mut().find(unused)?.take()?;
        self.held -= region.block.size;
        Some(region)
    }

    /// The page at an address, where it and those that follow are of one region, and the index of that. The newest regions are the largest: they come first.
    #[inline(always)]
    pub(super) fn find(&self, address: NonNull<u8>, pages: u32) -> Option<(u8, PageRef)> {
        let regions = self.regions[..self.used].iter().rev().flatten();
        regions.filter_map(|region| Some((region.index, region.page(address, pages)?))).next()
    }

    /// The region of an index.
    #[inline(always)]
    pub(super) fn of(&self, index: u8) -> Option<&Region> {
        self.regions.get(usize::from(index))?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten()
    }
}

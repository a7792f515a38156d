//! Regions: blocks of the source, cut into pages.
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
use super::page::{PageDescriptor, PageDescriptorRef};
use super::runs::{FreeRun, MAX_RUN_PAGES};
use crate::source::SourceBlock;

/// Maximum number of regions of a heap. Each is at least a quarter as large as all before, or 16
/// MiB.
const MAX_REGIONS: usize = 64;

/// A region.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRegion {
    start: NonNull<u8>,
    first: PageDescriptorRef,
    pages: u32,
    index: u8,
    block: SourceBlock,
}

/// Bytes of the descriptors for a number of pages, in whole pages.
const fn head(pages: usize) -> usize {
    ((pages + 2) * size_of::<PageDescriptor>()).next_multiple_of(PAGE)
}

/// Layout to request from a source for a region with this number of pages.
pub(super) fn layout(pages: u32) -> Option<Layout> {
    let pages = pages as usize;
    // As many pages as the head takes have descriptors too.
    let size = pages.checked_mul(PAGE)?.checked_add(head(pages + pages / 64 + 2))?;
    Layout::from_size_align(size, PAGE).ok()
}

/// Bytes of the descriptors in a block.
pub(super) fn head_of(block: SourceBlock) -> usize {
    head((block.size / PAGE).min(MAX_RUN_PAGES as usize))
}

impl PageRegion {
    /// Makes a region with this index of a block.
    ///
    /// # Safety
    /// The block is not used by other code, is aligned to pages, and is large enough for a page and
    /// its descriptor.
    unsafe fn new(block: SourceBlock, index: u8) -> PageRegion {
        let units = (block.size / PAGE).min(MAX_RUN_PAGES as usize);
        let head = head_of(block);
        let pages = u32::try_from(units - head / PAGE).unwrap_or(MAX_RUN_PAGES);
        let edge = block.start.cast::<PageDescriptor>();
        if !block.zeroed {
            for at in 0..pages as usize + 2 {
                // SAFETY: the head has this number of descriptors.
                let page = unsafe { edge.add(at) };
                // SAFETY: the address is inside the head, aligned as the block is, and not used by
                // other code.
                unsafe { page.write(PageDescriptor::used()) };
            }
        }
        // SAFETY: the pages lie behind the head, in the block.
        let start = unsafe { block.start.add(head) };
        // SAFETY: behind the first edge.
        let first = unsafe { edge.add(1) };
        // SAFETY: descriptors of used pages were written, or are all 0; there is an edge before and
        // one behind.
        let first = unsafe { PageDescriptorRef::at(first) };
        first.region.set(index);
        PageRegion { start, first, pages, index, block }
    }

    /// All its pages.
    pub(super) const fn whole(&self) -> FreeRun {
        (self.first, self.pages)
    }

    /// Block that the source provided.
    pub(super) const fn block(&self) -> SourceBlock {
        self.block
    }

    /// Address of a page.
    #[inline(always)]
    pub(super) fn address(&self, page: PageDescriptorRef) -> NonNull<u8> {
        // SAFETY: the page is one of the region, so that it lies in the block.
        unsafe { self.start.add(page.behind(self.first) * PAGE) }
    }

    /// The page at an address, if it and those that follow are pages of the region.
    #[inline(always)]
    fn page(&self, address: NonNull<u8>, pages: u32) -> Option<PageDescriptorRef> {
        let index = address.addr().get().wrapping_sub(self.start.addr().get()) / PAGE;
        let index = u32::try_from(index).ok()?;
        let inside = index.checked_add(pages)? <= self.pages;
        inside.then(|| self.first.add(index))
    }
}

/// All regions of a heap.
#[derive(Debug)]
pub(super) struct PageRegions {
    regions: [Option<PageRegion>; MAX_REGIONS],
    /// All entries from here on are empty.
    used: usize,
    held: usize,
}

impl PageRegions {
    pub(super) const EMPTY: PageRegions =
        PageRegions { regions: [None; MAX_REGIONS], used: 0, held: 0 };

    /// Bytes of all blocks.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// True if there may be one more.
    pub(super) fn has_room(&self) -> bool {
        self.regions.iter().any(Option::is_none)
    }

    /// Makes a region of a block, where there may be one more.
    ///
    /// # Safety
    /// As for [`PageRegion::new`].
    pub(super) unsafe fn add(&mut self, block: SourceBlock) -> Option<PageRegion> {
        let index = self.regions.iter().position(Option::is_none)?;
        // SAFETY: the caller passes a new block of the source.
        let region = unsafe { PageRegion::new(block, u8::try_from(index).ok()?) };
        self.regions[index] = Some(region);
        self.used = self.used.max(index + 1);
        self.held += block.size;
        Some(region)
    }

    /// Removes and returns the first region for which `is_unused` returns true.
    pub(super) fn remove(&mut self, is_unused: impl Fn(&PageRegion) -> bool) -> Option<PageRegion> {
        let unused = |region: &&mut Option<PageRegion>| region.as_ref().is_some_and(&is_unused);
        let region = self.regions.iter_mut().find(unused)?.take()?;
        self.held -= region.block.size;
        Some(region)
    }

    /// The page at an address, where it and those that follow are of one region, and the index of
    /// that. The newest regions are the largest: they come first.
    #[inline(always)]
    pub(super) fn find(&self, address: NonNull<u8>, pages: u32) -> Option<(u8, PageDescriptorRef)> {
        let regions = self.regions[..self.used].iter().rev().flatten();
        regions.filter_map(|region| Some((region.index, region.page(address, pages)?))).next()
    }

    /// The region of an index.
    #[inline(always)]
    pub(super) fn region_at(&self, index: u8) -> Option<&PageRegion> {
        self.regions.get(usize::from(index))?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PageRegion> {
        self.regions.iter().flatten()
    }
}

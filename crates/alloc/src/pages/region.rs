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

/// Maximum number of regions of a heap. If the source has enough memory, each region has at least
/// the smaller of two sizes: 16 MiB, and a quarter of all earlier regions together.
const MAX_REGIONS: usize = 64;

/// A block of the source, with the descriptors of its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRegion {
    start: NonNull<u8>,
    first: PageDescriptorRef,
    pages: u32,
    index: u8,
    block: SourceBlock,
}

/// Returns the size in bytes of the descriptors for a number of pages and of the two edges, rounded
/// up to whole pages.
const fn head(pages: usize) -> usize {
    ((pages + 2) * size_of::<PageDescriptor>()).next_multiple_of(PAGE)
}

/// Returns the layout of a block for a region with at least this number of pages.
pub(super) fn layout(pages: u32) -> Option<Layout> {
    let pages = pages as usize;
    // The pages that contain the descriptors have descriptors too, so the call of `head` passes
    // more pages than `pages`.
    let size = pages.checked_mul(PAGE)?.checked_add(head(pages + pages / 64 + 2))?;
    Layout::from_size_align(size, PAGE).ok()
}

/// Returns the size in bytes of the descriptors at the start of a block.
pub(super) fn head_of(block: SourceBlock) -> usize {
    head((block.size / PAGE).min(MAX_RUN_PAGES as usize))
}

impl PageRegion {
    /// Writes the descriptors of the pages of a block, and returns the region with this index.
    ///
    /// # Safety
    /// No other code uses the block, which is aligned to pages and large enough for a page and its
    /// descriptor.
    unsafe fn new(block: SourceBlock, index: u8) -> PageRegion {
        let units = (block.size / PAGE).min(MAX_RUN_PAGES as usize);
        let head = head_of(block);
        let pages = u32::try_from(units - head / PAGE).unwrap_or(MAX_RUN_PAGES);
        let edge = block.start.cast::<PageDescriptor>();
        if !block.zeroed {
            for at in 0..pages as usize + 2 {
                // SAFETY: the head has space for this number of descriptors.
                let page = unsafe { edge.add(at) };
                // SAFETY: the address lies in the head, is aligned because the block is, and no
                // other code uses the head.
                unsafe { page.write(PageDescriptor::used()) };
            }
        }
        // SAFETY: the pages lie behind the head, in the block.
        let start = unsafe { block.start.add(head) };
        // SAFETY: the head contains more descriptors than the first edge.
        let first = unsafe { edge.add(1) };
        // SAFETY: the descriptors of all pages and of both edges were written, or are zero-filled,
        // which is the descriptor of a used page.
        let first = unsafe { PageDescriptorRef::at(first) };
        first.region.set(index);
        PageRegion { start, first, pages, index, block }
    }

    /// Returns the run of all pages of the region.
    pub(super) const fn whole(&self) -> FreeRun {
        (self.first, self.pages)
    }

    /// Returns the block that the source provided.
    pub(super) const fn block(&self) -> SourceBlock {
        self.block
    }

    /// Returns the address of a page.
    #[inline(always)]
    pub(super) fn address(&self, page: PageDescriptorRef) -> NonNull<u8> {
        // SAFETY: the page belongs to the region, so its address lies in the block.
        unsafe { self.start.add(page.behind(self.first) * PAGE) }
    }

    /// Returns the descriptor of the page at an address; `None` if the `pages` pages from there on
    /// are not all in this region.
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
    /// Number of leading entries of `regions` that may be in use; the entries behind them are
    /// empty.
    used: usize,
    held: usize,
}

impl PageRegions {
    pub(super) const EMPTY: PageRegions =
        PageRegions { regions: [None; MAX_REGIONS], used: 0, held: 0 };

    /// Number of bytes in the blocks of all regions.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// True if another region can be added.
    pub(super) fn has_room(&self) -> bool {
        self.regions.iter().any(Option::is_none)
    }

    /// Makes a region of a block; `None` if the heap has the maximum number of regions.
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

    /// Returns the descriptor of the page at an address, and the index of its region; `None` if the
    /// `pages` pages from this address on are not in one region. The search starts at the last
    /// index, usually that of the newest and largest region.
    #[inline(always)]
    pub(super) fn find(&self, address: NonNull<u8>, pages: u32) -> Option<(u8, PageDescriptorRef)> {
        let regions = self.regions[..self.used].iter().rev().flatten();
        regions.filter_map(|region| Some((region.index, region.page(address, pages)?))).next()
    }

    /// Returns the region with an index.
    #[inline(always)]
    pub(super) fn region_at(&self, index: u8) -> Option<&PageRegion> {
        self.regions.get(usize::from(index))?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PageRegion> {
        self.regions.iter().flatten()
    }
}

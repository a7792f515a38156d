//! Descriptors of the pages, apart from the pages themselves, which stay untouched.
//!
//! ```text
//!  pages of a region    |  used   used   used |  free   free   free   free |  used |
//!  descriptors     edge | .....   .....   ....| first   .....  .....  last | ..... | edge
//!                                               links                 pages
//!                                               pages
//! ```
//!
//! - Only the first and the last page of a free run have a state other than [`RunPageState::Used`].
//!   The pages between them, allocated pages and the two edges are `Used`. So the state of a
//!   neighbor shows if a free run ends or begins there.
//! - The first and the last page have the length of their run, the first also its neighbors in a
//!   list.
//! - A descriptor of zeros is one of a used page.
//!
//! A [`PageDescriptorRef`] always points to a descriptor, so that its methods may read and write
//! it.

use core::cell::Cell;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::misuse::CallSite;

/// State of a page that is the first or last of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RunPageState {
    /// Allocated, or inside of a free run.
    Used = 0,
    /// Free, and maybe backed by memory.
    Idle = 1,
    /// Free, and not backed by memory: it reads 0.
    Clean = 2,
}

/// One page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PageDescriptor {
    pub(super) next: Cell<Option<PageDescriptorRef>>,
    pub(super) previous: Cell<Option<PageDescriptorRef>>,
    /// Length of the run.
    pub(super) pages: Cell<u32>,
    pub(super) state: Cell<RunPageState>,
    /// The index of its region.
    pub(super) region: Cell<u8>,
    /// In debug builds and guarded pools: true while the user has the page.
    pub(super) handed_out: Cell<bool>,
    /// True for the first page of a run that is allocated, or in a cache.
    pub(super) starts_run: Cell<bool>,
    /// In debug builds: the call sites that allocated and freed the run that begins here.
    #[cfg(debug_assertions)]
    pub(super) sites: Cell<[CallSite; 2]>,
}

impl PageDescriptor {
    /// A page that is not free.
    pub(super) const fn used() -> PageDescriptor {
        PageDescriptor {
            next: Cell::new(None),
            previous: Cell::new(None),
            pages: Cell::new(0),
            state: Cell::new(RunPageState::Used),
            region: Cell::new(0),
            handed_out: Cell::new(false),
            starts_run: Cell::new(false),
            #[cfg(debug_assertions)]
            sites: Cell::new([CallSite::NONE; 2]),
        }
    }
}

/// The descriptor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct PageDescriptorRef(NonNull<PageDescriptor>);

impl PageDescriptorRef {
    /// # Safety
    /// The descriptor exists as long as this reference, and so do all others up to the edges of its
    /// region. One thread at a time uses them.
    pub(super) const unsafe fn at(page: NonNull<PageDescriptor>) -> PageDescriptorRef {
        PageDescriptorRef(page)
    }

    /// Records a source location of the run that begins here: 0 for its allocation, 1 for its free.
    pub(super) fn set_site(self, which: usize, site: CallSite) {
        #[cfg(debug_assertions)]
        {
            let mut sites = self.sites.get();
            sites[which] = site;
            self.sites.set(sites);
        }
        #[cfg(not(debug_assertions))]
        let _ = (which, site);
    }

    /// The recorded source locations.
    pub(super) fn noted_sites(self) -> [CallSite; 2] {
        #[cfg(debug_assertions)]
        return self.sites.get();
        #[cfg(not(debug_assertions))]
        [CallSite::NONE; 2]
    }

    /// The page `pages` further.
    #[inline(always)]
    pub(super) fn add(self, pages: u32) -> PageDescriptorRef {
        // SAFETY: callers go no further than to the edge of the region.
        PageDescriptorRef(unsafe { self.0.add(pages as usize) })
    }

    /// The page `pages` before.
    #[inline(always)]
    pub(super) fn sub(self, pages: u32) -> PageDescriptorRef {
        // SAFETY: the descriptor is of the same region, as the caller of `sub` ensures.
        PageDescriptorRef(unsafe { self.0.sub(pages as usize) })
    }

    /// Distance in pages from another page of its region.
    #[inline(always)]
    pub(super) fn behind(self, first: PageDescriptorRef) -> usize {
        (self.0.addr().get() - first.0.addr().get()) / size_of::<PageDescriptor>()
    }
}

impl Deref for PageDescriptorRef {
    type Target = PageDescriptor;

    #[inline(always)]
    fn deref(&self) -> &PageDescriptor {
        // SAFETY: there is a descriptor, of which all that changes is in cells.
        unsafe { self.0.as_ref() }
    }
}

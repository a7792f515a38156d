//! Descriptors of pages. They are stored apart from the pages, whose memory the pool does not
//! access.
//!
//! ```text
//!  pages of a region    |  used   used   used |  free   free   free   free |  used |
//!  descriptors     edge | .....   .....   ....| first   .....  .....  last | ..... | edge
//!                                               links                 pages
//!                                               pages
//! ```
//!
//! - Only the first and the last page of a free run have a state other than [`RunPageState::Used`].
//!   The pages between them, allocated pages and the two edges (descriptors without a page) are
//!   `Used`. So the state of a neighbor shows if a free run ends or begins there.
//! - The descriptors of the first and of the last page contain the length of their run. The
//!   descriptor of the first page also contains the links of a list of free runs.
//! - A descriptor of zeros is that of a used page.
//!
//! A [`PageDescriptorRef`] always points to a descriptor, so that its methods may read and write
//! it.

use core::cell::Cell;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::misuse::CallSite;

/// State of a page; in a free run, only the first and the last page have the state of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RunPageState {
    /// The page is allocated, is in the cache of a thread, or lies between the first and the last
    /// page of a free run. Also the state of the edges: the descriptors before the first and after
    /// the last page of a region, which have no page.
    Used = 0,
    /// Free, and maybe backed by memory.
    Idle = 1,
    /// Free, and not backed by memory: reads return 0.
    Clean = 2,
}

/// Descriptor of one page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PageDescriptor {
    pub(super) next: Cell<Option<PageDescriptorRef>>,
    pub(super) previous: Cell<Option<PageDescriptorRef>>,
    /// Number of pages of the run, in its first and its last page.
    pub(super) pages: Cell<u32>,
    pub(super) state: Cell<RunPageState>,
    /// Index of the region, in the first page of a run.
    pub(super) region: Cell<u8>,
    /// In debug builds and guarded pools: true from the allocation of the page to its free by the
    /// user.
    pub(super) handed_out: Cell<bool>,
    /// True for the first page of a run that is allocated or in a cache.
    pub(super) starts_run: Cell<bool>,
    /// In debug builds: the call sites that allocated and freed the run that begins here.
    #[cfg(debug_assertions)]
    pub(super) sites: Cell<[CallSite; 2]>,
}

impl PageDescriptor {
    /// Returns the descriptor of a page that is not free.
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

/// Reference to the descriptor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct PageDescriptorRef(NonNull<PageDescriptor>);

impl PageDescriptorRef {
    /// # Safety
    /// This descriptor and all others of its region, including both edges, exist as long as the
    /// returned reference. One thread at a time uses them.
    pub(super) const unsafe fn at(page: NonNull<PageDescriptor>) -> PageDescriptorRef {
        PageDescriptorRef(page)
    }

    /// Records the source location of the allocation (`which` is 0) or of the free (1) of the run
    /// that begins here.
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

    /// Returns the source locations of the allocation and of the free of the run that begins here.
    pub(super) fn noted_sites(self) -> [CallSite; 2] {
        #[cfg(debug_assertions)]
        return self.sites.get();
        #[cfg(not(debug_assertions))]
        [CallSite::NONE; 2]
    }

    /// Returns the descriptor `pages` pages after this one.
    #[inline(always)]
    pub(super) fn add(self, pages: u32) -> PageDescriptorRef {
        // SAFETY: callers pass a distance that is at most the distance to the edge of the region.
        PageDescriptorRef(unsafe { self.0.add(pages as usize) })
    }

    /// Returns the descriptor `pages` pages before this one.
    #[inline(always)]
    pub(super) fn sub(self, pages: u32) -> PageDescriptorRef {
        // SAFETY: callers pass a distance that is at most the distance to the first edge of the
        // region.
        PageDescriptorRef(unsafe { self.0.sub(pages as usize) })
    }

    /// Number of pages from the page `first` of the same region to this page.
    #[inline(always)]
    pub(super) fn behind(self, first: PageDescriptorRef) -> usize {
        (self.0.addr().get() - first.0.addr().get()) / size_of::<PageDescriptor>()
    }
}

impl Deref for PageDescriptorRef {
    type Target = PageDescriptor;

    #[inline(always)]
    fn deref(&self) -> &PageDescriptor {
        // SAFETY: the descriptor exists as long as this reference, and all fields are cells.
        unsafe { self.0.as_ref() }
    }
}

//! Pools in the benchmark.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use buddy_system_allocator::LockedFrameAllocator;
use pagewise_alloc::Pages;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::black_box;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// An allocator of runs, for any thread.
pub(crate) trait PagePool: Sync {
    /// A thread begins to use it.
    fn enter(&self) {}

    /// Allocates a run of this number of pages.
    fn take(&self, pages: usize) -> *mut u8;

    /// # Safety
    /// The run came from here with as many pages, and is not used any more.
    unsafe fn free(&self, run: *mut u8, pages: usize);
}

impl PagePool for Pages<Os> {
    fn take(&self, pages: usize) -> *mut u8 {
        self.allocate(layout(pages)).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn free(&self, run: *mut u8, pages: usize) {
        // SAFETY: no run here is null.
        let run = unsafe { NonNull::new_unchecked(run) };
        // SAFETY: the caller passes a run of this pool with this length.
        unsafe { Pages::free(self, run, pages * PAGE) };
    }
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE, PAGE).expect("pages are aligned to pages")
}

/// The kernel itself.
pub(crate) struct Mmap;

impl PagePool for Mmap {
    fn take(&self, pages: usize) -> *mut u8 {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping touches no memory that there is.
        unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, access, kind, -1, 0) }.cast()
    }

    unsafe fn free(&self, run: *mut u8, pages: usize) {
        // SAFETY: the run was mapped, and is not used any more.
        unsafe { libc::munmap(run.cast(), pages * PAGE) };
    }
}

/// A buddy allocator of frame numbers over addresses that are not touched.
pub(crate) struct Buddy {
    frames: LockedFrameAllocator<32>,
    start: *mut u8,
}

// SAFETY: the pointer is only calculated with.
unsafe impl Sync for Buddy {}

impl Buddy {
    /// Over a gigabyte.
    pub(crate) fn new() -> Buddy {
        const FRAMES: usize = 1 << 18;
        let frames = LockedFrameAllocator::new();
        frames.lock().add_frame(0, FRAMES);
        Buddy { frames, start: Mmap.take(FRAMES) }
    }
}

impl PagePool for Buddy {
    fn take(&self, pages: usize) -> *mut u8 {
        let frame = self.frames.lock().alloc(pages);
        self.start.wrapping_add(frame.expect("the gigabyte is not full") * PAGE)
    }

    unsafe fn free(&self, run: *mut u8, pages: usize) {
        self.frames.lock().dealloc((run.addr() - self.start.addr()) / PAGE, pages);
    }
}

/// A general allocator.
pub(crate) struct PagesMalloc<M>(pub(crate) M);

impl<M: GlobalAlloc + Sync> PagePool for PagesMalloc<M> {
    fn take(&self, pages: usize) -> *mut u8 {
        // SAFETY: a run has a page or more; without an alignment, which costs some of them more.
        black_box(unsafe { self.0.alloc(Layout::from_size_align_unchecked(pages * PAGE, 16)) })
    }

    unsafe fn free(&self, run: *mut u8, pages: usize) {
        // SAFETY: the size is a positive multiple of a page, and 16 is a power of two.
        let layout = unsafe { Layout::from_size_align_unchecked(pages * PAGE, 16) };
        // SAFETY: the caller passes a run of this allocator with this layout.
        unsafe { self.0.dealloc(black_box(run), layout) };
    }
}

/// An allocator behind two C functions.
pub(crate) struct CFunctions {
    enter: unsafe extern "C" fn(),
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

impl CFunctions {
    /// rpmalloc, which every thread announces itself to.
    pub(crate) fn rpmalloc() -> CFunctions {
        // SAFETY: called once, before all else of it.
        unsafe { rpmalloc_sys::rpmalloc_initialize() };
        let enter = rpmalloc_sys::rpmalloc_thread_initialize;
        CFunctions { enter, malloc: rpmalloc_sys::rpmalloc, free: rpmalloc_sys::rpfree }
    }
}

impl PagePool for CFunctions {
    fn enter(&self) {
        // SAFETY: any thread may announce itself, also twice.
        unsafe { (self.enter)() };
    }

    fn take(&self, pages: usize) -> *mut u8 {
        // SAFETY: `malloc` takes any size.
        unsafe { (self.malloc)(pages * PAGE) }.cast()
    }

    unsafe fn free(&self, run: *mut u8, _pages: usize) {
        // SAFETY: the caller passes a run of this allocator.
        unsafe { (self.free)(run.cast()) };
    }
}

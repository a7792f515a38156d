//! The contestants of the grid: our pools, and the allocators that they are compared with.

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use pagewise_alloc::source::Os;
use pagewise_alloc::{Fifo, Pages, Tlsf};
use pagewise_bench_allocators::black_box;
use pagewise_bench_allocators::malloc::Tcmalloc;

use crate::cell::{GridCell, GridPool};

/// Makes a pool.
pub(crate) type Maker<P> = fn() -> P;

/// An allocator of the grid.
#[derive(Clone, Copy)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) ours: bool,
    /// Fewest bytes of a size that it is for.
    least: usize,
    /// True if several threads may use it, each with a pool of its own or one for all.
    threads: bool,
    time: fn(&GridCell) -> f64,
}

impl Contestant {
    pub(crate) fn can_run(&self, cell: &GridCell) -> bool {
        let is_large = cell.live_bytes() / cell.live >= self.least;
        is_large && (self.threads || cell.threads == 1 && cell.live_bytes() * 2 < ARENA)
    }

    pub(crate) fn time(&self, cell: &GridCell) -> f64 {
        (self.time)(cell)
    }
}

/// All of them.
pub(crate) fn contestants() -> Vec<Contestant> {
    let new = |name, ours, threads, time| Contestant { name, ours, least: 0, threads, time };
    let mut all = vec![
        new("fifo", true, true, |cell| cell.time(|| Fifo::new(Os).expect("memory"))),
        new("tlsf", true, true, |cell| cell.time(|| Tlsf::<Os>::new(Os))),
        Contestant { least: 4096, ..new("pages", true, true, |cell| cell.time(|| GridPages)) },
        new("glibc", false, true, |cell| cell.time(|| GridMalloc(std::alloc::System))),
        new("jemalloc", false, true, |cell| cell.time(|| GridMalloc(tikv_jemallocator::Jemalloc))),
        new("mimalloc", false, true, |cell| cell.time(|| GridMalloc(mimalloc::MiMalloc))),
        new("snmalloc", false, true, |cell| cell.time(|| GridMalloc(snmalloc_rs::SnMalloc))),
        new("rpmalloc", false, true, |cell| cell.time(GridRpmalloc::new)),
        new("rlsf", false, false, |cell| cell.time(rlsf)),
        new("talc", false, false, |cell| cell.time(talc)),
    ];
    if Tcmalloc::is_there() {
        all.push(new("tcmalloc", false, true, |cell| cell.time(|| GridMalloc(Tcmalloc))));
    }
    all
}

fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Sizes are rounded up to the alignment, as those of types are: then blocks are adjacent.
impl GridPool for Fifo<Os> {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        or_null(Fifo::allocate(self, layout.pad_to_align()))
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was null would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Fifo::free(self, block, layout.pad_to_align()) };
    }
}

impl GridPool for Tlsf<Os> {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        or_null(Tlsf::allocate(self, layout))
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was null would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Tlsf::free(self, block, layout) };
    }
}

static PAGES: Pages<Os> = Pages::new(Os);

/// The pool of pages, which all threads use.
struct GridPages;

impl GridPool for GridPages {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        or_null(PAGES.allocate(layout))
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was null would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a run of this pool with this size.
        unsafe { PAGES.free(block, layout.size()) };
    }
}

/// A general allocator.
struct GridMalloc<M>(M);

impl<M: GlobalAlloc> GridPool for GridMalloc<M> {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        black_box(unsafe { self.0.alloc(layout) })
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator with this layout.
        unsafe { self.0.dealloc(black_box(block), layout) };
    }
}

/// rpmalloc, which each thread announces itself to.
struct GridRpmalloc;

impl GridRpmalloc {
    fn new() -> GridRpmalloc {
        static BEGUN: OnceLock<()> = OnceLock::new();
        BEGUN.get_or_init(|| {
            // SAFETY: called once, before all else of it.
            unsafe { rpmalloc_sys::rpmalloc_initialize() };
        });
        // SAFETY: any thread may announce itself, also twice.
        unsafe { rpmalloc_sys::rpmalloc_thread_initialize() };
        GridRpmalloc
    }
}

impl GridPool for GridRpmalloc {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        if layout.align() <= 16 {
            // SAFETY: `rpmalloc` takes any size.
            unsafe { rpmalloc_sys::rpmalloc(layout.size()) }.cast()
        } else {
            // SAFETY: the alignment is a power of two.
            unsafe { rpmalloc_sys::rpaligned_alloc(layout.align(), layout.size()) }.cast()
        }
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, _: Layout) {
        // SAFETY: the caller passes a block of this allocator.
        unsafe { rpmalloc_sys::rpfree(block.cast()) };
    }
}

/// Memory of the pools that do not get their own.
const ARENA: usize = 512 << 20;

fn arena(which: usize) -> &'static mut [MaybeUninit<u8>] {
    static ARENAS: [OnceLock<usize>; 2] = [const { OnceLock::new() }; 2];
    let start = *ARENAS[which].get_or_init(|| {
        Box::leak(Box::<[u8]>::new_uninit_slice(ARENA)).as_mut_ptr().expose_provenance()
    });
    let start = ptr::with_exposed_provenance_mut(start);
    // SAFETY: one pool at a time has the arena, whose memory is never freed.
    unsafe { std::slice::from_raw_parts_mut(start, ARENA) }
}

type Rlsf = rlsf::Tlsf<'static, u32, u32, 28, 32>;

fn rlsf() -> Rlsf {
    let mut pool = Rlsf::new();
    pool.insert_free_block(arena(0));
    pool
}

impl GridPool for Rlsf {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        or_null(rlsf::Tlsf::allocate(self, layout))
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: a block that was null would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this alignment.
        unsafe { self.deallocate(block, layout.align()) };
    }
}

type Talc = talc::base::Talc<talc::source::Manual, talc::DefaultBinning>;

fn talc() -> Talc {
    let mut pool = Talc::new(talc::source::Manual);
    let memory = arena(1);
    // SAFETY: no other pool has the arena at the same time.
    let heap = unsafe { pool.claim(memory.as_mut_ptr().cast(), memory.len()) };
    assert!(heap.is_some());
    pool
}

impl GridPool for Talc {
    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        or_null(unsafe { talc::base::Talc::allocate(self, layout) })
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.deallocate(block, layout) };
    }
}

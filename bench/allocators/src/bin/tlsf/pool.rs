//! Pools in the benchmark.

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pagewise_alloc::Tlsf;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::black_box;

/// Memory of the pools that do not get their own.
const ARENA: usize = 512 << 20;

/// An allocator for one thread.
pub(crate) trait TlsfPool {
    fn allocate(&mut self, layout: Layout) -> *mut u8;

    /// # Safety
    /// `block` came from here with this layout, and is not used any more.
    unsafe fn free(&mut self, block: *mut u8, layout: Layout);
}

impl<const N: usize> TlsfPool for Tlsf<Os, N> {
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        Tlsf::allocate(self, layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: no block was null, or it would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Tlsf::free(self, block, layout) };
    }
}

pub(crate) type Rlsf = rlsf::Tlsf<'static, u32, u32, 28, 32>;

impl TlsfPool for Rlsf {
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        rlsf::Tlsf::allocate(self, layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: no block was null, or it would have been written to.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this alignment.
        unsafe { self.deallocate(block, layout.align()) };
    }
}

pub(crate) type Talc = talc::base::Talc<talc::source::Manual, talc::DefaultBinning>;

impl TlsfPool for Talc {
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        unsafe { talc::base::Talc::allocate(self, layout) }
            .map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.deallocate(block, layout) };
    }
}

/// No allocator: what the rest of a round costs, and how long the machine is away from it.
pub(crate) struct NoTlsf(pub(crate) u64);

impl TlsfPool for NoTlsf {
    fn allocate(&mut self, _layout: Layout) -> *mut u8 {
        (&raw mut self.0).cast()
    }

    unsafe fn free(&mut self, _block: *mut u8, _layout: Layout) {}
}

/// A general allocator.
pub(crate) struct TlsfMalloc<M>(pub(crate) M);

impl<M: GlobalAlloc> TlsfPool for TlsfMalloc<M> {
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: no layout here has a size of 0.
        black_box(unsafe { self.0.alloc(layout) })
    }

    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator with this layout.
        unsafe { self.0.dealloc(black_box(block), layout) };
    }
}

fn arena() -> &'static mut [MaybeUninit<u8>] {
    Box::leak(Box::<[u8]>::new_uninit_slice(ARENA))
}

/// An rlsf with memory.
pub(crate) fn rlsf() -> Rlsf {
    let mut pool = Rlsf::new();
    pool.insert_free_block(arena());
    pool
}

/// A talc with memory.
pub(crate) fn talc() -> Talc {
    let mut pool = Talc::new(talc::source::Manual);
    let memory = arena();
    // SAFETY: no other code has this memory, and it is never freed.
    let heap = unsafe { pool.claim(memory.as_mut_ptr().cast(), memory.len()) };
    assert!(heap.is_some());
    pool
}

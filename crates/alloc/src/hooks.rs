//! Hooks of a tracer around a global allocator: each block is reported when it is allocated,
//! resized and freed.
//!
//! ```
//! use core::alloc::Layout;
//! use core::ptr::NonNull;
//! use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
//! use pagewise_alloc::hooks::{AllocationHooks, Hooked};
//! use pagewise_alloc::{LockedTlsf, Os};
//!
//! /// Counts blocks and live bytes.
//! struct Counts {
//!     blocks: AtomicUsize,
//!     live: AtomicUsize,
//! }
//!
//! impl AllocationHooks for Counts {
//!     fn allocated(&self, _block: NonNull<u8>, layout: Layout) {
//!         self.blocks.fetch_add(1, Relaxed);
//!         self.live.fetch_add(layout.size(), Relaxed);
//!     }
//!     fn freed(&self, _block: NonNull<u8>, layout: Layout) {
//!         self.live.fetch_sub(layout.size(), Relaxed);
//!     }
//! }
//!
//! #[global_allocator]
//! static POOL: Hooked<LockedTlsf<Os>, Counts> = Hooked::new(
//!     LockedTlsf::new(Os),
//!     Counts { blocks: AtomicUsize::new(0), live: AtomicUsize::new(0) },
//! );
//!
//! let before = POOL.hooks().live.load(Relaxed);
//! let mut bytes = vec![0_u8; 1000];
//! bytes.resize(3000, 0);
//! assert!(POOL.hooks().live.load(Relaxed) >= before + 3000);
//! drop(bytes);
//! assert!(POOL.hooks().blocks.load(Relaxed) > 0);
//! ```

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// Functions that a tracer implements; the default implementations do nothing.
///
/// A hook runs in the thread that calls the allocator. It must not allocate from the same
/// allocator, and must not panic.
pub trait AllocationHooks {
    /// Called after a block was allocated.
    fn allocated(&self, block: NonNull<u8>, layout: Layout) {
        let _ = (block, layout);
    }

    /// Called before a block is freed: the block still has its contents.
    fn freed(&self, block: NonNull<u8>, layout: Layout) {
        let _ = (block, layout);
    }

    /// Called after a block was resized, in place or by moving it. The default implementation calls
    /// `freed` for the old block, whose contents may be gone, and `allocated` for the new one.
    fn resized(&self, old: (NonNull<u8>, Layout), new: (NonNull<u8>, Layout)) {
        self.freed(old.0, old.1);
        self.allocated(new.0, new.1);
    }

    /// Called after an allocation or a resize failed because memory was exhausted.
    fn refused(&self, layout: Layout) {
        let _ = layout;
    }
}

/// A global allocator that reports each call to hooks.
#[derive(Debug)]
pub struct Hooked<A, H> {
    allocator: A,
    hooks: H,
}

impl<A, H> Hooked<A, H> {
    /// Creates an allocator that reports the calls of `allocator` to `hooks`.
    pub const fn new(allocator: A, hooks: H) -> Hooked<A, H> {
        Hooked { allocator, hooks }
    }

    /// Returns the underlying allocator. Direct calls of this allocator are not reported.
    pub const fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Returns the hooks.
    pub const fn hooks(&self) -> &H {
        &self.hooks
    }
}

impl<A, H: AllocationHooks> Hooked<A, H> {
    fn report(&self, block: *mut u8, layout: Layout) -> *mut u8 {
        match NonNull::new(block) {
            Some(block) => self.hooks.allocated(block, layout),
            None => self.hooks.refused(layout),
        }
        block
    }
}

// SAFETY: every call goes to the underlying allocator, which keeps the contract of `GlobalAlloc`.
unsafe impl<A: GlobalAlloc, H: AllocationHooks> GlobalAlloc for Hooked<A, H> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller passes what the allocator requires.
        self.report(unsafe { self.allocator.alloc(layout) }, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller passes what the allocator requires.
        self.report(unsafe { self.allocator.alloc_zeroed(layout) }, layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(block) = NonNull::new(block) {
            self.hooks.freed(block, layout);
        }
        // SAFETY: the caller passes what the allocator requires.
        unsafe { self.allocator.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a size that is valid with the alignment of `layout`.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller passes what the allocator requires.
        let resized = unsafe { self.allocator.realloc(block, layout, size) };
        match (NonNull::new(block), NonNull::new(resized)) {
            (Some(old), Some(moved)) => self.hooks.resized((old, layout), (moved, new)),
            _ => self.hooks.refused(new),
        }
        resized
    }
}

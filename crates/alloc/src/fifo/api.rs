//! FIFO pools as allocators of collections.
//!
//! ```
//! use allocator_api2::boxed::Box;
//! use pagewise_alloc::{Fifo, Os};
//! use std::collections::VecDeque;
//!
//! let pool = Fifo::new(Os).expect("a page of memory");
//! let mut queue = VecDeque::new();
//! for job in 0..1000_u64 {
//!     queue.push_back(Box::new_in(job, &pool));
//!     if queue.len() > 10 {
//!         queue.pop_front();
//!     }
//! }
//! assert_eq!(*queue[0], 990);
//! ```

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Fifo;
use crate::collections::{carry_over, resize_by, slice};
use crate::source::Source;

impl<S: Source> Fifo<S> {
    /// Resizes a block, also to a larger alignment.
    ///
    /// # Safety
    /// As for [`Fifo::reallocate`].
    unsafe fn reshape(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        if new.align() <= old.align() {
            // SAFETY: the caller passes a block of this pool with this layout.
            return unsafe { self.reallocate(block, old, new.size()) };
        }
        let moved = Fifo::allocate(self, new)?;
        // SAFETY: both are as large as their layouts say, and do not overlap.
        unsafe { carry_over((block, old), (moved, new)) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.free(block, old) };
        Some(moved)
    }
}

// SAFETY: blocks stay where they are until they are freed, also when the pool moves; what is freed
// has its layout.
unsafe impl<S: Source> Allocator for &Fifo<S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Fifo::allocate(self, layout), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Fifo::allocate_zeroed(self, layout), layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.free(block, layout) };
    }

    resize_by!(|pool, block, old, new| pool.reshape(block, old, new));
}

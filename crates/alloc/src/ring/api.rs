//! Open frames as allocators of collections, which end before the frame is sealed; what they leak stays in it.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use pagewise_alloc::{Os, Ring};
//!
//! let mut ring = Ring::new(Os).expect("a page of memory");
//! let squares = ring.message(|frame| {
//!     let mut squares = Vec::new_in(frame);
//!     (0..100_u64).for_each(|n| squares.push(n * n)); // It grows where it is, while it is the last allocation.
//!     squares.leak()
//! });
//! assert_eq!(squares[9], 81);
//! ```

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Open;
use crate::source::Source;

/// What a block is for a collection: no larger than asked for.
fn slice(block: Option<NonNull<u8>>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    Ok(NonNull::slice_from_raw_parts(block.ok_or(AllocError)?, layout.size()))
}

impl<S: Source + Send + 'static> Open<'_, S> {
    /// Gives a block another size, and another alignment where that is asked for.
    ///
    /// # Safety
    /// As for [`Open::resize`].
    unsafe fn reshape(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        if new.align() <= old.align() {
            // SAFETY: as the caller promises.
            return unsafe { self.resize(block, old, new) };
        }
        let moved = Open::allocate(self, new)?;
        // SAFETY: both are as large as the smaller of the two, and do not overlap.
        unsafe { moved.copy_from_nonoverlapping(block, old.size().min(new.size())) };
        Some(moved)
    }
}

// SAFETY: blocks stay where they are until the frame is released, which the borrow of it outlives while it is open.
unsafe impl<S: Source + Send + 'static> Allocator for &Open<'_, S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Open::allocate(self, layout), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(Open::allocate_zeroed(self, layout), layout)
    }

    /// What is in a frame goes with the frame.
    unsafe fn deallocate(&self, _block: NonNull<u8>, _layout: Layout) {}

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller promises the same.
        slice(unsafe { self.reshape(block, old, new) }, new)
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller promises the same.
        slice(unsafe { self.reshape(block, old, new) }, new)
    }
}

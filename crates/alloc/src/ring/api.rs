//! Open frames as allocators of collections, which end before the frame is sealed; what they leak
//! stays in it.
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

use super::OpenRingFrame;
use crate::collections::{carry_over, resize_by, slice};
use crate::source::Source;

impl<S: Source + Send + 'static> OpenRingFrame<'_, S> {
    /// Resizes an allocation, also to a larger alignment.
    ///
    /// # Safety
    /// As for [`OpenRingFrame::resize`].
    unsafe fn reshape(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        if new.align() <= old.align() {
            // SAFETY: the caller passes a block of this frame with this layout.
            return unsafe { self.resize(block, old, new) };
        }
        let moved = OpenRingFrame::allocate(self, new)?;
        // SAFETY: both are as large as their layouts say, and do not overlap.
        unsafe { carry_over((block, old), (moved, new)) };
        Some(moved)
    }
}

// SAFETY: blocks stay where they are until the frame is released, and this reference keeps the
// frame open.
unsafe impl<S: Source + Send + 'static> Allocator for &OpenRingFrame<'_, S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(OpenRingFrame::allocate(self, layout), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(OpenRingFrame::allocate_zeroed(self, layout), layout)
    }

    /// Contents of a frame are released with the frame.
    unsafe fn deallocate(&self, _block: NonNull<u8>, _layout: Layout) {}

    resize_by!(|pool, block, old, new| pool.reshape(block, old, new));
}

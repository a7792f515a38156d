//! Pages as the allocator of collections: for few and large ones. A small collection occupies a
//! page.

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Pages;
use crate::collections::slice;
use crate::source::Source;

// SAFETY: runs stay until they are freed or the pool ends, and the pool outlives this reference.
unsafe impl<S: Source> Allocator for &Pages<S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice((**self).allocate(layout), layout)
    }

    unsafe fn deallocate(&self, run: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a run of this pool with this layout.
        unsafe { self.free(run, layout.size()) };
    }
}

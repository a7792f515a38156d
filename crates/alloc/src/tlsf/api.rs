//! A TLSF behind a lock as the allocator of collections, which share it, and which any thread may
//! use.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use pagewise_alloc::{LockedTlsf, Os};
//!
//! let pool: LockedTlsf<Os> = LockedTlsf::new(Os);
//! let mut numbers = Vec::new_in(&pool);
//! (1..=100).for_each(|n| numbers.push(n)); // It grows where it is, while nothing lies behind it.
//! assert_eq!(numbers.iter().sum::<i32>(), 5050);
//! ```

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::{LockedTlsf, Tlsf};
use crate::collections::{carry_over, resize_by, slice};
use crate::source::Source;

/// Resizes a block, in another block if this one does not have the new alignment.
///
/// # Safety
/// As for [`Tlsf::reallocate`].
unsafe fn resize<S: Source, const N: usize>(
    pool: &mut Tlsf<S, N>,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Option<NonNull<u8>> {
    if block.addr().get().is_multiple_of(new.align()) {
        let old = Layout::from_size_align(old.size(), new.align()).ok()?;
        // SAFETY: the caller passes a block of this pool with this layout; the block is aligned as
        // `new` is.
        return unsafe { pool.reallocate(block, old, new.size()) };
    }
    let moved = pool.allocate(new)?;
    // SAFETY: both blocks are as long as their layouts say, and apart.
    unsafe { carry_over((block, old), (moved, new)) };
    // SAFETY: the caller passes a block of this pool with this layout.
    unsafe { pool.free(block, old) };
    Some(moved)
}

// SAFETY: blocks stay until they are freed or the pool ends, and the pool outlives this reference.
unsafe impl<S: Source + Send, const N: usize> Allocator for &LockedTlsf<S, N> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        slice(self.with(|pool| pool.allocate(layout)), layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        self.with(|pool| unsafe { pool.free(block, layout) });
    }

    resize_by!(|pool, block, old, new| pool.with(|pool| resize(pool, block, old, new)));
}

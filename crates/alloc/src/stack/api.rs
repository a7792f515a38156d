//! Stacks and scopes as allocators of collections.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use pagewise_alloc::{Os, Stack};
//!
//! let mut stack = Stack::new(Os);
//! let sum = stack.scope(|scope| {
//!     let mut numbers = Vec::new_in(&*scope);
//!     (1..=100).for_each(|n| numbers.push(n)); // It grows where it is, while it is the last allocation.
//!     numbers.iter().sum::<i32>()
//! });
//! assert_eq!(sum, 5050);
//! ```
//!
//! Memory that a collection frees is reusable at once if it was the last allocation, else when its
//! frame is popped. A collection borrows the scope, so the scope cannot open an inner scope while
//! the collection exists. On the thread's stack, `t_scope` can open an inner frame nevertheless. A
//! collection that grows while that frame is open panics.

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::{Scope, Stack, StackPolicy};
use crate::collections::{resize_by, slice};
use crate::source::Source;

/// Implements `Allocator` for types that have `allocate`, `resize` and `free_last`.
macro_rules! allocator {
    ($($pool:ty),*) => {$(
        // SAFETY: memory stays until the frame is popped or the stack is dropped, and frame and
        // stack outlive this reference. `resize` and `free_last` keep the contract of the trait.
        unsafe impl<S: Source, P: StackPolicy> Allocator for &$pool {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                slice((**self).allocate(layout), layout)
            }

            unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller passes a block of this scope with this layout.
                unsafe { self.free_last(block, layout) };
            }

            resize_by!(|pool, block, old, new| pool.resize(block, old, new));

            unsafe fn grow_zeroed(
                &self,
                block: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller passes a block of this scope with this layout.
                let grown = unsafe { self.grow(block, old, new) }?;
                let more = grown.cast::<u8>().as_ptr().wrapping_add(old.size());
                // SAFETY: the block has the size of `new`, which is at least that of `old`.
                unsafe { more.write_bytes(0, new.size() - old.size()) };
                Ok(grown)
            }
        }
    )*};
}

allocator!(Stack<S, P>, Scope<'_, S, P>);

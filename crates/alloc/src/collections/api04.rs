//! Pools as allocators of collections that use version 0.4 of `allocator-api2`.
//!
//! ```
//! use allocator_api2_04::vec::Vec;
//! use pagewise_alloc::{Api04, LockedTlsf, Os};
//!
//! let pool: LockedTlsf<Os> = LockedTlsf::new(Os);
//! let mut numbers = Vec::new_in(Api04(&pool));
//! (1..=100).for_each(|n| numbers.push(n));
//! assert_eq!(numbers.iter().sum::<i32>(), 5050);
//! ```

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError as AllocErrorOf02, Allocator as AllocatorOf02};
use allocator_api2_04::alloc::{AllocError, Allocator};

/// Adapts an allocator that implements version 0.2 of the traits to version 0.4.
#[derive(Clone, Copy, Debug)]
pub struct Api04<A>(pub A);

fn converted(result: Result<NonNull<[u8]>, AllocErrorOf02>) -> Result<NonNull<[u8]>, AllocError> {
    result.map_err(|AllocErrorOf02| AllocError)
}

/// Defines methods that resize a block.
macro_rules! forward {
    ($($name:ident),*) => {$(
        unsafe fn $name(
            &self,
            block: NonNull<u8>,
            old: Layout,
            new: Layout,
        ) -> Result<NonNull<[u8]>, AllocError> {
            // SAFETY: the caller passes a block of this allocator with this layout.
            converted(unsafe { self.0.$name(block, old, new) })
        }
    )*};
}

// SAFETY: both versions of the trait have the same requirements.
unsafe impl<A: AllocatorOf02> Allocator for Api04<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        converted(self.0.allocate(layout))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        converted(self.0.allocate_zeroed(layout))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator with this layout.
        unsafe { self.0.deallocate(block, layout) };
    }

    forward!(grow, grow_zeroed, shrink);
}

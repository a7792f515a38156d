//! What all pools have in common, for the tests and benchmarks that run them all.

use core::alloc::Layout;
use core::ptr::NonNull;

/// In which order a pool takes memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// The last first, as a stack.
    Lifo,
    /// Any order; the oldest first costs least.
    Fifo,
    /// Any order.
    Any,
}

/// A pool as the conformance suite drives it: it makes only such programs as [`Allocator::FREES`] allows.
///
/// # Safety
/// Blocks handed out are aligned as asked, do not overlap, and stay where they are until freed.
pub unsafe trait Allocator {
    /// Its name in reports.
    const NAME: &'static str;
    /// In which order blocks may be freed.
    const FREES: Discipline;

    /// Memory of this size and alignment; `None` where the source has no more.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from `allocate(layout)` of this pool and was not freed since; freeing it now obeys [`Allocator::FREES`].
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout);

    /// Walks everything that must hold inside.
    ///
    /// # Panics
    /// Where it does not hold.
    fn check(&self);
}

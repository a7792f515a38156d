//! Common interface of all pools, for the tests and benchmarks that run each of them.

use core::alloc::Layout;
use core::ptr::NonNull;

/// The order in which blocks of a pool may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// The last allocated block first, as in a stack. A pool with this order overrides
    /// [`DisciplinedAllocator::resize`].
    Lifo,
    /// Any order; freeing the oldest block first costs least.
    Fifo,
    /// Any order.
    Any,
}

/// Interface through which the conformance suite uses a pool. The suite frees blocks only in an
/// order that [`DisciplinedAllocator::FREES`] allows.
///
/// # Safety
/// Allocated blocks have the requested alignment, do not overlap, and keep their address until
/// freed.
pub unsafe trait DisciplinedAllocator {
    /// Name of the pool in reports.
    const NAME: &'static str;
    /// Order in which blocks may be freed.
    const FREES: Discipline;
    /// True if all memory that the pool allocates is zero-filled.
    const ZEROED: bool = false;
    /// True if the memory of a dropped pool is not released before its last block is freed.
    const DEFERS: bool = false;

    /// Allocates a block of this size and alignment; `None` if the source is exhausted. Blocks of
    /// size 0 may share an address.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>>;

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from `allocate(layout)` of this pool and was not freed since; freeing it now
    /// obeys [`DisciplinedAllocator::FREES`].
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout);

    /// Resizes a block, and keeps its contents up to the smaller size. Returns `None`, and leaves
    /// the block unchanged, if memory is exhausted. With [`Discipline::Lifo`], only the last block
    /// can be resized.
    ///
    /// # Safety
    /// As for [`DisciplinedAllocator::free`]. After a successful call the block has the layout
    /// `new`. Both layouts have the same alignment.
    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        let moved = self.allocate(new)?;
        let kept = layout.size().min(new.size());
        // SAFETY: both blocks have at least `kept` bytes, and blocks do not overlap.
        unsafe { block.copy_to_nonoverlapping(moved, kept) };
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.free(block, layout) };
        Some(moved)
    }

    /// Checks all invariants.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    fn check(&self);
}

//! Common interface of all pools, for the tests and benchmarks that run each of them.

use core::alloc::Layout;
use core::ptr::NonNull;

/// The order in which blocks of a pool may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// The last allocated block first: a stack. Such a pool overrides
    /// [`DisciplinedAllocator::resize`].
    Lifo,
    /// Any order; the oldest first costs least.
    Fifo,
    /// Any order.
    Any,
}

/// A pool, as the conformance suite drives it. The suite frees blocks only in an order that
/// [`DisciplinedAllocator::FREES`] allows.
///
/// # Safety
/// Blocks handed out are aligned as asked, do not overlap, and stay where they are until freed.
pub unsafe trait DisciplinedAllocator {
    /// Its name in reports.
    const NAME: &'static str;
    /// Order in which blocks may be freed.
    const FREES: Discipline;
    /// True if all memory that it allocates is zero-filled.
    const ZEROED: bool = false;
    /// True if the memory of a dropped pool stays until its last block is freed.
    const DEFERS: bool = false;

    /// Memory of this size and alignment; `None` if the source has no more. Blocks of size 0 may
    /// share an address.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from `allocate(layout)` of this pool and was not freed since; freeing it now
    /// obeys [`DisciplinedAllocator::FREES`].
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout);

    /// Resizes a block, and keeps its contents as far as they fit. Returns `None` if memory is
    /// exhausted: then the block is unchanged. With [`Discipline::Lifo`], only the last block can
    /// be resized.
    ///
    /// # Safety
    /// As for [`DisciplinedAllocator::free`]; from then on the block has the layout `new`, which
    /// asks for the same alignment.
    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        let moved = self.allocate(new)?;
        let kept = layout.size().min(new.size());
        // SAFETY: both blocks are at least this long, and blocks do not overlap.
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

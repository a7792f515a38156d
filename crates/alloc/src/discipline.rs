//! Common interface of all pools, for the tests and benchmarks that run each of them.

use core::alloc::Layout;
use core::ptr::NonNull;

/// In which order a pool takes memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// The last first, as a stack. Such a pool has a [`DisciplinedAllocator::resize`] of its own.
    Lifo,
    /// Any order; the oldest first costs least.
    Fifo,
    /// Any order.
    Any,
}

/// A pool as the conformance suite drives it: it makes only such programs as
/// [`DisciplinedAllocator::FREES`] allows.
///
/// # Safety
/// Blocks handed out are aligned as asked, do not overlap, and stay where they are until freed.
pub unsafe trait DisciplinedAllocator {
    /// Its name in reports.
    const NAME: &'static str;
    /// In which order blocks may be freed.
    const FREES: Discipline;
    /// True if all that it hands out is 0.
    const ZEROED: bool = false;
    /// True if a pool that is dropped stays until its last block was freed.
    const DEFERS: bool = false;

    /// Memory of this size and alignment; `None` where the source has no more. A block of no size
    /// may share its address.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from `allocate(layout)` of this pool and was not freed since; freeing it now
    /// obeys [`DisciplinedAllocator::FREES`].
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout);

    /// Resizes a block, and keeps its contents as far as they fit; `None` without memory: then the
    /// block is unchanged. With [`Discipline::Lifo`], only the last block can be resized.
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

    /// Walks everything that must hold inside.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    fn check(&self);
}

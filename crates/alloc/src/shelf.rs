//! A pool with its live blocks behind a safe interface: experiments, which may not contain unsafe
//! code, use any pool through it.
//!
//! Invariant: each slot is empty or has a live block of the shelf's pool, which no other code has.
//!
//! ```text
//! slots  [ block 7 | none | block 9 | ... ]        pool  [ ..7.. | ...9.. ]
//!            └──────────────────┴──────────────────────────┴────────┘
//! ```

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

use crate::{Discipline, DisciplinedAllocator};

/// A slot of a [`TestShelf`], for one block.
#[derive(Debug, Default)]
pub struct ShelfSlot(Option<(NonNull<u8>, Layout)>);

/// A pool whose blocks may be freed in any order, and its live blocks, each in a slot. Dropping it
/// frees the blocks that are left.
///
/// ```
/// use core::alloc::Layout;
/// use pagewise_alloc::{Os, TestShelf, ShelfSlot, Tlsf};
///
/// let mut slots = [const { ShelfSlot::EMPTY }; 2];
/// let mut shelf = TestShelf::new(Tlsf::<Os>::new(Os), &mut slots);
/// assert!(shelf.put(0, Layout::new::<u64>()) && shelf.put(1, Layout::new::<[u8; 100]>()));
/// assert!(shelf.put(0, Layout::new::<u8>()), "the old block was freed");
/// ```
pub struct TestShelf<'s, A: DisciplinedAllocator> {
    slots: &'s mut [ShelfSlot],
    pool: A,
}

impl ShelfSlot {
    /// Without a block.
    pub const EMPTY: ShelfSlot = ShelfSlot(None);
}

impl<'s, A: DisciplinedAllocator> TestShelf<'s, A> {
    /// An empty shelf. Earlier contents of the slots are ignored: they belong to another shelf.
    pub fn new(pool: A, slots: &'s mut [ShelfSlot]) -> TestShelf<'s, A> {
        const { assert!(!matches!(A::FREES, Discipline::Lifo), "a stack frees in no order but one") };
        slots.fill_with(ShelfSlot::default);
        TestShelf { slots, pool }
    }

    /// Frees the block of a slot, allocates another one there, and writes its first byte. Returns
    /// `false` if memory is exhausted: then the slot is empty.
    ///
    /// # Panics
    /// Panics if the slot does not exist.
    #[inline]
    pub fn put(&mut self, slot: usize, layout: Layout) -> bool {
        self.free(slot);
        let Some(block) = self.pool.allocate(layout) else { return false };
        if layout.size() > 0 {
            // SAFETY: the block has a byte, and is ours alone. Volatile, so that it is written.
            unsafe { block.write_volatile(1) };
        }
        self.slots[slot] = ShelfSlot(Some((block, layout)));
        true
    }

    /// Frees the block of a slot, if it has one.
    ///
    /// # Panics
    /// Panics if the slot does not exist.
    #[inline]
    pub fn free(&mut self, slot: usize) {
        if let Some((block, layout)) = self.slots[slot].0.take() {
            // SAFETY: by the invariant the block is live and this pool's; it was taken out, and may
            // be freed in any order.
            unsafe { self.pool.free(block, layout) };
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }
}

impl<A: DisciplinedAllocator> Drop for TestShelf<'_, A> {
    fn drop(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.free(slot));
    }
}

impl<A: DisciplinedAllocator> fmt::Debug for TestShelf<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(A::NAME).field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

/// The C library's allocator, to compare pools with.
#[cfg(feature = "os")]
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemMalloc;

#[cfg(feature = "os")]
// SAFETY: blocks of the C library are aligned as asked, do not overlap, and stay until freed.
unsafe impl DisciplinedAllocator for SystemMalloc {
    const NAME: &'static str = "malloc";
    const FREES: Discipline = Discipline::Any;

    #[inline]
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let start = if layout.align() <= align_of::<libc::max_align_t>() {
            // SAFETY: the call takes a number.
            unsafe { libc::malloc(layout.size()) }
        } else {
            // SAFETY: the alignment of a layout is a power of two, and the size is made a multiple
            // of it.
            unsafe { libc::aligned_alloc(layout.align(), layout.pad_to_align().size()) }
        };
        // The compiler would remove an unobserved allocation.
        NonNull::new(core::hint::black_box(start).cast())
    }

    #[inline]
    unsafe fn free(&mut self, block: NonNull<u8>, _: Layout) {
        // SAFETY: the caller passes a block of `malloc`.
        unsafe { libc::free(block.as_ptr().cast()) };
    }

    fn check(&self) {}
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Allocates blocks of size 0 only; counts those that are live.
    struct CountingHeap<'c> {
        live: &'c Cell<isize>,
        left: usize,
    }

    // SAFETY: only for layouts of no size, whose blocks may have one address.
    unsafe impl DisciplinedAllocator for CountingHeap<'_> {
        const NAME: &'static str = "counting";
        const FREES: Discipline = Discipline::Any;

        fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
            assert_eq!(layout.size(), 0);
            self.left = self.left.checked_sub(1)?;
            self.live.set(self.live.get() + 1);
            Some(NonNull::dangling())
        }

        unsafe fn free(&mut self, _: NonNull<u8>, _: Layout) {
            self.live.set(self.live.get() - 1);
        }

        fn check(&self) {}
    }

    #[test]
    fn each_block_is_freed_once() {
        let (live, none) = (Cell::new(0), Layout::new::<()>());
        let mut slots = [const { ShelfSlot::EMPTY }; 3];
        let mut shelf = TestShelf::new(CountingHeap { live: &live, left: 4 }, &mut slots);
        assert!(shelf.put(0, none) && shelf.put(1, none) && shelf.put(1, none));
        shelf.free(0);
        shelf.free(0);
        assert_eq!(live.get(), 1);
        assert!(shelf.put(2, none) && !shelf.put(1, none), "it frees before it finds no memory");
        assert_eq!(live.get(), 1);
        drop(shelf);
        assert_eq!(live.get(), 0);
    }

    #[test]
    fn a_shelf_that_was_forgotten_leaves_nothing_to_the_next() {
        let (live, none) = (Cell::new(0), Layout::new::<()>());
        let mut slots = [ShelfSlot::EMPTY];
        let mut shelf = TestShelf::new(CountingHeap { live: &live, left: 1 }, &mut slots);
        assert!(shelf.put(0, none));
        core::mem::forget(shelf);
        drop(TestShelf::new(CountingHeap { live: &live, left: 0 }, &mut slots));
        assert_eq!(live.get(), 1);
    }

    #[test]
    #[cfg(feature = "os")]
    fn malloc_aligns() {
        let mut slots = [const { ShelfSlot::EMPTY }; 2];
        let mut shelf = TestShelf::new(SystemMalloc, &mut slots);
        assert!(shelf.put(0, Layout::from_size_align(1, 1 << 10).unwrap()));
        assert!(shelf.put(1, Layout::new::<u64>()));
        let aligned =
            shelf.slots[0].0.is_some_and(|(block, _)| block.addr().get().is_multiple_of(1 << 10));
        assert!(aligned && shelf.slots() == 2);
    }
}

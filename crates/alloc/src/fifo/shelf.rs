//! A shelf: freed blocks that wait for requests of the same size, while blocks are freed in an
//! order other than that of age.

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::page::{GRAIN, PAGE};
use crate::SourceBlock;

/// Maximum size in bytes of a block on a shelf.
const LARGEST: usize = 512;
const SIZES: usize = LARGEST / GRAIN;
/// Maximum number of waiting blocks of each size.
const DEPTH: usize = 64;
/// For every `PAGES_FOR_ONE` pages of the pool, one block of each size may wait. The waiting blocks
/// then take at most an eighth of the pool.
const PAGES_FOR_ONE: usize = LARGEST / 2 * SIZES * 8 / PAGE;
/// Number of frees without an allocation after which the shelf is closed, since the pool is
/// probably being emptied.
const PATIENCE: u8 = 32;

const _: () = assert!(PAGES_FOR_ONE == 2);

/// An open shelf, in memory of its own. Its blocks count as live, and the shelf does not access
/// their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenShelf(NonNull<Shelves>);

#[repr(C)]
struct Shelves {
    counts: ShelfCounts,
    /// Stacks of blocks by size; the block that was added last is on top.
    blocks: [[Cell<MaybeUninit<NonNull<u8>>>; DEPTH]; SIZES],
}

struct ShelfCounts {
    /// Maximum number of waiting blocks of each size in this pool.
    most: u8,
    /// Number of frees since the last request.
    frees: Cell<u8>,
    waiting: [Cell<u8>; SIZES],
    /// For statistics: total size in bytes of the blocks that were allocated from this shelf since
    /// the last report.
    served: Cell<usize>,
}

impl OpenShelf {
    /// Layout of the memory of a shelf.
    pub(super) const LAYOUT: Layout = Layout::new::<Shelves>();

    /// Creates an empty shelf for a pool with this number of pages.
    ///
    /// # Safety
    /// No other code uses `block`, which has the size and alignment of `LAYOUT`.
    pub(super) unsafe fn create(block: SourceBlock, pages: usize) -> OpenShelf {
        #[expect(clippy::cast_possible_truncation, reason = "it is at most `DEPTH`")]
        let most = (pages / PAGES_FOR_ONE).clamp(1, DEPTH) as u8;
        let waiting = [const { Cell::new(0) }; SIZES];
        let shelves = block.start.cast::<Shelves>();
        // SAFETY: the block has the layout of the shelf, which begins with the counts; the stacks
        // of blocks may stay uninitialized.
        unsafe {
            shelves.cast().write(ShelfCounts {
                most,
                frees: Cell::new(0),
                waiting,
                served: Cell::new(0),
            })
        };
        OpenShelf(shelves)
    }

    #[inline(always)]
    fn shelves(&self) -> &Shelves {
        // SAFETY: the counts were written, and the stacks of blocks may be uninitialized.
        unsafe { self.0.as_ref() }
    }

    /// Adds a block of `size` bytes. Returns `false` if the block is too large, if the shelf is
    /// full for this size, or after `PATIENCE` frees without an allocation.
    #[inline(always)]
    pub(super) fn put(self, block: NonNull<u8>, size: usize) -> bool {
        let Shelves { counts, blocks } = self.shelves();
        let (index, frees) = (size / GRAIN - 1, counts.frees.get());
        if index >= SIZES || frees == PATIENCE {
            return false;
        }
        let waiting = counts.waiting[index].get();
        let Some(place) = blocks[index].get(usize::from(waiting)).filter(|_| waiting < counts.most)
        else {
            return false;
        };
        debug_assert!(!self.holds(block, size), "a block was freed twice");
        place.set(MaybeUninit::new(block));
        counts.frees.set(frees + 1);
        counts.waiting[index].set(waiting + 1);
        true
    }

    /// Counts a block that the shelf did not take. Returns true if the shelf should be closed.
    pub(super) fn is_over(self) -> bool {
        let frees = &self.shelves().counts.frees;
        let is_over = frees.get() == PATIENCE;
        frees.set(frees.get() + u8::from(!is_over));
        is_over
    }

    /// Removes the last added block of this size, if it has this alignment.
    #[inline(always)]
    pub(super) fn pop_aligned(self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let Shelves { counts, blocks } = self.shelves();
        let index = size / GRAIN - 1;
        let waiting = counts.waiting.get(index)?.get();
        if align > GRAIN
            && let Some(last) = waiting.checked_sub(1)
        {
            // SAFETY: `waiting` blocks of this size were written, and the index is less.
            let block = unsafe { blocks[index][usize::from(last)].get().assume_init() };
            if block.addr().get() & (align - 1) != 0 {
                return None;
            }
        }
        self.pop_block(size)
    }

    /// Removes the last added block of this size.
    #[inline(always)]
    fn pop_block(self, size: usize) -> Option<NonNull<u8>> {
        let Shelves { counts, blocks } = self.shelves();
        counts.frees.set(0);
        let index = size / GRAIN - 1;
        let waiting = counts.waiting.get(index)?.get().checked_sub(1)?;
        counts.waiting[index].set(waiting);
        if cfg!(feature = "stats") {
            counts.served.set(counts.served.get() + size);
        }
        // SAFETY: the entry at this index was written before the count rose above the index.
        Some(unsafe { blocks[index][usize::from(waiting)].get().assume_init() })
    }

    /// Returns the total size in bytes of the blocks that were allocated again since the last call.
    pub(super) fn take_served(self) -> usize {
        self.shelves().counts.served.take()
    }

    /// Removes any block, and returns its address and size.
    pub(super) fn take_any(self) -> Option<(NonNull<u8>, usize)> {
        let index = self.shelves().counts.waiting.iter().position(|waiting| waiting.get() > 0)?;
        let size = (index + 1) * GRAIN;
        Some((self.pop_block(size)?, size))
    }

    fn holds(self, block: NonNull<u8>, size: usize) -> bool {
        let Shelves { counts, blocks } = self.shelves();
        let index = size / GRAIN - 1;
        let waiting = &blocks[index][..counts.waiting[index].get().into()];
        // SAFETY: all blocks that `waiting` counts were written.
        waiting.iter().any(|other| unsafe { other.get().assume_init() } == block)
    }
}

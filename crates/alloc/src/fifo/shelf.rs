//! Freed blocks that wait for requests of the same size, for as long as blocks are freed in no
//! order.

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::page::{GRAIN, PAGE};
use crate::SourceBlock;

/// The largest block on a shelf, in bytes.
const LARGEST: usize = 512;
const SIZES: usize = LARGEST / GRAIN;
/// Maximum number of waiting blocks of a size.
const DEPTH: usize = 64;
/// Number of pages per waiting block of a size: waiting blocks are then an eighth of the pool at
/// most.
const PAGES_FOR_ONE: usize = LARGEST / 2 * SIZES * 8 / PAGE;
/// After this number of frees without an allocation the pool is probably being emptied, and waiting
/// ends.
const PATIENCE: u8 = 32;

const _: () = assert!(PAGES_FOR_ONE == 2);

/// An open shelf, in memory of its own. Blocks on it count as live, and are not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenShelf(NonNull<Shelves>);

#[repr(C)]
struct Shelves {
    counts: ShelfCounts,
    /// Blocks by size, the last that came on top.
    blocks: [[Cell<MaybeUninit<NonNull<u8>>>; DEPTH]; SIZES],
}

struct ShelfCounts {
    /// Maximum number of waiting blocks of a size.
    most: u8,
    /// Frees since the last request.
    frees: Cell<u8>,
    waiting: [Cell<u8>; SIZES],
    /// For statistics: bytes of blocks that were put here and allocated again.
    served: Cell<usize>,
}

impl OpenShelf {
    /// The memory that a shelf needs.
    pub(super) const LAYOUT: Layout = Layout::new::<Shelves>();

    /// An empty shelf for a pool of this number of pages.
    ///
    /// # Safety
    /// `block` is ours, and of the layout.
    pub(super) unsafe fn create(block: SourceBlock, pages: usize) -> OpenShelf {
        #[expect(clippy::cast_possible_truncation, reason = "it is at most `DEPTH`")]
        let most = (pages / PAGES_FOR_ONE).clamp(1, DEPTH) as u8;
        let waiting = [const { Cell::new(0) }; SIZES];
        let shelves = block.start.cast::<Shelves>();
        // SAFETY: the block is as large, and begins with the counts; the rest need not be written.
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
        // SAFETY: the counts are written, and the rest may have any value.
        unsafe { self.0.as_ref() }
    }

    /// Puts a block of `size` bytes here. `false` if it cannot wait.
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

    /// Takes the block of this size that came last, if it is aligned as asked.
    #[inline(always)]
    pub(super) fn pop_aligned(self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let Shelves { counts, blocks } = self.shelves();
        let index = size / GRAIN - 1;
        let waiting = counts.waiting.get(index)?.get();
        if align > GRAIN
            && let Some(last) = waiting.checked_sub(1)
        {
            // SAFETY: as many blocks of this size were written as wait.
            let block = unsafe { blocks[index][usize::from(last)].get().assume_init() };
            if block.addr().get() & (align - 1) != 0 {
                return None;
            }
        }
        self.pop_block(size)
    }

    /// Takes the block of this size that came last.
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
        // SAFETY: as many blocks of this size were written as wait.
        Some(unsafe { blocks[index][usize::from(waiting)].get().assume_init() })
    }

    /// Bytes of blocks that were allocated again since the last call.
    pub(super) fn take_served(self) -> usize {
        self.shelves().counts.served.take()
    }

    /// Takes any block; returns it with its size.
    pub(super) fn take_any(self) -> Option<(NonNull<u8>, usize)> {
        let index = self.shelves().counts.waiting.iter().position(|waiting| waiting.get() > 0)?;
        let size = (index + 1) * GRAIN;
        Some((self.pop_block(size)?, size))
    }

    fn holds(self, block: NonNull<u8>, size: usize) -> bool {
        let Shelves { counts, blocks } = self.shelves();
        let index = size / GRAIN - 1;
        let waiting = &blocks[index][..counts.waiting[index].get().into()];
        // SAFETY: as many blocks of this size were written as wait.
        waiting.iter().any(|other| unsafe { other.get().assume_init() } == block)
    }
}

//! A block of a ring: who uses it, and where it is linked.
//!
//! ```text
//!  ┌────────┬───────────┬─────────┬─────────────────┐      ┌────────┬────────┬───────────────────┬ ─ ─
//!  │ header │ one frame │ padding │ another ...     │ ─ ─> │ header │ record │ ... which ends here
//!  └────────┴───────────┴─────────┴─────────────────┘      └────────┴────────┴───────────────────┴ ─ ─
//!  ^ LINE   ^ LINE                ^ LINE                   ^ LINE
//! ```
//!
//! Frames that begin or end in a block use it. While the ring may still put frames there, `users` is [`MANY`] less those
//! that were released; the ring knows how many there were, and sets it right when it leaves the block. So the ring touches
//! the counter once a block, not once a frame, and nobody who releases waits for it.

use core::cell::Cell;
use core::ptr::{self, NonNull};

use super::atomic::{AtomicUsize, Ordering, Touched};
use super::shared::Shared;
use crate::source::Block;

/// More than there are frames in a block.
const MANY: usize = 1 << (usize::BITS - 2);

/// What a processor moves between its cores as one, in bytes.
pub(super) const LINE: usize = 64;

/// What a block begins with.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Header {
    /// How many frames use it, and [`MANY`] while there may come more.
    users: AtomicUsize,
    /// The ring's part that all threads see.
    pub(super) shared: NonNull<Shared>,
    /// The next in the list where it is: of its frame, of free blocks, of those that came back.
    pub(super) next: Cell<*mut Header>,
    /// The block of the same frame before it.
    pub(super) previous: Cell<*mut Header>,
    /// How many bytes frames have here, once the ring has left it.
    pub(super) filled: Cell<usize>,
    /// The block's size in bytes; it begins here.
    size: usize,
    /// So that no byte here is left to chance.
    reserved: [usize; 2],
    contents: Touched,
}

#[cfg(not(all(loom, test)))]
const _: () = assert!(size_of::<Header>() == LINE);

/// A block that its ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRef(NonNull<Header>);

impl core::ops::Deref for BlockRef {
    type Target = Header;

    #[inline(always)]
    fn deref(&self) -> &Header {
        // SAFETY: the header was written with the block, which stays until it is given back, when no reference is left.
        unsafe { self.0.as_ref() }
    }
}

impl BlockRef {
    /// Writes the header of a block.
    ///
    /// # Safety
    /// The block is ours, aligned to a `LINE`, and larger than a header.
    pub(super) unsafe fn create(block: Block, shared: NonNull<Shared>) -> BlockRef {
        let header = Header {
            users: AtomicUsize::new(0),
            shared,
            next: Cell::new(ptr::null_mut()),
            previous: Cell::new(ptr::null_mut()),
            filled: Cell::new(0),
            size: block.size,
            reserved: [0; 2],
            contents: Touched::new(),
        };
        let place = block.start.cast::<Header>();
        // SAFETY: as the caller promises.
        unsafe { place.write(header) };
        BlockRef(place)
    }

    /// The block of this header.
    #[inline(always)]
    pub(super) const fn of(header: NonNull<Header>) -> BlockRef {
        BlockRef(header)
    }

    /// The same; none for NULL.
    pub(super) fn new(header: *mut Header) -> Option<BlockRef> {
        NonNull::new(header).map(BlockRef)
    }

    #[inline(always)]
    pub(super) const fn header(self) -> NonNull<Header> {
        self.0
    }

    /// The header, for as long as the ring holds the block.
    pub(super) fn header_ref<'a>(self) -> &'a Header {
        // SAFETY: as for `deref`; callers keep it no longer than they could keep the block.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut Header {
        self.0.as_ptr()
    }

    /// Where frames begin.
    pub(super) fn begin(self) -> *mut u8 {
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// Where it ends.
    pub(super) fn end(self) -> usize {
        self.0.addr().get() + self.size
    }

    /// What the source gave.
    pub(super) fn block(self) -> Block {
        Block { start: self.0.cast(), size: self.size, zeroed: false }
    }

    /// The ring begins to put frames here.
    pub(super) fn enter(self) {
        self.contents.write();
        self.next.set(ptr::null_mut());
        self.previous.set(ptr::null_mut());
        self.users.store(MANY, Ordering::Relaxed);
    }

    /// The ring puts no more frames here, and says how many there were that begin or end here. Whether all were released:
    /// then the block is the ring's again, else that of whoever releases the last.
    pub(super) fn leave(self, frames: usize) -> bool {
        let rest = MANY - frames;
        self.users.fetch_sub(rest, Ordering::AcqRel) == rest
    }

    /// Counts a frame at once, not when the block is left.
    pub(super) fn add_user(self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// A frame that began or ended here was released. Whether it was the last: then the block is the caller's.
    #[inline(always)]
    pub(super) fn give_up(self) -> bool {
        self.contents.read();
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many of the frames here were released, while the ring puts others here.
    pub(super) fn released(self) -> usize {
        MANY.wrapping_sub(self.users.load(Ordering::Relaxed))
    }

    /// The blocks that are linked from here on.
    pub(super) fn list(self) -> impl Iterator<Item = BlockRef> {
        core::iter::successors(Some(self), |block| BlockRef::new(block.next.get()))
    }
}

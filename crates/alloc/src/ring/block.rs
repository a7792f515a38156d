//! A block of a ring: its number of users, and its links.
//!
//! ```text
//!  ┌────────┬───────────┬─────────┬─────────────────┐      ┌────────┬────────┬───────────────────┬ ─ ─
//!  │ header │ one frame │ padding │ another ...     │ ─ ─> │ header │ record │ ... which ends here
//!  └────────┴───────────┴─────────┴─────────────────┘      └────────┴────────┴───────────────────┴ ─ ─
//!  ^ LINE   ^ LINE                ^ LINE                   ^ LINE
//! ```
//!
//! Frames that begin or end in a block use it. While the ring may still put frames there, `users`
//! is [`MANY`] minus the number of released frames; the ring knows the number of frames, and
//! corrects the counter when it leaves the block. So the ring touches the counter once per block,
//! not once per frame, and threads that release frames do not wait for it.

use core::cell::Cell;
use core::ptr::{self, NonNull};

use super::atomic::{AtomicUsize, Ordering, TouchCheck};
use super::shared::RingShared;
use crate::source::SourceBlock;

/// More than the number of frames of a block.
const MANY: usize = 1 << (usize::BITS - 2);

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// Header of a block.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct RingBlockHeader {
    /// Number of frames that use it, plus [`MANY`] while further ones may follow.
    users: AtomicUsize,
    /// The ring's part that all threads see.
    pub(super) shared: NonNull<RingShared>,
    /// The next block in its list: of its frame, of free blocks, or of returned blocks.
    pub(super) next: Cell<*mut RingBlockHeader>,
    /// The block of the same frame before it.
    pub(super) previous: Cell<*mut RingBlockHeader>,
    /// Number of bytes in frames here, once the ring has left it.
    pub(super) filled: Cell<usize>,
    /// The block's size in bytes; it begins here.
    size: usize,
    /// Unused, so that every byte of the header is initialized.
    reserved: [usize; 2],
    contents: TouchCheck,
}

#[cfg(not(all(feature = "loom", test)))]
const _: () = assert!(size_of::<RingBlockHeader>() == LINE);

/// A block that its ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRef(NonNull<RingBlockHeader>);

impl core::ops::Deref for BlockRef {
    type Target = RingBlockHeader;

    #[inline(always)]
    fn deref(&self) -> &RingBlockHeader {
        // SAFETY: the header was written with the block, which stays until it is released, when no
        // reference is left.
        unsafe { self.0.as_ref() }
    }
}

impl BlockRef {
    /// Writes the header of a block.
    ///
    /// # Safety
    /// The block is ours, aligned to a `LINE`, and larger than a header.
    pub(super) unsafe fn create(block: SourceBlock, shared: NonNull<RingShared>) -> BlockRef {
        let header = RingBlockHeader {
            users: AtomicUsize::new(0),
            shared,
            next: Cell::new(ptr::null_mut()),
            previous: Cell::new(ptr::null_mut()),
            filled: Cell::new(0),
            size: block.size,
            reserved: [0; 2],
            contents: TouchCheck::new(),
        };
        let place = block.start.cast::<RingBlockHeader>();
        // SAFETY: the caller passes memory for a header.
        unsafe { place.write(header) };
        BlockRef(place)
    }

    /// The block of this header.
    #[inline(always)]
    pub(super) const fn from_header(header: NonNull<RingBlockHeader>) -> BlockRef {
        BlockRef(header)
    }

    /// As [`BlockRef::from_header`]; `None` for NULL.
    pub(super) fn new(header: *mut RingBlockHeader) -> Option<BlockRef> {
        NonNull::new(header).map(BlockRef)
    }

    #[inline(always)]
    pub(super) const fn header(self) -> NonNull<RingBlockHeader> {
        self.0
    }

    /// The header, for as long as the ring holds the block.
    pub(super) fn header_ref<'a>(self) -> &'a RingBlockHeader {
        // SAFETY: the header lives as long as its block; callers do not keep the reference longer.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut RingBlockHeader {
        self.0.as_ptr()
    }

    /// Address of the first frame.
    pub(super) fn begin(self) -> *mut u8 {
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// End address.
    pub(super) fn end(self) -> usize {
        self.0.addr().get() + self.size
    }

    /// Block that the source provided.
    pub(super) fn block(self) -> SourceBlock {
        SourceBlock { start: self.0.cast(), size: self.size, zeroed: false }
    }

    /// Makes this the block in which the ring puts frames.
    pub(super) fn enter(self) {
        self.contents.write();
        self.next.set(ptr::null_mut());
        self.previous.set(ptr::null_mut());
        self.users.store(MANY, Ordering::Relaxed);
    }

    /// Called when the ring puts no more frames here, with the number of frames that begin or end
    /// here. Returns true if all were released: then the ring owns the block, else the thread that
    /// releases the last frame does.
    pub(super) fn leave(self, frames: usize) -> bool {
        let rest = MANY - frames;
        self.users.fetch_sub(rest, Ordering::AcqRel) == rest
    }

    /// Counts a frame at once, not when the block is left.
    pub(super) fn add_user(self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Called when a frame that began or ended here was released. Returns true if it was the last:
    /// then the caller owns the block.
    #[inline(always)]
    pub(super) fn give_up(self) -> bool {
        self.contents.read();
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Number of released frames here, while the ring puts further ones here.
    pub(super) fn released(self) -> usize {
        MANY.wrapping_sub(self.users.load(Ordering::Relaxed))
    }

    /// The blocks that are linked from here on.
    pub(super) fn list(self) -> impl Iterator<Item = BlockRef> {
        core::iter::successors(Some(self), |block| BlockRef::new(block.next.get()))
    }
}

//! A block of a ring: its number of users, and its links.
//!
//! ```text
//!  ┌────────┬───────────┬─────────┬─────────────────┐      ┌────────┬────────┬───────────────────┬ ─ ─
//!  │ header │ one frame │ padding │ another ...     │ ─ ─> │ header │ record │ ... which ends here
//!  └────────┴───────────┴─────────┴─────────────────┘      └────────┴────────┴───────────────────┴ ─ ─
//!  ^ LINE   ^ LINE                ^ LINE                   ^ LINE
//! ```
//!
//! Frames that begin or end in a block are users of the block. While the ring may still put frames
//! into the block, `users` is [`MANY`] minus the number of released frames. The ring itself knows
//! the number of frames, and corrects the counter when it leaves the block. So the ring accesses
//! the counter once per block, not once per frame, and threads that release frames do not wait for
//! the ring.

use core::cell::Cell;
use core::ptr::{self, NonNull};

use super::atomic::{AtomicUsize, Ordering, TouchCheck};
use super::shared::RingShared;
use crate::source::SourceBlock;

/// Upper bound of the number of frames in a block.
const MANY: usize = 1 << (usize::BITS - 2);

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// Header of a block.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct RingBlockHeader {
    /// Number of users of the block. While the ring may still put frames into the block: [`MANY`]
    /// minus the number of released frames.
    users: AtomicUsize,
    /// The fields of the ring that it shares with threads that release frames.
    pub(super) shared: NonNull<RingShared>,
    /// The next block in the list that contains this block: the blocks of a frame, the free blocks,
    /// or the returned blocks.
    pub(super) next: Cell<*mut RingBlockHeader>,
    /// The preceding block of the same frame.
    pub(super) previous: Cell<*mut RingBlockHeader>,
    /// Number of bytes of frames in this block, set when the ring leaves the block.
    pub(super) filled: Cell<usize>,
    /// Size of the block in bytes, including this header.
    size: usize,
    /// Unused, so that every byte of the header is initialized.
    reserved: [usize; 2],
    contents: TouchCheck,
}

#[cfg(not(all(feature = "loom", test)))]
const _: () = assert!(size_of::<RingBlockHeader>() == LINE);

/// Reference to a block that its ring has not returned to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRef(NonNull<RingBlockHeader>);

impl core::ops::Deref for BlockRef {
    type Target = RingBlockHeader;

    #[inline(always)]
    fn deref(&self) -> &RingBlockHeader {
        // SAFETY: the header was written when the block was created, and no reference exists when
        // the block is returned to the source.
        unsafe { self.0.as_ref() }
    }
}

impl BlockRef {
    /// Writes the header of a block.
    ///
    /// # Safety
    /// No other code uses the block, which is aligned to `LINE` and larger than a header.
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
        // SAFETY: the caller passes a block that is larger than a header.
        unsafe { place.write(header) };
        BlockRef(place)
    }

    /// Returns the block that begins with this header.
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

    /// Returns the header, which is valid until the ring returns the block to the source.
    pub(super) fn header_ref<'a>(self) -> &'a RingBlockHeader {
        // SAFETY: the header lives as long as its block, and callers do not keep the reference
        // longer.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut RingBlockHeader {
        self.0.as_ptr()
    }

    /// Returns the address of the first frame.
    pub(super) fn begin(self) -> *mut u8 {
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// Returns the end address of the block.
    pub(super) fn end(self) -> usize {
        self.0.addr().get() + self.size
    }

    /// Returns the block that the source provided.
    pub(super) fn block(self) -> SourceBlock {
        SourceBlock { start: self.0.cast(), size: self.size, zeroed: false }
    }

    /// Prepares the block for new frames.
    pub(super) fn enter(self) {
        self.contents.write();
        self.next.set(ptr::null_mut());
        self.previous.set(ptr::null_mut());
        self.users.store(MANY, Ordering::Relaxed);
    }

    /// Called when the ring puts no more frames into this block. `frames` is the number of frames
    /// that begin or end in the block. Returns true if all of them were released: then the ring
    /// owns the block. Otherwise the thread that releases the last of these frames owns it.
    pub(super) fn leave(self, frames: usize) -> bool {
        let rest = MANY - frames;
        self.users.fetch_sub(rest, Ordering::AcqRel) == rest
    }

    /// Counts a frame immediately, instead of when the ring leaves the block.
    pub(super) fn add_user(self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Called when a frame that begins or ends in this block was released. Returns true if this
    /// frame was the last user: then the caller owns the block.
    #[inline(always)]
    pub(super) fn give_up(self) -> bool {
        self.contents.read();
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Number of released frames in this block. Requires that the ring has not left the block.
    pub(super) fn released(self) -> usize {
        MANY.wrapping_sub(self.users.load(Ordering::Relaxed))
    }

    /// Iterates over this block and the blocks that are linked behind it.
    pub(super) fn list(self) -> impl Iterator<Item = BlockRef> {
        core::iter::successors(Some(self), |block| BlockRef::new(block.next.get()))
    }
}

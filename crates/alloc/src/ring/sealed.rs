//! Sealed frames, which any thread may read and release.

use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::block::{BlockRef, RingBlockHeader};
use super::canary::{self, RingCanary};
use super::shared::RingShared;
use crate::watch;

/// Record of a frame that has several blocks or canaries. It is stored in the frame.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FrameRecord {
    /// The block in which the frame begins.
    pub(super) first: NonNull<RingBlockHeader>,
    /// The block in which the frame ends; set when the frame is sealed.
    pub(super) last: Cell<NonNull<RingBlockHeader>>,
    /// The last canary of the frame; NULL if the ring is not guarded.
    pub(super) guards: Cell<*mut RingCanary>,
}

/// Tag bit of the address of a record. The address of a block has this bit clear.
const RECORD: usize = 1;

const _: () = assert!(align_of::<FrameRecord>() > RECORD && align_of::<RingBlockHeader>() > RECORD);

/// A sealed frame. Its memory does not change until this value is dropped. Dropping it releases the
/// frame: on any thread, in any order, without waiting for other threads, and with the same few
/// instructions for any content.
///
/// The frame may outlive its ring. The memory of the ring is then freed with its last frame.
pub struct Sealed {
    /// Address of the block that contains the frame, or the tagged address of the frame's record.
    place: NonNull<u8>,
}

// SAFETY: a release changes only atomic counters and lists.
unsafe impl Send for Sealed {}
// SAFETY: a shared reference to a sealed frame permits no access to its memory.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// Creates the handle of a frame in a single block.
    #[inline(always)]
    pub(super) const fn short(block: NonNull<RingBlockHeader>) -> Sealed {
        Sealed { place: block.cast() }
    }

    /// Creates the handle of a frame with a record.
    pub(super) fn long(record: NonNull<FrameRecord>) -> Sealed {
        Sealed { place: record.cast().map_addr(|address| address | RECORD) }
    }

    /// Converts the frame to a word that is not 0, for code that does not know the type. Does not
    /// release the frame.
    #[inline]
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).place
    }

    /// Returns the frame that a word represents.
    ///
    /// # Safety
    /// [`Sealed::into_raw`] returned the word, and this function is called once for it.
    #[inline]
    pub const unsafe fn from_raw(raw: NonNull<u8>) -> Sealed {
        Sealed { place: raw }
    }
}

impl Drop for Sealed {
    #[inline]
    fn drop(&mut self) {
        if self.place.addr().get() & RECORD == 0 {
            // SAFETY: the frame is in this block, and is released only once, because this is its
            // only handle.
            unsafe { give_up(BlockRef::from_header(self.place.cast())) };
        } else {
            let record = self.place.as_ptr().wrapping_sub(RECORD).cast::<FrameRecord>();
            // SAFETY: the record is that of this frame, which is sealed and not used any more.
            unsafe { release_long(record) };
        }
    }
}

/// Subtracts one user of a block. If it was the last user, returns the block to the ring.
///
/// # Safety
/// A frame that begins or ends in the block is being released, and is not used any more.
#[inline]
unsafe fn give_up(block: BlockRef) {
    let shared = block.shared;
    if block.give_up() {
        // SAFETY: this thread owns the block, and the ring counted its return.
        unsafe { RingShared::put(shared, block, block) };
    }
}

/// Releases a frame with a record.
///
/// # Safety
/// The frame of the record is sealed, and is not used any more.
#[cold]
unsafe fn release_long(record: *mut FrameRecord) {
    let _quiet = watch::quiet();
    // SAFETY: the memory of a frame, which contains the record, stays until the frame is released.
    let FrameRecord { first, last, guards } = unsafe { record.read() };
    let (first, last) = (BlockRef::from_header(first), BlockRef::from_header(last.get()));
    canary::released(first, guards.get());
    if first != last {
        // SAFETY: the caller passes a sealed frame that is not used any more.
        unsafe { give_up_inner(first, last) };
        // SAFETY: the caller passes a frame that is being released, which ends in `last`.
        unsafe { give_up(last) };
    }
    // SAFETY: the caller passes a frame that is being released, which begins in `first`.
    unsafe { give_up(first) };
}

/// Returns the blocks between `first` and `last`, which contained no other frame, to the ring.
///
/// # Safety
/// The frame began in `first` and ended in `last`, still counts as a user of both blocks, and is
/// being released.
unsafe fn give_up_inner(first: BlockRef, last: BlockRef) {
    let inner = (BlockRef::new(first.next.get()), BlockRef::new(last.previous.get()));
    if let (Some(from), Some(to)) = inner
        && from != last
    {
        // SAFETY: no other frame was in these blocks, and the ring counted their return.
        unsafe { RingShared::put(first.shared, from, to) };
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealed").field(&self.place).finish()
    }
}

/// A value in a frame of its own, which also contains all memory that was allocated for the value.
/// Dropping the message releases the frame, on any thread.
///
/// No destructor runs: a value with a destructor cannot be put into a frame.
pub struct Message<T: ?Sized> {
    value: NonNull<T>,
    frame: Sealed,
}

// SAFETY: the message owns the value, and any thread may release the frame.
unsafe impl<T: ?Sized + Send> Send for Message<T> {}
// SAFETY: a shared reference to the message gives only shared references to the value.
unsafe impl<T: ?Sized + Sync> Sync for Message<T> {}

impl<T: ?Sized> Message<T> {
    /// # Safety
    /// The value is in the frame or static, and no other reference to it exists.
    pub(super) const unsafe fn new(value: NonNull<T>, frame: Sealed) -> Message<T> {
        Message { value, frame }
    }
}

impl<T: ?Sized> Deref for Message<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value stays until the frame is released, and the message owns it.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for Message<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value is initialized, and `&mut self` is the only reference.
        unsafe { self.value.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("value", &&**self).field("frame", &self.frame).finish()
    }
}

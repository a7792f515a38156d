//! Frames that are sealed: their memory may be read and released anywhere.

use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::block::{BlockRef, RingBlockHeader};
use super::canary::{self, RingCanary};
use super::shared::RingShared;
use crate::watch;

/// Data of a frame with several blocks, or with canaries; stored in the frame.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FrameRecord {
    /// The block where it begins.
    pub(super) first: NonNull<RingBlockHeader>,
    /// The block where it ends, once it is sealed.
    pub(super) last: Cell<NonNull<RingBlockHeader>>,
    /// The last canary of the frame in a guarded ring; NULL in others.
    pub(super) guards: Cell<*mut RingCanary>,
}

/// Set in the address of a record, but not of a block.
const RECORD: usize = 1;

const _: () = assert!(align_of::<FrameRecord>() > RECORD && align_of::<RingBlockHeader>() > RECORD);

/// A sealed frame. The ring does not change its memory until this value is dropped, which releases
/// the frame: on any thread, in any order, without waiting for other threads, and in the same few
/// instructions for any content.
///
/// It may outlive its ring, whose memory then goes with the last frame.
pub struct Sealed {
    /// The block where the frame is, or its record, where there is one.
    place: NonNull<u8>,
}

// SAFETY: releasing counts atomically, and gives blocks back by an atomic exchange.
unsafe impl Send for Sealed {}
// SAFETY: a reference to it does nothing.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// A frame in one block.
    #[inline(always)]
    pub(super) const fn short(block: NonNull<RingBlockHeader>) -> Sealed {
        Sealed { place: block.cast() }
    }

    /// A frame with a record.
    pub(super) fn long(record: NonNull<FrameRecord>) -> Sealed {
        Sealed { place: record.cast().map_addr(|address| address | RECORD) }
    }

    /// The frame as a word that is not 0, for code that passes it on without its type. It is not
    /// released.
    #[inline]
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).place
    }

    /// The frame of a word.
    ///
    /// # Safety
    /// The word came from [`Sealed::into_raw`], and this is done with it once.
    #[inline]
    pub const unsafe fn from_raw(raw: NonNull<u8>) -> Sealed {
        Sealed { place: raw }
    }
}

impl Drop for Sealed {
    #[inline]
    fn drop(&mut self) {
        if self.place.addr().get() & RECORD == 0 {
            // SAFETY: the frame is in this block, and released once, since this is its only handle.
            unsafe { give_up(BlockRef::from_header(self.place.cast())) };
        } else {
            let record = self.place.as_ptr().wrapping_sub(RECORD).cast::<FrameRecord>();
            // SAFETY: the record is of this frame, which is sealed and not used any more.
            unsafe { release_long(record) };
        }
    }
}

/// Ends the use of a block, and returns it if it was the last use.
///
/// # Safety
/// A frame that begins or ends there is released, and is not used any more.
#[inline]
unsafe fn give_up(block: BlockRef) {
    let shared = block.shared;
    if block.give_up() {
        // SAFETY: the block is ours, and the ring counted it as returning.
        unsafe { RingShared::put(shared, block, block) };
    }
}

/// Releases a frame with a record.
///
/// # Safety
/// It is sealed, and is not used any more.
#[cold]
unsafe fn release_long(record: *mut FrameRecord) {
    let _quiet = watch::quiet();
    // SAFETY: a frame stays until it is released.
    let FrameRecord { first, last, guards } = unsafe { record.read() };
    let (first, last) = (BlockRef::from_header(first), BlockRef::from_header(last.get()));
    canary::released(first, guards.get());
    if first != last {
        // SAFETY: the caller passes a sealed frame that is not used any more.
        unsafe { give_up_inner(first, last) };
        // SAFETY: the caller passes a released frame, which ends there.
        unsafe { give_up(last) };
    }
    // SAFETY: the caller passes a released frame, which begins there.
    unsafe { give_up(first) };
}

/// Returns the blocks between two, in which no other frame was.
///
/// # Safety
/// The frame began in `first` and ended in `last`, counts as a user of both, and is released.
unsafe fn give_up_inner(first: BlockRef, last: BlockRef) {
    let inner = (BlockRef::new(first.next.get()), BlockRef::new(last.previous.get()));
    if let (Some(from), Some(to)) = inner
        && from != last
    {
        // SAFETY: no other frame was in these blocks, and the ring counted them as returning.
        unsafe { RingShared::put(first.shared, from, to) };
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealed").field(&self.place).finish()
    }
}

/// A value in a frame of its own, with all that was allocated for it. Dropping it releases the
/// frame, on any thread.
///
/// No destructor runs: a value with a destructor cannot be put into a frame.
pub struct Message<T: ?Sized> {
    value: NonNull<T>,
    frame: Sealed,
}

// SAFETY: the value is this one's alone, and the frame may be released anywhere.
unsafe impl<T: ?Sized + Send> Send for Message<T> {}
// SAFETY: a shared reference gives only shared references to the value.
unsafe impl<T: ?Sized + Sync> Sync for Message<T> {}

impl<T: ?Sized> Message<T> {
    /// # Safety
    /// The value is in the frame, or lives for ever, and no other reference to it exists.
    pub(super) const unsafe fn new(value: NonNull<T>, frame: Sealed) -> Message<T> {
        Message { value, frame }
    }
}

impl<T: ?Sized> Deref for Message<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value stays until the frame is released, and is this one's alone.
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

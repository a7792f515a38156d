//! Frames that are sealed: their memory may be read and released anywhere.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::block::{BlockRef, Header};
use super::guard::{self, Guard};
use super::shared::Shared;

/// What a frame begins with.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Record {
    /// The block where it begins.
    pub(super) first: NonNull<Header>,
    /// The block where it ends, once it is sealed.
    pub(super) last: NonNull<Header>,
    /// The guard of what was allocated last in a ring that is guarded; NULL in others.
    pub(super) guards: *mut Guard,
}

/// A frame whose memory changes no more for the ring's sake, until this is dropped: which releases it, on any thread, in
/// any order, in the same few instructions whatever is in it, and without waiting for others.
///
/// It may outlive its ring, whose memory then goes with the last frame.
pub struct Sealed {
    record: NonNull<Record>,
}

// SAFETY: releasing counts atomically, and gives blocks back by an atomic exchange.
unsafe impl Send for Sealed {}
// SAFETY: a reference to it does nothing.
unsafe impl Sync for Sealed {}

impl Sealed {
    pub(super) const fn new(record: NonNull<Record>) -> Sealed {
        Sealed { record }
    }

    /// The frame as an address, for those who hand it on without its type. It is not released.
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).record.cast()
    }

    /// The frame of an address.
    ///
    /// # Safety
    /// The address came from [`Sealed::into_raw`], and this is done with it once.
    pub const unsafe fn from_raw(raw: NonNull<u8>) -> Sealed {
        Sealed { record: raw.cast() }
    }
}

impl Drop for Sealed {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the frame is released once, since this is its only handle.
        unsafe { release(self.record) };
    }
}

/// Releases a frame.
///
/// # Safety
/// It is sealed, and nobody uses it any more.
#[inline]
unsafe fn release(record: NonNull<Record>) {
    // SAFETY: a frame stays until it is released.
    let Record { first, last, guards } = unsafe { record.read() };
    if !guards.is_null() {
        guard::released(record);
    }
    // SAFETY: the frame counts as a user of both, and as the owner of what is between.
    unsafe { give_up(first, last) };
}

/// # Safety
/// A frame that began in `first` and ended in `last` is released, and its record not used any more.
#[inline]
unsafe fn give_up(first: NonNull<Header>, last: NonNull<Header>) {
    let (first, last) = (BlockRef::of(first), BlockRef::of(last));
    let shared = first.shared;
    if first != last {
        // SAFETY: as the caller promises.
        unsafe { give_up_long(first, last) };
    }
    if first.give_up() {
        // SAFETY: the block is ours, and the ring was told that it comes back.
        unsafe { Shared::put(shared, first, first) };
    }
}

/// What a frame has beside its first block.
///
/// # Safety
/// As for `give_up`.
#[cold]
unsafe fn give_up_long(first: BlockRef, last: BlockRef) {
    let inner = (BlockRef::new(first.next.get()), BlockRef::new(last.previous.get()));
    if let (Some(from), Some(to)) = inner
        && from != last
    {
        // SAFETY: nobody else was in the blocks between, and the ring was told that they come back.
        unsafe { Shared::put(first.shared, from, to) };
    }
    if last.give_up() {
        // SAFETY: the block is ours, and the ring was told that it comes back.
        unsafe { Shared::put(first.shared, last, last) };
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealed").field(&self.record).finish()
    }
}

/// A value in a frame of its own, with all that was allocated for it. Dropping it releases the frame, on any thread.
///
/// No destructor is run: what has one does not go into a frame.
pub struct Message<T: ?Sized> {
    value: NonNull<T>,
    frame: Sealed,
}

// SAFETY: the value is this one's alone, and the frame may be released anywhere.
unsafe impl<T: ?Sized + Send> Send for Message<T> {}
// SAFETY: as above; a shared reference gives shared references to the value.
unsafe impl<T: ?Sized + Sync> Sync for Message<T> {}

impl<T: ?Sized> Message<T> {
    /// # Safety
    /// The value lies in the frame, or lives for ever, and nobody else has a reference to it.
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
        // SAFETY: as above, and nobody else has a reference.
        unsafe { self.value.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("value", &&**self).field("frame", &self.frame).finish()
    }
}

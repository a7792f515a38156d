//! A value in a FIFO pool.

use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A value that lives in a [`Fifo`](super::Fifo), and may outlive it: then the pool's memory goes
/// with its last value.
pub struct Boxed<T> {
    value: NonNull<T>,
}

impl<T> Boxed<T> {
    /// # Safety
    /// `block` has the layout of a `T` and is used by no other code. It came from a pool whose
    /// source lives as long as there are references to it.
    pub(super) unsafe fn new(block: NonNull<T>, value: T) -> Boxed<T> {
        // SAFETY: the block is of the type's layout.
        unsafe { block.write(value) };
        Boxed { value: block }
    }
}

impl<T> Deref for Boxed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value is ours until it is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Boxed<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value is initialized, and `&mut self` is the only reference.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Boxed<T> {
    fn drop(&mut self) {
        // SAFETY: the value is not accessed any more.
        unsafe { self.value.drop_in_place() };
        // SAFETY: the block came from a pool of this thread, since a box cannot go to another, with
        // this size.
        unsafe { super::free(self.value.cast(), Layout::new::<T>()) };
    }
}

impl<T: fmt::Debug> fmt::Debug for Boxed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

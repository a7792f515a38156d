//! Writes values into memory of a frame, for stacks and rings.

use core::ptr::{self, NonNull};
use core::slice;

/// Moves a value to `place`.
///
/// # Safety
/// The memory has the layout of a `T`, stays valid for `'f`, and is not used by other code.
#[inline(always)]
pub(crate) unsafe fn put<'f, T>(place: NonNull<T>, value: T) -> &'f mut T {
    // SAFETY: the caller guarantees memory for a `T`.
    unsafe { place.write(value) };
    // SAFETY: the caller guarantees memory for a `T` as long as `'f`, and it is initialized.
    unsafe { &mut *place.as_ptr() }
}

/// Writes `len` values from `start` on; `value` returns the value of each index.
///
/// # Safety
/// The memory has the layout of `len` values, stays valid for `'f`, and is not used by other code.
#[inline(always)]
pub(crate) unsafe fn make<'f, T>(
    start: NonNull<T>,
    len: usize,
    mut value: impl FnMut(usize) -> T,
) -> &'f mut [T] {
    for at in 0..len {
        // SAFETY: the memory is for `len` of them.
        let place = unsafe { start.add(at) };
        // SAFETY: the caller guarantees memory for `len` values.
        unsafe { place.write(value(at)) };
    }
    // SAFETY: the caller guarantees memory for `len` values as long as `'f`, and all are
    // initialized.
    unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
}

/// Copies values to `start`.
///
/// # Safety
/// The memory is new, has the right layout, stays valid for `'f`, and is not used by other code.
#[inline(always)]
pub(crate) unsafe fn copy<'f, T: Copy>(start: NonNull<T>, values: &[T]) -> &'f mut [T] {
    let start = start.as_ptr();
    // SAFETY: the caller guarantees new memory for as many values, which does not overlap theirs.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
    // SAFETY: the caller guarantees memory for as many values as long as `'f`, and all are
    // initialized.
    unsafe { slice::from_raw_parts_mut(start, values.len()) }
}

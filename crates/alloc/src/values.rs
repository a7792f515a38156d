//! Functions that write values into the memory of a frame, for stacks and rings.

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
    // SAFETY: the caller guarantees that the memory is valid for `'f`, and the value was written.
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
        // SAFETY: the memory has space for `len` values, and `at` is less than `len`.
        let place = unsafe { start.add(at) };
        // SAFETY: the caller guarantees memory for `len` values.
        unsafe { place.write(value(at)) };
    }
    // SAFETY: the caller guarantees that the memory is valid for `'f`, and all `len` values were
    // written.
    unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
}

/// Copies values to `start`.
///
/// # Safety
/// The memory is new, has the right layout, stays valid for `'f`, and is not used by other code.
#[inline(always)]
pub(crate) unsafe fn copy<'f, T: Copy>(start: NonNull<T>, values: &[T]) -> &'f mut [T] {
    let start = start.as_ptr();
    // SAFETY: the caller guarantees new memory for `values.len()` values, which does not overlap
    // `values`.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
    // SAFETY: the caller guarantees that the memory is valid for `'f`, and all values were written.
    unsafe { slice::from_raw_parts_mut(start, values.len()) }
}

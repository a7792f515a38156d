//! Values in memory that a frame handed out: what stacks and rings make of it.

use core::ptr::{self, NonNull};
use core::slice;

/// Moves a value there.
///
/// # Safety
/// The memory is for a `T`, as long as `'f`, and for nobody else.
#[inline(always)]
pub(crate) unsafe fn put<'f, T>(place: NonNull<T>, value: T) -> &'f mut T {
    // SAFETY: as the caller says.
    unsafe { place.write(value) };
    // SAFETY: as the caller says, and it is written.
    unsafe { &mut *place.as_ptr() }
}

/// Makes as many values there as asked for, each of its place.
///
/// # Safety
/// The memory is for `len` of them, as long as `'f`, and for nobody else.
#[inline(always)]
pub(crate) unsafe fn make<'f, T>(
    start: NonNull<T>,
    len: usize,
    mut value: impl FnMut(usize) -> T,
) -> &'f mut [T] {
    for at in 0..len {
        // SAFETY: the memory is for `len` of them.
        let place = unsafe { start.add(at) };
        // SAFETY: as the caller says.
        unsafe { place.write(value(at)) };
    }
    // SAFETY: as the caller says, and all are written.
    unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
}

/// Copies values there.
///
/// # Safety
/// The memory is new, for as many of them, as long as `'f`, and for nobody else.
#[inline(always)]
pub(crate) unsafe fn copy<'f, T: Copy>(start: NonNull<T>, values: &[T]) -> &'f mut [T] {
    let start = start.as_ptr();
    // SAFETY: as the caller says; what is new is not theirs.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
    // SAFETY: as the caller says, and all are written.
    unsafe { slice::from_raw_parts_mut(start, values.len()) }
}

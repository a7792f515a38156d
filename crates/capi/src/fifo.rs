//! `pagewise/fifo.h`: what its inline functions call where they do not know what to do.

use std::alloc::Layout;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use pagewise_alloc::Fifo;
use pagewise_alloc::source::SystemOrBuffer;

use crate::common::{functions, layout, pointer};
use crate::failure::or_abort;

/// `pw_fifo` is the beginning of this type.
type CFifo = Fifo<SystemOrBuffer>;

/// `pw_fifo`, of which nothing is known here.
#[derive(Debug)]
#[repr(C)]
pub struct RawFifo([u8; 0]);

fn create(memory: SystemOrBuffer) -> *mut RawFifo {
    pointer(Fifo::unguarded(memory).map(Fifo::into_raw)).cast()
}

/// The pool behind a pointer, which stays.
///
/// # Safety
/// It came from `create`.
unsafe fn pool(raw: *const RawFifo) -> ManuallyDrop<CFifo> {
    // SAFETY: the caller passes a live pool, so it is not NULL.
    let raw = unsafe { NonNull::new_unchecked(raw.cast_mut()) };
    // SAFETY: the caller passes a live pool; the value is not dropped.
    ManuallyDrop::new(unsafe { Fifo::from_raw(raw.cast()) })
}

/// See `pagewise/fifo.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_fifo_create() -> *mut RawFifo {
    create(SystemOrBuffer::system())
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_create_in(buffer: *mut c_void, size: usize) -> *mut RawFifo {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: the header requires that the buffer is valid, and used by the pool only.
    create(unsafe { SystemOrBuffer::buffer(start, size) })
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_destroy(raw: *mut RawFifo) {
    if !raw.is_null() {
        // SAFETY: the header requires a live pool.
        let pool = unsafe { pool(raw) };
        or_abort(|| drop(ManuallyDrop::into_inner(pool)));
    }
}

functions! {
    see "fifo.h", pool(*mut RawFifo);
    guard pw_fifo_guard,
    held pw_fifo_held,
    set_name pw_fifo_set_name,
    check pw_fifo_check,
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_realloc(
    raw: *mut RawFifo,
    block: *mut c_void,
    old: usize,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layouts = [old, size].map(|size| Layout::from_size_align(size, align));
    let [Ok(old), Ok(new)] = layouts else { return ptr::null_mut() };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(match NonNull::new(block.cast()) {
        None => pool.allocate(new),
        // SAFETY: the header requires a block of this pool with this size.
        Some(block) => or_abort(|| unsafe { pool.reallocate(block, old, size) }),
    })
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_alloc_slow(
    raw: *mut RawFifo,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(layout.and_then(|layout| pool.allocate(layout)))
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_zalloc_slow(
    raw: *mut RawFifo,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(layout.and_then(|layout| pool.allocate_zeroed(layout)))
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_free_slow(raw: *mut RawFifo, block: *mut c_void, size: usize) {
    let (Some(pool), Some(block)) = (NonNull::new(raw.cast()), NonNull::new(block.cast())) else {
        return;
    };
    // SAFETY: the block is of this size, which was allocated, and the pool of a page is there while
    // it is.
    or_abort(|| unsafe { CFifo::free_slow(pool, block, size) });
}

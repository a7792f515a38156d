//! `pagewise/fifo.h`: what its inline functions call where they do not know what to do.

use std::alloc::Layout;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use pagewise_alloc::Fifo;
use pagewise_alloc::source::Memory;

use crate::common::{functions, layout, pointer};
use crate::failure::or_abort;

/// What `pw_fifo` is the beginning of.
type CFifo = Fifo<Memory>;

/// `pw_fifo`, of which nothing is known here.
#[derive(Debug)]
#[repr(C)]
pub struct Raw([u8; 0]);

fn create(memory: Memory) -> *mut Raw {
    pointer(Fifo::unguarded(memory).map(Fifo::into_raw)).cast()
}

/// The pool behind a pointer, which stays.
///
/// # Safety
/// It came from `create`.
unsafe fn pool(raw: *const Raw) -> ManuallyDrop<CFifo> {
    // SAFETY: as the caller says, so it is not NULL.
    let raw = unsafe { NonNull::new_unchecked(raw.cast_mut()) };
    // SAFETY: as the caller says; it is not dropped.
    ManuallyDrop::new(unsafe { Fifo::from_raw(raw.cast()) })
}

/// See `pagewise/fifo.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_fifo_create() -> *mut Raw {
    create(Memory::system())
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_create_in(buffer: *mut c_void, size: usize) -> *mut Raw {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: as the header says.
    create(unsafe { Memory::buffer(start, size) })
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_destroy(raw: *mut Raw) {
    if !raw.is_null() {
        // SAFETY: as the header says.
        let pool = unsafe { pool(raw) };
        or_abort(|| drop(ManuallyDrop::into_inner(pool)));
    }
}

functions! {
    see "fifo.h", pool(*mut Raw);
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
    raw: *mut Raw,
    block: *mut c_void,
    old: usize,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layouts = [old, size].map(|size| Layout::from_size_align(size, align));
    let [Ok(old), Ok(new)] = layouts else { return ptr::null_mut() };
    // SAFETY: as the header says.
    let pool = unsafe { pool(raw) };
    pointer(match NonNull::new(block.cast()) {
        None => pool.allocate(new),
        // SAFETY: the block came from there and has this size, says the header.
        Some(block) => or_abort(|| unsafe { pool.reallocate(block, old, size) }),
    })
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_alloc_slow(
    raw: *mut Raw,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: as the header says.
    let pool = unsafe { pool(raw) };
    pointer(layout.and_then(|layout| pool.allocate(layout)))
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_zalloc_slow(
    raw: *mut Raw,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: as the header says.
    let pool = unsafe { pool(raw) };
    pointer(layout.and_then(|layout| pool.allocate_zeroed(layout)))
}

/// See `pagewise/fifo.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_fifo_free_slow(raw: *mut Raw, block: *mut c_void, size: usize) {
    let (Some(pool), Some(block)) = (NonNull::new(raw.cast()), NonNull::new(block.cast())) else {
        return;
    };
    // SAFETY: the block is of this size, which was allocated, and the pool of a page is there while it is.
    or_abort(|| unsafe { CFifo::free_slow(pool, block, size) });
}

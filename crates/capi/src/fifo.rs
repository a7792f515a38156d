//! `pagewise/fifo.h`: the functions of the header, with the slow paths of its inline functions.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pagewise_alloc::Fifo;
use pagewise_alloc::source::SystemOrBuffer;

use crate::common::{call_sites, functions, layout, layouts, pointer, pool, site};
use crate::failure::or_abort;

/// `pw_fifo` is the beginning of this type.
type CFifo = Fifo<SystemOrBuffer>;

pool! {
    see "fifo.h", Fifo as CFifo;
    raw RawFifo,
    get pool,
    create pw_fifo_create,
    create_in pw_fifo_create_in,
    destroy pw_fifo_destroy,
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
    let Some([old, new]) = layouts(old, size, align) else { return ptr::null_mut() };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(match NonNull::new(block.cast()) {
        None => pool.allocate(new),
        // SAFETY: the header requires a block of this pool with this size.
        Some(block) => or_abort(|| unsafe { pool.reallocate(block, old, size) }),
    })
}

call_sites! {
    see "fifo.h";
    pw_fifo_alloc_slow(raw: *mut RawFifo, size: usize, align: usize) -> *mut c_void => allocate, "rcx", "x3";
    pw_fifo_zalloc_slow(raw: *mut RawFifo, size: usize, align: usize) -> *mut c_void => allocate_zeroed, "rcx", "x3";
    pw_fifo_free_slow(raw: *mut RawFifo, block: *mut c_void, size: usize) => free, "rcx", "x3";
}

/// # Safety
/// As the header says.
unsafe extern "C" fn allocate(
    raw: *mut RawFifo,
    size: usize,
    align: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(layout(size, align).and_then(|layout| pool.allocate_at(layout, site(caller))))
}

/// # Safety
/// As the header says.
unsafe extern "C" fn allocate_zeroed(
    raw: *mut RawFifo,
    size: usize,
    align: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(raw) };
    pointer(layout(size, align).and_then(|layout| pool.allocate_zeroed_at(layout, site(caller))))
}

/// # Safety
/// As the header says.
unsafe extern "C" fn free(raw: *mut RawFifo, block: *mut c_void, size: usize, caller: usize) {
    let (Some(pool), Some(block)) = (NonNull::new(raw.cast()), NonNull::new(block.cast())) else {
        return;
    };
    // SAFETY: the header requires a live block with this size, and the pool of a page lives as long
    // as the page.
    or_abort(|| unsafe { CFifo::free_slow(pool, block, size, site(caller)) });
}

//! The functions of malloc(3), as programs call them.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use pagewise_alloc::pages::PAGE;

use crate::heap::{self, ALIGN, LARGE, PAGES, capacity, layout, with_blocks, word};
use crate::{cache, large};

/// Returns the address of a block for C. Without a block, sets `errno` to ENOMEM and returns NULL.
fn or_enomem(block: Option<NonNull<u8>>) -> *mut c_void {
    match block {
        Some(block) => block.as_ptr().cast(),
        None => fail(libc::ENOMEM),
    }
}

#[cold]
fn fail(number: c_int) -> *mut c_void {
    // SAFETY: the call takes no arguments, and returns the address of this thread's `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: only this thread uses its `errno`.
    unsafe { place.write(number) };
    ptr::null_mut()
}

/// Allocates a block of any size, aligned to 16 bytes.
fn allocate(size: usize) -> Option<NonNull<u8>> {
    if size > LARGE { large::allocate(layout(size, ALIGN)?, false) } else { cache::allocate(size) }
}

fn allocate_zeroed(size: usize) -> Option<NonNull<u8>> {
    if size > LARGE {
        return large::allocate(layout(size, ALIGN)?, true);
    }
    let block = cache::allocate(size)?;
    // SAFETY: the block has this size.
    unsafe { block.write_bytes(0, size) };
    Some(block)
}

fn allocate_aligned(size: usize, align: usize) -> Option<NonNull<u8>> {
    match (size, align) {
        (_, ..=ALIGN) => allocate(size),
        (..=LARGE, ..PAGE) => heap::allocate(layout(size, align)?),
        _ => large::allocate(layout(size, align)?, false),
    }
}

/// Returns the number of usable bytes of a block.
///
/// # Safety
/// The block is live.
unsafe fn usable(block: NonNull<u8>) -> usize {
    if large::is_large(block) {
        // SAFETY: the caller passes a live block, which is a run.
        unsafe { large::capacity(block) }
    } else {
        capacity(word(block))
    }
}

/// # Safety
/// The block is live, and not used any more.
unsafe fn release(block: NonNull<u8>) {
    if large::is_large(block) {
        // SAFETY: the caller passes a live block, which is a run.
        unsafe { large::free(block) }
    } else {
        // SAFETY: the caller passes a live block of the pool of blocks.
        unsafe { cache::free(block) }
    }
}

/// # Safety
/// The block is live, and is not used any more if the function returns another block.
unsafe fn resize(block: NonNull<u8>, size: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller passes a live block.
    let old = unsafe { usable(block) };
    if large::is_large(block) && size > LARGE {
        // SAFETY: the caller passes a live block, which is a run.
        return unsafe { large::resize(block, size) };
    }
    // The block stays in place if the new size is at most its usable size and at least half of it.
    if size <= old && size >= old / 2 {
        return Some(block);
    }
    let moved = allocate(size)?;
    // SAFETY: both blocks have at least the smaller of the two sizes, and do not overlap.
    unsafe { moved.copy_from_nonoverlapping(block, old.min(size)) };
    // SAFETY: the caller does not use the block any more, since its contents were copied.
    unsafe { release(block) };
    Some(moved)
}

/// malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    or_enomem(allocate(size))
}

/// free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if let Some(block) = NonNull::new(block.cast()) {
        // SAFETY: the manual page requires a live block.
        unsafe { release(block) };
    }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    or_enomem(count.checked_mul(size).and_then(allocate_zeroed))
}

/// realloc(3): a size of 0 frees the block, as in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    match (NonNull::new(block.cast()), size) {
        (None, _) => or_enomem(allocate(size)),
        (Some(block), 0) => {
            // SAFETY: the manual page requires a live block.
            unsafe { release(block) };
            ptr::null_mut()
        }
        // SAFETY: the manual page requires a live block.
        (Some(block), _) => or_enomem(unsafe { resize(block, size) }),
    }
}

/// reallocarray(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller passes what `realloc` requires.
        Some(size) => unsafe { realloc(block, size) },
        None => fail(libc::ENOMEM),
    }
}

/// posix_memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let Some(block) = allocate_aligned(size, align) else { return libc::ENOMEM };
    // SAFETY: the manual page requires a writable pointer.
    unsafe { to.write(block.as_ptr().cast()) };
    0
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if align.is_power_of_two() {
        or_enomem(allocate_aligned(size, align))
    } else {
        fail(libc::EINVAL)
    }
}

/// memalign(3): an alignment that is not a power of two is rounded up to one, as in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.max(1).checked_next_power_of_two() {
        Some(align) => or_enomem(allocate_aligned(size, align)),
        None => fail(libc::EINVAL),
    }
}

/// valloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    or_enomem(allocate_aligned(size, PAGE))
}

/// pvalloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    or_enomem(
        size.max(1).checked_next_multiple_of(PAGE).and_then(|size| allocate_aligned(size, PAGE)),
    )
}

/// cfree(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the caller passes what `free` requires.
    unsafe { free(block) };
}

/// `free_sized` of C23.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: the caller passes what `free` requires.
    unsafe { free(block) };
}

/// `free_aligned_sized` of C23.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller passes what `free` requires.
    unsafe { free(block) };
}

/// malloc_usable_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: the manual page requires a live block, or NULL.
    NonNull::new(block.cast()).map_or(0, |block| unsafe { usable(block) })
}

/// malloc_trim(3): ignores the padding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(_padding: usize) -> c_int {
    let before = PAGES.usage();
    with_blocks(pagewise_alloc::Tlsf::trim);
    PAGES.trim();
    let after = PAGES.usage();
    c_int::from(after.idle < before.idle || after.held < before.held)
}

/// mallopt(3): supports no parameter.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    0
}

/// mallinfo2(3): returns the numbers of live and of idle bytes of the pool of pages.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let usage = PAGES.usage();
    // SAFETY: every field is a number, for which all zeros are valid.
    let mut info: libc::mallinfo2 = unsafe { std::mem::zeroed() };
    info.arena = usage.live + usage.idle;
    info.uordblks = usage.live;
    info.fordblks = usage.idle;
    info
}

/// mallinfo(3): as [`mallinfo2`], but limits each number to the range of `int`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let usage = mallinfo2();
    let cut = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: every field is a number, for which all zeros are valid.
    let mut info: libc::mallinfo = unsafe { std::mem::zeroed() };
    info.arena = cut(usage.arena);
    info.uordblks = cut(usage.uordblks);
    info.fordblks = cut(usage.fordblks);
    info
}

/// malloc_stats(3): prints nothing, because `pagewise pools` reports the statistics.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {}

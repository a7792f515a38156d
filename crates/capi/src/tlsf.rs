//! `pagewise/tlsf.h`: slow paths of its inline functions, and the other functions.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pagewise_alloc::source::SystemOrBuffer;
use pagewise_alloc::tlsf::GRANULE;
use pagewise_alloc::{Source, SourceBlock, Tlsf};

use crate::common::{call_sites, functions, layout, pointer, site};
use crate::failure::or_abort;
use crate::home;
use crate::pages::CPages;

/// Source of a pool's memory.
#[derive(Debug)]
pub enum Below {
    /// The system, or a buffer.
    Memory(SystemOrBuffer),
    /// A pool of pages, which outlives this pool.
    Pages(&'static CPages),
}

// SAFETY: both kinds give each block to one taker, which keeps it until it is released.
unsafe impl Source for Below {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        match self {
            Below::Memory(memory) => memory.take(layout),
            Below::Pages(pages) => pages.take(layout),
        }
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        match self {
            // SAFETY: the caller passes a block of this source.
            Below::Memory(memory) => unsafe { memory.give_back(block) },
            // SAFETY: the caller passes a block of this pool of pages.
            Below::Pages(pages) => unsafe { pages.give_back(block) },
        }
    }
}

impl Below {
    /// Source that takes memory back after the end of the pool: a buffer belongs to its owner.
    fn remaining(&self) -> Option<Below> {
        match self {
            Below::Memory(memory) => {
                memory.is_system().then(|| Below::Memory(SystemOrBuffer::system()))
            }
            Below::Pages(pages) => Some(Below::Pages(pages)),
        }
    }
}

/// `pw_tlsf`, of which C knows the start; the crate of the allocators asserts its layout.
pub type CTlsf = Tlsf<Below>;

fn make(below: Below) -> *mut CTlsf {
    home::place(below, Tlsf::unguarded).map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// The pool behind a pointer.
///
/// # Safety
/// It is a `pw_tlsf` that was made and not destroyed, and one thread uses it at a time.
unsafe fn pool<'a>(pointer: *mut CTlsf) -> &'a mut CTlsf {
    // SAFETY: the caller passes a live pool that no other thread uses at the same time.
    unsafe { &mut *pointer }
}

/// See `pagewise/tlsf.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_tlsf_create() -> *mut CTlsf {
    make(Below::Memory(SystemOrBuffer::system()))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_create_in(buffer: *mut c_void, size: usize) -> *mut CTlsf {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: the header requires that the buffer is valid, and used by the pool only.
    make(Below::Memory(unsafe { SystemOrBuffer::buffer(start, size) }))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_create_on(pages: *const CPages) -> *mut CTlsf {
    // SAFETY: the header requires a pool of pages that lives as long, or NULL.
    let pages: Option<&'static CPages> = unsafe { pages.as_ref() };
    pages.map_or(ptr::null_mut(), |pages| make(Below::Pages(pages)))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_destroy(pointer: *mut CTlsf) {
    let Some(placed) = NonNull::new(pointer) else { return };
    // SAFETY: the header requires a live pool.
    let remaining = unsafe { pool(pointer) }.source().remaining();
    // SAFETY: the header requires a live pool, and the library placed it.
    let block = unsafe { home::end(placed) };
    if let Some(below) = remaining {
        // SAFETY: the pool lay in memory of this source, and has ended.
        unsafe { below.give_back(block) };
    }
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_reset(pointer: *mut CTlsf) {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(pointer) };
    // SAFETY: the header requires that no block is used any more.
    unsafe { pool.reset() };
}

functions! {
    see "tlsf.h", pool(*mut CTlsf);
    guard pw_tlsf_guard,
    trim pw_tlsf_trim,
    held pw_tlsf_held,
    set_name pw_tlsf_set_name,
    check pw_tlsf_check,
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_size(pointer: *mut CTlsf, block: *mut c_void) -> usize {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(pointer) };
    // SAFETY: the header requires a block, which is not NULL.
    let block = unsafe { NonNull::new_unchecked(block) };
    // SAFETY: the header requires a block of this pool.
    or_abort(|| unsafe { pool.size_of(block.cast()) })
}

call_sites! {
    see "tlsf.h";
    pw_tlsf_realloc(of: *mut CTlsf, block: *mut c_void, size: usize) -> *mut c_void => reallocate, "rcx", "x3";
    pw_tlsf_alloc_slow(of: *mut CTlsf, size: usize, align: usize) -> *mut c_void => allocate, "rcx", "x3";
    pw_tlsf_free_slow(of: *mut CTlsf, block: *mut c_void) => free, "rdx", "x2";
}

/// # Safety
/// As the header says.
unsafe extern "C" fn reallocate(
    of: *mut CTlsf,
    block: *mut c_void,
    size: usize,
    caller: usize,
) -> *mut c_void {
    let Some(block) = NonNull::new(block.cast()) else {
        // SAFETY: the header requires a live pool.
        return unsafe { allocate(of, size, GRANULE, caller) };
    };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(of) };
    // SAFETY: the header requires a block of this pool.
    let old = or_abort(|| unsafe { pool.size_of(block) });
    let Ok(layout) = Layout::from_size_align(old, GRANULE) else { return ptr::null_mut() };
    let site = site(caller);
    // SAFETY: the header requires a block of this pool; the stored size is valid for the requested
    // one.
    let resized = unsafe { pool.try_reallocate_at((block, layout), size, site) };
    or_abort(|| pointer(resized.unwrap_or_else(|misuse| misuse.panic())))
}

/// # Safety
/// As the header says.
unsafe extern "C" fn allocate(
    of: *mut CTlsf,
    size: usize,
    align: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(of) };
    let Some(layout) = layout(size, align) else { return ptr::null_mut() };
    let allocated = pool.try_allocate_at(layout, site(caller));
    or_abort(|| pointer(allocated.unwrap_or_else(|misuse| misuse.panic())))
}

/// # Safety
/// As the header says.
unsafe extern "C" fn free(of: *mut CTlsf, block: *mut c_void, caller: usize) {
    let Some(block) = NonNull::new(block.cast()) else { return };
    // SAFETY: the header requires a live pool.
    let pool = unsafe { pool(of) };
    // SAFETY: the header requires a block of this pool.
    let freed = unsafe { pool.try_free_unsized(block, site(caller)) };
    or_abort(|| freed.unwrap_or_else(|misuse| misuse.panic()));
}

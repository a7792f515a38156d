//! `pagewise/tlsf.h`: what its inline functions call where nothing is at hand, and the rest.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pagewise_alloc::source::Memory;
use pagewise_alloc::tlsf::GRANULE;
use pagewise_alloc::{Block, Source, Tlsf};

use crate::common::{functions, layout, pointer};
use crate::failure::or_abort;
use crate::home;
use crate::pages::CPages;

/// Where a pool takes its memory.
#[derive(Debug)]
pub enum Below {
    /// The system, or a buffer.
    Memory(Memory),
    /// A pool of pages, which lives as long.
    Pages(&'static CPages),
}

// SAFETY: whatever either promises.
unsafe impl Source for Below {
    fn take(&self, layout: Layout) -> Option<Block> {
        match self {
            Below::Memory(memory) => memory.take(layout),
            Below::Pages(pages) => pages.take(layout),
        }
    }

    unsafe fn give_back(&self, block: Block) {
        match self {
            // SAFETY: the caller promises the same.
            Below::Memory(memory) => unsafe { memory.give_back(block) },
            // SAFETY: as above.
            Below::Pages(pages) => unsafe { pages.give_back(block) },
        }
    }
}

impl Below {
    /// Who takes memory back after the pool has ended: a buffer is its owner's.
    fn remaining(&self) -> Option<Below> {
        match self {
            Below::Memory(memory) => memory.is_system().then(|| Below::Memory(Memory::system())),
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
    // SAFETY: as the caller says.
    unsafe { &mut *pointer }
}

/// See `pagewise/tlsf.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_tlsf_create() -> *mut CTlsf {
    make(Below::Memory(Memory::system()))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_create_in(buffer: *mut c_void, size: usize) -> *mut CTlsf {
    let Some(start) = NonNull::new(buffer.cast()) else { return ptr::null_mut() };
    // SAFETY: as the header says.
    make(Below::Memory(unsafe { Memory::buffer(start, size) }))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_create_on(pages: *const CPages) -> *mut CTlsf {
    // SAFETY: NULL or a pool of pages, says the header, that lives as long.
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
    // SAFETY: as the header says.
    let remaining = unsafe { pool(pointer) }.source().remaining();
    // SAFETY: as the header says: pools are placed where they are made.
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
    // SAFETY: as the header says.
    let pool = unsafe { pool(pointer) };
    // SAFETY: nobody uses a block any more, says the header.
    unsafe { pool.reset() };
}

functions! {
    see "tlsf.h", pool(*mut CTlsf);
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
    // SAFETY: as the header says.
    let pool = unsafe { pool(pointer) };
    // SAFETY: the header says that it is a block, which is not NULL.
    let block = unsafe { NonNull::new_unchecked(block) };
    // SAFETY: as above.
    unsafe { pool.size_of(block.cast()) }
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_realloc(
    of: *mut CTlsf,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    let Some(block) = NonNull::new(block.cast()) else {
        // SAFETY: as the header says.
        return unsafe { pw_tlsf_alloc_slow(of, size, GRANULE) };
    };
    // SAFETY: as the header says.
    let pool = unsafe { pool(of) };
    // SAFETY: as the header says.
    let old = unsafe { pool.size_of(block) };
    let Ok(layout) = Layout::from_size_align(old, GRANULE) else { return ptr::null_mut() };
    // SAFETY: as the header says; the size that a block says stands for that it was asked for.
    or_abort(|| pointer(unsafe { pool.reallocate(block, layout, size) }))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_alloc_slow(
    of: *mut CTlsf,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: as the header says.
    pointer(layout.and_then(|layout| unsafe { pool(of) }.allocate(layout)))
}

/// See `pagewise/tlsf.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_tlsf_free_slow(of: *mut CTlsf, block: *mut c_void) {
    let Some(block) = NonNull::new(block.cast()) else { return };
    // SAFETY: as the header says.
    let pool = unsafe { pool(of) };
    // SAFETY: as the header says.
    let size = unsafe { pool.size_of(block) };
    let Ok(layout) = Layout::from_size_align(size, GRANULE) else { return };
    // SAFETY: as the header says; the size that a block says stands for that it was asked for.
    or_abort(|| unsafe { pool.free(block, layout) });
}

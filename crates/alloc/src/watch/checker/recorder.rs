//! The heap recorder of `pagewise heap run --pools`, which records the blocks of pools.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::source::SourceBlock;

/// Address of the function `void pagewise_heap_pool(unsigned what, void *start, size_t size)` in
/// the library that the recorded program loads; NULL if the recorder wants no reports.
static TOLD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Event numbers, which `pools.rs` of the recorder also defines.
mod told {
    pub(super) const ALLOCATED: u32 = 0;
    pub(super) const FREED: u32 = 1;
    pub(super) const RESIZED: u32 = 2;
    pub(super) const GONE: u32 = 3;
}

/// Searches for the recorder. Returns true if it is present and wants reports.
pub(super) fn is_there() -> bool {
    let (wants, told) = (find(c"pagewise_heap_wants_pools"), find(c"pagewise_heap_pool"));
    if wants.is_null() || told.is_null() {
        return false;
    }
    // SAFETY: the recorder defines the function of this name with this type.
    let wants: unsafe extern "C" fn() -> bool = unsafe { mem::transmute(wants) };
    // SAFETY: the function takes no arguments and only reads a flag.
    let wants = unsafe { wants() };
    if wants {
        TOLD.store(told, Relaxed);
    }
    wants
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn tell(what: u32, start: NonNull<u8>, size: usize) {
    let function = TOLD.load(Relaxed);
    if !function.is_null() {
        // SAFETY: the recorder defines the function of this name with this type.
        let function: unsafe extern "C" fn(u32, *const c_void, usize) =
            unsafe { mem::transmute(function) };
        // SAFETY: the function records the address as a number and does not access the memory.
        unsafe { function(what, start.as_ptr().cast(), size) };
    }
}

/// Nothing to report, because no memory of the block is allocated yet.
pub(super) fn taken(_pool: &Cell<usize>, _block: SourceBlock) {}

pub(super) fn given_back(block: SourceBlock) {
    tell(told::GONE, block.start, block.size);
}

/// Nothing to report, because the pool has returned its blocks.
pub(super) fn destroyed(_pool: &Cell<usize>) {}

pub(super) fn allocated(_pool: &Cell<usize>, start: NonNull<u8>, size: usize) {
    tell(told::ALLOCATED, start, size);
}

pub(super) fn resized(_pool: &Cell<usize>, start: NonNull<u8>, _old: usize, new: usize) {
    tell(told::RESIZED, start, new);
}

pub(super) fn freed(_pool: &Cell<usize>, start: NonNull<u8>, size: usize) {
    tell(told::FREED, start, size);
}

/// Nothing to report, because the recorder does not track defined bytes.
pub(super) fn defined(_start: NonNull<u8>, _size: usize) {}

pub(super) fn hidden(_start: NonNull<u8>, _size: usize) {}

/// Nothing to report, because the pool itself reports the error.
pub(super) fn misused(_pool: &Cell<usize>, _start: NonNull<u8>) {}

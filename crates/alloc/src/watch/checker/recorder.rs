//! The recorder of `pagewise heap run --pools`: it records the blocks of pools.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::source::SourceBlock;

/// `void pagewise_heap_pool(unsigned what, void *start, size_t size)`, of the library that the
/// recorded program loads.
static TOLD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Events; see `pools.rs` of the recorder.
mod told {
    pub(super) const ALLOCATED: u32 = 0;
    pub(super) const FREED: u32 = 1;
    pub(super) const RESIZED: u32 = 2;
    pub(super) const GONE: u32 = 3;
}

/// Searches for the recorder, and asks it if it wants reports.
pub(super) fn is_there() -> bool {
    let (wants, told) = (find(c"pagewise_heap_wants_pools"), find(c"pagewise_heap_pool"));
    if wants.is_null() || told.is_null() {
        return false;
    }
    // SAFETY: the function of this name has this type.
    let wants: unsafe extern "C" fn() -> bool = unsafe { mem::transmute(wants) };
    // SAFETY: the recorder's `wants` takes nothing and reads a flag.
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
        // SAFETY: the function of this name has this type.
        let function: unsafe extern "C" fn(u32, *const c_void, usize) =
            unsafe { mem::transmute(function) };
        // SAFETY: it keeps the address as a number and touches nothing there.
        unsafe { function(what, start.as_ptr().cast(), size) };
    }
}

/// Nothing to report: no block of it is allocated yet.
pub(super) fn taken(_pool: &Cell<usize>, _block: SourceBlock) {}

pub(super) fn given_back(block: SourceBlock) {
    tell(told::GONE, block.start, block.size);
}

/// Its blocks were returned.
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

/// The recorder does not track defined bytes.
pub(super) fn defined(_start: NonNull<u8>, _size: usize) {}

pub(super) fn hidden(_start: NonNull<u8>, _size: usize) {}

/// The pool reports it.
pub(super) fn misused(_pool: &Cell<usize>, _start: NonNull<u8>) {}

//! `AddressSanitizer`: inaccessible memory is poisoned in its shadow memory.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::source::SourceBlock;

/// Functions of AddressSanitizer that poison and unpoison memory, with the type `void (void const
/// volatile *, size_t)`; NULL if absent.
static POISON: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static UNPOISON: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Searches for the two functions in the loaded objects. Returns true if both were found.
pub(super) fn is_there() -> bool {
    let poison = find(c"__asan_poison_memory_region");
    let unpoison = find(c"__asan_unpoison_memory_region");
    POISON.store(poison, Relaxed);
    UNPOISON.store(unpoison, Relaxed);
    !poison.is_null() && !unpoison.is_null()
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn call(function: &AtomicPtr<c_void>, start: NonNull<u8>, size: usize) {
    let function = function.load(Relaxed);
    if !function.is_null() {
        // SAFETY: `function` is a symbol that asan_interface.h declares with this type.
        let function: unsafe extern "C" fn(*const c_void, usize) =
            unsafe { mem::transmute(function) };
        // SAFETY: the function changes only the shadow memory of this range, which belongs to the
        // pool.
        unsafe { function(start.as_ptr().cast(), size) };
    }
}

fn poison(start: NonNull<u8>, size: usize) {
    call(&POISON, start, size);
}

fn unpoison(start: NonNull<u8>, size: usize) {
    call(&UNPOISON, start, size);
}

pub(super) fn taken(_pool: &Cell<usize>, block: SourceBlock) {
    poison(block.start, block.size);
}

pub(super) fn given_back(block: SourceBlock) {
    unpoison(block.start, block.size);
}

/// Nothing to report, because the pool has returned its blocks.
pub(super) fn destroyed(_pool: &Cell<usize>) {}

pub(super) fn allocated(_pool: &Cell<usize>, start: NonNull<u8>, size: usize) {
    unpoison(start, size);
}

/// AddressSanitizer poisons only whole granules of 8 bytes, so the block is poisoned as a whole and
/// its new size is unpoisoned.
pub(super) fn resized(_pool: &Cell<usize>, start: NonNull<u8>, old: usize, new: usize) {
    poison(start, old);
    unpoison(start, new);
}

pub(super) fn freed(_pool: &Cell<usize>, start: NonNull<u8>, size: usize) {
    poison(start, size);
}

/// Only unpoisons the bytes, because AddressSanitizer does not track defined bytes.
pub(super) fn defined(start: NonNull<u8>, size: usize) {
    unpoison(start, size);
}

pub(super) fn hidden(start: NonNull<u8>, size: usize) {
    poison(start, size);
}

/// Prints the call stack, because AddressSanitizer has no report for pools. The pool prints the
/// error.
pub(super) fn misused(_pool: &Cell<usize>, _start: NonNull<u8>) {
    let print = find(c"__sanitizer_print_stack_trace");
    if !print.is_null() {
        // SAFETY: common_interface_defs.h declares the symbol with this type.
        let print: unsafe extern "C" fn() = unsafe { mem::transmute(print) };
        // SAFETY: the function reads the stack and prints.
        unsafe { print() };
    }
}

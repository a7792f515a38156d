//! Functions that only some C libraries have. Older C libraries have the functions of the loader
//! and of threads in separate libraries, which a program may not have loaded. Newer functions are
//! missing in older C libraries but are called by code of Rust's standard library.
//!
//! The recorder declares no required library and no version of a symbol (`build.rs`), so it loads
//! with glibc since 2.17 and with musl. This file supplies the functions that some of these
//! versions lack.

use std::arch::global_asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::symbols;

// `dlsym` is in libc.so since glibc 2.34, and in libdl.so before. `stat64` and `fstat64` are
// functions since glibc 2.33. The replacements use the same kernel structure, and only the code
// that prints a panic message calls them.
global_asm!(
    ".weak dlsym",
    ".weak dlopen",
    ".pushsection .data.rel.pw_loader,\"aw\"",
    ".balign 8",
    ".hidden pw_loader",
    ".globl pw_loader",
    ".type pw_loader, @object",
    ".size pw_loader, 16",
    "pw_loader:",
    ".quad dlsym, dlopen",
    ".popsection",
);
#[cfg(not(test))]
global_asm!(
    ".pushsection .text.pw_older,\"ax\"",
    ".hidden stat64, fstat64, _dl_find_object",
    ".hidden pthread_key_create, pthread_setspecific, pthread_key_delete",
    ".globl stat64, fstat64, _dl_find_object",
    ".globl pthread_key_create, pthread_setspecific, pthread_key_delete",
    "stat64: mov eax, 4; jmp 2f",
    "fstat64: mov eax, 5",
    "2: syscall; cqo; mov eax, edx; ret",
    // This replacement finds no file: a panic ends the process in any case, but without a
    // backtrace.
    "_dl_find_object: mov eax, -1; ret",
    "pthread_key_create: jmp [rip + {keys}]",
    "pthread_setspecific: jmp [rip + {keys} + 8]",
    "pthread_key_delete: jmp [rip + {keys} + 16]",
    ".popsection",
    keys = sym KEYS,
);

unsafe extern "C" {
    #[link_name = "pw_loader"]
    static LOADER: [usize; 2];
}

type FindSymbol = unsafe extern "C" fn(*mut c_void, *const libc::c_char) -> *mut c_void;
type OpenLibrary = unsafe extern "C" fn(*const libc::c_char, c_int) -> *mut c_void;
type CreateKey = unsafe extern "C" fn(
    *mut libc::pthread_key_t,
    Option<unsafe extern "C" fn(*mut c_void)>,
) -> c_int;
type SetSpecific = unsafe extern "C" fn(libc::pthread_key_t, *const c_void) -> c_int;

/// Indices in [`LOADER`].
const SYMBOL: usize = 0;
const OPEN: usize = 1;

/// Addresses of `pthread_key_create`, `pthread_setspecific` and `pthread_key_delete`; the address
/// of [`refuse`] in a program that has not loaded a thread library.
#[repr(transparent)]
struct KeyFunctions([AtomicPtr<c_void>; 3]);
static KEYS: KeyFunctions =
    KeyFunctions([const { AtomicPtr::new((refuse as *const ()).cast_mut().cast()) }; 3]);

extern "C" fn refuse() -> c_int {
    libc::ENOSYS
}

/// Address of a function of the loader; `None` if no loaded library contains it.
fn loader(index: usize) -> Option<*const c_void> {
    // SAFETY: the table has two words, which the loader wrote before any code of this library ran.
    let address = unsafe { LOADER.get(index).copied() }?;
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// Calls `dlsym`. If no loaded library contains `dlsym`, searches all files in load order. Returns
/// null if no file contains the symbol.
///
/// # Safety
/// The handle must be a constant, such as `RTLD_NEXT`, or that of an open library.
pub(crate) unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let Some(function) = loader(SYMBOL) else {
        return symbols::find(name, std::ptr::eq(handle, libc::RTLD_NEXT));
    };
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*const c_void, FindSymbol>(function) };
    // SAFETY: the name ends with a zero byte, and the caller guarantees that the handle is valid.
    // `RTLD_NEXT` is relative to the file of the caller, which is this library.
    unsafe { function(handle, name.as_ptr()) }
}

/// First function or variable with this name in load order; null if it is missing.
pub(crate) fn first(name: &CStr) -> *mut c_void {
    // SAFETY: `RTLD_DEFAULT` is a constant.
    unsafe { dlsym(libc::RTLD_DEFAULT, name) }
}

/// First function or variable with this name after this library in load order; null if it is
/// missing.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: `RTLD_NEXT` is a constant.
    unsafe { dlsym(libc::RTLD_NEXT, name) }
}

/// Opens a library that is already loaded, or the program itself (`None`). Returns null on failure.
pub(crate) fn open_loaded(name: Option<&CStr>) -> *mut c_void {
    let Some(function) = loader(OPEN) else { return std::ptr::null_mut() };
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*const c_void, OpenLibrary>(function) };
    let (path, flags) = match name {
        Some(name) => (name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD),
        None => (std::ptr::null(), libc::RTLD_LAZY),
    };
    // SAFETY: the path ends with a zero byte or is null, which stands for the program.
    unsafe { function(path, flags) }
}

/// Looks up the functions for thread-specific keys again, because the program may load the thread
/// library later.
fn find_keys() {
    const NAMES: [&CStr; 3] =
        [c"pthread_key_create", c"pthread_setspecific", c"pthread_key_delete"];
    for (to, name) in KEYS.0.iter().zip(NAMES) {
        let found = first(name);
        if !found.is_null() {
            to.store(found, Relaxed);
        }
    }
}

/// Creates a key whose destructor the C library calls when a thread ends.
pub(crate) fn create_key(ends: unsafe extern "C" fn(*mut c_void)) -> Option<libc::pthread_key_t> {
    find_keys();
    let function = KEYS.0[0].load(Relaxed).cast_const();
    // SAFETY: the symbol of this name has this type. The replacement function ignores its
    // arguments.
    let function = unsafe { std::mem::transmute::<*const c_void, CreateKey>(function) };
    let mut key = 0;
    // SAFETY: the key is written to a local variable, and the C library may call `ends` as a
    // destructor.
    (unsafe { function(&raw mut key, Some(ends)) } == 0).then_some(key)
}

/// Sets this thread's value of a key, which [`create_key`] must have created.
pub(crate) fn set_key(key: libc::pthread_key_t, value: *const c_void) {
    let function = KEYS.0[1].load(Relaxed).cast_const();
    // SAFETY: the symbol of this name has this type. The replacement function ignores its
    // arguments.
    let function = unsafe { std::mem::transmute::<*const c_void, SetSpecific>(function) };
    // SAFETY: the key was created, and its value is only passed to the destructor.
    let _ = unsafe { function(key, value) };
}

//! Functions of the loader and of threads that older C libraries have in libraries of their own,
//! which a program may not have loaded; and functions that newer C libraries alone have, for the
//! code that Rust's library brings along.
//!
//! The recorder names no library that it needs and no version of a symbol (`build.rs`), so it loads
//! with glibc since 2.17 and with musl. This file has the functions that some of these lack.

use std::arch::global_asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::symbols;

// glibc has `dlsym` in libc.so since 2.34, before in libdl.so. `stat64` and `fstat64` are functions
// since 2.33: the kernel's structure is the same, and only the message of a panic calls them.
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
    // Finds no file: a panic ends the process, also without a backtrace.
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

/// Indices of [`LOADER`].
const SYMBOL: usize = 0;
const OPEN: usize = 1;

/// `pthread_key_create`, `pthread_setspecific` and `pthread_key_delete`, which a program without
/// threads lacks.
#[repr(transparent)]
struct KeyFunctions([AtomicPtr<c_void>; 3]);
static KEYS: KeyFunctions =
    KeyFunctions([const { AtomicPtr::new((refuse as *const ()).cast_mut().cast()) }; 3]);

extern "C" fn refuse() -> c_int {
    libc::ENOSYS
}

/// A function of the loader; `None` if no library of the program has it.
fn loader(index: usize) -> Option<*const c_void> {
    // SAFETY: the table has two words, which the loader wrote before any code ran.
    let address = unsafe { LOADER.get(index).copied() }?;
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// `dlsym`. Without it all files are searched, in the order of the loader; null if none has the
/// name.
///
/// # Safety
/// The handle is a constant or an open library.
pub(crate) unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let Some(function) = loader(SYMBOL) else {
        return symbols::find(name, std::ptr::eq(handle, libc::RTLD_NEXT));
    };
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*const c_void, FindSymbol>(function) };
    // SAFETY: the name ends with a zero; the caller answers for the handle. `RTLD_NEXT` is relative
    // to the file of the caller, which is this one.
    unsafe { function(handle, name.as_ptr()) }
}

/// The function or variable that the program has by a name; null without one.
pub(crate) fn first(name: &CStr) -> *mut c_void {
    // SAFETY: the handle is a constant.
    unsafe { dlsym(libc::RTLD_DEFAULT, name) }
}

/// The function or variable that the program would have without this library.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the handle is a constant.
    unsafe { dlsym(libc::RTLD_NEXT, name) }
}

/// `dlopen` of a library that is loaded already, or of the program (`None`).
pub(crate) fn open_loaded(name: Option<&CStr>) -> *mut c_void {
    let Some(function) = loader(OPEN) else { return std::ptr::null_mut() };
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*const c_void, OpenLibrary>(function) };
    let (path, flags) = match name {
        Some(name) => (name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD),
        None => (std::ptr::null(), libc::RTLD_LAZY),
    };
    // SAFETY: the name ends with a zero or is null, which names the program.
    unsafe { function(path, flags) }
}

/// Looks up the functions of thread-specific keys; the program may load a thread library that has
/// them later.
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

/// A key whose destructor is called as a thread ends.
pub(crate) fn create_key(ends: unsafe extern "C" fn(*mut c_void)) -> Option<libc::pthread_key_t> {
    find_keys();
    let function = KEYS.0[0].load(Relaxed).cast_const();
    // SAFETY: the symbol of this name has this type, and a function without arguments ignores them.
    let function = unsafe { std::mem::transmute::<*const c_void, CreateKey>(function) };
    let mut key = 0;
    // SAFETY: the key is written there; the function is one that the C library may call.
    (unsafe { function(&raw mut key, Some(ends)) } == 0).then_some(key)
}

/// Sets this thread's value of a key that was created.
pub(crate) fn set_key(key: libc::pthread_key_t, value: *const c_void) {
    let function = KEYS.0[1].load(Relaxed).cast_const();
    // SAFETY: the symbol of this name has this type, and a function without arguments ignores them.
    let function = unsafe { std::mem::transmute::<*const c_void, SetSpecific>(function) };
    // SAFETY: the key was created; its value is passed to its destructor alone.
    let _ = unsafe { function(key, value) };
}

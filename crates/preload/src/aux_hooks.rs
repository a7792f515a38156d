//! Hooks of functions outside of `malloc`'s family that a recording needs: thread creation,
//! `prctl`, `dlclose`, and functions that change mappings.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use pagewise_heaplog::tables::trouble;

use crate::begin::{self, StartStage};
use crate::{linker, mappings, modules, next_alloc, peak, threads};

/// Functions of the C library that are hooked in addition to `malloc`'s family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Other {
    PthreadCreate,
    ThrdCreate,
    Prctl,
    Dlclose,
    Mmap,
    Munmap,
    Mremap,
    Brk,
    Sbrk,
}

/// Number of functions in [`Other`].
pub(crate) const OTHERS: usize = 9;
/// Index of the first function in [`Other`] that changes mappings.
pub(crate) const FIRST_OF_MAPPINGS: usize = Other::Mmap as usize;

const NAMES: [&CStr; OTHERS] = [
    c"pthread_create",
    c"thrd_create",
    c"prctl",
    c"dlclose",
    c"mmap",
    c"munmap",
    c"mremap",
    c"brk",
    c"sbrk",
];

/// The next functions in load order; null until they are found.
static BEHIND: [AtomicPtr<c_void>; OTHERS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; OTHERS];

impl Other {
    /// Returns the next function of the same name, which is looked up at the first call.
    pub(crate) fn behind(self) -> *mut c_void {
        behind(&BEHIND[self as usize], NAMES[self as usize])
    }
}

/// Returns the next function with this name, which is looked up at the first call and cached in
/// `cache`.
pub(crate) fn behind(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = linker::next(name);
    cache.store(found, Relaxed);
    found
}

/// Sets the next function for the index `index` to `function`.
pub(crate) fn replace(index: usize, function: *mut ()) {
    BEHIND[index].store(function.cast(), Relaxed);
}

/// Clears the next functions, so that each is looked up again at its next call.
pub(crate) fn forget() {
    for behind in &BEHIND {
        behind.store(std::ptr::null_mut(), Relaxed);
    }
}

/// Returns the functions that a running program may call; null for missing ones.
pub(crate) fn find_running() -> [*mut (); OTHERS] {
    NAMES.map(|name| next_alloc::running(name).cast())
}

/// Returns the replacements of the functions in [`find_running`]: the stubs and not the exported
/// functions, whose names the loader could resolve to another file. No stub is inlined into its
/// exported function: otherwise the compiler would merge the two equal functions under the exported
/// name.
pub(crate) fn stubs() -> [*mut (); OTHERS] {
    let [mmap, munmap, mremap, brk, sbrk] = mappings::stubs();
    [
        on_pthread_create as *mut (),
        on_thrd_create as *mut (),
        on_prctl as *mut (),
        on_dlclose as *mut (),
        mmap,
        munmap,
        mremap,
        brk,
        sbrk,
    ]
}

/// Called before a thread is created: with two or more threads, each thread counts its live bytes
/// separately. Returns false if this process is not recorded, for example a child that shares its
/// parent's tables.
fn thread_comes() -> bool {
    // The calling thread may itself be new; `enter` then creates its data.
    let Some(entered) = threads::enter() else { return false };
    peak::comes();
    peak::make_many(entered.thread());
    threads::leave(entered);
    true
}

/// Reverses [`thread_comes`] if thread creation failed.
fn thread_does_not_come() {
    let _ = peak::COMING.fetch_update(Relaxed, Relaxed, |coming| coming.checked_sub(1));
}

/// Creates a thread.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program passed these arguments to `pthread_create`.
    unsafe { on_pthread_create(thread, attributes, start, argument) }
}

#[inline(never)]
unsafe extern "C" fn on_pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type PthreadCreateFn = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        *mut c_void,
        *mut c_void,
    ) -> c_int;
    let function = Other::PthreadCreate.behind();
    if function.is_null() {
        return libc::EAGAIN;
    }
    let comes = thread_comes();
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, PthreadCreateFn>(function) };
    // SAFETY: the program called the hooked function with these arguments.
    let result = unsafe { function(thread, attributes, start, argument) };
    if result != 0 && comes {
        thread_does_not_come();
    }
    result
}

/// Creates a thread; this is the function of the C standard.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program passed these arguments to `thrd_create`.
    unsafe { on_thrd_create(thread, start, argument) }
}

#[inline(never)]
unsafe extern "C" fn on_thrd_create(
    thread: *mut libc::pthread_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    const THRD_ERROR: c_int = 2;
    type ThrdCreateFn =
        unsafe extern "C" fn(*mut libc::pthread_t, *mut c_void, *mut c_void) -> c_int;
    let function = Other::ThrdCreate.behind();
    if function.is_null() {
        return THRD_ERROR;
    }
    let comes = thread_comes();
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, ThrdCreateFn>(function) };
    // SAFETY: the program called the hooked function with these arguments.
    let result = unsafe { function(thread, start, argument) };
    if result != 0 && comes {
        thread_does_not_come();
    }
    result
}

/// Changes attributes of the process. Before strict seccomp mode begins, recording ends: the
/// recorder's system calls, such as reading the time, would kill the thread.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // SAFETY: the program passed these arguments to `prctl`.
    unsafe { on_prctl(option, second, third, fourth, fifth) }
}

#[inline(never)]
unsafe extern "C" fn on_prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    type PrctlFn = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    let function = Other::Prctl.behind();
    if function.is_null() {
        return -1;
    }
    if option == libc::PR_SET_SECCOMP && second == c_ulong::from(libc::SECCOMP_MODE_STRICT) {
        begin::give_up(trouble::CALLS);
    }
    // SAFETY: the symbol of this name takes up to five words, passed in the same registers.
    let function = unsafe { std::mem::transmute::<*mut c_void, PrctlFn>(function) };
    // SAFETY: the program called the hooked function with these arguments.
    unsafe { function(option, second, third, fourth, fifth) }
}

/// Unloads a library and discards the recorded data of its code, because other code may be loaded
/// at the same addresses later.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: the program passed this handle to `dlclose`.
    unsafe { on_dlclose(handle) }
}

#[inline(never)]
unsafe extern "C" fn on_dlclose(handle: *mut c_void) -> c_int {
    let function = Other::Dlclose.behind();
    if function.is_null() {
        return -1;
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(function)
    };
    let is_recorded = begin::stage() == StartStage::Records;
    if is_recorded {
        threads::code_goes();
    }
    // SAFETY: the program called the hooked function with this argument.
    let result = unsafe { function(handle) };
    if let Some(entered) = is_recorded.then(threads::enter).flatten() {
        modules::forget_unloaded();
        threads::leave(entered);
    }
    if is_recorded {
        threads::code_has_gone();
    }
    result
}

//! Recording of a running program: the functions that the collector makes one of the program's
//! threads call, after it has loaded this library.
//!
//! While all threads are stopped, the collector hooks the functions that the program calls at their
//! entry ([`crate::inline`]). To end the recording, it stops all threads again at a point where
//! none is within the recorder, restores the entries and calls [`pagewise_heap_detach`]: from then
//! on no thread enters the recorder. Then it calls [`pagewise_heap_release`], which unmaps all
//! memory of the recorder. The library stays loaded for the next recording. The collector may be
//! killed at any time: the thread that runs a call completes it, and the remaining steps can be
//! done later.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::tables::{attached, hooks};

use crate::begin::{self, StartStage};
use crate::shared::{self, head};
use crate::{inline, kernel, named, peak, threads};

/// Begins to record. Returns [`attached::YES`], or the code of the failure.
///
/// # Safety
/// `settings` ends with a zero. The thread is in no function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pagewise_heap_attach(settings: *const c_char) -> u64 {
    // In a child of `fork`, `is_recording` decides now if the child is recorded.
    if begin::stage() == StartStage::Records && begin::is_recording() {
        return attached::BUSY;
    }
    forget();
    // SAFETY: the caller passes a text that ends with a zero.
    let settings = unsafe { CStr::from_ptr(settings) };
    let result = begin::attach(settings.to_bytes());
    if result != attached::YES {
        // SAFETY: calls are not recorded, so only this thread entered the recorder; relocated
        // prologues of an earlier recording stay.
        unsafe { release(!inline::is_ready() && !named::are_some()) };
    }
    result
}

/// Ends the recording: from now on calls go to the program's own functions. Only some words change,
/// so other threads may run meanwhile, also in the recorder. The entries of the functions were
/// restored before.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn pagewise_heap_detach() -> u64 {
    begin::turn_off();
    attached::YES
}

/// Unmaps all memory of the recorder, which no thread can enter any more. The relocated prologues
/// are unmapped only if `with_moved` is not 0.
///
/// # Safety
/// [`pagewise_heap_detach`] has returned. At some time since, no thread was within the recorder,
/// and the words of each thread (`hooks::OWN`) were zero. If the relocated prologues are unmapped,
/// no thread was in one or was to return into one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pagewise_heap_release(with_moved: u64) -> u64 {
    // SAFETY: recording has ended, and no thread is in the recorder, as the caller guarantees.
    unsafe { release(with_moved != 0) };
    attached::YES
}

/// Unmaps all memory.
///
/// # Safety
/// That of [`pagewise_heap_release`].
unsafe fn release(with_moved: bool) {
    forget();
    begin::forget_alive();
    if with_moved {
        // SAFETY: no thread executes the relocated prologues or returns into them, as the caller
        // guarantees.
        unsafe { inline::forget() };
        // In a program that was started with this library, the trampolines of `named` stay in use:
        // they are set up only once.
        if begin::was_attached() {
            // SAFETY: no thread executes the relocated prologues or returns into them, as the
            // caller guarantees.
            unsafe { named::forget() };
        }
    }
    // SAFETY: no thread is in the recorder, whose memory this is, as the caller guarantees.
    unsafe { kernel::unmap_all() };
    // SAFETY: no thread is in the recorder, which alone uses the tables, as the caller guarantees.
    unsafe { shared::uninstall() };
}

/// Discards the tables of an earlier recording.
fn forget() {
    begin::reset_tables();
    threads::forget_births();
}

/// Writes the addresses of the functions that end this recording into the header. A program that
/// ran already may have any number of threads.
pub(crate) fn tell(is_running: bool) {
    let detach = pagewise_heap_detach as *const ();
    head(hooks::DETACH).store(detach.addr() as u64, Relaxed);
    let release = pagewise_heap_release as *const ();
    head(hooks::RELEASE).store(release.addr() as u64, Relaxed);
    if is_running {
        peak::any_may_come();
        head(hooks::COMING).store((&raw const peak::COMING).addr() as u64, Relaxed);
    }
}

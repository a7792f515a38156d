//! Recording of a running program: the functions that the collector makes one of the program's
//! threads call, after it has loaded this library.
//!
//! While all threads are stopped, the collector inserts inline hooks into the functions that the
//! program calls ([`crate::inline`]). To end the recording, it stops all threads again at a point
//! where no thread is within the recorder, restores the functions and calls
//! [`pagewise_heap_detach`]: from then on no thread enters the recorder. Then it calls
//! [`pagewise_heap_release`], which unmaps all memory of the recorder. The library stays loaded for
//! the next recording. The collector may be killed at any time: the thread that executes a call
//! completes it, and the remaining calls can be made later.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::tables::{attached, hooks};

use crate::begin::{self, StartStage};
use crate::shared::{self, head};
use crate::{inline, kernel, named, peak, threads};

/// Begins to record. Returns [`attached::YES`], or the code of the failure.
///
/// # Safety
/// `settings` must end with a zero byte, and the thread must be outside of all functions of the C
/// library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pagewise_heap_attach(settings: *const c_char) -> u64 {
    // In a child of `fork`, this call of `is_recording` decides whether the child is recorded.
    if begin::stage() == StartStage::Records && begin::is_recording() {
        return attached::BUSY;
    }
    forget();
    // SAFETY: the caller guarantees that `settings` ends with a zero byte.
    let settings = unsafe { CStr::from_ptr(settings) };
    let result = begin::attach(settings.to_bytes());
    if result != attached::YES {
        // SAFETY: calls are not recorded, so only this thread has entered the recorder. The
        // relocated prologues of an earlier recording are not unmapped.
        unsafe { release(!inline::is_ready() && !named::are_some()) };
    }
    result
}

/// Ends the recording: from now on calls go to the program's own functions. Called after the
/// prologues of the functions were restored. Changes only a few words, so other threads may run
/// meanwhile, even within the recorder.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn pagewise_heap_detach() -> u64 {
    begin::turn_off();
    attached::YES
}

/// Unmaps all memory of the recorder, and also the relocated prologues if `with_moved` is not 0.
/// Called when no thread can enter the recorder any more.
///
/// # Safety
/// [`pagewise_heap_detach`] must have returned. At some time since, all threads were outside of the
/// recorder, and the words of each thread (`hooks::OWN`) were zero. If `with_moved` is not 0, no
/// thread was executing a relocated prologue or had a return address in one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pagewise_heap_release(with_moved: u64) -> u64 {
    // SAFETY: recording has ended, and no thread is in the recorder, as the caller guarantees.
    unsafe { release(with_moved != 0) };
    attached::YES
}

/// Unmaps all memory of the recorder.
///
/// # Safety
/// The conditions of [`pagewise_heap_release`].
unsafe fn release(with_moved: bool) {
    forget();
    begin::forget_alive();
    if with_moved {
        // SAFETY: no thread executes the relocated prologues or returns into them, as the caller
        // guarantees.
        unsafe { inline::forget() };
        // In a program that was started with this library, the trampolines of `named` stay mapped:
        // they are set up only once.
        if begin::was_attached() {
            // SAFETY: no thread executes the relocated prologues or returns into them, as the
            // caller guarantees.
            unsafe { named::forget() };
        }
    }
    // SAFETY: the caller guarantees that no thread is in the recorder, which alone uses this
    // memory.
    unsafe { kernel::unmap_all() };
    // SAFETY: the caller guarantees that no thread is in the recorder, which alone uses the tables.
    unsafe { shared::uninstall() };
}

/// Discards the tables of an earlier recording.
fn forget() {
    begin::reset_tables();
    threads::forget_births();
}

/// Writes the addresses of the functions that end this recording into the header. If `is_running`
/// is true, the program was running already and may have any number of threads.
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

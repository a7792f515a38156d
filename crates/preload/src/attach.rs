//! Recording a program that runs already: what its collector has one of its threads call, after it
//! has loaded this library.
//!
//! The functions that the program calls are hooked at their entry ([`crate::inline`]), by the
//! collector while all threads are stopped. When it leaves, it puts the entries back, again while
//! all are stopped and none is within the recorder, and has [`pagewise_heap_detach`] called: from
//! then on no thread comes into the recorder. Then it has [`pagewise_heap_release`] called, which
//! unmaps all memory of the recorder, and the library waits for the next time. The collector may be
//! killed at any point of this: what it has begun is completed by the thread that does it, and the
//! rest can be done later.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;

use pagewise_heaplog::tables::{attached, hooks};

use crate::begin::{self, StartStage};
use crate::shared::{self, head};
use crate::{inline, kernel, named, peak, threads};

/// Begins to record; [`attached::YES`], or why not.
///
/// # Safety
/// `settings` ends with a zero. The thread is in no function of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pagewise_heap_attach(settings: *const c_char) -> u64 {
    // In a child of a recorded process that is decided now.
    if begin::stage() == StartStage::Records && begin::is_recording() {
        return attached::BUSY;
    }
    forget();
    // SAFETY: the caller passes a text that ends with a zero.
    let settings = unsafe { CStr::from_ptr(settings) };
    let result = begin::attach(settings.to_bytes());
    if result != attached::YES {
        // SAFETY: calls are not recorded, so only this thread came to the recorder; moved
        // instructions of an earlier recording stay.
        unsafe { release(!inline::is_ready() && !named::are_some()) };
    }
    result
}

/// Ends the recording: calls go to the program's own functions from now on. It changes some words
/// only, so other threads may run meanwhile, in the recorder too. The entries of functions are as
/// they were before.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn pagewise_heap_detach() -> u64 {
    begin::turn_off();
    attached::YES
}

/// Unmaps all memory of the recorder, once no thread can come to it any more; the moved first
/// instructions of functions only if `with_moved` is not 0.
///
/// # Safety
/// [`pagewise_heap_detach`] has returned. No thread was within the recorder at some time since, and
/// the words of each thread (`hooks::OWN`) were zero then. If the moved instructions are unmapped,
/// no thread was in them or was to return into them.
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
        // A program that was begun with this library calls the functions behind by way of others
        // that are set up once.
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

/// Forgets what may be left of another recording.
fn forget() {
    begin::reset_tables();
    threads::forget_births();
}

/// Says how this recording is ended. In a program that ran already there may be any number of
/// threads.
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

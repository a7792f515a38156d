//! What the terminal sends to the whole foreground group is for the command: Ctrl-C must not end
//! us before we can report, and Ctrl-Z must stop us only once the command has stopped.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
const STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// While it lives, this thread holds back the signals of a terminal, and takes SIGCHLD.
///
/// A process with other threads must hold them back there too.
pub(super) struct Held {
    before: libc::sigset_t,
    stops_pass: bool,
}

impl Held {
    pub(super) fn hold() -> Held {
        let before = change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGCHLD]));
        change_mask(libc::SIG_BLOCK, &set_of(&INTERRUPTS));
        change_mask(libc::SIG_BLOCK, &set_of(&STOPS));
        Held { before, stops_pass: false }
    }

    /// Whether stop signals may stop us: one that came earlier and is still held does so at once.
    pub(super) fn let_stops_pass(&mut self, pass: bool) {
        if self.stops_pass != pass {
            self.stops_pass = pass;
            change_mask(if pass { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK }, &set_of(&STOPS));
        }
    }

    /// Forgets what is still held: it was for the command, which made of it what it would.
    pub(super) fn forget(&self) {
        for signals in [&INTERRUPTS[..], &STOPS] {
            while take_pending(&set_of(signals)) {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.forget();
        change_mask(libc::SIG_SETMASK, &self.before);
    }
}

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: `set` was initialised above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: `sigemptyset` cannot fail, so `set` is initialised.
    unsafe { set.assume_init() }
}

/// Changes this thread's signal mask, and returns the one before.
fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = set_of(&[]);
    // SAFETY: both pointers are to initialised sets; the second may be written.
    unsafe { libc::pthread_sigmask(how, set, &raw mut before) };
    before
}

/// Takes one pending signal of a set that this thread blocks; `false` where there is none.
fn take_pending(set: &libc::sigset_t) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `set` and `now` are initialised, and a null `siginfo_t` is not written.
    unsafe { libc::sigtimedwait(set, ptr::null_mut(), &raw const now) > 0 }
}

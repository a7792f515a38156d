//! Signals of the terminal to the foreground process group are for the command: Ctrl-C must not end
//! pagewise before it can report, and Ctrl-Z must stop it only once the command has stopped.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
const STOPS: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// While this value exists, its thread blocks the signals of a terminal, and unblocks SIGCHLD.
///
/// A process with other threads must block the signals in those too.
pub(super) struct HeldSignals {
    before: libc::sigset_t,
    stops_pass: bool,
}

impl HeldSignals {
    pub(super) fn hold() -> HeldSignals {
        let before = change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGCHLD]));
        change_mask(libc::SIG_BLOCK, &set_of(&INTERRUPTS));
        change_mask(libc::SIG_BLOCK, &set_of(&STOPS));
        HeldSignals { before, stops_pass: false }
    }

    /// Unblocks or blocks the stop signals. A pending stop signal stops us as soon as it is
    /// unblocked.
    pub(super) fn let_stops_pass(&mut self, pass: bool) {
        if self.stops_pass != pass {
            self.stops_pass = pass;
            change_mask(if pass { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK }, &set_of(&STOPS));
        }
    }

    /// Discards the pending signals: they were for the command, which has received them too.
    pub(super) fn forget(&self) {
        for signals in [&INTERRUPTS[..], &STOPS] {
            while take_pending(&set_of(signals)) {}
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        self.forget();
        change_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// While this value exists, Ctrl-C and similar signals interrupt a wait of this thread instead of
/// ending the process.
///
/// A signal can come just before a wait begins, or to another thread: so a timer of this thread
/// interrupts it every few milliseconds.
pub(super) struct WaitInterrupts {
    timer: Option<libc::timer_t>,
}

const ENDINGS: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const ENDINGS_AND_STOPS: [c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Signal of the timer: it does nothing without a handler.
const TICK: c_int = libc::SIGURG;

/// Interval at which a wait checks the time and [`INTERRUPTED`].
const TICK_NANOSECONDS: libc::c_long = 10_000_000;

/// True after one of the signals.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Number of values, and the previous actions of the signals.
static CAUGHT: Mutex<(usize, Vec<(c_int, libc::sigaction)>)> = Mutex::new((0, Vec::new()));

extern "C" fn on_ending(_signal: c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

extern "C" fn on_tick(_signal: c_int) {}

impl WaitInterrupts {
    /// Catches signals; an ignored one stays ignored, as in a command that a shell starts in the
    /// background.
    pub(super) fn catch() -> WaitInterrupts {
        WaitInterrupts::catch_each(&ENDINGS)
    }

    /// The same with the signals by which a terminal stops a process.
    pub(super) fn catch_all() -> WaitInterrupts {
        WaitInterrupts::catch_each(&ENDINGS_AND_STOPS)
    }

    fn catch_each(signals: &[c_int]) -> WaitInterrupts {
        let mut caught = CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        if caught.0 == 0 {
            INTERRUPTED.store(false, Ordering::SeqCst);
            set_handler(TICK, on_tick);
        }
        for &signal in signals {
            let is_new = caught.1.iter().all(|(other, _)| *other != signal);
            if is_new && handler_of(signal) != libc::SIG_IGN {
                caught.1.push((signal, set_handler(signal, on_ending)));
            }
        }
        caught.0 += 1;
        WaitInterrupts { timer: start_timer() }
    }

    pub(super) fn came(&self) -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }
}

impl Drop for WaitInterrupts {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // SAFETY: the timer was made by `start_timer` and is deleted once.
            unsafe { libc::timer_delete(timer) };
        }
        let mut caught = CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        caught.0 -= 1;
        if caught.0 == 0 {
            for (signal, before) in std::mem::take(&mut caught.1) {
                // SAFETY: `before` is what the kernel said was set.
                unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
            }
        }
    }
}

/// Present action of a signal.
pub(super) fn handler_of(signal: c_int) -> libc::sighandler_t {
    action_of(signal).sa_sigaction
}

fn action_of(signal: c_int) -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: default handler, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a null new action only asks; `action` may be written.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    action
}

/// Sets a handler that interrupts system calls. Returns the previous action.
fn set_handler(signal: c_int, handler: extern "C" fn(c_int)) -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: default handler, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    let before = action_of(signal);
    // SAFETY: the handlers above do only what is allowed in one: an atomic store, or nothing.
    unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    before
}

/// A timer that interrupts this thread; `None` where the kernel has none to give.
fn start_timer() -> Option<libc::timer_t> {
    // SAFETY: all-zero is a valid `sigevent`: plain numbers and a null pointer.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = TICK;
    event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: `event` is initialized and `timer` may be written.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    if made == -1 {
        return None;
    }
    let interval = libc::timespec { tv_sec: 0, tv_nsec: TICK_NANOSECONDS };
    let times = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: `timer` was made above, `times` is initialized, and a null old value is not written.
    unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) };
    Some(timer)
}

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initializes the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: `set` was initialized above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: `sigemptyset` cannot fail, so `set` is initialized.
    unsafe { set.assume_init() }
}

/// Changes this thread's signal mask, and returns the one before.
fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = set_of(&[]);
    // SAFETY: both pointers are to initialized sets; the second may be written.
    unsafe { libc::pthread_sigmask(how, set, &raw mut before) };
    before
}

/// Consumes one pending signal of a set that this thread blocks; `false` if none is pending.
fn take_pending(set: &libc::sigset_t) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `set` and `now` are initialized, and a null `siginfo_t` is not written.
    unsafe { libc::sigtimedwait(set, ptr::null_mut(), &raw const now) > 0 }
}

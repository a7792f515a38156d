//! What the terminal sends to the whole foreground group is for the command: Ctrl-C must not end
//! us before we can report, and Ctrl-Z must stop us only once the command has stopped.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// While it lives, Ctrl-C and its kin end a wait of this thread instead of the process.
///
/// A signal that comes just before the wait begins would be missed, so a timer interrupts that every few milliseconds.
pub(super) struct Interrupts {
    handlers: Vec<(c_int, libc::sigaction)>,
    mask: libc::sigset_t,
}

const ENDINGS: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Between two looks at the time and at [`INTERRUPTED`].
const TICK_MICROSECONDS: libc::suseconds_t = 10_000;

/// Whether one of the signals came.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_ending(_signal: c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

extern "C" fn on_tick(_signal: c_int) {}

impl Interrupts {
    /// A signal that is ignored stays so: a shell does that to what it starts in the background.
    pub(super) fn catch() -> Interrupts {
        INTERRUPTED.store(false, Ordering::SeqCst);
        let signals = ENDINGS.map(|signal| (signal, on_ending as extern "C" fn(c_int)));
        let wanted = signals.into_iter().chain([(libc::SIGALRM, on_tick as _)]);
        let caught: Vec<_> = wanted.filter(|(signal, _)| !is_ignored(*signal)).collect();
        let handlers =
            caught.iter().map(|&(signal, on)| (signal, set_handler(signal, on))).collect();
        let numbers: Vec<c_int> = caught.iter().map(|(signal, _)| *signal).collect();
        let mask = change_mask(libc::SIG_UNBLOCK, &set_of(&numbers));
        set_timer(TICK_MICROSECONDS);
        Interrupts { handlers, mask }
    }

    pub(super) fn came(&self) -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        set_timer(0);
        for (signal, before) in &self.handlers {
            // SAFETY: `before` is what the kernel said was set.
            unsafe { libc::sigaction(*signal, before, ptr::null_mut()) };
        }
        change_mask(libc::SIG_SETMASK, &self.mask);
    }
}

fn is_ignored(signal: c_int) -> bool {
    // The timer's signal is ours to handle, whoever ignored it.
    signal != libc::SIGALRM && action_of(signal).sa_sigaction == libc::SIG_IGN
}

/// What is done with a signal now.
pub(super) fn action_of(signal: c_int) -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: default handler, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a null new action only asks; `action` may be written.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    action
}

/// Sets a handler that interrupts system calls. Returns what was set before.
fn set_handler(signal: c_int, handler: extern "C" fn(c_int)) -> libc::sigaction {
    let before = action_of(signal);
    // SAFETY: all-zero is a valid `sigaction`: default handler, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the handlers above do only what is allowed in one: an atomic store, or nothing.
    unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    before
}

/// Starts the timer of this process, or stops it with 0.
fn set_timer(microseconds: libc::suseconds_t) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: `timer` is initialised, and a null old value is not written.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
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

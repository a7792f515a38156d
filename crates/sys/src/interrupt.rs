//! Handling of signals that end this process. Ctrl-C sends SIGINT to this process and to the
//! command that it runs; the user wants to end the command, so this process only records the
//! signal. Code that must restore something before this process ends defers the signals.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Signals that a terminal sends for keys, such as Ctrl-C.
const KEYS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
/// Other signals that ask a process to end.
const OTHERS: [c_int; 2] = [libc::SIGTERM, libc::SIGHUP];

/// Number of the last recorded signal; 0 before the first.
static CAME: AtomicI32 = AtomicI32::new(0);

/// While this value exists, SIGINT and SIGQUIT do not end this process but are recorded. Signals
/// that are ignored stay ignored.
///
/// A program that is started meanwhile has the default actions, because `exec` resets handlers.
/// Only one value may exist at a time, since the recorded signal belongs to the whole process.
#[derive(Debug)]
pub struct NotedInterrupts {
    before: Vec<(c_int, libc::sighandler_t)>,
}

impl NotedInterrupts {
    /// Starts to record SIGINT and SIGQUIT.
    pub fn note() -> NotedInterrupts {
        NotedInterrupts::note_each(&KEYS)
    }

    /// Starts to record SIGINT, SIGQUIT, SIGTERM and SIGHUP.
    pub fn note_all() -> NotedInterrupts {
        NotedInterrupts::note_each(&[KEYS, OTHERS].concat())
    }

    fn note_each(signals: &[c_int]) -> NotedInterrupts {
        CAME.store(0, Ordering::Relaxed);
        let handler: extern "C" fn(c_int) = on_signal;
        let mut before = Vec::new();
        for &signal in signals {
            if action(signal) != libc::SIG_IGN {
                before.push((signal, action(signal)));
                set_action(signal, handler as libc::sighandler_t);
            }
        }
        NotedInterrupts { before }
    }

    /// True if a signal was recorded.
    pub fn came(&self) -> bool {
        self.signal().is_some()
    }

    /// The number of the last recorded signal; `None` if no signal was recorded.
    pub fn signal(&self) -> Option<c_int> {
        Some(CAME.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

impl Drop for NotedInterrupts {
    fn drop(&mut self) {
        for (signal, action) in &self.before {
            set_action(*signal, *action);
        }
    }
}

/// Signals that end or stop a process by default and that people and supervisors send.
const DEFERRED: [c_int; 7] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Signals that arrived while a [`Deferred`] existed: bit N is set if element N of [`DEFERRED`]
/// arrived.
static LATER: AtomicI32 = AtomicI32::new(0);
/// Number of live values of [`Deferred`], and the signals whose action they changed.
static DEFERS: Mutex<(usize, Vec<c_int>)> = Mutex::new((0, Vec::new()));

/// While a value exists, signals that would end or stop this process are deferred; the drop of the
/// last value raises them. Signals that are ignored or have a handler are not affected. SIGKILL and
/// SIGSTOP cannot be deferred.
#[derive(Debug)]
pub struct Deferred(());

impl Deferred {
    /// Begins to defer the signals.
    pub fn hold() -> Deferred {
        let mut defers = DEFERS.lock().unwrap_or_else(PoisonError::into_inner);
        if defers.0 == 0 {
            LATER.store(0, Ordering::SeqCst);
            let handler: extern "C" fn(c_int) = on_deferred;
            for signal in DEFERRED {
                if action(signal) == libc::SIG_DFL {
                    set_action(signal, handler as libc::sighandler_t);
                    defers.1.push(signal);
                }
            }
        }
        defers.0 += 1;
        Deferred(())
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let mut defers = DEFERS.lock().unwrap_or_else(PoisonError::into_inner);
        defers.0 -= 1;
        if defers.0 > 0 {
            return;
        }
        for signal in std::mem::take(&mut defers.1) {
            set_action(signal, libc::SIG_DFL);
        }
        drop(defers);
        let came = LATER.swap(0, Ordering::SeqCst);
        for (bit, signal) in DEFERRED.into_iter().enumerate() {
            if came & 1 << bit != 0 {
                // SAFETY: the call sends a signal, which has its default action, to this thread.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

/// Makes this process ignore SIGPIPE, SIGUSR1, SIGUSR2, and the signals by which terminals and
/// supervisors end or stop a process, from now on. SIGKILL and SIGSTOP cannot be ignored.
pub fn ignore_requests_to_end() {
    for signal in DEFERRED.into_iter().chain([libc::SIGPIPE, libc::SIGUSR1, libc::SIGUSR2]) {
        set_action(signal, libc::SIG_IGN);
    }
}

extern "C" fn on_deferred(signal: c_int) {
    if let Some(bit) = DEFERRED.iter().position(|&deferred| deferred == signal) {
        LATER.fetch_or(1 << bit, Ordering::SeqCst);
    }
}

extern "C" fn on_signal(signal: c_int) {
    CAME.store(signal, Ordering::Relaxed);
}

fn no_action() -> libc::sigaction {
    // SAFETY: `sigaction` has numbers, a set and an optional function, for which all zeros are
    // valid.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

fn action(signal: c_int) -> libc::sighandler_t {
    let mut now = no_action();
    // SAFETY: with a null new action the call changes nothing; it writes the current action to
    // `now`.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) };
    now.sa_sigaction
}

fn set_action(signal: c_int, handler: libc::sighandler_t) {
    let new = libc::sigaction { sa_sigaction: handler, sa_flags: libc::SA_RESTART, ..no_action() };
    // SAFETY: the handler is `SIG_DFL`, `SIG_IGN`, a handler that was installed before, or a
    // handler of this module, which only writes to an atomic.
    unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
}

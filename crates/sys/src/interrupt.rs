//! Ctrl-C while a command runs: it is for the command, and we want to know of it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

const SIGNALS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

static CAME: AtomicBool = AtomicBool::new(false);

/// While it lives, SIGINT and SIGQUIT do not end this process but are noted. Those that are ignored stay so.
///
/// Programs that are started meanwhile have the usual handlers: `exec` does not hand on ours. One value at a time: the
/// note is of the whole process.
#[derive(Debug)]
pub struct Interrupts {
    before: Vec<(c_int, libc::sighandler_t)>,
}

impl Interrupts {
    /// Begins to note them.
    pub fn note() -> Interrupts {
        CAME.store(false, Ordering::Relaxed);
        let handler: extern "C" fn(c_int) = on_signal;
        let mut before = Vec::new();
        for signal in SIGNALS {
            if action(signal) != libc::SIG_IGN {
                before.push((signal, action(signal)));
                set_action(signal, handler as libc::sighandler_t);
            }
        }
        Interrupts { before }
    }

    /// Whether one came.
    pub fn came(&self) -> bool {
        CAME.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, action) in &self.before {
            set_action(*signal, *action);
        }
    }
}

extern "C" fn on_signal(_: c_int) {
    CAME.store(true, Ordering::Relaxed);
}

fn no_action() -> libc::sigaction {
    // SAFETY: a struct of numbers, a set and an optional function, for which all zero is a value.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

fn action(signal: c_int) -> libc::sighandler_t {
    let mut now = no_action();
    // SAFETY: a null pointer changes nothing; the other is to what the call writes there.
    unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) };
    now.sa_sigaction
}

fn set_action(signal: c_int, handler: libc::sighandler_t) {
    let new = libc::sigaction { sa_sigaction: handler, sa_flags: libc::SA_RESTART, ..no_action() };
    // SAFETY: the handler is `SIG_DFL`, one that was installed before, or ours, which only stores to an atomic.
    unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
}

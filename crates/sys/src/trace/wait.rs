//! Waits for events of traced threads, without consuming events of other children.
//!
//! A blocking `waitpid` has no time limit, so the tracer sleeps on a futex that a SIGCHLD handler
//! wakes, and polls with `WNOHANG` after each wake.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::thread::{Timespec, futex};

use super::{TraceEnding, signals};
use crate::ptrace::{Tid, seized};

/// `PTRACE_EVENT_STOP` of `linux/ptrace.h`.
const EVENT_STOP: c_int = 128;

/// Stop status of a system call under `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;

/// State change of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadChange {
    /// The thread has ended.
    Ended(TraceEnding),
    /// The thread is about to receive a signal.
    Signal(i32),
    /// A stop signal stopped the whole process.
    GroupStop,
    /// The thread stopped because it is new, was interrupted, or left its group stop.
    Trap,
    /// The thread is at the entry or the exit of a system call (`PTRACE_O_TRACESYSGOOD`).
    Syscall,
    /// The thread is at the entry of a system call that a seccomp filter selected.
    Filtered,
    /// The thread created a thread or a process.
    Cloned,
    /// The thread executes another program.
    Execed,
    /// The thread is about to end; its memory is still readable.
    Exiting,
}

impl ThreadChange {
    fn from_status(status: c_int) -> ThreadChange {
        if !libc::WIFSTOPPED(status) {
            return ThreadChange::Ended(TraceEnding::from_status(status));
        }
        match (status >> 16, libc::WSTOPSIG(status)) {
            (0, SYSCALL_STOP) => ThreadChange::Syscall,
            (0, signal) => ThreadChange::Signal(signal),
            (libc::PTRACE_EVENT_SECCOMP, _) => ThreadChange::Filtered,
            (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK, _) => {
                ThreadChange::Cloned
            }
            (libc::PTRACE_EVENT_EXEC, _) => ThreadChange::Execed,
            (libc::PTRACE_EVENT_EXIT, _) => ThreadChange::Exiting,
            (EVENT_STOP, libc::SIGTRAP) => ThreadChange::Trap,
            (EVENT_STOP, _) => ThreadChange::GroupStop,
            _ => ThreadChange::Trap,
        }
    }
}

impl ThreadChange {
    /// True if the kernel accepts requests for the thread only after the change was consumed.
    /// `exec` may have changed the thread's id: `looks_like_a_spurious_pid` of `kernel/ptrace.c`,
    /// since Linux 5.13.
    fn must_be_taken(self) -> bool {
        matches!(self, ThreadChange::Ended(_) | ThreadChange::Execed)
    }
}

impl TraceEnding {
    /// Converts the wait status of a task that has ended.
    pub(crate) fn from_status(status: c_int) -> TraceEnding {
        if libc::WIFSIGNALED(status) {
            TraceEnding::Killed { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
        } else {
            TraceEnding::Exited(libc::WEXITSTATUS(status))
        }
    }
}

/// Number of SIGCHLD signals that this process received.
static NEWS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_sigchld(_signal: c_int) {
    NEWS.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&NEWS, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// Installs the SIGCHLD handler, which is never removed. Other code that waits for its own children
/// is not disturbed, because system calls that the handler interrupts are restarted.
pub(crate) fn begin() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all zeros are a valid `sigaction`: default handler, empty mask, no flags.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_sigchld as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler is async-signal-safe: an atomic addition and a futex call.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) };
    });
}

/// Returns the number of SIGCHLD signals so far. Call this function before [`any_now`], and pass
/// the number to [`sleep`] if [`any_now`] returns no event.
pub(crate) fn mark() -> u32 {
    NEWS.load(Ordering::SeqCst)
}

/// Sleeps until another SIGCHLD has arrived since `mark`; `false` if the deadline passed.
pub(crate) fn sleep(mark: u32, deadline: Option<Instant>) -> bool {
    while mark == NEWS.load(Ordering::SeqCst) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        // After every result (woken, `mark` is outdated, interrupted, timed out) the loop repeats
        // its checks.
        let _ = futex::wait(&NEWS, futex::Flags::PRIVATE, mark, timeout.as_ref());
    }
    true
}

/// Returns a child or tracee of this thread that has an event. The event is left for
/// [`take_change`].
///
/// # Errors
/// `ECHILD` if this thread has neither children nor tracees: other code has waited for the child.
pub(crate) fn peek() -> io::Result<Option<Tid>> {
    Ok(look_at(libc::P_ALL, 0, libc::WNOHANG)?.map(|(tid, _)| tid))
}

/// Returns and consumes the new event of a thread; `None` without a new event, or if the thread is
/// not traced any more. For a signal that the thread is about to receive, use [`look`] instead.
///
/// # Errors
/// No known errors for a thread that this thread traces or has created.
pub fn take_change(tid: Tid) -> io::Result<Option<ThreadChange>> {
    let mut status = 0;
    // SAFETY: `status` is an int that the call may fill in.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::WNOHANG | libc::__WALL) } {
        0 => Ok(None),
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        },
        _ => {
            let change = ThreadChange::from_status(status);
            if matches!(change, ThreadChange::Ended(_)) {
                seized::forget(tid);
            }
            Ok(Some(change))
        }
    }
}

/// Returns the new event of a thread like [`take_change`], but a stop (except of `exec`) is not
/// consumed until the thread is resumed or detached.
///
/// Use this function for a thread that is about to receive a signal: after its stop was consumed,
/// the kernel drops the signal if the tracer is killed before it resumes the thread.
///
/// # Errors
/// `ECHILD` for a thread that is not, or not any more, a tracee of this thread: a thread that
/// executes a program gets the ID of the main thread.
pub fn look(tid: Tid) -> io::Result<Option<ThreadChange>> {
    match look_at(libc::P_PID, tid.unsigned_abs(), libc::WNOHANG)? {
        Some((_, change)) if change.must_be_taken() => take_change(tid),
        found => Ok(found.map(|(_, change)| change)),
    }
}

/// Like [`look`], but returns `None` for a thread that is not a tracee of this thread.
pub(crate) fn look_if_ours(tid: Tid) -> io::Result<Option<ThreadChange>> {
    match look(tid) {
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        found => found,
    }
}

/// Returns the first change of one task, or of all children and tracees of this thread. The change
/// is not consumed.
fn look_at(
    which: libc::idtype_t,
    id: libc::id_t,
    no_hang: c_int,
) -> io::Result<Option<(Tid, ThreadChange)>> {
    // SAFETY: all zeros are a valid `siginfo_t`: plain numbers.
    let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // Without `WSTOPPED` the kernel still reports the stops of tracees, but not the stops of other
    // children, which no ptrace request can end.
    let options = libc::WEXITED | libc::WNOWAIT | no_hang;
    let options = options | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: `info` is a `siginfo_t` that the call may fill in.
    if unsafe { libc::waitid(which, id, &raw mut info, options) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `waitid` wrote the SIGCHLD fields, or left zeros, which mean "no event".
    let tid = unsafe { info.si_pid() };
    // SAFETY: `waitid` wrote the SIGCHLD fields, or left zeros, which are valid.
    let code = unsafe { info.si_status() };
    if tid == 0 {
        return Ok(None);
    }
    // Converts the fields to the status that `waitpid` would return.
    let status = match info.si_code {
        libc::CLD_EXITED => code << 8,
        libc::CLD_KILLED => code,
        libc::CLD_DUMPED => code | 0x80,
        _ => code << 8 | 0x7f,
    };
    Ok(Some((tid, ThreadChange::from_status(status))))
}

/// Waits without a time limit for an event of any child or tracee of this thread. As with [`look`],
/// a stop is not consumed: until the thread is resumed or detached, each call returns this stop
/// again before later events. `None` if a signal interrupted the wait.
///
/// # Errors
/// `ECHILD` if this thread has neither children nor tracees.
pub fn any() -> io::Result<Option<(Tid, ThreadChange)>> {
    look_at_any(0)
}

/// Like [`any`], but does not wait: `None` without an event.
///
/// # Errors
/// `ECHILD` if this thread has neither children nor tracees.
pub(crate) fn any_now() -> io::Result<Option<(Tid, ThreadChange)>> {
    look_at_any(libc::WNOHANG)
}

fn look_at_any(no_hang: c_int) -> io::Result<Option<(Tid, ThreadChange)>> {
    match look_at(libc::P_ALL, 0, no_hang) {
        Ok(Some((tid, change))) if change.must_be_taken() => {
            Ok(take_change(tid)?.map(|change| (tid, change)))
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        found => found,
    }
}

/// Makes the kernel keep ended children until this process waits for them: this process may have
/// been started with SIGCHLD ignored.
pub(crate) fn keep_ends() {
    if signals::handler_of(libc::SIGCHLD) == libc::SIG_IGN {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

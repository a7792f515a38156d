//! The `ptrace` and `wait4` calls that a [`super::Traced`] needs, one function each.

use std::io;
use std::ptr;

/// A thread id as these calls take it.
pub(super) type Tid = libc::pid_t;

/// Where a stopped thread goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// It runs, and gets this signal; 0 is none.
    Run(i32),
    /// It stays stopped, as job control wants, until a SIGCONT.
    Listen,
}

/// What `wait4` says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Exited(i32),
    Killed { signal: i32, core: bool },
    /// It is about to die; its memory is still there.
    Dying,
    /// It made a task, which is traced from now on.
    Cloned,
    /// The process executed another program; the thread that did is the leader now.
    Executed,
    /// It stopped for job control, for us, or because it is new.
    Paused { signal: i32 },
    /// A signal is about to be delivered.
    Signalled(i32),
}

/// What a tracee reports besides its signals.
const OPTIONS: i32 = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC;

/// Starts tracing a process of one thread, without stopping it.
pub(super) fn seize(tid: Tid) -> io::Result<()> {
    call(libc::PTRACE_SEIZE, tid, OPTIONS.unsigned_abs() as usize)
}

/// Makes a running thread stop and report [`Change::Paused`].
pub(super) fn interrupt(tid: Tid) -> io::Result<()> {
    call(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Lets a stopped thread go on.
pub(super) fn resume(tid: Tid, how: Resume) -> io::Result<()> {
    match how {
        Resume::Run(signal) => call(libc::PTRACE_CONT, tid, signal.unsigned_abs() as usize),
        Resume::Listen => call(libc::PTRACE_LISTEN, tid, 0),
    }
}

/// Lets a stopped thread go on untraced.
pub(super) fn detach(tid: Tid, how: Resume) -> io::Result<()> {
    let signal = if let Resume::Run(signal) = how { signal } else { 0 };
    call(libc::PTRACE_DETACH, tid, signal.unsigned_abs() as usize)
}

fn call(request: libc::c_uint, tid: Tid, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests above reads or writes our memory: `data` is a number.
    let done = unsafe { libc::ptrace(request, tid, 0_usize, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The number that came with an event: the new thread's id, the old one's, the status of the death.
pub(super) fn event_message(tid: Tid) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long to `message`, which lives until after the call.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0_usize, &raw mut message) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(message) }
}

/// Waits for the next change of a child or tracee of this thread; `None` where there is none yet and `block` is off.
///
/// # Errors
/// `ECHILD` where no child or tracee is left.
pub(super) fn wait(block: bool) -> io::Result<Option<(Tid, Change)>> {
    // Only this thread's own: another thread may have children that are none of our business.
    wait_for(-1, libc::__WALL | libc::__WNOTHREAD | if block { 0 } else { libc::WNOHANG })
}

/// Waits for one child to end.
pub(super) fn wait_for_end(pid: Tid) -> io::Result<Change> {
    loop {
        match wait_for(pid, libc::__WALL)? {
            Some((_, change @ (Change::Exited(_) | Change::Killed { .. }))) => return Ok(change),
            _ => continue,
        }
    }
}

fn wait_for(which: Tid, flags: i32) -> io::Result<Option<(Tid, Change)>> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes the status to `status`, which lives until after the call; the usage is not asked for.
        let tid = unsafe { libc::wait4(which, &raw mut status, flags, ptr::null_mut()) };
        match tid {
            0 => return Ok(None),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            tid => return Ok(Some((tid, change(status)))),
        }
    }
}

fn change(status: i32) -> Change {
    if libc::WIFEXITED(status) {
        return Change::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Change::Killed { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) };
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_EXIT => Change::Dying,
        libc::PTRACE_EVENT_CLONE => Change::Cloned,
        libc::PTRACE_EVENT_EXEC => Change::Executed,
        libc::PTRACE_EVENT_STOP => Change::Paused { signal },
        _ => Change::Signalled(signal),
    }
}

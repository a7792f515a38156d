//! Forked children without `execve`, for experiments with copy-on-write.

use std::io;
use std::panic::{self, AssertUnwindSafe};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// A forked child. Dropping this waits for its exit.
#[derive(Debug)]
pub struct ForkedChild(libc::pid_t);

/// Forks. The child runs `body` and exits with the status that it returns, or with 101 if it
/// panics. The kernel kills the child when this process ends.
///
/// # Errors
/// `EBUSY` where this process has other threads: a lock that one of them holds would be held in the
/// child for ever. `EAGAIN`, `ENOMEM`.
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<ForkedChild> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: this is the only thread, so the child may do all that this process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            let status = panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: `_exit` ends the child without the exit handlers and unflushed buffers of its
            // parent.
            unsafe { libc::_exit(status.into()) }
        }
        pid => Ok(ForkedChild(pid)),
    }
}

impl ForkedChild {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Sends SIGKILL to the child.
    pub fn kill(&self) {
        // The child has not been waited for, so no other process has its PID. If the child has
        // exited, the signal has no effect.
        let _ = Pid::from_raw(self.0).map(|pid| kill_process(pid, Signal::KILL));
    }

    /// Waits for the child to exit. Returns its exit status, or the negative signal number if a
    /// signal killed it.
    ///
    /// # Errors
    /// As `waitpid` gives them.
    pub fn wait(self) -> io::Result<i32> {
        let status = wait(self.0);
        std::mem::forget(self);
        status
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        let _ = wait(self.0);
    }
}

fn wait(pid: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the call writes a number to `status`.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if waited == pid {
            let ended = libc::WIFEXITED(status);
            return Ok(if ended { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

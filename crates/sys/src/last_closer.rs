//! A child process that closes file descriptors last, by its end.
//!
//! The kernel removes a uprobe when the last file descriptor of its event is closed. A thread that
//! has a SIGKILL pending cannot do this in `close`: reading the page of the target fails with
//! `EINTR`, the kernel logs `failed to unregister, leaking uprobe`, and the breakpoint stays in the
//! target. An exiting process has no signal pending any more, so its end removes the uprobe.

use std::ffi::{c_int, c_long};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};

/// A child process with a copy of each file descriptor that was open when it was made. Dropping the
/// value ends the child and waits for its end, and so does the end of this process.
///
/// Drop the file descriptors in question first: the child's copies are then the last.
#[derive(Debug)]
pub struct LastCloser {
    /// Number of the child.
    child: libc::pid_t,
    /// The child ends when this end of a pipe is closed.
    release: Option<PipeWriter>,
}

impl LastCloser {
    /// Makes the child.
    ///
    /// # Errors
    /// Those of `pipe` and `clone`.
    pub fn start() -> io::Result<LastCloser> {
        let (wait, release) = io::pipe()?;
        // Without an exit signal, other waits of this process do not see the child.
        const NO_SIGNAL: c_long = 0;
        // SAFETY: without flags, `clone` is a `fork`: a null stack keeps the stack, no other
        // pointer is used, and the child makes system calls only.
        let child = unsafe { libc::syscall(libc::SYS_clone, NO_SIGNAL, 0, 0, 0, 0) };
        match child {
            -1 => Err(io::Error::last_os_error()),
            0 => wait_and_leave(&wait, release.as_raw_fd()),
            child => {
                let child = libc::pid_t::try_from(child).map_err(io::Error::other)?;
                Ok(LastCloser { child, release: Some(release) })
            }
        }
    }
}

impl Drop for LastCloser {
    fn drop(&mut self) {
        drop(self.release.take());
        // SAFETY: a null status is permitted; the child is ours and was not waited for.
        while unsafe { libc::waitpid(self.child, std::ptr::null_mut(), libc::__WCLONE) } == -1 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break;
            }
        }
    }
}

/// The child: waits until the pipe has no writer, then ends.
fn wait_and_leave(wait: &PipeReader, release: RawFd) -> ! {
    // SAFETY: takes no argument. A signal to the group of the parent, such as that of Ctrl-C, must
    // not end the child first.
    unsafe { libc::setsid() };
    // SAFETY: this copy of the descriptor is not used again; the parent has its own.
    unsafe { libc::close(release) };
    let mut byte = 0_u8;
    loop {
        // SAFETY: `byte` has room for the one byte that is read.
        let read = unsafe { libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) };
        if read != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            leave()
        }
    }
}

fn leave() -> ! {
    const STATUS: c_int = 0;
    // SAFETY: it ends the child at once, without the exit handlers of the parent.
    unsafe { libc::_exit(STATUS) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_descriptor_that_is_dropped_stays_open_until_the_child_ends() {
        let (mut reader, writer) = io::pipe().unwrap();
        let closer = LastCloser::start().unwrap();
        drop(writer);
        let ended = std::thread::spawn(move || reader.read(&mut [0]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!ended.is_finished(), "the child has the last copy");
        drop(closer);
        assert_eq!(ended.join().unwrap(), 0);
    }

    #[test]
    fn the_child_is_no_child_of_other_waits() {
        let closer = LastCloser::start().unwrap();
        // SAFETY: a null status is permitted.
        let waited = unsafe { libc::waitpid(closer.child, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(waited, -1);
    }
}

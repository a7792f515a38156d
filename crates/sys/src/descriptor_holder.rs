//! A child process that opens the file descriptors of uprobes and closes them when it ends.
//!
//! The kernel inserts and removes a uprobe's breakpoint by reading and writing a page of the
//! target, which fails with `EINTR` in a thread that has a SIGKILL pending. If this happens between
//! two breakpoints of one call, or in `close`, the breakpoint stays in the target, and the log of
//! the kernel has `failed to unregister, leaking uprobe`. So pagewise itself neither opens nor
//! closes these descriptors: it can be killed at any time. The child has a session of its own and
//! blocks all signals, and an exiting process has no signal pending any more, so its end removes
//! the uprobes.

use std::ffi::{c_int, c_long};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// A child process that alone has the file descriptors that it opened. Dropping the value ends the
/// child and waits for its end. The child ends too when this process ends.
#[derive(Debug)]
pub struct DescriptorHolder {
    /// Number of the child.
    child: libc::pid_t,
    /// The child ends when this socket is shut down or closed.
    channel: UnixStream,
}

/// The reports of the child about its work.
pub(crate) struct HolderReport(RawFd);

/// A report of the child: a number, or the end of the work with the `errno` of its failure or 0.
const NUMBER: u64 = 0;
const END: u64 = 1;
/// Bytes of a report.
const REPORT: usize = 2 * size_of::<u64>();

impl HolderReport {
    /// Passes a number to the parent.
    pub(crate) fn number(&mut self, value: u64) {
        self.send(NUMBER, value);
    }

    fn send(&mut self, kind: u64, value: u64) {
        let mut report = [0; REPORT];
        let (first, second) = report.split_at_mut(REPORT / 2);
        first.copy_from_slice(&kind.to_ne_bytes());
        second.copy_from_slice(&value.to_ne_bytes());
        // Fails where the parent has ended: the child ends next.
        // SAFETY: `report` has as many bytes as are sent.
        unsafe { libc::send(self.0, report.as_ptr().cast(), REPORT, libc::MSG_NOSIGNAL) };
    }
}

impl DescriptorHolder {
    /// Makes the child, which calls `open` and keeps the file descriptors that `open` leaves open.
    /// Returns the numbers that `open` reported.
    ///
    /// # Safety
    /// `open` runs in a copy of this process that has one thread only: it may make system calls,
    /// but it must neither allocate memory nor take a lock.
    ///
    /// # Errors
    /// Those of `socketpair` and `clone`, and that of `open`.
    pub(crate) unsafe fn start(
        open: impl FnOnce(&mut HolderReport) -> io::Result<()>,
    ) -> io::Result<(DescriptorHolder, Vec<u64>)> {
        let (channel, of_child) = UnixStream::pair()?;
        // Without an exit signal, other waits of this process do not see the child.
        const NO_SIGNAL: c_long = 0;
        // SAFETY: without flags, `clone` is a `fork`: a null stack keeps the stack, no other
        // pointer is used, and the child makes system calls only.
        let child = unsafe { libc::syscall(libc::SYS_clone, NO_SIGNAL, 0, 0, 0, 0) };
        let child = match child {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                isolate(channel.as_raw_fd());
                let mut report = HolderReport(of_child.as_raw_fd());
                let failed = open(&mut report).err();
                let errno = failed.map_or(0, |it| it.raw_os_error().unwrap_or(libc::EIO));
                report.send(END, errno.unsigned_abs().into());
                wait_and_leave(of_child.as_raw_fd())
            }
            child => libc::pid_t::try_from(child).map_err(io::Error::other)?,
        };
        drop(of_child);
        let mut holder = DescriptorHolder { child, channel };
        let numbers = holder.receive()?;
        Ok((holder, numbers))
    }

    /// Ends the child without waiting for its end, so that the uprobes of several children are
    /// removed at the same time.
    pub fn release(&self) {
        // Fails where the child has ended.
        let _ = self.channel.shutdown(Shutdown::Both);
    }

    /// The reports of the child until the end of its work.
    fn receive(&mut self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        loop {
            let (mut kind, mut value) = ([0; REPORT / 2], [0; REPORT / 2]);
            self.channel.read_exact(&mut kind)?;
            self.channel.read_exact(&mut value)?;
            let value = u64::from_ne_bytes(value);
            match (u64::from_ne_bytes(kind), i32::try_from(value)) {
                (END, Ok(0)) => return Ok(numbers),
                (END, Ok(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                _ => numbers.push(value),
            }
        }
    }
}

impl Drop for DescriptorHolder {
    fn drop(&mut self) {
        self.release();
        // SAFETY: a null status is permitted; the child is ours and was not waited for.
        while unsafe { libc::waitpid(self.child, std::ptr::null_mut(), libc::__WCLONE) } == -1 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break;
            }
        }
    }
}

/// The child begins: no signal but SIGKILL ends it.
fn isolate(of_parent: RawFd) {
    // SAFETY: all bits of a signal set are valid, zeros too.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a signal set of ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: a null pointer for the old mask is permitted.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    // SAFETY: takes no argument. A SIGKILL to the process group of the parent spares the child.
    unsafe { libc::setsid() };
    // SAFETY: this copy of the descriptor is not used again; the parent has its own.
    unsafe { libc::close(of_parent) };
}

/// The child: waits until the parent shuts the socket down or has ended, then ends.
fn wait_and_leave(channel: RawFd) -> ! {
    let mut byte = 0_u8;
    loop {
        // SAFETY: `byte` has room for the one byte that is read.
        let read = unsafe { libc::read(channel, (&raw mut byte).cast(), 1) };
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
    use super::*;

    /// A child that has the only writer of a pipe, and the reader.
    fn holder_of_pipe() -> (DescriptorHolder, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let open = |report: &mut HolderReport| {
            report.number(7);
            report.number(u64::MAX);
            Ok(())
        };
        // SAFETY: `open` only sends numbers.
        let (holder, numbers) = unsafe { DescriptorHolder::start(open) }.unwrap();
        drop(writer);
        assert_eq!(numbers, [7, u64::MAX]);
        (holder, reader)
    }

    #[test]
    fn a_descriptor_of_the_child_stays_open_until_the_child_ends() {
        let (first, mut reader) = holder_of_pipe();
        // The second child has copies of all descriptors, those of the first's channel too.
        let (second, _) = holder_of_pipe();
        let ended = std::thread::spawn(move || reader.read(&mut [0]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!ended.is_finished(), "the child has the last copy");
        drop((first, second));
        assert_eq!(ended.join().unwrap(), 0);
    }

    #[test]
    fn a_failure_in_the_child_is_the_failure_of_the_start() {
        let open = |_: &mut HolderReport| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        // SAFETY: `open` does nothing.
        let failed = unsafe { DescriptorHolder::start(open) }.unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn what_the_child_opens_is_open_in_the_child_alone() {
        let folder = c"/proc/self/fd";
        let open = |report: &mut HolderReport| {
            // SAFETY: the path is a string.
            let fd = unsafe { libc::open(folder.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
            report.number(fd.unsigned_abs().into());
            Ok(())
        };
        // SAFETY: `open` makes system calls only.
        let (holder, numbers) = unsafe { DescriptorHolder::start(open) }.unwrap();
        let link = |process: &str| std::fs::read_link(format!("/proc/{process}/fd/{}", numbers[0]));
        let of_child = link(&holder.child.to_string()).unwrap();
        assert!(of_child.ends_with("fd"), "{of_child:?}");
        assert!(link("self").map_or(true, |it| it != of_child), "the parent has it too");
    }

    #[test]
    fn other_waits_do_not_find_the_child() {
        let (holder, _) = holder_of_pipe();
        // SAFETY: a null status is permitted.
        let waited = unsafe { libc::waitpid(holder.child, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!(waited, -1);
    }
}

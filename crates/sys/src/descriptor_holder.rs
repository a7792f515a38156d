//! A child process that opens the file descriptors of uprobes and closes them when it ends.
//!
//! The kernel inserts and removes a uprobe's breakpoint by reading and writing a page of the
//! target, and this access fails with `EINTR` in a thread that has a SIGKILL pending. If the access
//! fails while a call inserts several breakpoints, or in `close`, a breakpoint stays in the target,
//! and the kernel logs `failed to unregister, leaking uprobe`. So pagewise itself, which can be
//! killed at any time, neither opens nor closes these descriptors. The child has a session of its
//! own and blocks all signals, and a process that exits has no pending signal, so the end of the
//! child removes the uprobes.

use std::ffi::{c_int, c_long};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// A child process that is the only owner of the file descriptors that it opened. Dropping the
/// value ends the child and waits for its end. The child also ends when this process ends.
#[derive(Debug)]
pub struct DescriptorHolder {
    /// PID of the child.
    child: libc::pid_t,
    /// The child ends when this socket is shut down or closed.
    channel: UnixStream,
}

/// The reports of the child about its work.
pub(crate) struct HolderReport(RawFd);

/// First word of a report. After `NUMBER`, the second word is a number for the parent. `END`
/// reports that `open` returned; the second word is then the `errno` of its failure, or 0.
const NUMBER: u64 = 0;
const END: u64 = 1;
/// Size of a report in bytes.
const REPORT: usize = 2 * size_of::<u64>();

impl HolderReport {
    /// Sends a number to the parent.
    pub(crate) fn number(&mut self, value: u64) {
        self.send(NUMBER, value);
    }

    fn send(&mut self, kind: u64, value: u64) {
        let mut report = [0; REPORT];
        let (first, second) = report.split_at_mut(REPORT / 2);
        first.copy_from_slice(&kind.to_ne_bytes());
        second.copy_from_slice(&value.to_ne_bytes());
        // The call fails if the parent has ended; the child then ends too. SAFETY: `report` has
        // `REPORT` bytes.
        unsafe { libc::send(self.0, report.as_ptr().cast(), REPORT, libc::MSG_NOSIGNAL) };
    }
}

impl DescriptorHolder {
    /// Creates the child, which calls `open` and keeps the file descriptors that `open` leaves
    /// open. Returns the child and the numbers that `open` reported.
    ///
    /// # Safety
    /// `open` runs in a copy of this process that has only one thread: `open` may make system
    /// calls, but must neither allocate memory nor take a lock.
    ///
    /// # Errors
    /// Returns the errors of `socketpair`, `clone` and `open`.
    pub(crate) unsafe fn start(
        open: impl FnOnce(&mut HolderReport) -> io::Result<()>,
    ) -> io::Result<(DescriptorHolder, Vec<u64>)> {
        let (channel, of_child) = UnixStream::pair()?;
        // If the child has no exit signal, `wait` calls without `__WCLONE` elsewhere in this
        // process do not return the child.
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
        // The call fails if the child has ended.
        let _ = self.channel.shutdown(Shutdown::Both);
    }

    /// Receives the numbers that the child reports, until `open` returns in the child.
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
        // SAFETY: a null status is permitted; the process is a child of this one and was not waited
        // for.
        while unsafe { libc::waitpid(self.child, std::ptr::null_mut(), libc::__WCLONE) } == -1 {
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break;
            }
        }
    }
}

/// Prepares the child, so that no signal except SIGKILL ends it.
fn isolate(of_parent: RawFd) {
    // SAFETY: every bit pattern is a valid signal set, including all zeros.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` is a signal set that may be written.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: a null pointer for the old mask is permitted.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    // SAFETY: the call takes no argument. It protects the child from a SIGKILL to the process group
    // of the parent.
    unsafe { libc::setsid() };
    // SAFETY: the child does not use its copy of this descriptor again; the parent has its own
    // copy.
    unsafe { libc::close(of_parent) };
}

/// Runs in the child: waits until the parent shuts the socket down or ends, and ends the child.
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
    // SAFETY: the call ends the child at once, without the exit handlers of the parent.
    unsafe { libc::_exit(STATUS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that owns the only write end of a pipe, and the read end of the pipe.
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
        // The second child has copies of all descriptors, also of the socket of the first child.
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

//! The ptrace requests that we use, typed. A thread that was killed meanwhile refuses any of them;
//! its end is reported by [`super::wait`], so requests that only move a thread on return nothing.

use std::ffi::c_int;
use std::io;
use std::ptr;

use super::Tid;

/// A request number, which glibc takes as unsigned and musl as signed.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3).
const GET_SYSCALL_INFO: Request = 0x420e;

/// The stops we ask for. A child process is not followed: only threads and what they execute.
/// Without `PTRACE_O_EXITKILL` the command outlives us.
const OPTIONS: c_int =
    libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC;

/// The head of `struct ptrace_syscall_info` of `linux/ptrace.h`: what is true of any stop.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    pad: [u8; 3],
    arch: u32,
}

/// Becomes the tracer of a running thread, without stopping it.
///
/// # Errors
/// `EPERM` where a security module, a container or Yama forbids tracing.
pub(super) fn seize(tid: Tid) -> io::Result<()> {
    plain(libc::PTRACE_SEIZE, tid, OPTIONS)
}

/// Asks a running thread to stop, and one in a group stop to report itself.
pub(super) fn interrupt(tid: Tid) {
    let _ = plain(libc::PTRACE_INTERRUPT, tid, 0);
}

/// Lets a stopped thread run on, and delivers `signal` to it unless that is 0.
pub(super) fn resume(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_CONT, tid, signal);
}

/// Leaves a thread in its group stop: it stays stopped until a SIGCONT, as without a tracer.
pub(super) fn listen(tid: Tid) {
    let _ = plain(libc::PTRACE_LISTEN, tid, 0);
}

/// Lets a stopped thread run on untraced, and delivers `signal` to it unless that is 0.
pub(super) fn detach(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_DETACH, tid, signal);
}

/// The message of the event that a thread stopped at: the new thread of a clone, the status of an exit.
pub(super) fn message(tid: Tid) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: this request writes one `unsigned long` to its last argument, which points to one.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            tid,
            ptr::null_mut::<libc::c_void>(),
            &raw mut message,
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(message) }
}

/// The `AUDIT_ARCH_*` by which a stopped thread makes system calls; `None` before Linux 5.3.
pub(super) fn architecture(tid: Tid) -> Option<u32> {
    let mut info = SyscallInfo::default();
    // SAFETY: this request writes at most as many bytes as its third argument says to its last,
    // which points to a plain struct of that size.
    let size =
        unsafe { libc::ptrace(GET_SYSCALL_INFO, tid, size_of::<SyscallInfo>(), &raw mut info) };
    (size >= size_of::<SyscallInfo>() as libc::c_long).then_some(info.arch)
}

/// A request that takes a number and touches no memory of ours.
fn plain(request: Request, tid: Tid, data: c_int) -> io::Result<()> {
    // The kernel takes `data` as an unsigned long; all of ours are small and not negative.
    let data = ptr::without_provenance_mut::<libc::c_void>(data.unsigned_abs() as usize);
    // SAFETY: the requests made above read and write only the kernel's state of `tid`.
    let done = unsafe { libc::ptrace(request, tid, ptr::null_mut::<libc::c_void>(), data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

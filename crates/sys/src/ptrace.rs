//! Typed ptrace requests. A request fails if the thread was killed meanwhile. Waiting reports the
//! end of a killed thread, so functions that only resume a thread return no error.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) mod seized;

/// A thread id. The id of a process is that of its main thread.
pub type Tid = libc::pid_t;

/// Type of a request number: unsigned in glibc, signed in musl.
#[cfg(target_env = "musl")]
type PtraceRequest = libc::c_int;
#[cfg(not(target_env = "musl"))]
type PtraceRequest = libc::c_uint;

/// `PTRACE_GETSIGMASK` (Linux 3.11).
#[cfg(target_arch = "x86_64")]
const PTRACE_GETSIGMASK: PtraceRequest = 0x420a;
/// `PTRACE_SETSIGMASK` (Linux 3.11).
#[cfg(target_arch = "x86_64")]
const PTRACE_SETSIGMASK: PtraceRequest = 0x420b;
/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
#[cfg(target_arch = "x86_64")]
const PTRACE_GET_RSEQ_CONFIGURATION: PtraceRequest = 0x420f;
/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3).
const GET_SYSCALL_INFO: PtraceRequest = 0x420e;
/// Values of `op`: `PTRACE_SYSCALL_INFO_ENTRY`, `_EXIT` and `_SECCOMP`.
const ENTRY: u8 = 1;
const EXIT: u8 = 2;
const SECCOMP: u8 = 3;

/// `struct ptrace_syscall_info` of `linux/ptrace.h`. The part after the head depends on `op`: the
/// number and the six arguments at the entry of a call, the value and the error flag at its exit.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    words: [u64; 8],
}

/// Number of bytes of [`SyscallInfo`] that the kernel writes for every `op`.
const SYSCALL_INFO_HEAD: usize = 24;

/// Position of a stopped thread in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallStop {
    /// In no system call: at a signal or a ptrace event.
    Outside,
    /// At the entry of a system call.
    Entry {
        /// Number of the system call.
        number: u64,
        /// Arguments of the system call.
        arguments: [u64; 6],
    },
    /// At the exit of a system call.
    Exit {
        /// Return value, or the negative error number.
        value: i64,
        /// True if `value` is an error number.
        is_error: bool,
    },
}

/// A stopped thread, as `PTRACE_GET_SYSCALL_INFO` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedThread {
    /// `AUDIT_ARCH_*`: the calling convention of its system calls.
    pub architecture: u32,
    /// Address of the next instruction.
    pub instruction: u64,
    /// Position in a system call.
    pub place: SyscallStop,
}

/// Becomes the tracer of a running thread, without stopping it. `options` are `PTRACE_O_*`.
///
/// A thread in `exec` waits until the other threads of its process have ended. A traced thread
/// counts as ended only once its tracer has waited for it. During such an `exec`, the kernel blocks
/// a tracer that seizes one more thread of the process. So if this call takes long, another thread
/// of pagewise waits for the ended threads that were seized before.
///
/// # Errors
/// `EPERM` if a security module, a container or Yama forbids tracing.
pub fn seize(tid: Tid, options: c_int) -> io::Result<()> {
    let attempt = seized::Attempt::begin();
    let done = plain(libc::PTRACE_SEIZE, tid, options);
    drop(attempt);
    if done.is_ok() {
        seized::note(tid);
    }
    done
}

/// Stops a running thread. A thread in a group stop reports the stop again.
pub fn interrupt(tid: Tid) {
    let _ = plain(libc::PTRACE_INTERRUPT, tid, 0);
}

/// Resumes a stopped thread, and delivers `signal` to it unless `signal` is 0.
pub fn resume(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_CONT, tid, signal);
}

/// Resumes a stopped thread until its next system call, or until the end of its current system
/// call. Delivers `signal` to the thread unless `signal` is 0.
pub fn resume_to_syscall(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_SYSCALL, tid, signal);
}

/// Changes the `PTRACE_O_*` options of a stopped thread.
///
/// # Errors
/// `ESRCH` if the thread was killed or is not stopped.
pub fn set_options(tid: Tid, options: c_int) -> io::Result<()> {
    plain(libc::PTRACE_SETOPTIONS, tid, options)
}

/// Sends SIGKILL to a tracee.
///
/// # Errors
/// `ESRCH` if the tracee has ended, `EPERM` if this process may not send signals to the tracee's
/// user.
pub fn kill(tid: Tid) -> io::Result<()> {
    // SAFETY: the call takes two numbers and accesses no memory of this process.
    match unsafe { libc::kill(tid, libc::SIGKILL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Leaves a thread in its group stop: it stays stopped until a SIGCONT, as an untraced thread does.
pub fn listen(tid: Tid) {
    let _ = plain(libc::PTRACE_LISTEN, tid, 0);
}

/// Detaches from a stopped thread, which runs on untraced, and delivers `signal` to it unless
/// `signal` is 0. Returns false if the thread was killed: the caller must then wait for its end.
pub fn detach(tid: Tid, signal: i32) -> bool {
    let is_done = plain(libc::PTRACE_DETACH, tid, signal).is_ok();
    if is_done {
        seized::forget(tid);
    }
    is_done
}

/// Estimates the time for which a process pauses if all of its `threads` threads are stopped.
pub fn expected_pause(threads: usize) -> Duration {
    /// Time for stopping a thread, reading its registers and detaching from it. 16 us were measured
    /// with 5,000 sleeping threads on two CPUs (Linux 6.18).
    const TIME_PER_THREAD: Duration = Duration::from_micros(20);
    TIME_PER_THREAD.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX))
}

/// Returns the message of the ptrace event at which a thread stopped: the ID of the new thread of a
/// clone, or the status of an exit.
pub fn message(tid: Tid) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: this request writes one `unsigned long` to its last argument, which points to an
    // `unsigned long`.
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

/// Data of a signal that a thread is about to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// `si_code`: the cause of the signal.
    pub code: c_int,
    /// `si_addr`: the address of a fault or a trap.
    pub address: u64,
}

/// `si_code` of a SIGTRAP for the instruction `int1`, or of a SIGTRAP for a debug exception without
/// a cause in register DR6.
pub const TRAP_BRKPT: c_int = 1;

/// Data of the signal that a stopped thread is about to receive; `None` if the thread is not at a
/// signal.
pub fn signal_info(tid: Tid) -> Option<SignalInfo> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let no_data = ptr::null_mut::<libc::c_void>();
    // SAFETY: this request writes one `siginfo_t` to its last argument, which points to a
    // `siginfo_t`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, no_data, info.as_mut_ptr()) };
    // SAFETY: all bytes are initialized, to zero or by the kernel, and every bit pattern is a valid
    // `siginfo_t`.
    let info = unsafe { info.assume_init() };
    // SAFETY: every bit pattern is a valid address; signals without an address have other numbers
    // in this field.
    let address = unsafe { info.si_addr() };
    (done != -1).then(|| SignalInfo { code: info.si_code, address: address.addr() as u64 })
}

/// True if a perf counter sent the SIGTRAP at which a thread stopped: see
/// [`crate::perf_event::PerfCounter::trap_at`].
pub fn is_from_counter(tid: Tid) -> bool {
    /// `TRAP_PERF` of `asm-generic/siginfo.h`.
    const TRAP_PERF: c_int = 6;
    signal_info(tid).is_some_and(|info| info.code == TRAP_PERF)
}

/// Position of a stopped thread, in or outside of a system call; `None` before Linux 5.3.
pub fn at(tid: Tid) -> Option<StoppedThread> {
    let mut info = SyscallInfo::default();
    // SAFETY: the third argument is the size of the plain struct that the last argument points to;
    // this request writes at most this number of bytes.
    let size =
        unsafe { libc::ptrace(GET_SYSCALL_INFO, tid, size_of::<SyscallInfo>(), &raw mut info) };
    if size < SYSCALL_INFO_HEAD as libc::c_long {
        return None;
    }
    let [first, second, ..] = info.words;
    let place = match info.op {
        ENTRY | SECCOMP => {
            let mut arguments = [0; 6];
            arguments.copy_from_slice(&info.words[1..7]);
            SyscallStop::Entry { number: first, arguments }
        }
        EXIT => {
            SyscallStop::Exit { value: first.cast_signed(), is_error: second.to_ne_bytes()[0] != 0 }
        }
        _ => SyscallStop::Outside,
    };
    Some(StoppedThread { architecture: info.arch, instruction: info.instruction_pointer, place })
}

/// The `AUDIT_ARCH_*` of the system calls of a stopped thread; `None` before Linux 5.3.
pub fn architecture(tid: Tid) -> Option<u32> {
    at(tid).map(|at| at.architecture)
}

/// Sets a debug register of a stopped thread, so that the thread stops with a SIGTRAP when it is
/// about to execute the instruction at `address`. The code of the thread stays unchanged.
///
/// # Errors
/// Returns an error if the machine has no free debug register, or if `address` is not a user
/// address.
#[cfg(target_arch = "x86_64")]
pub fn break_at(tid: Tid, address: u64) -> io::Result<()> {
    /// Bit that enables debug register 0 for a thread. All other bits are 0: an execution
    /// breakpoint of one byte.
    const ENABLE: u64 = 1;
    poke_debug_register(tid, 0, address)?;
    poke_debug_register(tid, 7, ENABLE)
}

/// Returns an error: this architecture does not have the request.
#[cfg(not(target_arch = "x86_64"))]
pub fn break_at(_tid: Tid, _address: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Disables the breakpoint of [`break_at`].
pub fn break_nowhere(tid: Tid) {
    #[cfg(target_arch = "x86_64")]
    let _ = poke_debug_register(tid, 7, 0);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = tid;
}

#[cfg(target_arch = "x86_64")]
fn poke_debug_register(tid: Tid, register: usize, value: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(libc::user, u_debugreg) + register * size_of::<u64>();
    // SAFETY: this request takes an offset into the kernel's `struct user` and a number, and
    // accesses no memory of this process.
    let done = unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid, offset, value) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Signals that a stopped thread has blocked, one bit for each signal. If the thread is in
/// `sigsuspend` or a similar call, returns the signals that were blocked before the call.
#[cfg(target_arch = "x86_64")]
pub fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the third argument is the size of the buffer that the last argument points to; this
    // request writes this number of bytes.
    let done = unsafe {
        libc::ptrace(
            PTRACE_GETSIGMASK,
            tid,
            size_of::<u64>(),
            (&raw mut mask).cast::<libc::c_void>(),
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(mask) }
}

/// Sets the signals that a stopped thread has blocked. SIGKILL and SIGSTOP cannot be blocked.
#[cfg(target_arch = "x86_64")]
pub fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: the third argument is the size of the buffer that the last argument points to; this
    // request reads this number of bytes.
    let done = unsafe {
        libc::ptrace(
            PTRACE_SETSIGMASK,
            tid,
            size_of::<u64>(),
            (&raw const mask).cast::<libc::c_void>().cast_mut(),
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn registers(tid: Tid) -> io::Result<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: this request writes a `user_regs_struct` to its last argument, which points to a
    // `user_regs_struct`.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGS,
            tid,
            ptr::null_mut::<libc::c_void>(),
            registers.as_mut_ptr().cast::<libc::c_void>(),
        )
    };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `user_regs_struct` contains only numbers, and was zero before the kernel wrote it.
    Ok(unsafe { registers.assume_init() })
}

/// Changes the registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn set_registers(tid: Tid, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: this request reads a `user_regs_struct` from its last argument, which points to a
    // `user_regs_struct`.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGS,
            tid,
            ptr::null_mut::<libc::c_void>(),
            ptr::from_ref(registers).cast::<libc::c_void>().cast_mut(),
        )
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Vector and floating-point registers of a stopped thread, in the format of `XSAVE`.
#[cfg(target_arch = "x86_64")]
pub fn extended_state(tid: Tid) -> io::Result<Vec<u8>> {
    /// Buffer size in bytes that is large enough for every CPU: the state with AMX has about 11
    /// KiB.
    const LARGEST: usize = 64 << 10;
    /// Length in bytes that the kernel returned last, which is the same for all threads of a
    /// machine.
    static LENGTH: AtomicUsize = AtomicUsize::new(LARGEST);
    let mut state = vec![0_u8; LENGTH.load(Ordering::Relaxed)];
    let mut piece = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
    // SAFETY: the last argument points to an `iovec`; this request writes at most the bytes of its
    // buffer.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut piece) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    let length = piece.iov_len;
    LENGTH.store(length.max(1), Ordering::Relaxed);
    state.truncate(length);
    Ok(state)
}

/// Changes the vector and floating-point registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn set_extended_state(tid: Tid, state: &[u8]) -> io::Result<()> {
    let mut piece =
        libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    // SAFETY: the last argument points to an `iovec`; this request reads at most the bytes of its
    // buffer.
    let done = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw mut piece) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Number of the register set of [`extended_state`] (`linux/elf.h`).
#[cfg(target_arch = "x86_64")]
const NT_X86_XSTATE: usize = 0x202;

/// Address of a stopped thread's `struct rseq`; `None` if the thread has no such struct, and before
/// Linux 5.13.
#[cfg(target_arch = "x86_64")]
pub fn rseq(tid: Tid) -> Option<u64> {
    /// `struct ptrace_rseq_configuration` of `linux/ptrace.h`.
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        pointer: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut found = Configuration::default();
    // SAFETY: the third argument is the size of the plain struct that the last argument points to;
    // this request writes at most this number of bytes.
    let size = unsafe {
        libc::ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            size_of::<Configuration>(),
            (&raw mut found).cast::<libc::c_void>(),
        )
    };
    (size >= size_of::<Configuration>() as libc::c_long && found.pointer != 0)
        .then_some(found.pointer)
}

/// Makes a request that takes a number and accesses no memory of this process.
fn plain(request: PtraceRequest, tid: Tid, data: c_int) -> io::Result<()> {
    // The kernel expects an unsigned long; all callers pass small values that are not negative.
    let data = ptr::without_provenance_mut::<libc::c_void>(data.unsigned_abs() as usize);
    // SAFETY: the requests of all callers read and write only the kernel's state of `tid`.
    let done = unsafe { libc::ptrace(request, tid, ptr::null_mut::<libc::c_void>(), data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

//! The ptrace requests that we use, typed. Each fails for a thread that was killed meanwhile;
//! waiting reports the end of that thread, so requests that only resume a thread return nothing.

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

/// A request number, which glibc takes as unsigned and musl as signed.
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
/// `PTRACE_SYSCALL_INFO_ENTRY`, `_EXIT` and `_SECCOMP`.
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

/// Size of the part that every stop has.
const SYSCALL_INFO_HEAD: usize = 24;

/// Position of a stopped thread in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallStop {
    /// In no system call: at a signal or an event.
    Outside,
    /// Before it.
    Entry {
        /// Its number.
        number: u64,
        /// Arguments.
        arguments: [u64; 6],
    },
    /// After it.
    Exit {
        /// Return value, or the error number as the kernel returns it: negative.
        value: i64,
        /// True if `value` is an error number.
        is_error: bool,
    },
}

/// A stopped thread, as `PTRACE_GET_SYSCALL_INFO` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedThread {
    /// `AUDIT_ARCH_*`: the convention of its system calls.
    pub architecture: u32,
    /// The address of the instruction that comes next.
    pub instruction: u64,
    /// Position in the call.
    pub place: SyscallStop,
}

/// Becomes the tracer of a running thread, without stopping it. `options` are `PTRACE_O_*`.
///
/// A thread in `exec` waits until the other threads of its process have ended, and a traced thread
/// has ended only once its tracer has waited for it. Meanwhile the kernel blocks a tracer that
/// seizes one more thread of that process. So if this call takes long, another thread of ours waits
/// for the threads that were seized before.
///
/// # Errors
/// `EPERM` where a security module, a container or Yama forbids tracing.
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

/// Lets a stopped thread run on, and delivers `signal` to it unless that is 0.
pub fn resume(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_CONT, tid, signal);
}

/// Lets a stopped thread run to its next system call, or to the end of the one it is in; delivers
/// `signal` to it unless that is 0.
pub fn resume_to_syscall(tid: Tid, signal: i32) {
    let _ = plain(libc::PTRACE_SYSCALL, tid, signal);
}

/// Changes the `PTRACE_O_*` options of a stopped thread.
///
/// # Errors
/// `ESRCH` where the thread was killed or is not stopped.
pub fn set_options(tid: Tid, options: c_int) -> io::Result<()> {
    plain(libc::PTRACE_SETOPTIONS, tid, options)
}

/// Sends SIGKILL to a tracee.
///
/// # Errors
/// `ESRCH` where it has ended, `EPERM` where it is another user's and we may not send it signals.
pub fn kill(tid: Tid) -> io::Result<()> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    match unsafe { libc::kill(tid, libc::SIGKILL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Leaves a thread in its group stop: it stays stopped until a SIGCONT, as without a tracer.
pub fn listen(tid: Tid) {
    let _ = plain(libc::PTRACE_LISTEN, tid, 0);
}

/// Lets a stopped thread run on untraced, and delivers `signal` to it unless that is 0. Returns
/// false if the thread was killed: the caller must then wait for its end.
pub fn detach(tid: Tid, signal: i32) -> bool {
    let is_done = plain(libc::PTRACE_DETACH, tid, signal).is_ok();
    if is_done {
        seized::forget(tid);
    }
    is_done
}

/// The time for which stopping all threads pauses a process, estimated by their number.
pub fn expected_pause(threads: usize) -> Duration {
    /// Stopping a thread, reading its registers and detaching from it: 16 us were measured with
    /// 5,000 sleeping threads on two CPUs (Linux 6.18).
    const TIME_PER_THREAD: Duration = Duration::from_micros(20);
    TIME_PER_THREAD.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX))
}

/// The message of the event that a thread stopped at: the new thread of a clone, the status of an
/// exit.
pub fn message(tid: Tid) -> io::Result<u64> {
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

/// Data of a signal that a thread is about to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// `si_code`: why it was sent.
    pub code: c_int,
    /// `si_addr`: of a fault or a trap, the address.
    pub address: u64,
}

/// `si_code` of a SIGTRAP for the instruction `int1`, or for a debug exception for which the CPU
/// reported no cause.
pub const TRAP_BRKPT: c_int = 1;

/// Data of the signal that a stopped thread is about to receive; `None` if the thread is not at a
/// signal.
pub fn signal_info(tid: Tid) -> Option<SignalInfo> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let no_data = ptr::null_mut::<libc::c_void>();
    // SAFETY: this request writes one `siginfo_t` to its last argument, which points to one.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, no_data, info.as_mut_ptr()) };
    // SAFETY: all its bytes are initialized, as zero or by the kernel, and any bytes are one.
    let info = unsafe { info.assume_init() };
    // SAFETY: any bytes are an address; signals without one have other numbers there.
    let address = unsafe { info.si_addr() };
    (done != -1).then(|| SignalInfo { code: info.si_code, address: address.addr() as u64 })
}

/// True if a thread that stopped at a SIGTRAP got it from a counter:
/// [`crate::perf_event::PerfCounter::trap_at`].
pub fn is_from_counter(tid: Tid) -> bool {
    /// `TRAP_PERF` of `asm-generic/siginfo.h`.
    const TRAP_PERF: c_int = 6;
    signal_info(tid).is_some_and(|info| info.code == TRAP_PERF)
}

/// Position of a stopped thread, in a system call or outside of one; `None` before Linux 5.3.
pub fn at(tid: Tid) -> Option<StoppedThread> {
    let mut info = SyscallInfo::default();
    // SAFETY: this request writes at most as many bytes as its third argument says to its last,
    // which points to a plain struct of that size.
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

/// The `AUDIT_ARCH_*` by which a stopped thread makes system calls; `None` before Linux 5.3.
pub fn architecture(tid: Tid) -> Option<u32> {
    at(tid).map(|at| at.architecture)
}

/// Stops a stopped thread with a SIGTRAP when it is about to execute the instruction at `address`,
/// by a debug register: its code stays as it is.
///
/// # Errors
/// Returns an error if the machine has no free register, or if `address` is not one of the thread.
#[cfg(target_arch = "x86_64")]
pub fn break_at(tid: Tid, address: u64) -> io::Result<()> {
    /// Local enable of register 0; its other bits say "execution", "one byte".
    const ENABLE: u64 = 1;
    poke_debug_register(tid, 0, address)?;
    poke_debug_register(tid, 7, ENABLE)
}

/// The request does not exist on this architecture.
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
    // touches no memory of ours.
    let done = unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid, offset, value) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The signals that a stopped thread has blocked, a bit each; in `sigsuspend` and similar calls,
/// those that were blocked before the call.
#[cfg(target_arch = "x86_64")]
pub fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: this request writes as many bytes as its third argument says to its last, which
    // points to a buffer of that size.
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

/// Changes which signals a stopped thread has blocked. SIGKILL and SIGSTOP cannot be blocked.
#[cfg(target_arch = "x86_64")]
pub fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: this request reads as many bytes as its third argument says from its last, which
    // points to a buffer of that size.
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
    // SAFETY: this request writes a `user_regs_struct` to its last argument, which points to one.
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
    // SAFETY: a struct of numbers, all of which were zero before the kernel wrote them.
    Ok(unsafe { registers.assume_init() })
}

/// Changes the registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn set_registers(tid: Tid, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: this request reads a `user_regs_struct` from its last argument, which points to one.
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
    /// Larger than any: that of AMX is some 11 KiB.
    const LARGEST: usize = 64 << 10;
    /// The length that the kernel gave last: the same for all threads of a machine.
    static LENGTH: AtomicUsize = AtomicUsize::new(LARGEST);
    let mut state = vec![0_u8; LENGTH.load(Ordering::Relaxed)];
    let mut piece = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
    // SAFETY: this request writes into the piece that its last argument names, no more than that is
    // long.
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
    // SAFETY: this request reads from the piece that its last argument names, no more than that is
    // long.
    let done = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw mut piece) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Register set of [`extended_state`] (`linux/elf.h`).
#[cfg(target_arch = "x86_64")]
const NT_X86_XSTATE: usize = 0x202;

/// Address of a stopped thread's `struct rseq`; `None` if it has none, and before Linux 5.13.
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
    // SAFETY: this request writes at most as many bytes as its third argument says to its last,
    // which points to a plain struct of that size.
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

/// A request that takes a number and touches no memory of ours.
fn plain(request: PtraceRequest, tid: Tid, data: c_int) -> io::Result<()> {
    // The kernel takes `data` as an unsigned long; all of ours are small and not negative.
    let data = ptr::without_provenance_mut::<libc::c_void>(data.unsigned_abs() as usize);
    // SAFETY: the requests made above read and write only the kernel's state of `tid`.
    let done = unsafe { libc::ptrace(request, tid, ptr::null_mut::<libc::c_void>(), data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

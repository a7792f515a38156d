//! The call by which a stopped thread forks its process. The child never executes code of the
//! program, even if the tracer is killed.
//!
//! Below the thread's saved context, its own stack contains two more contexts:
//!
//! ```text
//!  | exit_group          | wait4(CHILD, __WALL), then -> | own registers, own mask | red zone |
//!  ^ stack of the child  ^ stack of the thread
//! ```
//!
//! The child returns from `clone` with a stack of its own, on which `rt_sigreturn` restores a
//! context that calls `exit_group`. Before the child runs, the kernel writes the PID of the child
//! to the first argument in the context of `wait4` (`CLONE_PARENT_SETTID`). So if the tracer dies,
//! at any instruction, the child ends and the thread waits for exactly this child. A tracer that is
//! not killed restores the registers of the thread, which then makes none of these calls.
//!
//! All signals are blocked before the call, so that the child runs no handler. The child shares the
//! file descriptor table (`CLONE_FILES`), so it keeps no file open that the process closes. The
//! child has no exit signal, so its end sends no signal. `CLONE_PTRACE` makes the child a tracee of
//! the tracer before it can run.

use std::io;
use std::time::{Duration, Instant};

use pagewise_sys::ptrace::{self, Tid};
use pagewise_sys::trace::wait::ThreadChange;

use super::{BorrowPhase, CHAINED, Tracee, layout, next, rest};
use crate::arch::Registers;
use crate::memory::TargetMemory;

/// Time limit of the call. Callers refuse a process whose page tables take longer to copy.
const FORK_LIMIT: Duration = Duration::from_secs(10);
/// Flags of `clone`. The lowest byte, the exit signal, is 0: no signal.
const FLAGS: u64 =
    (libc::CLONE_FILES | libc::CLONE_PTRACE | libc::CLONE_PARENT_SETTID).unsigned_abs() as u64;
/// A PID that no process has: the kernel uses at most 2^22.
const NO_CHILD: u64 = i32::MAX as u64;
/// Ptrace options. The clone event reports the PID of the child in the PID namespace of the tracer.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;

/// A child that was just forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkedChild {
    /// PID of the child in the PID namespace of the tracer.
    pub(crate) tid: Tid,
    /// PID of the child in the PID namespace of its parent.
    pub(crate) number: u32,
}

impl Tracee {
    /// Makes the thread fork its process. Requires a context saved on the thread's own stack
    /// ([`RemoteProcess::prepare`](crate::RemoteProcess::prepare)). The child is a tracee of the
    /// calling thread of pagewise, and stops before its first instruction.
    ///
    /// # Errors
    /// As `fork` and [`Tracee::call`].
    pub(crate) fn fork(&mut self, memory: &TargetMemory) -> io::Result<ForkedChild> {
        let own = self.own_chain.ok_or(io::ErrorKind::InvalidInput)?;
        let wait = own - CHAINED;
        let exit = wait - CHAINED;
        let all = u64::from(libc::__WALL.cast_unsigned());
        self.write_call(memory, wait, libc::SYS_wait4, [NO_CHILD, 0, all, 0, 0, 0], own)?;
        self.write_call(memory, exit, libc::SYS_exit_group, [0; 6], exit)?;
        self.chain = Some(wait);
        // From here on all signals are blocked.
        self.prepare_call(libc::SYS_getpid, [0; 6])?;
        ptrace::set_options(self.tid, OPTIONS)?;
        // The address of the saved context is 8 bytes above the address of its return address.
        let number_at = wait + 8 + layout::FIRST_ARGUMENT;
        self.prepare_call(libc::SYS_clone, [FLAGS, exit, number_at, 0, 0, 0])?;
        self.phase = BorrowPhase::Ran;
        self.run_fork().inspect_err(|error| {
            if error.kind() == io::ErrorKind::TimedOut {
                self.leave();
            }
        })
    }

    /// Writes a context that makes a system call and returns by `chain`; the return address that
    /// leads to it is at `at`.
    fn write_call(
        &self,
        memory: &TargetMemory,
        at: u64,
        number: libc::c_long,
        arguments: [u64; 6],
        chain: u64,
    ) -> io::Result<()> {
        let own = self.own_chain.ok_or(io::ErrorKind::InvalidInput)?;
        let call = self.registers.for_call(self.code()?.syscall, number, arguments, chain);
        let mut bytes = self.code()?.restore.to_le_bytes().to_vec();
        bytes.extend(call.context(u64::MAX, own + 8 + layout::VECTORS, None));
        memory.write(at, &bytes)
    }

    /// Resumes the thread until the end of the `clone` call, and returns the child.
    fn run_fork(&self) -> io::Result<ForkedChild> {
        let deadline = Instant::now() + FORK_LIMIT;
        let (mut signal, mut stops, mut child) = (0, 0, None);
        while stops < 2 {
            ptrace::resume_to_syscall(self.tid, signal);
            signal = 0;
            match next(self.tid, deadline, &mut rest)? {
                ThreadChange::Syscall => stops += 1,
                ThreadChange::Cloned => child = Tid::try_from(ptrace::message(self.tid)?).ok(),
                // The signal is a stop signal, which cannot be blocked.
                ThreadChange::Signal(stop) => signal = stop,
                _ => {}
            }
        }
        let number = Registers::read_from(self.tid)?.result()?;
        let tid = child.ok_or(io::ErrorKind::NotFound)?;
        Ok(ForkedChild { tid, number: u32::try_from(number).unwrap_or(0) })
    }
}

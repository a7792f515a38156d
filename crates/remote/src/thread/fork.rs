//! The call by which a stopped thread forks its process. The child never executes code of the
//! program, even if the tracer is killed.
//!
//! Below the thread's saved context lie two more, on the thread's own stack:
//!
//! ```text
//!  | exit_group          | wait4(CHILD, __WALL), then -> | own registers, own mask | red zone |
//!  ^ stack of the child  ^ stack of the thread
//! ```
//!
//! The child returns from `clone` with a stack of its own, on which `rt_sigreturn` leads to
//! `exit_group`. The kernel writes the number of the child where the context of `wait4` has the
//! first argument (`CLONE_PARENT_SETTID`), before the child begins. So if the tracer dies, at any
//! instruction, the child ends and the thread waits for exactly this child. A living tracer
//! restores the registers of the thread, which then makes none of these calls.
//!
//! All signals are blocked before the call, so that the child has no handler to run. It shares the
//! table of file descriptors (`CLONE_FILES`): a file that the process closes is closed. It has no
//! exit signal: its end sends none. `CLONE_PTRACE` makes it a tracee of our own before it can run.

use std::io;
use std::time::{Duration, Instant};

use pagewise_sys::ptrace::{self, Tid};
use pagewise_sys::trace::wait::ThreadChange;

use super::{BorrowPhase, CHAINED, Tracee, layout, next, rest};
use crate::arch::Registers;
use crate::memory::TargetMemory;

/// Time limit of the call. A process whose page tables take longer to copy was refused before.
const FORK_LIMIT: Duration = Duration::from_secs(10);
/// The lowest byte is the exit signal: none.
const FLAGS: u64 =
    (libc::CLONE_FILES | libc::CLONE_PTRACE | libc::CLONE_PARENT_SETTID).unsigned_abs() as u64;
/// No process has this number: the kernel has at most 2^22.
const NO_CHILD: u64 = i32::MAX as u64;
/// Reports the number of the child in our PID namespace.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;

/// A new child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkedChild {
    /// Its number.
    pub(crate) tid: Tid,
    /// Its number in the PID namespace of its parent.
    pub(crate) number: u32,
}

impl Tracee {
    /// Forks. A context must have been saved on the thread's own stack
    /// ([`RemoteProcess::prepare`](crate::RemoteProcess::prepare)). The child is a tracee of the
    /// calling thread, and stops before its first instruction.
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
        // The address of the saved context is 8 bytes above the return address that leads to it.
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

    /// Runs to the end of the call.
    fn run_fork(&self) -> io::Result<ForkedChild> {
        let deadline = Instant::now() + FORK_LIMIT;
        let (mut signal, mut stops, mut child) = (0, 0, None);
        while stops < 2 {
            ptrace::resume_to_syscall(self.tid, signal);
            signal = 0;
            match next(self.tid, deadline, &mut rest)? {
                ThreadChange::Syscall => stops += 1,
                ThreadChange::Cloned => child = Tid::try_from(ptrace::message(self.tid)?).ok(),
                // A stop signal, which cannot be blocked.
                ThreadChange::Signal(stop) => signal = stop,
                _ => {}
            }
        }
        let number = Registers::read_from(self.tid)?.result()?;
        let tid = child.ok_or(io::ErrorKind::NotFound)?;
        Ok(ForkedChild { tid, number: u32::try_from(number).unwrap_or(0) })
    }
}

//! A tracer that keeps from a process the SIGTRAPs of debug exceptions whose reason a hypervisor
//! has lost.
//!
//! A breakpoint register makes the CPU raise a debug exception, and register DR6 says which
//! breakpoint it was. A hypervisor may lose what DR6 says: KVM before Linux 6.14 does if it is
//! entered again between the exception and the reading. Linux then takes the exception for one of
//! the instruction `int1` and sends SIGTRAP (`TRAP_BRKPT`), which ends a program that does not
//! handle it. On one virtual machine with busy CPUs that happened once in about two million
//! exceptions.
//!
//! The tracer seizes all threads of the process and stops none of them. A thread stops when it is
//! about to receive a signal, and as it makes a thread or a process, and goes on at once: with the
//! signal, unless it is such a SIGTRAP. If the tracer is killed, threads are untraced.

use std::io;

use pagewise_sys::ptrace::{self, TRAP_BRKPT, Tid};
use pagewise_sys::remote::read_each;
use pagewise_sys::trace::wait::{self, ThreadChange};

use crate::RemoteError;
use crate::process::{MAX_ROUNDS, RemoteProcess};

/// Threads and processes that a thread makes are traced too: breakpoints are inherited.
const OPTIONS: i32 =
    libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;

/// A process that this thread traces.
#[derive(Debug)]
pub struct TracingShield {
    pid: u32,
}

impl TracingShield {
    /// Seizes all threads of a process.
    ///
    /// # Errors
    /// [`RemoteError::Gone`], [`RemoteError::NotPermitted`], for example if another tracer is
    /// attached. Threads that were seized before are untraced once this thread ends.
    pub fn seize(target: &RemoteProcess) -> Result<TracingShield, RemoteError> {
        let mut seized = Vec::new();
        for _ in 0..MAX_ROUNDS {
            if !target.seize_more(&mut seized, OPTIONS)? {
                break;
            }
        }
        match seized.is_empty() {
            true => Err(RemoteError::Gone),
            false => Ok(TracingShield { pid: target.pid() }),
        }
    }

    /// Lets threads go on as they stop, until all have ended.
    ///
    /// # Errors
    /// None that the kernel is known to give.
    pub fn run(&self) -> io::Result<()> {
        loop {
            match wait::any() {
                Ok(Some((tid, change))) => self.go_on(tid, change),
                Ok(None) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn go_on(&self, tid: Tid, change: ThreadChange) {
        match change {
            ThreadChange::Ended(_) => {}
            ThreadChange::Signal(libc::SIGTRAP) if self.is_lost_breakpoint(tid) => {
                ptrace::resume(tid, 0)
            }
            ThreadChange::Signal(signal) => ptrace::resume(tid, signal),
            ThreadChange::GroupStop => {
                // `wait::any` would return an unconsumed stop again and again.
                let _ = wait::take_change(tid);
                ptrace::listen(tid);
            }
            _ => ptrace::resume(tid, 0),
        }
    }

    /// True if a SIGTRAP is from a debug exception without a reason, and not from an instruction
    /// `int1`.
    fn is_lost_breakpoint(&self, tid: Tid) -> bool {
        const INT1: u8 = 0xf1;
        let Some(info) = ptrace::signal_info(tid).filter(|info| info.code == TRAP_BRKPT) else {
            return false;
        };
        // The address is that of the next instruction; some hypervisors report that of `int1`
        // itself, and without a handler that steps over it the thread would execute it for ever.
        // A child has the same code as its parent.
        let places = [info.address.wrapping_sub(1), info.address];
        let bytes = read_each::<1>(tid.unsigned_abs(), &places)
            .or_else(|_| read_each::<1>(self.pid, &places));
        !bytes.is_ok_and(|bytes| bytes.contains(&Some([INT1])))
    }
}

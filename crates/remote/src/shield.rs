//! A tracer that suppresses SIGTRAPs of debug exceptions whose cause a hypervisor has lost.
//!
//! A breakpoint register makes the CPU raise a debug exception, and register DR6 contains the
//! number of the breakpoint. A hypervisor may lose the value of DR6: KVM before Linux 6.14 loses it
//! if the guest exits to KVM between the exception and the read of DR6. Linux then assumes the
//! instruction `int1` as the cause and sends SIGTRAP (`TRAP_BRKPT`), which ends a program that does
//! not handle this signal. On one virtual machine with busy CPUs this happened once in about two
//! million exceptions.
//!
//! The tracer seizes all threads of the process and stops none of them. A thread stops when it is
//! about to receive a signal, or when it creates a thread or a process, and the tracer resumes it
//! at once. The tracer delivers the signal, unless it is a SIGTRAP with a lost cause. If the tracer
//! is killed, the kernel detaches the threads.

use std::io;

use pagewise_sys::ptrace::{self, TRAP_BRKPT, Tid};
use pagewise_sys::remote::read_each;
use pagewise_sys::trace::wait::{self, ThreadChange};

use crate::RemoteError;
use crate::process::{MAX_ROUNDS, RemoteProcess};

/// Ptrace options: threads and processes that a thread creates are traced too, because they inherit
/// breakpoints.
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
    /// attached. Threads that were seized before the error are detached when the calling thread
    /// ends.
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

    /// Resumes each thread when it stops, until all threads have ended.
    ///
    /// # Errors
    /// No known errors.
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
                // `take_change` consumes the stop, which `wait::any` would return again and again.
                let _ = wait::take_change(tid);
                ptrace::listen(tid);
            }
            _ => ptrace::resume(tid, 0),
        }
    }

    /// True if a SIGTRAP is of a debug exception whose cause was lost, and not of an instruction
    /// `int1`.
    fn is_lost_breakpoint(&self, tid: Tid) -> bool {
        const INT1: u8 = 0xf1;
        let Some(info) = ptrace::signal_info(tid).filter(|info| info.code == TRAP_BRKPT) else {
            return false;
        };
        // The reported address is of the next instruction. Some hypervisors report the address of
        // `int1` itself. If the tracer suppressed such a signal, the thread would execute `int1`
        // forever. If the thread's memory cannot be read, the code of the traced process is read
        // instead, because a child has the same code as its parent.
        let places = [info.address.wrapping_sub(1), info.address];
        let bytes = read_each::<1>(tid.unsigned_abs(), &places)
            .or_else(|_| read_each::<1>(self.pid, &places));
        !bytes.is_ok_and(|bytes| bytes.contains(&Some([INT1])))
    }
}

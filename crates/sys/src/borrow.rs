//! A thread of a running process, stopped for some microseconds to make system calls in its process's name.
//!
//! Some advice on memory the kernel takes only from the process itself. The thread is seized
//! (`PTRACE_SEIZE`), made to run the `syscall` instruction of its own vdso with registers of ours, and let go with
//! its own: nothing is written to its memory, and no instruction of the program runs meanwhile. Signals wait,
//! interrupted system calls are restarted by the kernel as after any stop, and a restartable sequence
//! (`rseq`) is never left in its middle.
//!
//! Only on x86-64; elsewhere every attempt answers `Unsupported`.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::time::{Duration, Instant};

use crate::madvise::Advice;
use crate::ptrace::{self, Tid};
use crate::remote;
use crate::trace::wait::{self, Change};

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64::Registers;

#[cfg(not(target_arch = "x86_64"))]
mod unsupported;
#[cfg(not(target_arch = "x86_64"))]
use unsupported::Registers;

/// How long a thread may take to stop. One that takes longer waits inside the kernel.
const PATIENCE: Duration = Duration::from_millis(500);
/// For so long we ask again and again: most threads stop within microseconds.
const BRISK: Duration = Duration::from_micros(200);
/// How often a thread that is in the middle of a restartable sequence is asked again.
const ATTEMPTS: u32 = 20;

/// A function runs no longer than this.
const LONGEST: Duration = Duration::from_secs(60);

/// Where a stopped thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The instruction that comes next.
    pub instruction: u64,
    /// The stack pointer.
    pub stack: u64,
    /// ax, bx, cx, dx, si, di, bp, sp, ip and r8 to r15: the order in which samples carry registers.
    pub registers: [u64; 17],
    /// Where its own data are (`fs`).
    pub thread_data: u64,
    /// The system call that it is in, and its first argument.
    pub call: Option<(u64, u64)>,
    /// What a function passes on to what comes behind it, see [`Function::code`].
    returned: u64,
}

/// A function that a thread is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address.
    pub address: u64,
    /// Where [`Function::code`] is.
    pub code: u64,
    /// Where the stack ends that it may use.
    pub stack: u64,
}

impl Function {
    /// Code that calls the function and then the kernel (`getpid`), by which its end is known. Where nobody waits for that any
    /// more the thread finds back by itself, with what [`Borrowed::way_back`] has at `way_back`: `call *%rax; mov %rax,
    /// %rdi; mov $39, %eax; syscall; movabs $way_back, %rsp; mov $15, %eax; syscall` (`rt_sigreturn`).
    pub fn code(way_back: u64) -> Vec<u8> {
        let call = [0xff, 0xd0, 0x48, 0x89, 0xc7, 0xb8, 39, 0, 0, 0, 0x0f, 0x05];
        let back = [0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0xf4];
        [&call[..], &[0x48, 0xbc], &way_back.to_le_bytes(), &back].concat()
    }

    /// Behind its first system call.
    const END: u64 = 12;
}

/// A thread that is stopped, and what it had in its registers.
#[derive(Debug)]
pub struct Borrowed {
    tid: Tid,
    registers: Registers,
    blocked: u64,
    instruction: u64,
    since: Instant,
    /// Whether it has made a call and so stopped elsewhere than where it was.
    moved: bool,
    /// Its vector registers, where it ran a function that may have changed them.
    vectors: Option<Vec<u8>>,
    /// ptrace answers only the thread that seized.
    _on_this_thread: PhantomData<*const ()>,
}

impl Borrowed {
    /// Stops the thread `tid` of a process whose vdso is at `vdso`.
    ///
    /// # Errors
    /// `EPERM` where we may not trace it or another tracer does, `ESRCH` where it is gone, `TimedOut` where it waits
    /// inside the kernel (it is then let go when this process ends), `Unsupported` on other architectures, for a
    /// 32-bit process and for one without a vdso.
    pub fn stop(tid: u32, vdso: Range<u64>) -> io::Result<Borrowed> {
        let tid = Tid::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let instruction = syscall_instruction(tid, vdso)?;
        for _ in 0..ATTEMPTS {
            let since = stop(tid)?;
            let registers = Registers::of(tid);
            match registers.and_then(|r| Ok((r.check(tid)?, ptrace_mask(tid)?, r))) {
                Ok((true, blocked, registers)) => {
                    return Ok(Borrowed {
                        tid,
                        registers,
                        blocked,
                        instruction,
                        since,
                        moved: false,
                        vectors: None,
                        _on_this_thread: PhantomData,
                    });
                }
                Ok((false, ..)) => ptrace::detach(tid, 0),
                Err(error) => {
                    ptrace::detach(tid, 0);
                    return Err(error);
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// `madvise`, by the process itself.
    ///
    /// # Errors
    /// As `madvise`; `ESRCH` where the thread was killed.
    pub fn advise(&mut self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        let arguments = [range.start, length, advice as u64, 0, 0, 0];
        self.call(libc::SYS_madvise, arguments).map(drop)
    }

    /// `PR_SET_THP_DISABLE`, by the process itself: no huge pages from now on.
    ///
    /// # Errors
    /// As `prctl`; `ESRCH` where the thread was killed.
    pub fn disable_huge_pages(&mut self) -> io::Result<()> {
        let option = u64::try_from(libc::PR_SET_THP_DISABLE).expect("option numbers are positive");
        self.call(libc::SYS_prctl, [option, 1, 0, 0, 0, 0]).map(drop)
    }

    /// Which thread it is.
    pub fn thread(&self) -> u32 {
        self.tid.unsigned_abs()
    }

    /// Where it was stopped.
    pub fn place(&self) -> Place {
        self.registers.place()
    }

    /// Maps memory that nobody else uses, to write or to execute.
    ///
    /// # Errors
    /// As `mmap`; `ESRCH` where the thread was killed.
    pub fn map(&mut self, length: u64, execute: bool) -> io::Result<u64> {
        let more = if execute { libc::PROT_EXEC } else { libc::PROT_WRITE };
        let protection = (libc::PROT_READ | more).cast_unsigned().into();
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned().into();
        self.call(libc::SYS_mmap, [0, length, protection, flags, u64::MAX, 0])
    }

    /// What the kernel has to find at `at`, a multiple of 64, to give the thread back what it had when it was stopped, as at the
    /// end of a signal's handler. A system call that was interrupted begins anew, or has been interrupted if it had a time
    /// to wait for.
    ///
    /// # Errors
    /// `ESRCH` where the thread was killed, `Unsupported` on other architectures.
    pub fn way_back(&self, at: u64) -> io::Result<Vec<u8>> {
        let vectors = match &self.vectors {
            Some(vectors) => vectors.clone(),
            None => extended_state(self.tid)?,
        };
        self.registers.way_back(at, self.blocked, vectors)
    }

    /// Unmaps memory that [`Borrowed::map`] mapped.
    ///
    /// # Errors
    /// As `munmap`; `ESRCH` where the thread was killed.
    pub fn unmap(&mut self, at: u64, length: u64) -> io::Result<()> {
        self.call(libc::SYS_munmap, [at, length, 0, 0, 0, 0]).map(drop)
    }

    /// Has the thread run a function, on a stack that ends at `stack`; what it returns. [`Function::code`] must be at
    /// `code`. All registers are then as they were. Other threads run on meanwhile, and so does `idle`, again and again.
    ///
    /// The function must be one that may be called where the thread was stopped: it takes no lock that the thread holds.
    ///
    /// # Errors
    /// `ESRCH` where the thread was killed, `TimedOut` where the function does not return, `Interrupted` where it faulted.
    pub fn run(
        &mut self,
        function: &Function,
        arguments: [u64; 3],
        idle: &mut dyn FnMut(),
    ) -> io::Result<u64> {
        self.begin()?;
        if self.vectors.is_none() {
            self.vectors = Some(extended_state(self.tid)?);
        }
        let end = function.code + Function::END;
        self.registers.for_function(function, arguments).write(self.tid)?;
        let deadline = Instant::now() + LONGEST;
        let (mut signal, mut ends) = (0, 0);
        loop {
            ptrace::resume_to_syscall(self.tid, signal);
            signal = match wait_for(self.tid, deadline, idle)? {
                Change::Syscall => {
                    ends += u8::from(Registers::of(self.tid)?.place().instruction == end);
                    0
                }
                // What the function did, not what somebody sent: those signals are blocked.
                Change::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE) => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Change::Signal(signal) => signal,
                _ => 0,
            };
            if ends == 2 {
                return Ok(Registers::of(self.tid)?.place().returned);
            }
        }
    }

    /// From here on the thread is somewhere else.
    fn begin(&mut self) -> io::Result<()> {
        if !self.moved {
            // Signals wait until the thread has its own registers again.
            set_ptrace_mask(self.tid, u64::MAX)?;
            self.moved = true;
        }
        Ok(())
    }

    /// Makes one system call.
    fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        self.begin()?;
        self.registers.for_call(self.instruction, number, arguments).write(self.tid)?;
        self.run_to_syscall_stop()?;
        self.run_to_syscall_stop()?;
        Registers::of(self.tid)?.result()
    }

    fn run_to_syscall_stop(&self) -> io::Result<()> {
        let mut signal = 0;
        loop {
            ptrace::resume_to_syscall(self.tid, signal);
            signal = match next(self.tid, Instant::now() + PATIENCE)? {
                Change::Syscall => return Ok(()),
                // A stop signal, which cannot be blocked: the process stops as a whole when we are done.
                Change::Signal(signal) => signal,
                _ => 0,
            };
        }
    }

    /// Lets the thread run on as if nothing had been. Returns for how long it was stopped.
    pub fn give_back(mut self) -> Duration {
        self.restore();
        self.since.elapsed()
    }

    fn restore(&mut self) {
        if std::mem::take(&mut self.moved) && self.back_to_a_plain_stop().is_ok() {
            // Both fail only where the thread was killed.
            if let Some(vectors) = self.vectors.take() {
                let _ = set_extended_state(self.tid, &vectors);
            }
            let _ = self.registers.write(self.tid);
            let _ = set_ptrace_mask(self.tid, self.blocked);
        }
        ptrace::detach(self.tid, 0);
    }

    /// From the end of a system call into the kind of stop that the thread was in at first: from there the kernel
    /// restarts what it had interrupted.
    fn back_to_a_plain_stop(&self) -> io::Result<()> {
        ptrace::interrupt(self.tid);
        let mut signal = 0;
        loop {
            ptrace::resume(self.tid, signal);
            signal = match next(self.tid, Instant::now() + PATIENCE)? {
                Change::Signal(signal) => signal,
                _ => return Ok(()),
            };
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Where it was given back already it is no tracee of ours, and these requests are refused.
        self.restore();
    }
}

/// Seizes a thread and stops it. Returns when it was stopped.
fn stop(tid: Tid) -> io::Result<Instant> {
    ptrace::seize(tid, libc::PTRACE_O_TRACESYSGOOD)?;
    let since = Instant::now();
    ptrace::interrupt(tid);
    loop {
        match next(tid, since + PATIENCE)? {
            // It was about to receive one.
            Change::Signal(signal) => ptrace::resume(tid, signal),
            _ => return Ok(since),
        }
    }
}

/// The next stop of a thread that runs, with something to do meanwhile.
fn wait_for(tid: Tid, deadline: Instant, idle: &mut dyn FnMut()) -> io::Result<Change> {
    loop {
        match wait::take(tid)? {
            Some(Change::Ended(_)) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Some(change) => return Ok(change),
            None if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => {
                idle();
                std::thread::yield_now();
            }
        }
    }
}

/// The next stop of a thread.
fn next(tid: Tid, deadline: Instant) -> io::Result<Change> {
    let begin = Instant::now();
    loop {
        match wait::take(tid)? {
            Some(Change::Ended(_)) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Some(change) => return Ok(change),
            None if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            None if begin.elapsed() < BRISK => std::thread::yield_now(),
            None => std::thread::sleep(BRISK / 4),
        }
    }
}

/// Where the process's vdso has a `syscall` instruction.
fn syscall_instruction(tid: Tid, vdso: Range<u64>) -> io::Result<u64> {
    /// Larger than any; what is no vdso is not read whole.
    const LARGEST: usize = 1 << 16;
    let length = usize::try_from(vdso.end.saturating_sub(vdso.start)).unwrap_or(LARGEST);
    let mut bytes = vec![0; length.min(LARGEST)];
    let read = remote::read(tid.unsigned_abs(), slice::from_ref(&vdso), &mut bytes)?;
    let code = Registers::SYSCALL;
    let found = bytes[..read].windows(code.len().max(1)).position(|window| window == code);
    let offset = found.ok_or(io::ErrorKind::Unsupported)?;
    Ok(vdso.start + offset as u64)
}

#[cfg(target_arch = "x86_64")]
use ptrace::{
    extended_state, set_extended_state, set_signal_mask as set_ptrace_mask,
    signal_mask as ptrace_mask,
};
#[cfg(not(target_arch = "x86_64"))]
use unsupported::{extended_state, ptrace_mask, set_extended_state, set_ptrace_mask};

//! A stopped thread of another process, and remote calls by it.
//!
//! The thread is seized (`PTRACE_SEIZE`) and stopped. Before its registers are changed, its own
//! registers, signal mask and vector registers are written to its memory as the frame of a signal
//! handler ([`Tracee::save_at`]). A remote call is then one change of registers (`PTRACE_SETREGS`).
//! With these registers, the thread executes `syscall; ret` of its C library. Its stack pointer
//! points to a word with the address of the library's `rt_sigreturn`, where `ret` continues. So the
//! thread itself restores its own registers if its tracer dies at any time:
//!
//! ```text
//!  state of the thread                    if the tracer dies in it
//!  own registers, own mask                nothing has happened
//!  registers of the call, own mask        makes the call, rt_sigreturn restores registers and mask
//!  registers of the call, all blocked     as in the line above
//!  after the call, own mask               rt_sigreturn restores registers and mask
//!  own registers, own mask                nothing more happens
//! ```
//!
//! A tracer that is not killed restores the registers itself, and exactly: an interrupted call with
//! a timeout continues with the remaining time. Without a tracer, such a call begins anew with the
//! whole timeout.

mod fork;
pub(crate) mod spawn;

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagewise_sys::madvise::Advice;
use pagewise_sys::ptrace::{self, Tid};
use pagewise_sys::remote;
use pagewise_sys::trace::wait::{self, ThreadChange};

use crate::arch::{self, Registers, layout};
use crate::code::CodeAddresses;
use crate::memory::TargetMemory;
use crate::scratch::Returning;

pub(crate) use fork::ForkedChild;

/// Bit of the signal by which glibc makes all threads change their user and group IDs.
const SIGSETXID: u64 = 1 << (33 - 1);
/// Time limit of a remote system call, after which its thread is left to finish the call by itself.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Time limit until a thread that was resumed stops again.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// Time for which a thread is polled without a sleep: most threads stop within microseconds if a
/// CPU is free.
const SPIN: Duration = Duration::from_micros(20);
/// Interval of the polls after [`SPIN`]. A tracer that yields its CPU instead would wait for its
/// next time slice on a busy CPU, and a tracer that does not yield might occupy the CPU that the
/// thread needs.
const POLL: Duration = Duration::from_micros(20);
/// Time limits of a function, after which its thread is left to finish the function by itself.
/// [`STOPPED_LIMIT`] applies after a signal has stopped the process: the other threads are then
/// stopped, and may hold a lock that the function needs.
const FUNCTION_LIMIT: Duration = Duration::from_secs(10);
const STOPPED_LIMIT: Duration = Duration::from_secs(1);

/// Number of the next function call, which distinguishes it from other calls.
static NEXT_CALL: AtomicU64 = AtomicU64::new(1);

/// Position of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPoint {
    /// Address of the next instruction.
    pub instruction: u64,
    /// The stack pointer.
    pub stack: u64,
    /// The registers ax, bx, cx, dx, si, di, bp, sp, ip and r8 to r15, in the order of perf
    /// samples.
    pub registers: [u64; 17],
    /// Address of the thread-local data (`fs`).
    pub thread_data: u64,
    /// Number and first argument of the system call that the thread is in.
    pub call: Option<(u64, u64)>,
}

impl StopPoint {
    /// Reads the position of a thread that the calling thread traces and has stopped without
    /// [`crate::RemoteProcess`].
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed or is not stopped, `Unsupported` on other architectures.
    pub fn of_traced(tid: Tid) -> io::Result<StopPoint> {
        Ok(Registers::read_from(tid)?.place())
    }
}

/// A function for a thread to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFunction {
    /// Address of the function.
    pub address: u64,
    /// Address of [`RemoteFunction::code`] in the target.
    pub code: u64,
    /// Address of the four words that the code writes.
    pub words: u64,
    /// End (highest address) of the stack of the function.
    pub stack: u64,
    /// Time after which the thread leaves the function if it waits for a lock. The function must
    /// hold nothing while it waits for a lock. `None` for functions that must not be interrupted.
    pub lock_wait: Option<Duration>,
}

impl RemoteFunction {
    /// Code that calls the function, stores its return value and a number that the tracer waits
    /// for, and waits for the tracer. Without a tracer, the thread calls `rt_sigreturn` after a
    /// tenth of a second, with the context saved at `context`. The code writes four words at
    /// `words`, which are zero at first: the number, the return value, and two words for the time
    /// to wait.
    ///
    /// If a signal handler interrupts `ppoll`, the code calls it again with the remaining time,
    /// which the kernel has written back. The kernel keeps no restart state for `ppoll`. So the
    /// restart state of a system call that the first stop interrupted is preserved, and this call
    /// can continue with its remaining time.
    ///
    /// ```text
    /// call *%rax;  movabs $words, %rcx;  mov %rax, 8(%rcx)
    /// movq $0, 16(%rcx);  movq $100000000, 24(%rcx);  mov %r12, (%rcx)
    /// xor %edi, %edi;  xor %esi, %esi;  lea 16(%rcx), %rdx;  xor %r10d, %r10d
    /// mov $8, %r8d
    /// 1: mov $SYS_ppoll, %eax;  syscall;  cmp $-EINTR, %rax;  je 1b
    /// movabs $context, %rsp;  mov $SYS_rt_sigreturn, %eax;  syscall;  hlt
    /// ```
    pub fn code(context: u64, words: u64) -> Vec<u8> {
        let store = [
            0x48, 0x89, 0x41, 0x08, 0x48, 0xc7, 0x41, 0x10, 0, 0, 0, 0, 0x48, 0xc7, 0x41, 0x18, 0,
            0xe1, 0xf5, 0x05, 0x4c, 0x89, 0x21,
        ];
        let wait = [
            0x31, 0xff, 0x31, 0xf6, 0x48, 0x8d, 0x51, 0x10, 0x45, 0x31, 0xd2, 0x41, 0xb8, 8, 0, 0,
            0, 0xb8, 0x0f, 1, 0, 0, 0x0f, 0x05, 0x48, 0x83, 0xf8, 0xfc, 0x74, 0xf3,
        ];
        let restore = [0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0xf4];
        [
            &[0xff, 0xd0, 0x48, 0xb9][..],
            &words.to_le_bytes(),
            &store,
            &wait,
            &[0x48, 0xbc],
            &context.to_le_bytes(),
            &restore,
        ]
        .concat()
    }

    /// True if a stopped thread is in the code, before or after the function.
    fn has(&self, instruction: u64) -> bool {
        let length = RemoteFunction::code(0, 0).len() as u64;
        (self.code..self.code + length).contains(&instruction)
    }

    /// Return value of the call with this number; `None` if the call has not returned.
    fn value(&self, tid: Tid, number: u64) -> Option<u64> {
        let addresses = [self.words, self.words + 8];
        let words = remote::read_each::<8>(tid.unsigned_abs(), &addresses).ok()?;
        let [last, value] = [words[0]?, words[1]?].map(u64::from_le_bytes);
        (last == number).then_some(value)
    }
}

impl StopPoint {
    /// A position for which only the stack pointer and the address of the thread-local data are
    /// set.
    pub fn at_stack(stack: u64, thread_data: u64) -> StopPoint {
        let registers = [0; 17];
        StopPoint { instruction: 0, stack, registers, thread_data, call: None }
    }

    /// True if the thread waited for a futex and was interrupted before it was woken. A thread that
    /// was woken must not leave the function, because the wake would be lost.
    fn waits_for_a_lock(&self) -> bool {
        const INTERRUPTED: i64 = -512;
        let is_futex = self.call.is_some_and(|(call, _)| call == libc::SYS_futex.cast_unsigned());
        is_futex && self.registers[0].cast_signed() == INTERRUPTED
    }
}

/// Time limits of a function that a thread runs.
#[derive(Clone, Copy, Debug)]
struct FunctionLimits {
    /// Time at which the thread is left to finish the function by itself.
    end: Instant,
    lock_wait: Option<Duration>,
    /// Time at which the thread is interrupted to check if it waits for a lock.
    interrupt: Option<Instant>,
    /// True if the thread was interrupted.
    was_interrupted: bool,
}

impl FunctionLimits {
    fn from_now(lock_wait: Option<Duration>) -> FunctionLimits {
        let now = Instant::now();
        let interrupt = lock_wait.map(|wait| now + wait);
        FunctionLimits { end: now + FUNCTION_LIMIT, lock_wait, interrupt, was_interrupted: false }
    }

    /// Waits for the next stop of the thread. Interrupts the thread once the function has returned,
    /// and whenever `lock_wait` has passed.
    fn next(
        &mut self,
        tid: Tid,
        has_returned: &dyn Fn() -> bool,
        idle: &mut dyn FnMut(),
    ) -> io::Result<ThreadChange> {
        let mut was_asked = false;
        let mut idle = |_| {
            if !was_asked && has_returned() {
                ptrace::interrupt(tid);
                was_asked = true;
            }
            idle();
            std::thread::sleep(POLL);
        };
        if let Some(interrupt) = self.interrupt.filter(|&interrupt| interrupt < self.end) {
            match next(tid, interrupt, &mut idle) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                change => return change,
            }
            ptrace::interrupt(tid);
            self.was_interrupted = true;
            self.interrupt = self.lock_wait.map(|wait| Instant::now() + wait);
        }
        next(tid, self.end, &mut idle)
    }

    /// The signal with which a stopped thread is resumed.
    ///
    /// # Errors
    /// `Interrupted` if the function faulted.
    fn signal_after(&mut self, change: ThreadChange) -> io::Result<i32> {
        match change {
            // The function itself has faulted: a signal that a thread or process sends is blocked.
            ThreadChange::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            ThreadChange::Signal(signal) => Ok(signal),
            ThreadChange::GroupStop => {
                self.end = self.end.min(Instant::now() + STOPPED_LIMIT);
                Ok(0)
            }
            _ => Ok(0),
        }
    }
}

/// Registers that a thread has now, and progress of its remote call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BorrowPhase {
    /// The thread has its own registers.
    Own,
    /// The thread has registers of a remote call, but has not run since they were set.
    Prepared,
    /// The thread has run with registers of a remote call.
    Ran,
    /// The thread has run with registers of a remote call, and is stopped at the exit of a system
    /// call.
    Called,
    /// The thread runs and did not stop in time. It restores its registers by itself, and is
    /// detached when the tracing thread ends.
    Left,
}

/// A stopped thread of another process. It runs on when the value is dropped.
///
/// The value belongs to the thread that stopped the tracee: the kernel refuses ptrace requests of
/// other threads. When that thread ends, the kernel detaches its tracees.
#[derive(Debug)]
pub struct Tracee {
    tid: Tid,
    registers: Registers,
    /// The thread's signal mask; `None` before it is read.
    blocked: Option<u64>,
    /// Addresses of the instructions of remote calls; `None` if the thread can only be stopped.
    code: Option<CodeAddresses>,
    since: Instant,
    phase: BorrowPhase,
    /// The stack pointer of remote calls: the lowest address of the chain of saved contexts.
    chain: Option<u64>,
    /// The stack pointer of remote calls on the thread's own stack; `None` before a context is
    /// saved there.
    own_chain: Option<u64>,
    is_masked: bool,
    /// The thread's vector registers; `None` before they are read.
    vectors: Option<Vec<u8>>,
    /// True if a function may have changed the vector registers.
    vectors_changed: bool,
    _on_this_thread: PhantomData<*const ()>,
}

impl Tracee {
    /// Takes over a thread that is stopped already. Its pause began at `since`.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed.
    pub(crate) fn seize(
        tid: Tid,
        code: Option<CodeAddresses>,
        since: Instant,
    ) -> io::Result<Tracee> {
        Ok(Tracee {
            tid,
            registers: Registers::read_from(tid)?,
            blocked: None,
            code,
            since,
            phase: BorrowPhase::Own,
            chain: None,
            own_chain: None,
            is_masked: false,
            vectors: None,
            vectors_changed: false,
            _on_this_thread: PhantomData,
        })
    }

    /// False if the thread is inside a restartable sequence, where it must not make calls.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed, `Unsupported` if it runs 32-bit code.
    pub(crate) fn may_move(&self) -> io::Result<bool> {
        self.registers.may_move(self.tid)
    }

    /// The thread's id.
    pub fn thread(&self) -> u32 {
        self.tid.unsigned_abs()
    }

    /// Position at which the thread was stopped.
    pub fn place(&self) -> StopPoint {
        self.registers.place()
    }

    /// Maximum number of bytes that [`Tracee::save_at`] writes, below and above the address
    /// together.
    ///
    /// # Errors
    /// `ESRCH` where the thread was killed.
    pub(crate) fn size_of_context(&mut self) -> io::Result<u64> {
        Ok(layout::HEAD + self.vectors()?.len() as u64 + layout::ALIGNMENT)
    }

    fn vectors(&mut self) -> io::Result<&[u8]> {
        if self.vectors.is_none() {
            self.vectors = Some(arch::extended_state(self.tid)?);
        }
        Ok(self.vectors.as_deref().unwrap_or_default())
    }

    /// Writes the thread's saved context to its process's memory at `at`, a multiple of 64. The
    /// memory must be writable from `at - 64` on. From now on, remote calls return by this context.
    ///
    /// # Errors
    /// `ESRCH` where the thread was killed, other errors if the memory cannot be written.
    pub fn save_at(&mut self, memory: &TargetMemory, at: u64) -> io::Result<()> {
        self.write_context(memory, at)?;
        self.chain = Some(at - 8);
        Ok(())
    }

    /// Saves the context like [`Tracee::save_at`], on the thread's own stack.
    pub(crate) fn save_on_stack(&mut self, memory: &TargetMemory, at: u64) -> io::Result<()> {
        self.save_at(memory, at)?;
        self.own_chain = self.chain;
        Ok(())
    }

    /// Makes remote calls return by the context on the thread's own stack from now on. Necessary
    /// before the memory of another context is unmapped. Returns false if the stack has no context,
    /// or if the thread was left to finish a call by itself.
    pub fn use_own_stack(&mut self) -> bool {
        self.chain = self.own_chain;
        self.chain.is_some() && self.phase != BorrowPhase::Left
    }

    /// Return word of calls on the thread's own stack; `None` if no context was saved there.
    pub(crate) fn returning(&self) -> Option<Returning> {
        let restore = self.code?.restore;
        self.own_chain.map(|chain| Returning { thread: self.thread(), chain, restore })
    }

    /// Addresses of the instructions of remote calls.
    fn code(&self) -> io::Result<CodeAddresses> {
        self.code.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Writes the context, and the return address that leads to the context.
    fn write_context(&mut self, memory: &TargetMemory, at: u64) -> io::Result<()> {
        let vectors = arch::vector_image(self.vectors()?.to_vec())?;
        let mut bytes = self.code()?.restore.to_le_bytes().to_vec();
        let continued = self.registers.continued(&|at, length| memory.read_up_to(at, length));
        let blocked = match self.blocked {
            Some(blocked) => blocked,
            None => *self.blocked.insert(arch::signal_mask(self.tid)?),
        };
        bytes.extend(self.registers.context(blocked, at + layout::VECTORS, continued));
        bytes.resize(8 + usize::try_from(layout::VECTORS).unwrap_or(0), 0);
        bytes.extend(vectors);
        memory.write(at - 8, &bytes)
    }

    /// Writes a saved context at `at` as [`Tracee::save_at`] does. Below it, at `at` - [`CHAINED`],
    /// writes a second context, by which the thread makes a system call before it restores its own
    /// registers.
    ///
    /// # Errors
    /// As [`Tracee::save_at`].
    pub(crate) fn save_with_call(
        &mut self,
        memory: &TargetMemory,
        at: u64,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> io::Result<()> {
        self.write_context(memory, at)?;
        let code = self.code()?;
        let call = self.registers.for_call(code.syscall, number, arguments, at - 8);
        let first = at - CHAINED;
        let mut bytes = code.restore.to_le_bytes().to_vec();
        bytes.extend(call.context(u64::MAX, at + layout::VECTORS, None));
        memory.write(first - 8, &bytes)?;
        self.chain = Some(first - 8);
        Ok(())
    }

    /// Prepares one system call. If the tracer dies, the thread makes the call and restores its own
    /// registers.
    ///
    /// # Errors
    /// `ESRCH` where the thread was killed; `InvalidInput` if no context was saved.
    pub(crate) fn prepare_call(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> io::Result<()> {
        let chain = self.chain.filter(|_| self.phase != BorrowPhase::Left);
        let chain = chain.ok_or(io::ErrorKind::InvalidInput)?;
        self.commit(number, arguments, chain)?;
        self.mask()
    }

    /// Sets the registers of a call: from here on the thread makes the call by itself. Signals are
    /// not blocked yet, so handlers of pending signals run before the call.
    pub(crate) fn commit(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
        chain: u64,
    ) -> io::Result<()> {
        let syscall = self.code()?.syscall;
        self.registers.for_call(syscall, number, arguments, chain).write(self.tid)?;
        if self.phase == BorrowPhase::Own {
            self.phase = BorrowPhase::Prepared;
        }
        Ok(())
    }

    /// Blocks all signals. Called only after the thread can restore its signal mask by itself.
    fn mask(&mut self) -> io::Result<()> {
        if !self.is_masked {
            arch::set_signal_mask(self.tid, u64::MAX)?;
            self.is_masked = true;
        }
        Ok(())
    }

    /// Makes one system call.
    ///
    /// # Errors
    /// The error of the call; `ESRCH` if the thread was killed; `InvalidInput` if no context was
    /// saved; `TimedOut` if the call takes longer than two seconds. In the last case the thread is
    /// left to finish the call by itself.
    pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        self.prepare_call(number, arguments)?;
        self.phase = BorrowPhase::Ran;
        let deadline = Instant::now() + CALL_LIMIT;
        for _ in 0..2 {
            if let Err(error) = self.run_to_syscall_stop(deadline) {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.leave();
                }
                return Err(error);
            }
        }
        self.phase = BorrowPhase::Called;
        Registers::read_from(self.tid)?.result()
    }

    /// Makes the thread call `madvise`.
    ///
    /// # Errors
    /// As `madvise` and [`Tracee::call`].
    pub fn advise(&mut self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        let arguments = [range.start, length, advice as u64, 0, 0, 0];
        self.call(libc::SYS_madvise, arguments).map(drop)
    }

    /// Makes the thread call `PR_SET_THP_DISABLE`, so that its process gets no new huge pages.
    ///
    /// # Errors
    /// As `prctl` and [`Tracee::call`].
    pub fn disable_huge_pages(&mut self) -> io::Result<()> {
        let option = u64::try_from(libc::PR_SET_THP_DISABLE).expect("option numbers are positive");
        self.call(libc::SYS_prctl, [option, 1, 0, 0, 0, 0]).map(drop)
    }

    /// The lowest address in use of the thread's own stack, which is the address of its saved
    /// context. `None` before [`RemoteProcess::prepare`](crate::RemoteProcess::prepare).
    pub fn stack_end(&self) -> Option<u64> {
        self.own_chain
    }

    /// The alternate stack of the thread's signal handlers, if it has one (`sigaltstack`).
    ///
    /// # Errors
    /// As [`Tracee::call`]; other errors if the memory cannot be read.
    pub fn signal_stack(&mut self, memory: &TargetMemory) -> io::Result<Option<Range<u64>>> {
        /// Number of bytes of `struct stack_t`: the address, the flags, the size.
        const BYTES: u64 = 24;
        let below = self.own_chain.ok_or(io::ErrorKind::InvalidInput)?;
        let at = (below - BYTES) & !(layout::ALIGNMENT - 1);
        self.call(libc::SYS_sigaltstack, [0, at, 0, 0, 0, 0])?;
        let mut words = [[0; 8]; 3];
        memory.read(at, words.as_flattened_mut())?;
        let [start, flags, size] = words.map(u64::from_le_bytes);
        let is_off = flags & u64::from(libc::SS_DISABLE.cast_unsigned()) != 0;
        Ok((!is_off).then(|| start..start.saturating_add(size)))
    }

    /// Maps private anonymous memory at an address that is not mapped. The mapping is readable, and
    /// writable or executable.
    ///
    /// # Errors
    /// As `mmap` and [`Tracee::call`]: `EEXIST` if the range overlaps a mapping.
    pub fn map_at(&mut self, range: Range<u64>, execute: bool) -> io::Result<()> {
        let more = if execute { libc::PROT_EXEC } else { libc::PROT_WRITE };
        let protection = (libc::PROT_READ | more).cast_unsigned().into();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let length = range.end.saturating_sub(range.start);
        let arguments =
            [range.start, length, protection, flags.cast_unsigned().into(), u64::MAX, 0];
        let at = self.call(libc::SYS_mmap, arguments)?;
        if at == range.start {
            return Ok(());
        }
        // Kernels before 4.17 ignore `MAP_FIXED_NOREPLACE` and may choose another address.
        self.unmap(at..at + length)?;
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }

    /// Makes the thread call `madvise` with `MADV_DONTFORK`, so that a forked child does not get
    /// the mapping.
    ///
    /// # Errors
    /// As `madvise` and [`Tracee::call`].
    pub(crate) fn keep_from_children(&mut self, range: Range<u64>) -> io::Result<()> {
        let advice = u64::from(libc::MADV_DONTFORK.unsigned_abs());
        let length = range.end.saturating_sub(range.start);
        self.call(libc::SYS_madvise, [range.start, length, advice, 0, 0, 0]).map(drop)
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// As `munmap` and [`Tracee::call`].
    pub fn unmap(&mut self, range: Range<u64>) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        self.call(libc::SYS_munmap, [range.start, length, 0, 0, 0, 0]).map(drop)
    }

    /// Makes the thread run a function, and returns the value of the function.
    /// [`RemoteFunction::code`] must be at `function.code`, with this thread's context saved at the
    /// `context` of the code. The registers are restored when the thread is released. Other threads
    /// run on meanwhile, and `idle` is called again and again.
    ///
    /// The function must be safe to call at the point where the thread was stopped: it must take no
    /// lock that the thread holds.
    ///
    /// # Errors
    /// `ESRCH` if the thread was killed; `Interrupted` if the function faulted; `WouldBlock` if the
    /// function waited for a lock for longer than [`RemoteFunction::lock_wait`]; `TimedOut` if the
    /// function does not return within ten seconds, or within one second after a signal has stopped
    /// the process. In the last case the thread is left to finish the function, and restores its
    /// own registers by itself.
    pub fn run(
        &mut self,
        function: &RemoteFunction,
        arguments: [u64; 5],
        idle: &mut dyn FnMut(),
    ) -> io::Result<u64> {
        if self.chain.is_none() || self.phase == BorrowPhase::Left {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let number = NEXT_CALL.fetch_add(1, Ordering::Relaxed);
        self.prepare_function(function, arguments, number)?;
        let mut limits = FunctionLimits::from_now(function.lock_wait);
        // If `lock_wait` is `None`, the thread stops at each system call. The stops take time, but
        // the tracer cannot miss the `ppoll` after the function. If the tracer missed it, the
        // thread would restore its own registers, and could run no further function.
        let is_followed = function.lock_wait.is_none();
        let (mut signal, mut is_ending) = (0, false);
        loop {
            match is_followed {
                true => ptrace::resume_to_syscall(self.tid, signal),
                false => ptrace::resume(self.tid, signal),
            }
            let has_returned = || !is_followed && function.value(self.tid, number).is_some();
            let change = limits.next(self.tid, &has_returned, idle);
            if change.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                self.leave();
            }
            let change = change?;
            signal = limits.signal_after(change)?;
            let place = Registers::read_from(self.tid)?.place();
            if signal == 0
                && let Some(value) = function.value(self.tid, number)
            {
                if change == ThreadChange::Syscall && !is_ending {
                    // The thread enters the `ppoll` in which it waits for the tracer; the interrupt
                    // ends the `ppoll`.
                    ptrace::interrupt(self.tid);
                    is_ending = true;
                    continue;
                }
                self.finish_function(function.has(place.instruction))?;
                return Ok(value);
            }
            // A signal that is about to be delivered must not be lost.
            if signal == 0 && limits.was_interrupted && place.waits_for_a_lock() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Sets the registers and the signal mask with which the thread runs a function.
    fn prepare_function(
        &mut self,
        function: &RemoteFunction,
        arguments: [u64; 5],
        number: u64,
    ) -> io::Result<()> {
        self.vectors()?;
        self.registers.for_function(function, arguments, number).write(self.tid)?;
        self.vectors_changed = true;
        self.phase = BorrowPhase::Ran;
        self.mask()?;
        // A thread that calls `setuid` or a similar function holds a lock of the C library until
        // each thread has received this signal. The loader needs this lock.
        arch::set_signal_mask(self.tid, !SIGSETXID)
    }

    /// Ends the run of a function that has returned. A thread that has left the code of the
    /// function runs on.
    fn finish_function(&mut self, is_in_function: bool) -> io::Result<()> {
        if is_in_function {
            return arch::set_signal_mask(self.tid, u64::MAX);
        }
        // The thread has waited for the tracer for the maximum time, and has restored its own
        // registers and mask.
        self.phase = BorrowPhase::Left;
        self.detach();
        Ok(())
    }

    fn run_to_syscall_stop(&self, deadline: Instant) -> io::Result<()> {
        let mut signal = 0;
        loop {
            ptrace::resume_to_syscall(self.tid, signal);
            signal = match next(self.tid, deadline, &mut rest)? {
                ThreadChange::Syscall => return Ok(()),
                // A stop signal cannot be blocked. The signal stops the whole process when the
                // thread is released.
                ThreadChange::Signal(signal) => signal,
                _ => 0,
            };
        }
    }

    /// Leaves a thread that does not stop in time to finish its call by itself.
    fn leave(&mut self) {
        self.phase = BorrowPhase::Left;
        ptrace::interrupt(self.tid);
        loop {
            match next(self.tid, Instant::now() + STOP_LIMIT, &mut rest) {
                Ok(ThreadChange::Signal(signal)) => ptrace::resume(self.tid, signal),
                // The thread stopped before the end of its call. It finishes the call after it is
                // detached.
                Ok(_) => return self.detach(),
                // The thread stops later, and is detached when the tracing thread ends.
                Err(_) => return,
            }
        }
    }

    /// Resumes the thread with its own registers and mask. Returns the time for which it was
    /// stopped.
    pub fn release(mut self) -> Duration {
        self.restore();
        self.since.elapsed()
    }

    /// Leaves the thread stopped, with its own registers.
    pub(crate) fn keep_stopped(mut self) {
        self.phase = BorrowPhase::Left;
    }

    /// Resumes the thread with its current registers; the thread restores its own registers by
    /// itself.
    pub(crate) fn abandon(mut self) {
        self.phase = BorrowPhase::Left;
        self.detach();
    }

    fn restore(&mut self) {
        let phase = std::mem::replace(&mut self.phase, BorrowPhase::Left);
        match phase {
            BorrowPhase::Left => return,
            BorrowPhase::Own => {}
            // The first stop may have interrupted a system call of the program. The kernel restarts
            // this call when the thread checks for signals, and a detached thread does so before it
            // runs on (`__ptrace_unlink`). So a separate stop is not needed: it would make the
            // thread wait for a CPU once more.
            BorrowPhase::Prepared | BorrowPhase::Called => self.restore_registers(),
            BorrowPhase::Ran => {
                if let Err(error) = self.back_to_a_plain_stop() {
                    if error.kind() != io::ErrorKind::TimedOut {
                        self.detach();
                    }
                    // The thread is running, and restores its registers by itself.
                    return;
                }
                self.restore_registers();
            }
        }
        self.detach();
    }

    fn detach(&self) {
        if !ptrace::detach(self.tid, 0) {
            DYING.with_borrow_mut(|dying| dying.push(self.tid));
        }
    }

    /// Restores the signal mask before the registers: with the registers of a remote call the
    /// thread can restore its mask by itself, with its own registers it cannot.
    fn restore_registers(&mut self) {
        // The requests fail only if the thread was killed.
        if let Some(vectors) = self.vectors.take().filter(|_| self.vectors_changed) {
            let _ = arch::set_extended_state(self.tid, &vectors);
        }
        if let Some(blocked) = self.blocked.filter(|_| self.is_masked) {
            let _ = arch::set_signal_mask(self.tid, blocked);
        }
        let _ = self.registers.write(self.tid);
    }

    /// Brings the thread into a stop like its first stop, outside of any system call of pagewise.
    fn back_to_a_plain_stop(&self) -> io::Result<()> {
        ptrace::interrupt(self.tid);
        let mut signal = 0;
        loop {
            ptrace::resume(self.tid, signal);
            signal = match next(self.tid, Instant::now() + STOP_LIMIT, &mut rest)? {
                ThreadChange::Signal(signal) => signal,
                _ => return Ok(()),
            };
        }
    }
}

/// Distance in bytes between two saved contexts of a chain.
pub(crate) const CHAINED: u64 = 448;

impl Drop for Tracee {
    fn drop(&mut self) {
        self.restore();
    }
}

thread_local! {
    /// Tracees of this thread that were killed while they were stopped: a thread of the target that
    /// executes another program waits until they are reaped.
    static DYING: RefCell<Vec<Tid>> = const { RefCell::new(Vec::new()) };
}

/// Reaps the threads of [`DYING`] that have ended.
fn take_ends() {
    DYING.with_borrow_mut(|dying| dying.retain(|&tid| matches!(wait::look(tid), Ok(None))));
}

/// Waits for the next stop of a thread. `idle` runs between two polls, with the time since the
/// first poll.
///
/// # Errors
/// `ESRCH` if the thread has ended or its ID belongs to another thread now, `TimedOut`.
pub(crate) fn next(
    tid: Tid,
    deadline: Instant,
    idle: &mut dyn FnMut(Duration),
) -> io::Result<ThreadChange> {
    let begin = Instant::now();
    loop {
        match look(tid)? {
            Some(change) => return Ok(change),
            None if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => idle(begin.elapsed()),
        }
    }
}

/// Waits between two polls for a stop: most stops happen within microseconds.
pub(crate) fn rest(waited: Duration) {
    match waited < SPIN {
        true => std::hint::spin_loop(),
        false => std::thread::sleep(POLL),
    }
}

/// Returns the new event of a tracee; `None` without a new event. `ESRCH` if the tracee has ended
/// or its ID belongs to another thread now.
fn look(tid: Tid) -> io::Result<Option<ThreadChange>> {
    take_ends();
    match wait::look(tid) {
        Ok(Some(ThreadChange::Ended(_))) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
        found => found,
    }
}

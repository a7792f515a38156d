//! Runs a command under ptrace and stops it while its memory can be read: at its exit, or at a
//! given time.
//!
//! The command is seized (`PTRACE_SEIZE`), so its signals, group stops and exit status are the same
//! as those of an untraced command. Only a new thread, an `exec`, a signal and an exit stop the
//! command until the tracer resumes it; system calls do not. Its child processes run untraced.
//! [`calls`] also traces child processes, and stops at system calls.

pub mod calls;
mod filter;
mod signals;
pub(crate) mod start;
pub mod wait;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use start::{ExecImage, NotExecuted};
use wait::ThreadChange;

use crate::ptrace::{self, Tid};

/// Ptrace options: report new threads, `exec` and exit. Child processes are not traced. Without
/// `PTRACE_O_EXITKILL`, the command runs on if the tracer is killed.
const OPTIONS: i32 =
    libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC;

/// Time limit for every thread to stop. A thread that needs longer waits inside the kernel (for a
/// disk, or in vfork for its child), where it runs no user code, or waits for a CPU.
const SETTLE: Duration = Duration::from_millis(100);

/// Time limit for a thread that waits for a CPU.
const MAX_SETTLE: Duration = Duration::from_secs(5);

/// Interval of the checks of threads that have not stopped within [`SETTLE`].
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

/// Number of the system call that ends a whole process, by `AUDIT_ARCH_*` of `linux/audit.h`.
const EXIT_GROUP: [(u32, u32); 5] = [
    (0xc000_003e, 231), // x86-64
    (0x4000_0003, 252), // i386
    (0xc000_00b7, 94),  // aarch64
    (0x4000_0028, 248), // arm
    (0xc000_00f3, 94),  // riscv64
];

/// Numbers of the system call that ends one thread.
const EXIT: [(u32, u32); 5] =
    [(0xc000_003e, 60), (0x4000_0003, 1), (0xc000_00b7, 93), (0x4000_0028, 1), (0xc000_00f3, 93)];

/// Numbers of the system calls that execute a program.
const EXECUTE: [(u32, u32); 10] = [
    (0xc000_003e, 59),
    (0xc000_003e, 322),
    (0x4000_0003, 11),
    (0x4000_0003, 358),
    (0xc000_00b7, 221),
    (0xc000_00b7, 281),
    (0x4000_0028, 11),
    (0x4000_0028, 387),
    (0xc000_00f3, 221),
    (0xc000_00f3, 281),
];

/// Time limit for finding out if a thread ended another thread by `exit_group` or by `exec`. The
/// calling thread has to run for some microseconds on a CPU that may be busy.
const MAX_UNDECIDED: Duration = Duration::from_secs(2);
/// Interval at which the calling thread is polled: no ptrace event reports that its `exec` waits
/// for the other threads.
const UNDECIDED_INTERVAL: Duration = Duration::from_millis(1);

/// Ending of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEnding {
    /// The process exited with this status.
    Exited(i32),
    /// A signal killed the process.
    Killed {
        /// Number of the signal.
        signal: i32,
        /// True if the kernel wrote a core dump.
        core: bool,
    },
}

/// Reason why [`Traced::run`] or [`Traced::freeze`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The command is about to end, and its memory is still readable.
    AtExit,
    /// Every thread is stopped.
    AtTime,
    /// After [`Traced::stop_on_the_way`]: the command executed another program, and its only thread
    /// is stopped.
    Executed,
    /// After [`Traced::stop_on_the_way`]: a perf counter sent a SIGTRAP to a thread, which is
    /// stopped and does not receive the signal.
    Trapped,
    /// The deadline passed, and the command runs on.
    TimeIsUp,
    /// The command has ended, and its memory is gone.
    Ended(TraceEnding),
}

/// Reason why a command runs untraced, so that its memory cannot be read at its exit or at a given
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untraced {
    /// The program is set-user-ID, set-group-ID or has file capabilities. Under a tracer without
    /// CAP_SYS_PTRACE, the kernel would run it without these privileges.
    GainsPrivilege,
    /// The kernel or the container forbids tracing: the error number.
    Refused(i32),
}

impl fmt::Display for Untraced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untraced::GainsPrivilege => f.write_str(
                "it gains privileges at exec, which the kernel denies to a program traced without CAP_SYS_PTRACE",
            ),
            Untraced::Refused(errno) => {
                write!(f, "tracing was refused: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// State of a thread of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaunchPhase {
    /// Running, according to the events that the tracer has received.
    Running,
    /// In a group stop, which a SIGCONT ends.
    Listening,
    /// Stopped by the tracer.
    Held(HeldResume),
    /// In its last ptrace stop, before it ends.
    Exiting(Departure),
    /// Past its last ptrace stop: it runs no more user code.
    Leaving,
    /// Not a thread of the command, or a thread that is to be detached: the tracer detaches it at
    /// its next stop.
    Stranger,
}

/// Method of resuming a held thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldResume {
    /// Resume it at its next instruction.
    Continue,
    /// Return it to its group stop.
    Listen,
}

/// Consequence of a thread's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// The whole process ends: `exit_group`, or a fatal signal.
    Process,
    /// Only the thread ends, unless it is the last.
    Thread,
    /// Unknown: another thread ends this thread, by `exit_group`, which ends the process, or by
    /// `exec`, which waits until the other threads are gone. The exit event of this thread can
    /// arrive before the event of the other thread.
    ByAnother,
}

/// A command that this process started and traces.
///
/// The value belongs to the thread that started the command: the kernel refuses ptrace requests of
/// other threads. That thread blocks the signals of the terminal while the value exists. Dropping
/// the value lets the command run on untraced.
///
/// A program that traces itself fails while the value exists; LeakSanitizer reports such a failure.
/// A program that would gain privileges in a later `exec` does not gain them (see
/// [`Untraced::GainsPrivilege`]).
///
/// ```
/// use pagewise_sys::trace::{TraceEnding, Stopped, Traced};
/// let mut command = Traced::spawn("sh".as_ref(), &["-c".into(), "exit 3".into()])?;
/// if command.run(None)? == Stopped::AtExit {
///     let maps = std::fs::read(format!("/proc/{}/maps", command.task()))?;
///     assert!(!maps.is_empty());
/// }
/// assert_eq!(command.finish()?, TraceEnding::Exited(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Traced {
    pid: Tid,
    threads: BTreeMap<Tid, LaunchPhase>,
    executes: bool,
    /// `Some` after [`Traced::stop_on_the_way`]. The inner value is the reason of a stop that `run`
    /// has not returned yet.
    on_the_way: Option<Option<Stopped>>,
    /// Time since which a thread with [`Departure::ByAnother`] is held.
    undecided: Option<Instant>,
    ending: Option<TraceEnding>,
    untraced: Option<Untraced>,
    signals: signals::HeldSignals,
    _on_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced")
            .field("pid", &self.pid)
            .field("threads", &self.threads)
            .field("ending", &self.ending)
            .field("untraced", &self.untraced)
            .finish_non_exhaustive()
    }
}

/// The file that a command would execute, by the search rules of `execvp`. `None` if no file is
/// found.
pub fn path_of(program: &OsStr) -> Option<std::path::PathBuf> {
    start::find(program).ok()
}

impl Traced {
    /// Starts a command and holds it before its first instruction. A name without a slash is
    /// searched for in `PATH`.
    ///
    /// # Errors
    /// `ENOENT` if the program does not exist, `EACCES` and others if it cannot be executed: a
    /// shell reports these as exit codes 127 and 126.
    pub fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Traced> {
        let image = ExecImage::find(program, arguments)?;
        let gains_privilege = image.gains_privilege_untraced();
        let mut newborn = image.fork(None)?;
        wait::begin();
        let mut traced = Traced {
            pid: newborn.pid,
            threads: BTreeMap::new(),
            executes: false,
            on_the_way: None,
            undecided: None,
            ending: None,
            untraced: gains_privilege.then_some(Untraced::GainsPrivilege),
            signals: signals::HeldSignals::hold(),
            _on_this_thread: PhantomData,
        };
        traced.seize();
        newborn.go()?;
        traced.run_to_exec()?;
        match newborn.failure() {
            None => Ok(traced),
            Some(NotExecuted::Program(error) | NotExecuted::Filter(error)) => {
                traced.finish()?;
                Err(error)
            }
        }
    }

    /// The process id of the command.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// ID of the task to read in `/proc`: the process, or one of its threads if the main thread has
    /// ended before the other threads, because `/proc/<pid>` then shows no memory.
    pub fn task(&self) -> u32 {
        let is_there =
            |phase: &LaunchPhase| !matches!(phase, LaunchPhase::Leaving | LaunchPhase::Stranger);
        let left = self.threads.get(&self.pid).is_some_and(|phase| !is_there(phase));
        let other = self.threads.iter().find(|(_, phase)| left && is_there(phase));
        other.map_or(self.pid, |(&tid, _)| tid).unsigned_abs()
    }

    /// Reason why the command is not traced and runs to its end without a stop; `None` if it is
    /// traced.
    pub fn untraced(&self) -> Option<Untraced> {
        self.untraced
    }

    /// Makes [`Traced::run`] also return when the command executes another program, and when a
    /// thread reaches the instruction of
    /// [`PerfCounter::trap_at`](crate::perf_event::PerfCounter::trap_at): that thread is then
    /// stopped, and the other threads run.
    pub fn stop_on_the_way(&mut self) {
        self.on_the_way = Some(None);
    }

    /// Resumes every thread, and waits until the command is about to end or the deadline passes.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn run(&mut self, deadline: Option<Instant>) -> io::Result<Stopped> {
        loop {
            let mark = wait::mark();
            self.take_changes()?;
            if self.ending.is_some() || self.is_ending() {
                return self.freeze();
            }
            if let Some(stopped) = self.on_the_way.as_mut().and_then(Option::take) {
                return Ok(stopped);
            }
            let is_undecided = self.is_undecided();
            let mut wakeup = deadline;
            if is_undecided {
                let next = Instant::now() + UNDECIDED_INTERVAL;
                wakeup = Some(deadline.map_or(next, |deadline| deadline.min(next)));
            }
            self.resume_all_but(|phase| is_undecided && phase.is_undecided());
            if !self.sleep(mark, wakeup) && wakeup == deadline {
                return Ok(Stopped::TimeIsUp);
            }
        }
    }

    /// True while a thread is about to end and it is unknown if the process ends too. The ending
    /// thread is not resumed meanwhile, so that it still exists when the process stops at its exit.
    fn is_undecided(&mut self) -> bool {
        let ended = self.threads.iter().find(|(_, phase)| phase.is_undecided());
        let Some((&ended, _)) = ended else {
            self.undecided = None;
            return false;
        };
        let since = *self.undecided.get_or_insert_with(Instant::now);
        let architecture = ptrace::architecture(ended);
        let executes = |tid: Tid| {
            let call = architecture.zip(self.call_number(tid));
            call.is_some_and(|call| EXECUTE.contains(&call))
        };
        let mut live = self.threads.iter().filter(|(_, phase)| phase.is_live());
        let is_decided = live.any(|(&tid, _)| executes(tid));
        if is_decided || since.elapsed() > MAX_UNDECIDED {
            self.undecided = None;
            return false;
        }
        true
    }

    /// Stops every thread, and returns the reason that then applies: usually [`Stopped::AtTime`]. A
    /// command that is not traced runs on.
    ///
    /// As after a SIGSTOP and SIGCONT, a few system calls (`epoll_wait`) then return EINTR.
    ///
    /// # Errors
    /// Those of `waitpid`.
    pub fn freeze(&mut self) -> io::Result<Stopped> {
        for (&tid, _) in self.threads.iter().filter(|(_, phase)| phase.is_free()) {
            ptrace::interrupt(tid);
        }
        self.settle(LaunchPhase::is_free)?;
        Ok(match self.ending {
            Some(ending) => Stopped::Ended(ending),
            None if self.is_ending() => Stopped::AtExit,
            None if self.is_traced() => Stopped::AtTime,
            None => Stopped::TimeIsUp,
        })
    }

    /// Waits until all threads for whose phase `is_awaited` returns true have stopped. After
    /// [`SETTLE`], only runnable threads are waited for.
    fn settle(&mut self, is_awaited: fn(LaunchPhase) -> bool) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let mark = wait::mark();
            self.take_changes()?;
            let elapsed = began.elapsed();
            let is_late = elapsed >= SETTLE;
            let mut awaited = self.threads.iter().filter(|(_, phase)| is_awaited(**phase));
            if elapsed >= MAX_SETTLE || !awaited.any(|(&tid, _)| !is_late || is_runnable(tid)) {
                return Ok(());
            }
            let end = if is_late { Instant::now() + SETTLE_INTERVAL } else { began + SETTLE };
            self.sleep(mark, Some(end));
        }
    }

    /// Resumes every stopped thread, also threads in their last stop. [`Traced::run`] does this
    /// too.
    pub fn thaw(&mut self) {
        self.resume_all_but(|_| false);
    }

    fn resume_all_but(&mut self, is_held: impl Fn(LaunchPhase) -> bool) {
        for (&tid, phase) in self.threads.iter_mut().filter(|(_, phase)| !is_held(**phase)) {
            *phase = match *phase {
                LaunchPhase::Held(HeldResume::Continue) => {
                    ptrace::resume(tid, 0);
                    LaunchPhase::Running
                }
                LaunchPhase::Held(HeldResume::Listen) => {
                    ptrace::listen(tid);
                    LaunchPhase::Listening
                }
                LaunchPhase::Exiting(_) => {
                    ptrace::resume(tid, 0);
                    LaunchPhase::Leaving
                }
                LaunchPhase::Running
                | LaunchPhase::Listening
                | LaunchPhase::Leaving
                | LaunchPhase::Stranger => continue,
            };
        }
    }

    /// Detaches the command, which runs on and is not stopped again, not even at its exit. A
    /// running thread is stopped once more, since the kernel detaches only stopped threads.
    pub fn let_go(&mut self) {
        // From here on stop signals also stop this process. A pending stop signal that the command
        // ignored must not stop this process.
        self.signals.forget();
        for (tid, phase) in std::mem::take(&mut self.threads) {
            match phase {
                LaunchPhase::Held(_) | LaunchPhase::Exiting(_) => drop(ptrace::detach(tid, 0)),
                LaunchPhase::Running | LaunchPhase::Listening => {
                    ptrace::interrupt(tid);
                    self.threads.insert(tid, LaunchPhase::Stranger);
                }
                LaunchPhase::Leaving | LaunchPhase::Stranger => {
                    self.threads.insert(tid, phase);
                }
            }
        }
        // If the wait fails, the kernel detaches the remaining threads when this thread ends.
        let _ = self.settle(|phase| phase == LaunchPhase::Stranger);
    }

    /// Detaches the command and waits for its end.
    ///
    /// # Errors
    /// Those of `waitpid`; `ECHILD` if other code has waited for the command's end.
    pub fn finish(mut self) -> io::Result<TraceEnding> {
        self.let_go();
        loop {
            let mark = wait::mark();
            self.take_changes()?;
            match self.ending {
                Some(ending) => return Ok(ending),
                None => self.sleep(mark, None),
            };
        }
    }

    fn seize(&mut self) {
        if self.untraced.is_some() {
            return;
        }
        match ptrace::seize(self.pid, OPTIONS) {
            Ok(()) => {
                self.threads.insert(self.pid, LaunchPhase::Running);
            }
            Err(error) => {
                self.untraced = Some(Untraced::Refused(error.raw_os_error().unwrap_or(0)));
            }
        }
    }

    /// Waits until the child has executed its program, or has ended because the program could not
    /// be executed.
    fn run_to_exec(&mut self) -> io::Result<()> {
        while !self.executes && self.is_traced() {
            let mark = wait::mark();
            self.take_changes()?;
            if self.is_ending() {
                self.let_go();
            } else if !self.executes && self.ending.is_none() {
                self.thaw();
                self.sleep(mark, None);
            }
        }
        Ok(())
    }

    /// Sleeps until there may be an event; `false` if the deadline passed. During the sleep a
    /// Ctrl-Z also stops this process, if the command has stopped or is not traced.
    fn sleep(&mut self, mark: u32, deadline: Option<Instant>) -> bool {
        let stopped = self.threads.values().any(|phase| *phase == LaunchPhase::Listening);
        self.signals.let_stops_pass(stopped || !self.is_traced());
        wait::sleep(mark, deadline)
    }

    fn is_traced(&self) -> bool {
        self.threads.values().any(|phase| *phase != LaunchPhase::Stranger)
    }

    /// True if the process ends once the threads in their last stop are resumed.
    fn is_ending(&self) -> bool {
        let has =
            |wanted: fn(LaunchPhase) -> bool| self.threads.values().any(|phase| wanted(*phase));
        has(|phase| phase == LaunchPhase::Exiting(Departure::Process))
            || (has(|phase| matches!(phase, LaunchPhase::Exiting(_))) && !has(LaunchPhase::is_live))
    }

    /// Records all events. Resumes only threads that are about to receive a signal, and detaches
    /// threads that do not belong to the command.
    fn take_changes(&mut self) -> io::Result<()> {
        while self.ending.is_none()
            && let Some((tid, change)) = self.next_change()?
        {
            self.note(tid, change);
        }
        Ok(())
    }

    fn next_change(&self) -> io::Result<Option<(Tid, ThreadChange)>> {
        let Some(first) = wait::peek()? else { return Ok(None) };
        if first == self.pid || self.threads.contains_key(&first) {
            return Ok(self.change_of(first)?.map(|change| (first, change)));
        }
        // `peek` found another child of this thread, or a new thread whose clone event has not
        // arrived yet, so each traced thread is polled.
        for &tid in std::iter::once(&self.pid).chain(self.threads.keys()) {
            if let Some(change) = self.change_of(tid)? {
                return Ok(Some((tid, change)));
            }
        }
        Ok(None)
    }

    /// Returns the new event of a thread, and consumes it, so that events of other threads become
    /// visible. A signal that is about to be delivered is not consumed: the kernel would drop a
    /// consumed signal if this process were killed.
    fn change_of(&self, tid: Tid) -> io::Result<Option<ThreadChange>> {
        match wait::look_if_ours(tid)? {
            Some(ThreadChange::Signal(signal))
                if !self.is_trapped(tid, ThreadChange::Signal(signal)) =>
            {
                Ok(Some(ThreadChange::Signal(signal)))
            }
            // `look_if_ours` has consumed these changes.
            Some(change @ (ThreadChange::Ended(_) | ThreadChange::Execed)) => Ok(Some(change)),
            Some(_) => wait::take_change(tid),
            None => Ok(None),
        }
    }

    fn note(&mut self, tid: Tid, change: ThreadChange) {
        if let ThreadChange::Ended(ending) = change {
            self.threads.remove(&tid);
            if tid == self.pid {
                self.threads.clear();
                self.ending = Some(ending);
            }
            return;
        }
        if self.threads.get(&tid) == Some(&LaunchPhase::Stranger) {
            self.threads.remove(&tid);
            let signal = match change {
                ThreadChange::Signal(_) if self.is_trapped(tid, change) => 0,
                ThreadChange::Signal(signal) => signal,
                _ => 0,
            };
            ptrace::detach(tid, signal);
            return;
        }
        let phase = match change {
            ThreadChange::Signal(_) if self.is_trapped(tid, change) => {
                self.on_the_way = Some(Some(Stopped::Trapped));
                LaunchPhase::Held(HeldResume::Continue)
            }
            ThreadChange::Signal(signal) => {
                // If this process has interrupted the thread, the thread stops again after it has
                // received the signal.
                ptrace::resume(tid, signal);
                LaunchPhase::Running
            }
            ThreadChange::GroupStop => LaunchPhase::Held(HeldResume::Listen),
            ThreadChange::Cloned => {
                self.meet(tid);
                LaunchPhase::Held(HeldResume::Continue)
            }
            ThreadChange::Execed => {
                // The other threads are gone, and the thread that called `exec` now has the ID of
                // the main thread.
                self.threads.clear();
                self.executes = true;
                self.on_the_way = self.on_the_way.map(|_| Some(Stopped::Executed));
                LaunchPhase::Held(HeldResume::Continue)
            }
            ThreadChange::Exiting => LaunchPhase::Exiting(self.departure(tid)),
            ThreadChange::Trap
            | ThreadChange::Syscall
            | ThreadChange::Filtered
            | ThreadChange::Ended(_) => LaunchPhase::Held(HeldResume::Continue),
        };
        self.threads.insert(tid, phase);
    }

    /// True if a perf counter sent the SIGTRAP, which the thread must not receive.
    fn is_trapped(&self, tid: Tid, change: ThreadChange) -> bool {
        self.on_the_way.is_some()
            && matches!(change, ThreadChange::Signal(libc::SIGTRAP))
            && ptrace::is_from_counter(tid)
    }

    /// Records the new task that `maker` created: a thread of the command, or another process.
    fn meet(&mut self, maker: Tid) {
        let Some(tid) = ptrace::message(maker).ok().and_then(|tid| Tid::try_from(tid).ok()) else {
            return;
        };
        let is_thread = fs::exists(format!("/proc/{}/task/{tid}", self.pid)).unwrap_or(true);
        self.threads
            .insert(tid, if is_thread { LaunchPhase::Running } else { LaunchPhase::Stranger });
    }

    /// Consequence of the end of a thread in its last stop.
    fn departure(&self, tid: Tid) -> Departure {
        if ptrace::message(tid).is_ok_and(|status| status & 0x7f != 0) {
            return Departure::Process;
        }
        let Some(architecture) = ptrace::architecture(tid) else { return Departure::Thread };
        // A thread that runs user code when another thread ends it is in no system call.
        match self.call_number(tid).map(|number| (architecture, number)) {
            Some(call) if EXIT_GROUP.contains(&call) => Departure::Process,
            Some(call) if EXIT.contains(&call) => Departure::Thread,
            _ => Departure::ByAnother,
        }
    }

    /// Number of the system call that a stopped or sleeping thread is in.
    fn call_number(&self, tid: Tid) -> Option<u32> {
        let line = fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", self.pid)).ok()?;
        line.split(' ').next()?.parse().ok()
    }
}

/// True if a thread has a CPU or waits for one.
fn is_runnable(tid: Tid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('R'))
}

impl Drop for Traced {
    /// Resumes and detaches every thread.
    fn drop(&mut self) {
        if self.is_traced() {
            let _ = self.freeze();
            self.let_go();
        }
    }
}

impl LaunchPhase {
    /// True if the thread may still run user code.
    fn is_live(self) -> bool {
        self.is_free() || matches!(self, LaunchPhase::Held(_))
    }

    /// True if the end of the thread may be the end of the process.
    fn is_undecided(self) -> bool {
        self == LaunchPhase::Exiting(Departure::ByAnother)
    }

    /// True if the tracer does not hold the thread: it runs, or is in a group stop.
    fn is_free(self) -> bool {
        matches!(self, LaunchPhase::Running | LaunchPhase::Listening)
    }
}

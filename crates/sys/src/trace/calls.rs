//! Reports each memory system call of a command or of a running process, and of all its
//! descendants.
//!
//! A command gets a seccomp filter, so that only the system calls of [`names`] stop it. A running
//! process cannot get a filter, so it stops at every system call. Signals, group stops and exit
//! statuses are the same as those of untraced processes. While the caller handles a [`TraceEvent`],
//! the thread of the event is stopped.

mod numbers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::filter::SeccompFilter;
use super::start::{ExecImage, NotExecuted};
use super::wait::{self, ThreadChange};
use super::{TraceEnding, Untraced, signals};
use crate::perf_event::{self, Mode, PerfCounter, PerfScope, PerfType};
use crate::ptrace::{self, StoppedThread, SyscallStop, Tid};
use crate::system;

/// Options that are always set: they report clone, exec and exit, and distinguish system calls from
/// signals.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// Options with a filter: report the stops of the filter, and kill the remaining processes when the
/// tracer ends, since their filtered calls would fail without a tracer.
const FILTERED: i32 = OPTIONS | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;

/// `PERF_COUNT_SW_DUMMY`: counts nothing.
const NOTHING: perf_event::PerfEvent = perf_event::PerfEvent::new(PerfType::SOFTWARE, 9);
const UNPRIVILEGED: Mode = Mode {
    inherit: false,
    disabled: true,
    enable_on_exec: false,
    exclude_kernel: true,
    exclude_user: false,
};

/// Time limit for detached threads to stop. A thread that needs longer waits inside the kernel; the
/// kernel detaches it when the tracing thread ends.
const SETTLE: Duration = Duration::from_millis(500);
/// Time limit for killed processes to end. A process that needs longer waits inside the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Number of threads that are stopped at a time to be detached.
const BATCH: usize = 32;
/// Time limit for a thread of such a batch to stop; a thread that needs longer is detached later.
const PATIENCE: Duration = Duration::from_millis(2);
/// Time for which an interrupted thread is polled without a sleep: most threads stop within
/// microseconds.
const POLL: Duration = Duration::from_micros(200);
/// Number of reported changes (stops and ends of threads) after which each thread is polled once.
/// The kernel searches the threads in a fixed order, so without polls some could wait forever.
const UNFAIR: u32 = 256;
/// Number of changed threads at which polling each thread is faster than one search for each
/// change.
const MANY: u32 = 16;

/// The names of the traced system calls.
pub fn names() -> impl Iterator<Item = &'static str> {
    numbers::CALLS.iter().map(|(_, name)| *name)
}

/// An event of a traced process, with its time and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// ID of the thread.
    pub tid: u32,
    /// PID of its process.
    pub pid: u32,
    /// Time at which the tracer received the event.
    pub when: Instant,
    /// Kind of the event.
    pub event: TraceEventKind,
}

/// Kind of an event. The thread of the event is stopped, unless its process is new or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEventKind {
    /// The process is the one that the tracer attached to. All its threads are stopped.
    Attached {
        /// See `is_native` of [`TraceEventKind::Executed`].
        is_native: bool,
    },
    /// The process is new.
    Born {
        /// PID of the process that created it.
        by: u32,
        /// True if both processes share their memory: `vfork`, `clone(CLONE_VM)`.
        shares_memory: bool,
    },
    /// The process executes another program, and its memory is new.
    Executed {
        /// True if the program uses the native system call convention, so that its calls are
        /// reported; false for a 32-bit program.
        is_native: bool,
    },
    /// The thread is about to execute the instruction of [`TracedProgram::expect`].
    Arrived,
    /// The thread enters a system call.
    Entered(TracedCall),
    /// The thread leaves the system call that it entered.
    Left(Done),
    /// The thread is about to end; its memory is still readable.
    Ending,
    /// The process has ended.
    Ended(TraceEnding),
}

/// A system call at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedCall {
    /// Name of the system call.
    pub name: &'static str,
    /// Argument registers; registers that the system call does not use have leftover contents.
    pub arguments: [u64; 6],
    /// Address after the instruction that made the system call.
    pub caller: u64,
}

/// Result of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Return value, or the error number.
    pub result: Result<u64, i32>,
    /// Time from the entry to the exit of the call, including the cost of one stop.
    pub took: Duration,
}

/// System calls that stop the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStops {
    /// Only memory calls, which a seccomp filter selects.
    MemoryCalls,
    /// All system calls.
    EveryCall,
}

/// A command or a process whose memory calls are reported.
///
/// The value belongs to the thread that created it. This thread must have no other children,
/// because the tracer would reap them. Dropping the value detaches all processes; the processes of
/// a command with a filter are killed instead.
///
/// ```
/// use pagewise_sys::trace::calls::{TraceEventKind, TracedProgram};
/// let mut command = TracedProgram::spawn("sh".as_ref(), &["-c".into(), "exit 3".into()])?.expect("it can be traced");
/// let mut mapped = 0;
/// while let Some(seen) = command.next()? {
///     mapped += u32::from(matches!(seen.event, TraceEventKind::Entered(call) if call.name == "mmap"));
/// }
/// assert!(mapped > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TracedProgram {
    main: Tid,
    tasks: BTreeMap<Tid, Task>,
    /// New tasks that stopped before the clone event of their creator arrived, each with the
    /// process that created it.
    early: BTreeMap<Tid, Option<Tid>>,
    /// Tasks in a group stop.
    stopped: BTreeSet<Tid>,
    /// Stopped tasks that the next call resumes, each with its method of resuming: the task of the
    /// last change, or, after attaching, all tasks.
    held: Vec<(Tid, StoppedResume)>,
    /// The tasks that are still to be polled before a wait for any task.
    round: Vec<Tid>,
    /// Number of changes since the last round of polls began.
    changes: u32,
    /// Time since which all threads are held.
    paused: Option<Instant>,
    /// The longest time for which all threads were held.
    pause: Duration,
    /// Events that were not returned yet.
    news: VecDeque<TraceEvent>,
    stops: TraceStops,
    ending: Option<TraceEnding>,
    deadline: Option<Instant>,
    /// Signals of the terminal that are blocked while a command runs, because they are meant for
    /// the command. After the end of the command, or if the tracer attached to a running process,
    /// these signals end the tracing.
    terminal: Option<signals::HeldSignals>,
    interrupts: Option<signals::WaitInterrupts>,
    /// A counter that counts nothing. A breakpoint needs a counter in the kernel, and the first
    /// counter takes some milliseconds to open. This one is opened in advance, so that later
    /// breakpoints are set quickly.
    _readiness: Option<PerfCounter>,
    _on_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for TracedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("main", &self.main)
            .field("tasks", &self.tasks)
            .field("stops", &self.stops)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

/// A traced thread.
#[derive(Clone, Copy, Debug)]
struct Task {
    process: Tid,
    /// Entry time of the system call that the thread is in.
    call: Option<Instant>,
    /// Address of the instruction at which the thread is to stop.
    expected: Option<u64>,
}

impl Task {
    fn new(process: Tid) -> Task {
        Task { process, call: None, expected: None }
    }
}

/// Method of resuming a stopped thread.
#[derive(Clone, Copy, Debug)]
enum StoppedResume {
    /// Resume it at its next instruction.
    Continue,
    /// Return it to its group stop.
    Listen,
}

impl TracedProgram {
    /// Starts a command; the first event is that it executes its program. A name without a slash is
    /// searched for in `PATH`.
    ///
    /// # Errors
    /// As [`Traced::spawn`](super::Traced::spawn). A command that cannot be traced is not run; the
    /// inner error is the reason.
    pub fn spawn(
        program: &OsStr,
        arguments: &[OsString],
    ) -> io::Result<Result<TracedProgram, Untraced>> {
        let image = ExecImage::find(program, arguments)?;
        if image.gains_privilege_untraced() {
            return Ok(Err(Untraced::GainsPrivilege));
        }
        let filter = SeccompFilter::picking(numbers::NATIVE, numbers::all());
        let started = match TracedProgram::start(&image, filter.as_ref()) {
            Err(NotExecuted::Filter(_)) => TracedProgram::start(&image, None),
            started => started,
        };
        started.map_err(|error| match error {
            NotExecuted::Program(error) | NotExecuted::Filter(error) => error,
        })
    }

    fn start(
        image: &ExecImage,
        filter: Option<&SeccompFilter>,
    ) -> Result<Result<TracedProgram, Untraced>, NotExecuted> {
        wait::keep_ends();
        let mut newborn = image.fork(filter).map_err(NotExecuted::Program)?;
        let child = newborn.pid;
        if let Err(error) = ptrace::seize(child, if filter.is_some() { FILTERED } else { OPTIONS })
        {
            // The child ends, since it never receives the message to execute its program.
            drop(newborn);
            wait::any().map_err(NotExecuted::Program)?;
            return Ok(Err(Untraced::Refused(error.raw_os_error().unwrap_or(0))));
        }
        let stops = if filter.is_some() { TraceStops::MemoryCalls } else { TraceStops::EveryCall };
        let mut watched = TracedProgram::new(child, stops);
        watched.tasks.insert(child, Task::new(child));
        watched.terminal = Some(signals::HeldSignals::hold());
        newborn.go().and_then(|()| watched.run_to_exec()).map_err(NotExecuted::Program)?;
        newborn.failure().map_or(Ok(Ok(watched)), Err)
    }

    /// Starts to trace a running process, until the deadline, or until SIGINT, SIGTERM, SIGHUP or a
    /// stop signal of the terminal arrives. If a stop signal stopped this process, no tracer would
    /// resume the traced process after its next system call.
    ///
    /// As after a SIGSTOP and SIGCONT, a few system calls (`epoll_wait`) return EINTR when tracing
    /// begins and ends. A thread that has not stopped within `max_pause` is not waited for: it
    /// waits inside the kernel, or for a CPU.
    ///
    /// # Errors
    /// `EPERM` without permission to trace the process or if another tracer is attached, `ESRCH` if
    /// the process does not exist.
    pub fn attach(
        pid: u32,
        deadline: Option<Instant>,
        max_pause: Duration,
    ) -> io::Result<TracedProgram> {
        let main = Tid::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let mut watched = TracedProgram::new(main, TraceStops::EveryCall);
        watched.deadline = deadline;
        watched.interrupts = Some(signals::WaitInterrupts::catch_all());
        // Seizing a thread does not stop it, so all threads are seized before the pause.
        watched.seize_all()?;
        watched.hold_all(max_pause.min(SETTLE));
        Ok(watched)
    }

    fn new(main: Tid, stops: TraceStops) -> TracedProgram {
        TracedProgram {
            main,
            tasks: BTreeMap::new(),
            early: BTreeMap::new(),
            stopped: BTreeSet::new(),
            held: Vec::new(),
            round: Vec::new(),
            changes: 0,
            paused: None,
            pause: Duration::ZERO,
            news: VecDeque::new(),
            stops,
            ending: None,
            deadline: None,
            terminal: None,
            interrupts: None,
            _readiness: PerfCounter::open(NOTHING, PerfScope::ThisThread, UNPRIVILEGED, None).ok(),
            _on_this_thread: PhantomData,
        }
    }

    /// Seizes every thread of a process. The kernel also seizes the threads that seized threads
    /// create.
    fn seize_all(&mut self) -> io::Result<()> {
        let mut refused = io::Error::from_raw_os_error(libc::ESRCH);
        loop {
            let mut found_more = false;
            for tid in threads(self.main)? {
                if self.tasks.contains_key(&tid) {
                    continue;
                }
                match ptrace::seize(tid, OPTIONS) {
                    Ok(()) => {
                        self.tasks.insert(tid, Task::new(self.main));
                        found_more = true;
                    }
                    // The thread has ended, or this process traces it already.
                    Err(error) => refused = error,
                }
            }
            if !found_more {
                return if self.tasks.is_empty() { Err(refused) } else { Ok(()) };
            }
        }
    }

    /// Stops the threads that were seized, and the threads that they create meanwhile.
    fn hold_all(&mut self, limit: Duration) {
        let begin = Instant::now();
        self.paused = Some(begin);
        self.tasks.keys().for_each(|&tid| ptrace::interrupt(tid));
        let mut known = BTreeSet::new();
        loop {
            let new = self.tasks.keys().copied().filter(|tid| !known.contains(tid));
            let new: Vec<Tid> = new.collect();
            if new.is_empty() {
                break;
            }
            for &tid in &new {
                self.hold(tid, begin + limit);
            }
            known.extend(new);
        }
        let stopped = self.held.first().and_then(|(tid, _)| ptrace::architecture(*tid));
        let is_native = stopped.is_none_or(|architecture| architecture == numbers::NATIVE);
        self.tell(self.main, TraceEventKind::Attached { is_native });
        self.news.rotate_right(1);
    }

    /// Waits until a thread that was interrupted, or is new, has stopped or ended.
    fn hold(&mut self, tid: Tid, until: Instant) {
        while let Some(change) = change_by(tid, until) {
            self.note(tid, change);
            if !matches!(change, ThreadChange::Signal(_)) {
                break;
            }
        }
    }

    /// The longest time for which all threads of the process were stopped at once; `None` if they
    /// never were.
    pub fn pause(&self) -> Option<Duration> {
        Some(self.pause).filter(|pause| !pause.is_zero())
    }

    /// System calls that stop the processes.
    pub fn stops(&self) -> TraceStops {
        self.stops
    }

    /// The process ID of the command, or of the process that the tracer attached to.
    pub fn pid(&self) -> u32 {
        self.main.unsigned_abs()
    }

    /// Ending of the command, or of the first traced process; `None` while it runs.
    pub fn ending(&self) -> Option<TraceEnding> {
        self.ending
    }

    /// The traced processes that have not ended.
    pub fn processes(&self) -> BTreeSet<u32> {
        self.tasks.values().map(|task| task.process.unsigned_abs()).collect()
    }

    /// Resumes the thread of the last event, and waits for the next event. `None` if every process
    /// has ended, the deadline has passed, or one of the signals of [`TracedProgram::attach`]
    /// arrived. While a command runs, signals do not end its tracing.
    ///
    /// # Errors
    /// Those of `waitpid`.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not fail")]
    pub fn next(&mut self) -> io::Result<Option<TraceEvent>> {
        loop {
            if let Some(seen) = self.news.pop_front() {
                return Ok(Some(seen));
            }
            self.release();
            if self.is_over() {
                return Ok(None);
            }
            if let Some((tid, change)) = self.change()? {
                self.stopped.remove(&tid);
                self.note(tid, change);
            }
        }
    }

    /// Returns the next change of any task. If there are many changes, or a round of polls is due,
    /// each task is polled before the tracer waits for any task.
    fn change(&mut self) -> io::Result<Option<(Tid, ThreadChange)>> {
        if let Some(tid) = self.round.pop() {
            let change = wait::look_if_ours(tid)?;
            self.changes += u32::from(change.is_some());
            if self.round.is_empty() {
                self.changes = if self.changes >= MANY { UNFAIR } else { 0 };
            }
            return Ok(change.map(|change| (tid, change)));
        }
        let found = wait::any()?;
        self.changes += u32::from(found.is_some());
        if self.changes > UNFAIR {
            self.ask_each();
        }
        Ok(found)
    }

    fn ask_each(&mut self) {
        self.round = self.tasks.keys().copied().collect();
        self.changes = 0;
    }

    /// Resumes the thread of the last event, or, after attaching, all threads of the process.
    /// Without this call, [`TracedProgram::next`] resumes them.
    pub fn go_on(&mut self) {
        self.release();
    }

    /// Sets a breakpoint, so that the thread of the last event stops once more at an instruction of
    /// its program. The event must be [`TraceEventKind::Executed`]. Returns true if the breakpoint
    /// is set. With [`TraceStops::EveryCall`] it is not set: if this process were killed, the
    /// traced process would continue and keep the breakpoint.
    pub fn expect(&mut self, address: u64) -> bool {
        let Some(&(tid, _)) = self.held.last() else { return false };
        if self.stops == TraceStops::EveryCall {
            return false;
        }
        let is_set = ptrace::break_at(tid, address).is_ok();
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.expected = is_set.then_some(address);
        }
        is_set
    }

    /// Runs until the child has executed its program and holds it there, or until the child has
    /// ended.
    fn run_to_exec(&mut self) -> io::Result<()> {
        while let Some(seen) = self.next()? {
            if matches!(seen.event, TraceEventKind::Executed { .. }) {
                self.news.push_front(seen);
                break;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let nobody_is_left = self.tasks.is_empty() && self.early.is_empty();
        nobody_is_left
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || self.interrupts.as_ref().is_some_and(signals::WaitInterrupts::came)
    }

    /// Resumes the held tasks: the task of the last change, or, after attaching, all tasks.
    fn release(&mut self) {
        while let Some((tid, go_on)) = self.held.pop() {
            match go_on {
                StoppedResume::Continue => self.resume(tid, 0),
                StoppedResume::Listen => {
                    ptrace::listen(tid);
                    self.stopped.insert(tid);
                }
            }
        }
        if let Some(paused) = self.paused.take() {
            self.pause = self.pause.max(paused.elapsed());
            // Most threads stop soon, at the exit of the system call that was interrupted.
            self.ask_each();
            self.changes = MANY;
        }
        if let Some(terminal) = &mut self.terminal {
            // A Ctrl-Z that stopped the command also stops this process.
            terminal.let_stops_pass(!self.stopped.is_empty());
        }
    }

    fn resume(&mut self, tid: Tid, signal: i32) {
        let call = self.tasks.get_mut(&tid).and_then(|task| task.call.as_mut());
        if let Some(since) = call {
            *since = Instant::now();
        } else if self.stops == TraceStops::MemoryCalls {
            return ptrace::resume(tid, signal);
        }
        ptrace::resume_to_syscall(tid, signal);
    }

    /// Records the change of a task, and the method of resuming the task. A task that is about to
    /// receive a signal is resumed at once: if its stop were consumed and this process were killed,
    /// the kernel would drop the signal.
    fn note(&mut self, tid: Tid, change: ThreadChange) {
        let mut go_on = StoppedResume::Continue;
        match change {
            ThreadChange::Ended(ending) => return self.bury(tid, ending),
            ThreadChange::Execed => self.replace(tid),
            ThreadChange::Signal(libc::SIGTRAP) if self.has_arrived(tid) => {
                self.tell(tid, TraceEventKind::Arrived);
            }
            ThreadChange::Signal(signal) => return self.resume(tid, signal),
            _ if !self.tasks.contains_key(&tid) => {
                // The new task stays stopped until its clone event arrives.
                let _ = wait::take_change(tid);
                let maker = maker_of(tid);
                self.early.insert(tid, maker);
                if !maker.is_some_and(|maker| self.has_task_of(maker)) {
                    // The parent was killed before it could report the child.
                    self.adopt(tid, maker.unwrap_or(tid));
                }
                return;
            }
            ThreadChange::GroupStop => go_on = StoppedResume::Listen,
            ThreadChange::Trap => {}
            ThreadChange::Syscall | ThreadChange::Filtered => {
                if let Some(event) = self.call(tid) {
                    self.tell(tid, event);
                }
            }
            ThreadChange::Cloned => self.meet(tid),
            ThreadChange::Exiting => self.tell(tid, TraceEventKind::Ending),
        }
        self.held.push((tid, go_on));
    }

    fn tell(&mut self, tid: Tid, event: TraceEventKind) {
        let pid = self.tasks.get(&tid).map_or(tid, |task| task.process);
        let when = Instant::now();
        let seen = TraceEvent { tid: tid.unsigned_abs(), pid: pid.unsigned_abs(), when, event };
        self.news.push_back(seen);
    }

    /// Returns the event of a stop at a system call; `None` if the call is not one of [`names`].
    fn call(&mut self, tid: Tid) -> Option<TraceEventKind> {
        let StoppedThread { architecture, instruction, place } = ptrace::at(tid)?;
        let task = self.tasks.get_mut(&tid)?;
        match place {
            SyscallStop::Entry { number, arguments } if architecture == numbers::NATIVE => {
                let name = numbers::name(number)?;
                task.call = Some(Instant::now());
                Some(TraceEventKind::Entered(TracedCall { name, arguments, caller: instruction }))
            }
            SyscallStop::Exit { value, is_error } => {
                let took = task.call.take()?.elapsed();
                let errno = i32::try_from(value.saturating_neg()).unwrap_or(i32::MAX);
                let result = if is_error { Err(errno) } else { Ok(value.cast_unsigned()) };
                Some(TraceEventKind::Left(Done { result, took }))
            }
            SyscallStop::Entry { .. } | SyscallStop::Outside => None,
        }
    }

    /// True if a thread is at its expected instruction; the breakpoint is then removed.
    fn has_arrived(&mut self, tid: Tid) -> bool {
        let Some(task) = self.tasks.get_mut(&tid) else { return false };
        let is_there =
            task.expected.is_some() && task.expected == ptrace::at(tid).map(|at| at.instruction);
        if is_there {
            task.expected = None;
            ptrace::break_nowhere(tid);
        }
        is_there
    }

    /// Handles an `exec`, after which the only thread has the ID of the process.
    fn replace(&mut self, pid: Tid) {
        self.adopt_those_of(pid);
        self.tasks.retain(|_, task| task.process != pid);
        self.tasks.insert(pid, Task::new(pid));
        let is_native = ptrace::architecture(pid) == Some(numbers::NATIVE);
        self.tell(pid, TraceEventKind::Executed { is_native });
    }

    /// Adds the task whose creation `maker` has reported by a clone event.
    fn meet(&mut self, maker: Tid) {
        let child = ptrace::message(maker).ok().and_then(|tid| Tid::try_from(tid).ok());
        if let Some(child) = child {
            self.adopt(child, maker);
        }
    }

    /// Adds a thread or a process that `maker` created.
    fn adopt(&mut self, child: Tid, maker: Tid) {
        if self.tasks.contains_key(&child) {
            return;
        }
        let by = self.tasks.get(&maker).map_or(maker, |task| task.process);
        let is_thread = fs::exists(format!("/proc/{by}/task/{child}")).unwrap_or(false);
        self.tasks.insert(child, Task::new(if is_thread { by } else { child }));
        if !is_thread {
            let shares_memory = system::shares_memory(maker.unsigned_abs(), child.unsigned_abs());
            let shares_memory = shares_memory.unwrap_or(false);
            self.tell(child, TraceEventKind::Born { by: by.unsigned_abs(), shares_memory });
        }
        if self.early.remove(&child).is_some() {
            self.resume(child, 0);
        }
    }

    fn has_task_of(&self, process: Tid) -> bool {
        self.tasks.values().any(|task| task.process == process)
    }

    /// Adds the tasks in `early` that `process` created, because the process has ended or executed
    /// another program and will not report them by clone events.
    fn adopt_those_of(&mut self, process: Tid) {
        let theirs = self.early.iter().filter(|(_, maker)| **maker == Some(process));
        let orphans: Vec<Tid> = theirs.map(|(&tid, _)| tid).collect();
        for tid in orphans {
            self.adopt(tid, process);
        }
    }

    /// Removes a task that has ended. Only the end of a process is an event.
    fn bury(&mut self, tid: Tid, ending: TraceEnding) {
        self.early.remove(&tid);
        let Some(task) = self.tasks.remove(&tid) else { return };
        if task.process == tid {
            self.tell(tid, TraceEventKind::Ended(ending));
            self.adopt_those_of(tid);
        }
        if tid == self.main {
            self.ending = Some(ending);
            if self.terminal.take().is_some() {
                // The command has ended, so the signals of the terminal are not for it any more.
                self.interrupts = Some(signals::WaitInterrupts::catch());
            }
        }
    }

    /// Detaches all tasks: a process that the tracer attached to continues unchanged. The remaining
    /// processes of a command with a filter are killed, since their filtered calls would fail
    /// without a tracer.
    pub fn leave(&mut self) {
        match self.stops {
            _ if self.tasks.is_empty() && self.early.is_empty() => {}
            TraceStops::MemoryCalls => self.end_all(),
            TraceStops::EveryCall => self.detach_all(),
        }
    }

    fn end_all(&mut self) {
        // Without the timer of `interrupts`, a wait might last beyond the time limit.
        let _ticks = self.interrupts.take().unwrap_or_else(signals::WaitInterrupts::catch_all);
        self.tasks.keys().chain(self.early.keys()).for_each(|&tid| kill(tid));
        // Each task stops once more before it ends, and stays stopped unless it is resumed.
        let until = Instant::now() + KILL_LIMIT;
        while Instant::now() < until {
            match wait::any() {
                Ok(Some((tid, ThreadChange::Ended(_)))) => {
                    self.tasks.remove(&tid);
                    self.early.remove(&tid);
                }
                Ok(Some((tid, change))) => {
                    let is_known = self.tasks.contains_key(&tid) || self.early.contains_key(&tid);
                    if change == ThreadChange::Trap && !is_known {
                        // The task is a child that a killed process created before its end.
                        kill(tid);
                    }
                    ptrace::resume(tid, 0);
                }
                // A signal, most likely of the timer, interrupted the wait.
                Ok(None) => {}
                // No task is left.
                Err(_) => break,
            }
        }
    }

    /// Detaches all tasks in batches, so that no thread is stopped for long.
    fn detach_all(&mut self) {
        let _ticks = self.interrupts.take().unwrap_or_else(signals::WaitInterrupts::catch_all);
        let until = Instant::now() + SETTLE;
        let mut leaving = Leaving { met: BTreeSet::new() };
        for (tid, _) in std::mem::take(&mut self.held) {
            self.detach(tid, ThreadChange::Trap, &mut leaving);
        }
        for (tid, _) in std::mem::take(&mut self.early) {
            self.detach(tid, ThreadChange::Trap, &mut leaving);
        }
        let mut first = true;
        while !self.tasks.is_empty() && (first || Instant::now() < until) {
            let left: Vec<Tid> = self.tasks.keys().copied().collect();
            for batch in left.chunks(BATCH) {
                if first {
                    batch.iter().for_each(|&tid| ptrace::interrupt(tid));
                }
                let patience = Instant::now() + PATIENCE;
                for &tid in batch {
                    if self.tasks.contains_key(&tid)
                        && let Some(change) = change_by(tid, patience)
                    {
                        self.detach(tid, change, &mut leaving);
                    }
                }
                // The remaining threads have reached a system call meanwhile, or are new.
                loop {
                    match wait::any_now() {
                        Ok(Some((tid, change))) => self.detach(tid, change, &mut leaving),
                        Ok(None) => break,
                        // No task is traced any more.
                        Err(_) => return self.tasks.clear(),
                    }
                }
            }
            first = false;
        }
    }

    /// Detaches a stopped task, which runs on.
    fn detach(&mut self, tid: Tid, change: ThreadChange, leaving: &mut Leaving) {
        let was_known = self.tasks.remove(&tid).is_some();
        if !was_known {
            leaving.met.insert(tid);
        }
        let child =
            matches!(change, ThreadChange::Cloned).then(|| ptrace::message(tid).ok()).flatten();
        match change {
            ThreadChange::Ended(_) => {}
            ThreadChange::Signal(signal) => drop(ptrace::detach(tid, signal)),
            _ => drop(ptrace::detach(tid, 0)),
        }
        // A new child is traced from its first instruction, so it must be detached too.
        let child = child.and_then(|tid| Tid::try_from(tid).ok());
        if let Some(child) = child.filter(|child| !leaving.met.contains(child)) {
            self.tasks.insert(child, Task::new(child));
        }
    }
}

/// Tasks that were detached before the clone event of their creator arrived.
struct Leaving {
    met: BTreeSet<Tid>,
}

/// Waits until the time `until` for an event of a thread.
fn change_by(tid: Tid, until: Instant) -> Option<ThreadChange> {
    let begin = Instant::now();
    loop {
        if let Some(change) = wait::look_if_ours(tid).ok()? {
            return Some(change);
        }
        match Instant::now() {
            now if now >= until => return None,
            now if now - begin < POLL => std::thread::yield_now(),
            _ => std::thread::sleep(POLL / 4),
        }
    }
}

impl Drop for TracedProgram {
    fn drop(&mut self) {
        self.leave();
    }
}

fn kill(tid: Tid) {
    // SAFETY: the call uses numbers only. The task is a traced child that was not waited for, so
    // the kernel has not reused its ID.
    unsafe { libc::kill(tid, libc::SIGKILL) };
}

fn threads(pid: Tid) -> io::Result<Vec<Tid>> {
    let gone = |_| io::Error::from_raw_os_error(libc::ESRCH);
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)?;
    let tid = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(tid).collect())
}

/// Returns the process of a new thread, or the parent of a new process.
fn maker_of(tid: Tid) -> Option<Tid> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let id =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    id("Tgid:").filter(|process| *process != tid).or_else(|| id("PPid:"))
}

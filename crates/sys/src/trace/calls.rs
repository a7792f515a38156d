//! The memory system calls of a command or of a running process, one by one, with those of all its descendants.
//!
//! A command gets a seccomp filter, so that nothing but the calls of [`names`] stops it. A running process cannot be
//! given one: it stops at every system call. Signals, group stops and exit statuses are as without us. While an
//! [`Event`] is looked at, the thread that it is of is stopped, so its files in `/proc` hold still.

mod numbers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::filter::Filter;
use super::start::{Image, NotExecuted};
use super::wait::{self, Change};
use super::{Ending, Untraced, signals};
use crate::perf_event::{self, Counter, Kind, Mode, Whose};
use crate::ptrace::{self, At, Place, Tid};
use crate::system;

/// The stops that we always ask for: who makes a process, executes or ends says so, and system calls are told from
/// signals.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// With a filter: its stops, and that nobody is left over whose calls would fail without us.
const FILTERED: i32 = OPTIONS | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;

/// `PERF_COUNT_SW_DUMMY`: counts nothing.
const NOTHING: perf_event::Event = perf_event::Event::new(Kind::SOFTWARE, 9);
const UNPRIVILEGED: Mode = Mode {
    inherit: false,
    disabled: true,
    enable_on_exec: false,
    exclude_kernel: true,
    exclude_user: false,
};

/// How long threads that are let go may take to stop for it. One that takes longer waits inside the kernel; it is let
/// go when this thread ends.
const SETTLE: Duration = Duration::from_millis(500);
/// Threads that are let go are stopped so many at a time.
const BATCH: usize = 32;
/// Of those, one that does not stop within this time comes last.
const PATIENCE: Duration = Duration::from_millis(2);
/// A thread that was interrupted is asked for without a sleep for this time: most stop within microseconds.
const POLL: Duration = Duration::from_micros(200);
/// The kernel finds one changed thread by going through all, in the same order each time. After so many, each is asked once, so
/// that none waits forever.
const UNFAIR: u32 = 256;
/// Each is asked again where so many had changed: that is quicker than to go through all for each change.
const MANY: u32 = 16;

/// The names of the calls that are watched.
pub fn names() -> impl Iterator<Item = &'static str> {
    numbers::CALLS.iter().map(|(_, name)| *name)
}

/// What happened, when, and to which thread of which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// When we saw it.
    pub when: Instant,
    /// What.
    pub event: Event,
}

/// What happened to a thread. It is stopped there, but where its process is new or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is the process that we attached to. All its threads are stopped.
    Attached {
        /// As of [`Event::Executed`].
        is_native: bool,
    },
    /// It is a new process.
    Born {
        /// The process that made it.
        by: u32,
        /// Whether both use one memory: `vfork`, `clone(CLONE_VM)`.
        shares_memory: bool,
    },
    /// It executes another program: its memory is new.
    Executed {
        /// Whether the program's calls are those of this machine, and seen: not those of a 32-bit program.
        is_native: bool,
    },
    /// It is about to execute the instruction that [`Watched::expect`] was told.
    Arrived,
    /// It makes a call.
    Entered(Call),
    /// The call that it made is done.
    Left(Done),
    /// It ends next; its memory is still there.
    Ending,
    /// Its process has ended.
    Ended(Ending),
}

/// A system call as it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// What was passed, with what happened to be in the registers that it does not use.
    pub arguments: [u64; 6],
    /// The address after the instruction that made it.
    pub caller: u64,
}

/// How a system call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What it returned, or the error number.
    pub result: Result<u64, i32>,
    /// From its start to its end, the cost of one stop included.
    pub took: Duration,
}

/// Which system calls stop the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stops {
    /// Those about memory only: a filter in the kernel picks them out.
    MemoryCalls,
    /// All.
    EveryCall,
}

/// A command or a process whose memory calls we see.
///
/// It belongs to the thread that made it, which must have no other children: their ends would be taken. Dropping it
/// lets a process run on by itself, and ends what is left of a command that got a filter.
///
/// ```
/// use pagewise_sys::trace::calls::{Event, Watched};
/// let mut command = Watched::spawn("sh".as_ref(), &["-c".into(), "exit 3".into()])?.expect("it can be traced");
/// let mut mapped = 0;
/// while let Some(seen) = command.next()? {
///     mapped += u32::from(matches!(seen.event, Event::Entered(call) if call.name == "mmap"));
/// }
/// assert!(mapped > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Watched {
    main: Tid,
    tasks: BTreeMap<Tid, Task>,
    /// New tasks that have stopped before their maker told us of them, and the process that made them.
    early: BTreeMap<Tid, Option<Tid>>,
    /// Those in a group stop.
    stopped: BTreeSet<Tid>,
    /// The task that the last change was of, and how it goes on; at first all of a process that was running.
    held: Vec<(Tid, Resume)>,
    /// The tasks that are still to be asked before any is waited for.
    round: Vec<Tid>,
    /// How many changes were seen since the last round began.
    changes: u32,
    /// Since when all threads are held.
    paused: Option<Instant>,
    /// The longest time for which all were.
    pause: Duration,
    /// What has happened and was not yet told.
    news: VecDeque<Seen>,
    stops: Stops,
    ending: Option<Ending>,
    deadline: Option<Instant>,
    /// While a command runs, the signals of the terminal are for it; else they end the watching.
    terminal: Option<signals::Held>,
    interrupts: Option<signals::Interrupts>,
    /// While a counter is open, the kernel is ready to set debug registers: the first takes it some milliseconds.
    _readiness: Option<Counter>,
    _on_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("main", &self.main)
            .field("tasks", &self.tasks)
            .field("stops", &self.stops)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

/// A thread.
#[derive(Clone, Copy, Debug)]
struct Task {
    process: Tid,
    /// Since when the call goes on that it is in.
    call: Option<Instant>,
    /// The instruction at which it is to stop.
    expected: Option<u64>,
}

impl Task {
    fn of(process: Tid) -> Task {
        Task { process, call: None, expected: None }
    }
}

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug)]
enum Resume {
    /// Where it was.
    Continue,
    /// Back into its group stop.
    Listen,
}

impl Watched {
    /// Starts a command; the first event is that it executes its program. A name without a slash is searched for in
    /// `PATH`.
    ///
    /// # Errors
    /// As [`Traced::spawn`](super::Traced::spawn). A command that cannot be traced is not run; the value says why.
    pub fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Result<Watched, Untraced>> {
        let image = Image::find(program, arguments)?;
        if image.gains_privilege_untraced() {
            return Ok(Err(Untraced::GainsPrivilege));
        }
        let filter = Filter::picking(numbers::NATIVE, numbers::all());
        let started = match Watched::start(&image, filter.as_ref()) {
            Err(NotExecuted::Filter(_)) => Watched::start(&image, None),
            started => started,
        };
        started.map_err(|error| match error {
            NotExecuted::Program(error) | NotExecuted::Filter(error) => error,
        })
    }

    fn start(
        image: &Image,
        filter: Option<&Filter>,
    ) -> Result<Result<Watched, Untraced>, NotExecuted> {
        wait::keep_ends();
        let mut newborn = image.fork(filter).map_err(NotExecuted::Program)?;
        let child = newborn.pid;
        if let Err(error) = ptrace::seize(child, if filter.is_some() { FILTERED } else { OPTIONS })
        {
            // It ends, since it is never told to execute.
            drop(newborn);
            wait::any().map_err(NotExecuted::Program)?;
            return Ok(Err(Untraced::Refused(error.raw_os_error().unwrap_or(0))));
        }
        let stops = if filter.is_some() { Stops::MemoryCalls } else { Stops::EveryCall };
        let mut watched = Watched::new(child, stops);
        watched.tasks.insert(child, Task::of(child));
        watched.terminal = Some(signals::Held::hold());
        newborn.go().and_then(|()| watched.run_to_exec()).map_err(NotExecuted::Program)?;
        newborn.failure().map_or(Ok(Ok(watched)), Err)
    }

    /// Begins to watch a running process, until a time if there is one, or until SIGINT, SIGTERM, SIGHUP or a stop signal of the
    /// terminal come: if we stopped, so would the process at its next system call.
    ///
    /// As after a SIGSTOP and SIGCONT, a few system calls (`epoll_wait`) answer EINTR when it begins and ends. A thread that has
    /// not stopped within `max_pause` is not waited for: it waits inside the kernel, or for a CPU.
    ///
    /// # Errors
    /// `EPERM` where we may not trace it or another tracer does, `ESRCH` where it is not there.
    pub fn attach(pid: u32, deadline: Option<Instant>, max_pause: Duration) -> io::Result<Watched> {
        let main = Tid::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let mut watched = Watched::new(main, Stops::EveryCall);
        watched.deadline = deadline;
        watched.interrupts = Some(signals::Interrupts::catch_all());
        // The kernel sets a tracee up without stopping it: what can be done before the pause is.
        watched.seize_all()?;
        watched.hold_all(max_pause.min(SETTLE));
        Ok(watched)
    }

    fn new(main: Tid, stops: Stops) -> Watched {
        Watched {
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
            _readiness: Counter::open(NOTHING, Whose::ThisThread, UNPRIVILEGED, None).ok(),
            _on_this_thread: PhantomData,
        }
    }

    /// Seizes every thread of a process. New ones of those that are seized already come by themselves.
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
                        self.tasks.insert(tid, Task::of(self.main));
                        found_more = true;
                    }
                    // It has ended, or it is ours already.
                    Err(error) => refused = error,
                }
            }
            if !found_more {
                return if self.tasks.is_empty() { Err(refused) } else { Ok(()) };
            }
        }
    }

    /// Stops the threads that were seized, and those that they make meanwhile.
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
        self.tell(self.main, Event::Attached { is_native });
        self.news.rotate_right(1);
    }

    /// Waits until a thread that was interrupted, or is new, has stopped or ended.
    fn hold(&mut self, tid: Tid, until: Instant) {
        while let Some(change) = change_by(tid, until) {
            self.note(tid, change);
            if !matches!(change, Change::Signal(_)) {
                break;
            }
        }
    }

    /// The longest time for which all threads of the process were stopped at once, if they were.
    pub fn pause(&self) -> Option<Duration> {
        Some(self.pause).filter(|pause| !pause.is_zero())
    }

    /// Which system calls stop the processes.
    pub fn stops(&self) -> Stops {
        self.stops
    }

    /// The process id of the command, or of the process that was watched first.
    pub fn pid(&self) -> u32 {
        self.main.unsigned_abs()
    }

    /// How the command ended, or the process that was watched first; `None` while it runs.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The processes that are still there.
    pub fn processes(&self) -> BTreeSet<u32> {
        self.tasks.values().map(|task| task.process.unsigned_abs()).collect()
    }

    /// Lets the thread of the last event go on, and waits for the next one. `None` where every process has ended, the
    /// time is up, or the user has had enough: for a command that is only asked once it has ended itself.
    ///
    /// # Errors
    /// Those of `waitpid`.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not fail")]
    pub fn next(&mut self) -> io::Result<Option<Seen>> {
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

    /// What is new of any task. Each is asked in turn before any is waited for, where there are many changes or it is time.
    fn change(&mut self) -> io::Result<Option<(Tid, Change)>> {
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

    /// Lets the thread of the last event go on, or all of a process that was attached to, before [`Watched::next`] does it.
    pub fn go_on(&mut self) {
        self.release();
    }

    /// Lets the thread of the last event, which must be an [`Event::Executed`], stop once more at an instruction of
    /// its program. Returns whether it will: not a process that would outlive us, and keep the breakpoint, if we were killed.
    pub fn expect(&mut self, address: u64) -> bool {
        let Some(&(tid, _)) = self.held.last() else { return false };
        if self.stops == Stops::EveryCall {
            return false;
        }
        let is_set = ptrace::break_at(tid, address).is_ok();
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.expected = is_set.then_some(address);
        }
        is_set
    }

    /// Runs until the program replaces ours in the child and holds it there, or until the child has ended.
    fn run_to_exec(&mut self) -> io::Result<()> {
        while let Some(seen) = self.next()? {
            if matches!(seen.event, Event::Executed { .. }) {
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
            || self.interrupts.as_ref().is_some_and(signals::Interrupts::came)
    }

    /// Lets the task of the last change go on.
    fn release(&mut self) {
        while let Some((tid, go_on)) = self.held.pop() {
            match go_on {
                Resume::Continue => self.resume(tid, 0),
                Resume::Listen => {
                    ptrace::listen(tid);
                    self.stopped.insert(tid);
                }
            }
        }
        if let Some(paused) = self.paused.take() {
            self.pause = self.pause.max(paused.elapsed());
            // Most are at a system call soon: at the one that was interrupted.
            self.ask_each();
            self.changes = MANY;
        }
        if let Some(terminal) = &mut self.terminal {
            // A Ctrl-Z that the command obeyed stops us too.
            terminal.let_stops_pass(!self.stopped.is_empty());
        }
    }

    fn resume(&mut self, tid: Tid, signal: i32) {
        let call = self.tasks.get_mut(&tid).and_then(|task| task.call.as_mut());
        if let Some(since) = call {
            *since = Instant::now();
        } else if self.stops == Stops::MemoryCalls {
            return ptrace::resume(tid, signal);
        }
        ptrace::resume_to_syscall(tid, signal);
    }

    /// Notes what became of a task, and how it is to go on. One that is about to receive a signal goes on at once: if its stop
    /// were taken and we were killed, the kernel would drop the signal.
    fn note(&mut self, tid: Tid, change: Change) {
        let mut go_on = Resume::Continue;
        match change {
            Change::Ended(ending) => return self.bury(tid, ending),
            Change::Execed => self.replace(tid),
            Change::Signal(libc::SIGTRAP) if self.has_arrived(tid) => {
                self.tell(tid, Event::Arrived);
            }
            Change::Signal(signal) => return self.resume(tid, signal),
            _ if !self.tasks.contains_key(&tid) => {
                self.early.insert(tid, maker_of(tid));
                // It waits there while others are waited for.
                let _ = wait::take(tid);
                return;
            }
            Change::GroupStop => go_on = Resume::Listen,
            Change::Trap => {}
            Change::Syscall | Change::Filtered => {
                if let Some(event) = self.call(tid) {
                    self.tell(tid, event);
                }
            }
            Change::Cloned => self.meet(tid),
            Change::Exiting => self.tell(tid, Event::Ending),
        }
        self.held.push((tid, go_on));
    }

    fn tell(&mut self, tid: Tid, event: Event) {
        let pid = self.tasks.get(&tid).map_or(tid, |task| task.process);
        let when = Instant::now();
        let seen = Seen { tid: tid.unsigned_abs(), pid: pid.unsigned_abs(), when, event };
        self.news.push_back(seen);
    }

    /// A stop at a system call: the event that it is, if it is one.
    fn call(&mut self, tid: Tid) -> Option<Event> {
        let At { architecture, instruction, place } = ptrace::at(tid)?;
        let task = self.tasks.get_mut(&tid)?;
        match place {
            Place::Entry { number, arguments } if architecture == numbers::NATIVE => {
                let name = numbers::name(number)?;
                task.call = Some(Instant::now());
                Some(Event::Entered(Call { name, arguments, caller: instruction }))
            }
            Place::Exit { value, is_error } => {
                let took = task.call.take()?.elapsed();
                let errno = i32::try_from(value.saturating_neg()).unwrap_or(i32::MAX);
                let result = if is_error { Err(errno) } else { Ok(value.cast_unsigned()) };
                Some(Event::Left(Done { result, took }))
            }
            Place::Entry { .. } | Place::Outside => None,
        }
    }

    /// Whether a thread is at the instruction that was expected; then that is over.
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

    /// Another program: of the threads only one is left, and it has the id of the process.
    fn replace(&mut self, pid: Tid) {
        self.adopt_those_of(pid);
        self.tasks.retain(|_, task| task.process != pid);
        self.tasks.insert(pid, Task::of(pid));
        let is_native = ptrace::architecture(pid) == Some(numbers::NATIVE);
        self.tell(pid, Event::Executed { is_native });
    }

    /// Takes in what `maker` made.
    fn meet(&mut self, maker: Tid) {
        let child = ptrace::message(maker).ok().and_then(|tid| Tid::try_from(tid).ok());
        if let Some(child) = child {
            self.adopt(child, maker);
        }
    }

    /// Takes in a thread, or a process, of which an event tells.
    fn adopt(&mut self, child: Tid, maker: Tid) {
        if self.tasks.contains_key(&child) {
            return;
        }
        let by = self.tasks.get(&maker).map_or(maker, |task| task.process);
        let is_thread = fs::exists(format!("/proc/{by}/task/{child}")).unwrap_or(false);
        self.tasks.insert(child, Task::of(if is_thread { by } else { child }));
        if !is_thread {
            let shares_memory = system::shares_memory(maker.unsigned_abs(), child.unsigned_abs());
            let shares_memory = shares_memory.unwrap_or(false);
            self.tell(child, Event::Born { by: by.unsigned_abs(), shares_memory });
        }
        if self.early.remove(&child).is_some() {
            self.resume(child, 0);
        }
    }

    /// Takes in what a process made and can no longer tell us of.
    fn adopt_those_of(&mut self, process: Tid) {
        let theirs = self.early.iter().filter(|(_, maker)| **maker == Some(process));
        let orphans: Vec<Tid> = theirs.map(|(&tid, _)| tid).collect();
        for tid in orphans {
            self.adopt(tid, process);
        }
    }

    /// The end of a task. An event tells of that of a process.
    fn bury(&mut self, tid: Tid, ending: Ending) {
        self.early.remove(&tid);
        let Some(task) = self.tasks.remove(&tid) else { return };
        if task.process == tid {
            self.tell(tid, Event::Ended(ending));
            self.adopt_those_of(tid);
        }
        if tid == self.main {
            self.ending = Some(ending);
            if self.terminal.take().is_some() {
                // The signals of the terminal are no longer for the command.
                self.interrupts = Some(signals::Interrupts::catch());
            }
        }
    }

    /// Lets everybody go: a process that was running before runs on as if nothing had been; what is left of a command
    /// with a filter is ended, since its calls would fail without us.
    pub fn leave(&mut self) {
        match self.stops {
            _ if self.tasks.is_empty() && self.early.is_empty() => {}
            Stops::MemoryCalls => self.end_all(),
            Stops::EveryCall => self.detach_all(),
        }
    }

    fn end_all(&mut self) {
        for tid in self.tasks.keys().chain(self.early.keys()) {
            // SAFETY: this call takes numbers only. The task is a child under trace that was not waited for, so the
            // number is no other's.
            unsafe { libc::kill(*tid, libc::SIGKILL) };
        }
        while let Ok(Some((tid, change))) = wait::any() {
            match change {
                Change::Ended(_) => drop((self.tasks.remove(&tid), self.early.remove(&tid))),
                _ => ptrace::resume(tid, 0),
            }
        }
    }

    /// Stops some threads at a time, so that none is stopped for long.
    fn detach_all(&mut self) {
        let _ticks = self.interrupts.take().unwrap_or_else(signals::Interrupts::catch_all);
        let until = Instant::now() + SETTLE;
        let mut leaving = Leaving { met: BTreeSet::new() };
        for (tid, _) in std::mem::take(&mut self.held) {
            self.detach(tid, Change::Trap, &mut leaving);
        }
        for (tid, _) in std::mem::take(&mut self.early) {
            self.detach(tid, Change::Trap, &mut leaving);
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
                // Others are at a system call meanwhile, or new.
                loop {
                    match wait::any_now() {
                        Ok(Some((tid, change))) => self.detach(tid, change, &mut leaving),
                        Ok(None) => break,
                        // Nobody is traced any more.
                        Err(_) => return self.tasks.clear(),
                    }
                }
            }
            first = false;
        }
    }

    /// Lets a task that has stopped run on by itself.
    fn detach(&mut self, tid: Tid, change: Change, leaving: &mut Leaving) {
        let was_known = self.tasks.remove(&tid).is_some();
        if !was_known {
            leaving.met.insert(tid);
        }
        let child = matches!(change, Change::Cloned).then(|| ptrace::message(tid).ok()).flatten();
        match change {
            Change::Ended(_) => {}
            Change::Signal(signal) => drop(ptrace::detach(tid, signal)),
            _ => drop(ptrace::detach(tid, 0)),
        }
        // It is traced from its first instruction.
        let child = child.and_then(|tid| Tid::try_from(tid).ok());
        if let Some(child) = child.filter(|child| !leaving.met.contains(child)) {
            self.tasks.insert(child, Task::of(child));
        }
    }
}

/// Those that were let go before their maker told of them.
struct Leaving {
    met: BTreeSet<Tid>,
}

/// What is new of a thread, by a time if not now.
fn change_by(tid: Tid, until: Instant) -> Option<Change> {
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

impl Drop for Watched {
    fn drop(&mut self) {
        self.leave();
    }
}

fn threads(pid: Tid) -> io::Result<Vec<Tid>> {
    let gone = |_| io::Error::from_raw_os_error(libc::ESRCH);
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)?;
    let tid = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(tid).collect())
}

/// The process that a new task is a thread of, or else a child of.
fn maker_of(tid: Tid) -> Option<Tid> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let id =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    id("Tgid:").filter(|process| *process != tid).or_else(|| id("PPid:"))
}

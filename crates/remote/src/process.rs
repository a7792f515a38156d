//! The target of remote calls: a running process, identified by its PID and its start time.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use pagewise_model::{Mapping, Pid};
use pagewise_proc::{ProcRoot, maps, stat};
use pagewise_sys::interrupt::Deferred;
use pagewise_sys::precise_sleep::PreciseRests;
use pagewise_sys::ptrace::{self, Tid};
use pagewise_sys::system;
use pagewise_sys::trace::wait::ThreadChange;

use crate::RemoteError;
use crate::arch::{RED_ZONE, layout};
use crate::code::CodeAddresses;
use crate::memory::TargetMemory;
use crate::thread::{self, Tracee};

/// Time limit for one thread to stop. A thread that needs longer waits inside the kernel, or for a
/// CPU of a very busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Number of attempts to stop a thread outside of a restartable sequence.
const ATTEMPTS: u32 = 20;
/// Maximum number of searches for new threads before the first thread is stopped: a process may
/// create threads faster than they are found.
pub(crate) const MAX_ROUNDS: usize = 100;
/// `PTRACE_O_TRACESYSGOOD` only: the kernel does not report `fork`, `clone`, `execve` or exit
/// events of the target.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;
/// Number of bytes of stack that stay free below a saved context, because a signal handler may run
/// there.
const SPARE: u64 = 8 << 10;
/// A running process.
#[derive(Debug)]
pub struct RemoteProcess {
    root: ProcRoot,
    pid: u32,
    start_ticks: u64,
    memory: TargetMemory,
    /// Addresses of the instructions of remote calls; `None` if the process can only be stopped.
    code: Option<CodeAddresses>,
}

/// Runs `work` on a thread of its own, and waits for its end. When the thread that runs `work`
/// ends, the kernel detaches the threads of the target that could not be detached in time, so no
/// thread of the target stays stopped. Signals that would end or stop this process, except SIGKILL
/// and SIGSTOP, are deferred until then.
pub fn on_tracer_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let _deferred = Deferred::hold();
    let traced = || {
        let _short = PreciseRests::start();
        (system::thread_id(), work())
    };
    let (tid, result) = std::thread::scope(|scope| match scope.spawn(traced).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    // `join` may return before the kernel has detached the tracees of the thread; until then
    // `/proc` lists the thread.
    let listed = format!("/proc/self/task/{tid}");
    let deadline = Instant::now() + STOP_LIMIT;
    while fs::exists(&listed).unwrap_or(false) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    result
}

impl RemoteProcess {
    /// Opens the process with PID `pid` that started at `start_ticks` (the `starttime` of
    /// `/proc/PID/stat`); without a start time, the process that has the PID now.
    ///
    /// # Errors
    /// [`RemoteError::Gone`], [`RemoteError::NotPermitted`]; [`RemoteError::Unsupported`] for other
    /// architectures and programs without a C library.
    pub fn open(pid: u32, start_ticks: Option<u64>) -> Result<RemoteProcess, RemoteError> {
        let mut target = RemoteProcess::open_to_stop(pid, start_ticks)?;
        let code = CodeAddresses::find(&target.memory, &target.mappings()?);
        target.code = Some(code.ok_or(RemoteError::Unsupported(
            "none of its files has the instructions that a C library for x86-64 has",
        ))?);
        Ok(target)
    }

    /// Opens a process like [`RemoteProcess::open`], but only to stop its threads: it needs no C
    /// library, and remote calls fail.
    ///
    /// # Errors
    /// As [`RemoteProcess::open`], except for programs without a C library.
    pub fn open_to_stop(pid: u32, start_ticks: Option<u64>) -> Result<RemoteProcess, RemoteError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(RemoteError::Unsupported("they are made on x86-64 only"));
        }
        let root = ProcRoot::live();
        let begin = start_of(&root, pid)?;
        let memory = TargetMemory::open(pid).map_err(RemoteError::of_tracing)?;
        let target = RemoteProcess { root, pid, start_ticks: begin, memory, code: None };
        // If the same process has the PID now as at the start, the files that were opened above
        // belong to this process.
        match start_of(&target.root, pid)? == start_ticks.unwrap_or(begin) {
            true => Ok(target),
            false => Err(RemoteError::Gone),
        }
    }

    /// PID of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time of the process, in clock ticks since boot.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Memory of the process.
    pub fn memory(&self) -> &TargetMemory {
        &self.memory
    }

    /// Reads the current mappings of the process.
    ///
    /// # Errors
    /// [`RemoteError::Gone`]
    pub fn mappings(&self) -> Result<Vec<Mapping>, RemoteError> {
        let text = self.root.read(Pid(self.pid), "maps").map_err(|_| RemoteError::Gone)?;
        Ok(maps::parse(&text).mappings)
    }

    /// Reads the IDs of the process's threads; empty if the process has ended.
    ///
    /// # Errors
    /// [`RemoteError::System`]
    pub fn threads(&self) -> Result<Vec<u32>, RemoteError> {
        let folder = self.root.file(Pid(self.pid), "task");
        let listed = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(RemoteError::system("cannot list its threads"))?,
        };
        let id = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        Ok(listed.filter_map(id).collect())
    }

    /// Returns an error if a remote call would harm a thread of the process.
    ///
    /// # Errors
    /// [`RemoteError::Seccomp`] or [`RemoteError::ShadowStack`] if any thread is in seccomp mode or
    /// uses shadow stacks. A thread that ends meanwhile is ignored.
    pub fn permits_calls(&self) -> Result<(), RemoteError> {
        self.threads()?.into_iter().try_for_each(|tid| self.thread_permits_calls(tid))
    }

    fn thread_permits_calls(&self, tid: u32) -> Result<(), RemoteError> {
        let status = self.root.read(Pid(self.pid), &format!("task/{tid}/status"));
        let status = status.unwrap_or_default();
        let line = |name: &[u8]| {
            status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))
        };
        match line(b"Seccomp:").map(<[u8]>::trim_ascii) {
            None | Some(b"0") => {}
            Some(b"1") => return Err(RemoteError::Seccomp { mode: "strict" }),
            Some(_) => return Err(RemoteError::Seccomp { mode: "filter" }),
        }
        let features = line(b"x86_Thread_features:").unwrap_or_default();
        if memchr::memmem::find(features, b"shstk").is_some() {
            return Err(RemoteError::ShadowStack);
        }
        Ok(())
    }

    /// Stops a thread. `None` if the thread has ended.
    ///
    /// # Errors
    /// [`RemoteError::NotPermitted`], [`RemoteError::NotStopped`] (the thread is detached when the
    /// calling thread ends), [`RemoteError::Restartable`].
    pub fn stop(&self, tid: u32) -> Result<Option<Tracee>, RemoteError> {
        let Some(id) = number(tid).filter(|_| !self.has_ended(tid)) else { return Ok(None) };
        match ptrace::seize(id, OPTIONS) {
            Err(_) if self.has_ended(tid) => return Ok(None),
            seized => seized.map_err(RemoteError::of_tracing)?,
        }
        let deadline = Instant::now() + STOP_LIMIT;
        for _ in 0..ATTEMPTS {
            ptrace::interrupt(id);
            let since = match stopped_by(id, deadline) {
                Ok(Some(since)) => since,
                Ok(None) => return Ok(None),
                Err(_) => return Err(RemoteError::NotStopped(STOP_LIMIT)),
            };
            let found = Tracee::seize(id, self.code, since);
            match found.and_then(|thread| Ok((thread.may_move()?, thread))) {
                Ok((true, thread)) => {
                    self.is_still_here()?;
                    return Ok(Some(thread));
                }
                Ok((false, thread)) => {
                    thread.keep_stopped();
                    ptrace::resume(id, 0);
                }
                Err(error) => {
                    ptrace::detach(id, 0);
                    return match of_registers(error) {
                        RemoteError::Gone => Ok(None),
                        error => Err(error),
                    };
                }
            }
        }
        // The thread is running, and the kernel detaches only stopped threads.
        ptrace::interrupt(id);
        if let Ok(Some(_)) = stopped_by(id, Instant::now() + STOP_LIMIT) {
            ptrace::detach(id, 0);
        }
        Err(RemoteError::Restartable(tid))
    }

    /// Stops a thread that has enough free stack, and prepares it to make calls.
    ///
    /// # Errors
    /// As [`RemoteProcess::stop`]; [`RemoteError::Seccomp`], [`RemoteError::ShadowStack`],
    /// [`RemoteError::NoStack`].
    pub fn any_thread(&self) -> Result<Tracee, RemoteError> {
        let mut last = RemoteError::Gone;
        for tid in self.threads()? {
            let mut thread = match self.stop(tid) {
                Ok(Some(thread)) => thread,
                Ok(None) => continue,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            match self.prepare(&mut thread) {
                Ok(()) => return Ok(thread),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Saves a stopped thread's context on its own stack, below the part that the thread uses. The
    /// thread can then make calls.
    ///
    /// # Errors
    /// [`RemoteError::Seccomp`], [`RemoteError::ShadowStack`]; [`RemoteError::NoStack`] if the
    /// thread is on the stack of a coroutine or a signal handler, or if too little stack is free.
    pub fn prepare(&self, thread: &mut Tracee) -> Result<(), RemoteError> {
        self.thread_permits_calls(thread.thread())?;
        if !thread.may_move().map_err(RemoteError::system("cannot read its registers"))? {
            return Err(RemoteError::Restartable(thread.thread()));
        }
        let size =
            thread.size_of_context().map_err(RemoteError::system("cannot read its registers"))?;
        let place = thread.place();
        let needed = RED_ZONE + size + SPARE;
        let lowest = place.stack.saturating_sub(needed);
        let mappings = self.mappings()?;
        let is_stack = |it: &&Mapping| {
            let is_its_own = it.name.as_bytes() == b"[stack]"
                || (it.range.contains(place.thread_data) && place.stack < place.thread_data);
            is_its_own
                && it.prot.write
                && it.range.contains(lowest)
                && it.range.contains(place.stack.saturating_sub(1))
        };
        if !mappings.iter().any(|it| is_stack(&it)) {
            return Err(RemoteError::NoStack(needed));
        }
        let at = (place.stack - RED_ZONE - size + layout::ALIGNMENT) & !(layout::ALIGNMENT - 1);
        match thread.save_on_stack(&self.memory, at) {
            // The write reached a guard page that is part of the mapping of the stack.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                Err(RemoteError::NoStack(needed))
            }
            done => done.map_err(RemoteError::system("cannot save its registers")),
        }
    }

    /// Returns an error if stopping all threads is expected to exceed `limit`.
    ///
    /// # Errors
    /// [`RemoteError::PauseTooLong`]; [`RemoteError::System`]
    pub fn permits_pause(&self, limit: Duration) -> Result<(), RemoteError> {
        let threads = self.threads()?.len();
        let takes = ptrace::expected_pause(threads);
        match takes > limit {
            true => Err(RemoteError::PauseTooLong { threads, takes, limit }),
            false => Ok(()),
        }
    }

    /// Stops all threads, also threads that are created meanwhile, at points where each thread can
    /// make calls. Returns no thread if the process has ended.
    ///
    /// The time from the first stop to the last is at most `limit`; detaching takes about half of
    /// this time in addition.
    ///
    /// # Errors
    /// [`RemoteError::PauseTooLong`] if the pause is expected to exceed `limit`, or exceeded it;
    /// all threads then run on. Also the errors of [`RemoteProcess::stop`].
    pub fn stop_all(&self, limit: Duration) -> Result<Vec<Tracee>, RemoteError> {
        self.stop_each(limit, true)
    }

    /// Stops all threads like [`RemoteProcess::stop_all`], but possibly inside a restartable
    /// sequence, which takes less time. Such threads must not make calls.
    ///
    /// # Errors
    /// As [`RemoteProcess::stop_all`].
    pub fn stop_all_anywhere(&self, limit: Duration) -> Result<Vec<Tracee>, RemoteError> {
        self.stop_each(limit, false)
    }

    fn stop_each(&self, limit: Duration, movable: bool) -> Result<Vec<Tracee>, RemoteError> {
        self.permits_pause(limit)?;
        let mut all = Stopping { target: self, movable, seized: Vec::new(), stopped: Vec::new() };
        // Seizing a thread does not stop it, so all threads are seized before the pause.
        for _ in 0..MAX_ROUNDS {
            if !all.seize_more()? {
                break;
            }
        }
        let since = Instant::now();
        all.stop(0, since, limit)?;
        loop {
            let before = all.seized.len();
            if !all.seize_more()? {
                break;
            }
            all.stop(before, since, limit)?;
        }
        if !all.stopped.is_empty() {
            self.is_still_here()?;
        }
        Ok(all.stopped)
    }

    /// Seizes the threads that are not in `seized`, and adds them to it. Returns false if all
    /// threads were already in `seized`.
    pub(crate) fn seize_more(
        &self,
        seized: &mut Vec<Tid>,
        options: i32,
    ) -> Result<bool, RemoteError> {
        let mut known = seized.clone();
        known.sort_unstable();
        let before = seized.len();
        // With `PTRACE_O_TRACECLONE`, a thread that a traced thread creates is traced from its
        // start.
        let is_inherited = options & libc::PTRACE_O_TRACECLONE != 0;
        for tid in self.threads()? {
            let Some(id) = number(tid).filter(|id| known.binary_search(id).is_err()) else {
                continue;
            };
            match ptrace::seize(id, options) {
                Ok(()) => seized.push(id),
                // A main thread that has ended before the other threads cannot be traced.
                Err(_) if self.has_ended(tid) => {}
                Err(_) if is_inherited && self.is_traced_by_us(tid) => {}
                Err(error) => return Err(RemoteError::of_tracing(error)),
            }
        }
        Ok(seized.len() > before)
    }

    fn is_traced_by_us(&self, tid: u32) -> bool {
        let status = self.root.read(Pid(self.pid), &format!("task/{tid}/status"));
        let tracer = format!("TracerPid:\t{}", std::process::id());
        status.is_ok_and(|it| it.split(|&byte| byte == b'\n').any(|line| line == tracer.as_bytes()))
    }

    /// Returns an error if the PID does not belong to the process any more. Called while a thread
    /// of the process is stopped, because the PID cannot be reused until that thread ends.
    fn is_still_here(&self) -> Result<(), RemoteError> {
        match start_of(&self.root, self.pid)? == self.start_ticks {
            true => Ok(()),
            false => Err(RemoteError::Gone),
        }
    }

    fn has_ended(&self, tid: u32) -> bool {
        let stat = self.root.read(Pid(self.pid), &format!("task/{tid}/stat"));
        let stat = stat.ok().and_then(|text| stat::parse(&text).ok());
        stat.is_none_or(|stat| stat.has_ended())
    }
}

/// All threads of a target, while they are being stopped.
struct Stopping<'a> {
    target: &'a RemoteProcess,
    /// True if the threads must be stopped outside of restartable sequences.
    movable: bool,
    seized: Vec<Tid>,
    stopped: Vec<Tracee>,
}

impl Stopping<'_> {
    /// Seizes new threads. Returns false if the process has no new thread.
    fn seize_more(&mut self) -> Result<bool, RemoteError> {
        let more = self.target.seize_more(&mut self.seized, OPTIONS);
        if more.is_err() {
            self.let_go(0);
        }
        more
    }

    /// Stops the seized threads from index `first` on.
    fn stop(&mut self, first: usize, since: Instant, limit: Duration) -> Result<(), RemoteError> {
        let deadline = since + limit;
        self.seized[first..].iter().for_each(|&id| ptrace::interrupt(id));
        for index in first..self.seized.len() {
            if let Err(error) = self.stop_one(self.seized[index], since, deadline) {
                self.let_go(index);
                return Err(match error.kind() {
                    io::ErrorKind::TimedOut => RemoteError::PauseTooLong {
                        threads: self.seized.len(),
                        takes: since.elapsed(),
                        limit,
                    },
                    _ => of_registers(error),
                });
            }
        }
        Ok(())
    }

    fn stop_one(&mut self, id: Tid, since: Instant, deadline: Instant) -> io::Result<()> {
        loop {
            if stopped_by(id, deadline)?.is_none() {
                return Ok(());
            }
            let found = Tracee::seize(id, self.target.code, since);
            match found.and_then(|thread| Ok((!self.movable || thread.may_move()?, thread))) {
                Ok((true, thread)) => {
                    self.stopped.push(thread);
                    return Ok(());
                }
                Ok((false, thread)) if Instant::now() < deadline => {
                    thread.keep_stopped();
                    ptrace::resume(id, 0);
                    ptrace::interrupt(id);
                }
                // The thread is detached when `self` is dropped.
                Ok((false, _)) => return Err(io::ErrorKind::TimedOut.into()),
                // The thread was killed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => {
                    ptrace::detach(id, 0);
                    return Err(error);
                }
            }
        }
    }

    /// Detaches from all threads. Threads from index `from` on may still be running, and are
    /// detached when they stop.
    fn let_go(&mut self, from: usize) {
        self.stopped.clear();
        let until = Instant::now() + STOP_LIMIT;
        for &id in &self.seized[from..] {
            ptrace::interrupt(id);
            // If the thread does not stop before `until`, the kernel detaches it when the tracing
            // thread ends.
            if let Ok(Some(_)) = stopped_by(id, until) {
                ptrace::detach(id, 0);
            }
        }
    }
}

/// Waits until a thread that was interrupted is stopped. Returns the time of the last check that
/// found the thread running or asleep, which is a lower bound of the start of its pause. `None` if
/// the thread is gone.
fn stopped_by(id: Tid, deadline: Instant) -> io::Result<Option<Instant>> {
    let mut looked = Instant::now();
    let mut since = looked;
    let mut rest = |waited| {
        since = looked;
        thread::rest(waited);
        looked = Instant::now();
    };
    loop {
        match thread::next(id, deadline, &mut rest) {
            // The thread stopped because it is about to receive a signal, which is delivered first.
            Ok(ThreadChange::Signal(signal)) => ptrace::resume(id, signal),
            Ok(_) => return Ok(Some(since)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Converts an error of a request for a stopped thread; [`RemoteError::Gone`] if the thread was
/// killed.
fn of_registers(error: io::Error) -> RemoteError {
    match error.kind() {
        io::ErrorKind::Unsupported => {
            RemoteError::Unsupported("the program is one of 32 bits, or not of x86-64")
        }
        _ => RemoteError::system("cannot read its registers")(error),
    }
}

fn number(tid: u32) -> Option<Tid> {
    Tid::try_from(tid).ok()
}

/// Start time of the process that has a PID now, in clock ticks since boot.
fn start_of(root: &ProcRoot, pid: u32) -> Result<u64, RemoteError> {
    let text = root.read(Pid(pid), "stat").map_err(|_| RemoteError::Gone)?;
    let stat = stat::parse(&text).map_err(|_| RemoteError::Gone)?;
    if stat.has_ended() && stat.threads < 2 { Err(RemoteError::Gone) } else { Ok(stat.start_ticks) }
}

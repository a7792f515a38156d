//! Runs a command and stops it as it exits, before its memory is torn down, or at a time of our choosing.
//!
//! The command behaves as without us: signals are passed on, job control works, child processes are not
//! followed, and if we are killed it goes on. Its threads are followed, because the memory is that of all of them:
//! it is torn down when the last one is gone. No system call is intercepted, so it runs at full speed.
//!
//! ```text
//! spawn ── run ──┬── AtExit ─────────── finish ── how it ended
//!                ├── TimeIsUp ── freeze ── AtTime ── thaw ── run ...
//!                └── Ended
//! ```

mod launch;
mod ptrace;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::marker::PhantomData;
use std::thread;
use std::time::{Duration, Instant};

use launch::Launch;
use ptrace::{Change, Resume, Tid};

/// A command that we run, and its threads.
///
/// Belongs to the thread that made it: the kernel takes orders for a traced thread from its tracer alone.
#[derive(Debug)]
pub struct Traced {
    leader: Tid,
    threads: BTreeMap<Tid, State>,
    ending: Option<Ending>,
    untraced: Option<&'static str>,
    _signals: KeyboardSignals,
    _of_this_thread: PhantomData<*const ()>,
}

/// Why [`Traced::run`] or [`Traced::freeze`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The process is about to die. Its memory is as it was; its threads will run no code of their own any more.
    AtExit,
    /// Every thread is stopped.
    AtTime,
    /// The deadline passed and the process runs.
    TimeIsUp,
    /// It is gone.
    Ended(Ending),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit status.
    Exited(i32),
    /// By this signal, with or without a core dump.
    Killed {
        /// Its number.
        signal: i32,
        /// Whether a core was dumped.
        core: bool,
    },
}

/// A thread, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopped(Resume),
    /// At its exit stop.
    Dying,
    /// Past its exit stop.
    Leaving,
}

/// How long to sleep between looks when there is a deadline.
///
/// A stop sends SIGCHLD to the process, where any thread may take it, so it cannot be waited for with a time limit.
const LOOK: Duration = Duration::from_millis(1);

impl Traced {
    /// Starts a command.
    ///
    /// A program that gains privilege from its file would lose it under a tracer without CAP_SYS_PTRACE. Such a one is
    /// run untraced: [`Traced::untraced`] says so.
    ///
    /// # Errors
    /// What `execvp` said: `NotFound`, `PermissionDenied`, ...; or that we may not trace.
    pub fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Traced> {
        let untraced = launch::gains_privilege(program);
        let launch = Launch::fork(program, arguments)?;
        let mut traced = Traced {
            leader: launch.pid,
            threads: BTreeMap::new(),
            ending: None,
            untraced,
            _signals: KeyboardSignals::ignore(),
            _of_this_thread: PhantomData,
        };
        if untraced.is_none() {
            ptrace::seize(launch.pid)?;
            traced.threads.insert(launch.pid, State::Running);
        }
        match launch.go() {
            Ok(()) => Ok(traced),
            Err(error) => {
                traced.finish()?;
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.leader.unsigned_abs()
    }

    /// Why it runs untraced, so that it will not stop, where it does.
    pub fn untraced(&self) -> Option<&'static str> {
        self.untraced
    }

    /// Lets it run until it is about to exit, or until the deadline.
    ///
    /// # Errors
    /// What `wait4` or `ptrace` said.
    pub fn run(&mut self, deadline: Option<Instant>) -> io::Result<Stopped> {
        if self.untraced.is_some() {
            return self.run_untraced(deadline);
        }
        loop {
            if let Some(ending) = self.ending {
                return Ok(Stopped::Ended(ending));
            }
            match self.next(deadline)? {
                None => return Ok(Stopped::TimeIsUp),
                Some((tid, change)) if self.is_the_end(tid, change) => {
                    self.threads.insert(tid, State::Dying);
                    return Ok(Stopped::AtExit);
                }
                Some((tid, change)) => {
                    self.note(tid, change);
                    self.resume(tid)?;
                }
            }
        }
    }

    /// Stops every thread where it is.
    ///
    /// # Errors
    /// What `wait4` or `ptrace` said.
    pub fn freeze(&mut self) -> io::Result<Stopped> {
        let running = self.threads.iter().filter(|(_, state)| **state == State::Running);
        for (&tid, _) in running {
            survive(ptrace::interrupt(tid))?;
        }
        while self.threads.values().any(|state| *state == State::Running) {
            let Some((tid, change)) = self.next(None)? else { continue };
            if self.is_the_end(tid, change) {
                self.threads.insert(tid, State::Dying);
                return Ok(Stopped::AtExit);
            }
            self.note(tid, change);
            // A thread that was born meanwhile stops by itself; one that leaves goes on leaving.
            if self.threads.get(&tid) == Some(&State::Dying) {
                self.resume(tid)?;
            }
        }
        Ok(self.ending.map_or(Stopped::AtTime, Stopped::Ended))
    }

    /// Lets every stopped thread go on.
    ///
    /// # Errors
    /// What `ptrace` said.
    pub fn thaw(&mut self) -> io::Result<()> {
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        tids.into_iter().try_for_each(|tid| self.resume(tid))
    }

    /// Lets it go on to its end, untraced, and says how it ended.
    ///
    /// # Errors
    /// What `wait4` or `ptrace` said.
    pub fn finish(mut self) -> io::Result<Ending> {
        if self.threads.values().all(|state| matches!(state, State::Stopped(_))) {
            for (&tid, state) in &self.threads {
                let State::Stopped(resume) = *state else { continue };
                survive(ptrace::detach(tid, resume))?;
            }
            self.threads.clear();
        }
        if self.threads.is_empty() && self.ending.is_none() {
            return Ok(ending(ptrace::wait_for_end(self.leader)?).expect("it waits for an end"));
        }
        self.thaw()?;
        loop {
            match self.ending {
                Some(ending) => return Ok(ending),
                None => {
                    let Some((tid, change)) = self.next(None)? else { continue };
                    self.note(tid, change);
                    self.resume(tid)?;
                }
            }
        }
    }

    /// The next change, or `None` once the deadline has passed.
    fn next(&mut self, deadline: Option<Instant>) -> io::Result<Option<(Tid, Change)>> {
        loop {
            if let Some(change) = ptrace::wait(deadline.is_none())? {
                return Ok(Some(change));
            }
            let left = deadline.map_or(LOOK, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            thread::sleep(left.min(LOOK));
        }
    }

    /// Whether a thread that dies takes the process with it.
    fn is_the_end(&self, tid: Tid, change: Change) -> bool {
        if change != Change::Dying {
            return false;
        }
        let by_signal = ptrace::event_message(tid).is_ok_and(|status| status & 0x7f != 0);
        let lives = |(other, state): (&Tid, &State)| {
            *other != tid && matches!(state, State::Running | State::Stopped(_))
        };
        by_signal || self.called_exit_group(tid) || !self.threads.iter().any(lives)
    }

    /// Whether a thread at its exit stop ends the whole process, and not just itself.
    fn called_exit_group(&self, tid: Tid) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", self.leader));
        let number = call.ok().and_then(|text| text.split(' ').next()?.parse().ok());
        number == Some(libc::SYS_exit_group)
    }

    /// Keeps the books.
    fn note(&mut self, tid: Tid, change: Change) {
        let state = match change {
            Change::Exited(_) | Change::Killed { .. } => {
                self.threads.remove(&tid);
                if tid == self.leader {
                    self.ending = ending(change);
                }
                return;
            }
            Change::Dying => State::Dying,
            Change::Cloned => {
                if let Ok(born) = ptrace::event_message(tid).map(Tid::try_from)
                    && let Ok(born) = born
                {
                    self.threads.entry(born).or_insert(State::Running);
                }
                State::Stopped(Resume::Run(0))
            }
            Change::Executed => {
                // All other threads are gone, and the one that called has the leader's id now.
                self.threads.clear();
                State::Stopped(Resume::Run(0))
            }
            Change::Paused { signal } if is_job_control(signal) => State::Stopped(Resume::Listen),
            Change::Paused { .. } => State::Stopped(Resume::Run(0)),
            Change::Signalled(signal) => State::Stopped(Resume::Run(signal)),
        };
        self.threads.insert(tid, state);
    }

    /// Lets a thread go on from where it stopped.
    fn resume(&mut self, tid: Tid) -> io::Result<()> {
        let (how, next) = match self.threads.get(&tid) {
            Some(State::Stopped(how)) => (*how, State::Running),
            Some(State::Dying) => (Resume::Run(0), State::Leaving),
            _ => return Ok(()),
        };
        if next == State::Running && !self.is_ours(tid) {
            // A clone that shares no thread group is another process: it runs without us.
            self.threads.remove(&tid);
            return survive(ptrace::detach(tid, how));
        }
        self.threads.insert(tid, next);
        survive(ptrace::resume(tid, how))
    }

    fn is_ours(&self, tid: Tid) -> bool {
        tid == self.leader || std::path::Path::new(&format!("/proc/{}/task/{tid}", self.leader)).exists()
    }

    fn run_untraced(&mut self, deadline: Option<Instant>) -> io::Result<Stopped> {
        loop {
            match self.next(deadline)? {
                None => return Ok(Stopped::TimeIsUp),
                Some((tid, change)) => {
                    self.note(tid, change);
                    if let Some(ending) = self.ending {
                        return Ok(Stopped::Ended(ending));
                    }
                }
            }
        }
    }
}

fn ending(change: Change) -> Option<Ending> {
    match change {
        Change::Exited(status) => Some(Ending::Exited(status)),
        Change::Killed { signal, core } => Some(Ending::Killed { signal, core }),
        _ => None,
    }
}

fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// A thread that was killed meanwhile takes no orders; `wait4` will tell of it.
fn survive(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        done => done,
    }
}

/// Ctrl-C and Ctrl-\ are for the command, which is in our process group: we wait for what it makes of them.
#[derive(Debug)]
struct KeyboardSignals([(i32, libc::sighandler_t); 2]);

impl KeyboardSignals {
    fn ignore() -> KeyboardSignals {
        KeyboardSignals([libc::SIGINT, libc::SIGQUIT].map(|signal| (signal, set(signal, libc::SIG_IGN))))
    }
}

impl Drop for KeyboardSignals {
    fn drop(&mut self) {
        for (signal, before) in self.0 {
            if before != libc::SIG_ERR {
                set(signal, before);
            }
        }
    }
}

fn set(signal: i32, to: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: `to` is SIG_IGN, or what this call returned before: a handler that was installed then.
    unsafe { libc::signal(signal, to) }
}

//! Runs a command repeatedly from a small launcher process, and reports the resources used by each
//! run.
//!
//! The kernel gives a new program the peak RSS of the process that it replaces, so the peak RSS of
//! a command is at least that of the program that started the command. [`Launcher::start`] forks a
//! process with a small footprint, whose only work is to start the command:
//!
//! ```text
//! we ── start ──► launcher ── launch ──► child, held ── exec ──► command
//!                                        └ counters are opened on it
//! ```
//!
//! The command inherits the standard streams, process group and terminal of this process.

use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CpuSet;

use crate::trace::TraceEnding;
use crate::trace::start::ExecImage;

/// Resources that the kernel counted for a thread or a process. The counts of an ended process
/// include the children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelUsage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Peak RSS in bytes of the process with the largest peak; not the sum of the processes.
    pub max_rss: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
    /// Number of blocks of 512 bytes that were read from devices.
    pub blocks_in: u64,
    /// Number of blocks of 512 bytes that were made dirty in the page cache.
    pub blocks_out: u64,
    /// Number of times that a thread released the CPU to wait.
    pub voluntary_switches: u64,
    /// Number of times that a thread was preempted.
    pub involuntary_switches: u64,
}

impl KernelUsage {
    /// Counts of the calling thread alone (`RUSAGE_THREAD`); `max_rss` is the peak RSS of its
    /// process.
    pub fn of_this_thread() -> KernelUsage {
        KernelUsage::from_rusage(&KernelUsage::read(libc::RUSAGE_THREAD))
    }

    /// Counts of the calling process: all its threads, ended ones included (`RUSAGE_SELF`).
    pub fn of_this_process() -> KernelUsage {
        KernelUsage::from_rusage(&KernelUsage::read(libc::RUSAGE_SELF))
    }

    /// Reads the counts of the calling thread, or of the calling process and all its threads; `who`
    /// is a `RUSAGE_*`.
    fn read(who: c_int) -> libc::rusage {
        let mut usage = zeroed();
        // SAFETY: the call writes one `rusage` to its last argument, which points to a `rusage`.
        unsafe { libc::getrusage(who, &raw mut usage) };
        usage
    }

    fn from_rusage(usage: &libc::rusage) -> KernelUsage {
        let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        let time = |t: libc::timeval| {
            let micros = u64::try_from(t.tv_usec).unwrap_or(0);
            Duration::from_secs(u64::try_from(t.tv_sec).unwrap_or(0))
                + Duration::from_micros(micros)
        };
        KernelUsage {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            max_rss: count(usage.ru_maxrss).saturating_mul(1 << 10),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            blocks_in: count(usage.ru_inblock),
            blocks_out: count(usage.ru_oublock),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
        }
    }

    /// Increase of each count since `before`; `max_rss` keeps the value of `self`.
    #[must_use]
    pub fn since(self, before: KernelUsage) -> KernelUsage {
        KernelUsage {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            max_rss: self.max_rss,
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            blocks_in: self.blocks_in.saturating_sub(before.blocks_in),
            blocks_out: self.blocks_out.saturating_sub(before.blocks_out),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(before.involuntary_switches),
        }
    }
}

/// Result of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Ending of the command.
    pub ending: TraceEnding,
    /// Time from before `exec` until the launcher reaped the command.
    pub wall: Duration,
    /// Resources used since `exec`.
    pub usage: KernelUsage,
    /// Peak RSS in bytes of the child before its `exec`: the [`KernelUsage::max_rss`] of the
    /// command cannot be lower.
    pub floor: u64,
}

/// Memory that the launcher, its child and this process share; the launcher and the child write it.
#[repr(C)]
struct Board {
    pid: libc::pid_t,
    /// Error of `fork` or `exec`; 0 if the command was executed.
    errno: c_int,
    status: c_int,
    begun: libc::timespec,
    ended: libc::timespec,
    before: libc::rusage,
    after: libc::rusage,
}

/// Messages between this process and the launcher. `LAUNCH` requests a child, and the launcher
/// returns it when the child exists. `ENDED` reports the end of the child.
const LAUNCH: u8 = b'L';
const ENDED: u8 = b'E';
/// Messages to the child: execute, or end.
const EXECUTE: u8 = b'X';
const LEAVE: u8 = b'Q';

/// Both ends of a socket pair; the second end is for the other process.
type Channel = (UnixStream, UnixStream);

/// A process that starts a command on request. Dropping this value ends the launcher, without
/// waiting for a running command.
#[derive(Debug)]
pub struct Launcher {
    pid: libc::pid_t,
    channel: UnixStream,
    child: UnixStream,
    board: NonNull<Board>,
}

impl Launcher {
    /// Forks the launcher for a command. A name without a slash is searched for in `PATH`. With
    /// `cpu`, the command runs on that CPU alone. Call this function early: the peak RSS that is
    /// reported for a run cannot be lower than the resident memory of this process at the call. A
    /// Ctrl-C ends the launcher as well, unless [`crate::interrupt`] records it.
    ///
    /// # Errors
    /// `ENOENT` if the program does not exist, `EACCES` if it cannot be executed: a shell reports
    /// these as exit codes 127 and 126. `EINVAL` for a CPU that does not exist.
    pub fn start(
        program: &OsStr,
        arguments: &[OsString],
        cpu: Option<u32>,
    ) -> io::Result<Launcher> {
        Launcher::start_with(program, arguments, cpu, &[])
    }

    /// As [`Launcher::start`]; `variables` are added to the inherited environment, or replace
    /// variables of the same name.
    ///
    /// # Errors
    /// Those of [`Launcher::start`]; `InvalidInput` for a variable that contains a NUL byte.
    pub fn start_with(
        program: &OsStr,
        arguments: &[OsString],
        cpu: Option<u32>,
        variables: &[(OsString, OsString)],
    ) -> io::Result<Launcher> {
        let image = ExecImage::find(program, arguments)?;
        let environment = environment(variables)?;
        let envp: Vec<_> =
            environment.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
        let board = map_board()?;
        let (channel, child): (Channel, Channel) = (UnixStream::pair()?, UnixStream::pair()?);
        let argv = image.argv();
        // SAFETY: the child calls only async-signal-safe functions until it exits, so locks that
        // other threads hold now do not matter.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                let ours = [channel.0.as_raw_fd(), child.0.as_raw_fd()];
                let place = LauncherData {
                    channel: channel.1.as_raw_fd(),
                    child: child.1.as_raw_fd(),
                    board: board.as_ptr(),
                };
                serve(image.path(), (&argv, &envp), ours, place)
            }
            pid => pid,
        };
        let launcher = Launcher { pid, channel: channel.0, child: child.0, board };
        if let Some(cpu) = cpu {
            launcher.pin(cpu)?;
        }
        Ok(launcher)
    }

    fn pin(&self, cpu: u32) -> io::Result<()> {
        let mut set = CpuSet::new();
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
        set.set(cpu.ok_or(io::Error::from_raw_os_error(libc::EINVAL))?);
        let pid = rustix::process::Pid::from_raw(self.pid);
        Ok(rustix::thread::sched_setaffinity(pid, &set)?)
    }

    /// Creates a process for the command, passes its PID to `prepare` while the process waits, and
    /// then lets the process execute the command. Counters that `prepare` opens with
    /// `enable_on_exec` count the command from its first instruction; with `inherit` they also
    /// count its children. If `prepare` fails, the command is not executed.
    ///
    /// # Errors
    /// Returns the errors of `prepare` and of `fork`, such as `EAGAIN`; `UnexpectedEof` if the
    /// launcher was killed.
    pub fn launch<E: From<io::Error>>(
        &mut self,
        prepare: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<RunningCommand<'_>, E> {
        self.channel.write_all(&[LAUNCH])?;
        if self.hear()? != LAUNCH {
            return Err(io::Error::from_raw_os_error(self.board().errno).into());
        }
        let pid = self.child_id().unsigned_abs();
        let prepared = prepare(pid);
        self.child.write_all(&[if prepared.is_ok() { EXECUTE } else { LEAVE }])?;
        if let Err(error) = prepared {
            self.hear()?;
            return Err(error);
        }
        Ok(RunningCommand { pid, launcher: self })
    }

    fn hear(&mut self) -> io::Result<u8> {
        let mut word = [0];
        self.channel.read_exact(&mut word)?;
        Ok(word[0])
    }

    fn child_id(&self) -> libc::pid_t {
        // SAFETY: the board is mapped while `self` lives.
        let pid = unsafe { &raw const (*self.board.as_ptr()).pid };
        // SAFETY: the launcher wrote the PID before it reported a child, and does not write it
        // again before the next request.
        unsafe { pid.read_volatile() }
    }

    /// Content of the board after the end of a command. Each message on the channel transfers the
    /// right to use the board, so this process and the launcher never use it at the same time.
    fn board(&self) -> Board {
        // SAFETY: the memory is mapped while `self` lives, and contains a struct of numbers,
        // initialized to zeros.
        unsafe { self.board.as_ptr().read_volatile() }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
        // SAFETY: the PID is of a child that has not been waited for, so the kernel has not reused
        // it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: a null status is not written.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), 0) };
        // SAFETY: this is the whole mapping, and no pointer to it outlives `self`.
        unsafe { libc::munmap(self.board.as_ptr().cast(), size_of::<Board>()) };
    }
}

/// A command that was started.
#[derive(Debug)]
pub struct RunningCommand<'a> {
    pid: u32,
    launcher: &'a mut Launcher,
}

impl RunningCommand<'_> {
    /// The process ID of the command. In the microseconds before its `exec`, the process is still a
    /// copy of the launcher.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the end of the command until the deadline; `None` if the command still runs.
    ///
    /// # Errors
    /// Returns the error of `exec` if the command could not be executed; `UnexpectedEof` if the
    /// launcher was killed.
    pub fn wait(&mut self, deadline: Option<Instant>) -> io::Result<Option<RunOutcome>> {
        self.wait_or(deadline, None)
    }

    /// Waits like [`RunningCommand::wait`], and also returns `None` as soon as `other` is readable.
    ///
    /// # Errors
    /// Returns the errors of [`RunningCommand::wait`].
    pub fn wait_or(
        &mut self,
        deadline: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<RunOutcome>> {
        if !self.has_news(deadline, other)? {
            return Ok(None);
        }
        self.launcher.hear()?;
        let board = self.launcher.board();
        if board.errno != 0 {
            return Err(io::Error::from_raw_os_error(board.errno));
        }
        let before = KernelUsage::from_rusage(&board.before);
        Ok(Some(RunOutcome {
            ending: ending(board.status),
            wall: time(board.ended).saturating_sub(time(board.begun)),
            usage: KernelUsage::from_rusage(&board.after).since(before),
            floor: before.max_rss,
        }))
    }

    /// Waits for a message of the launcher; `false` if the deadline passed, a signal arrived or
    /// `other` is readable first.
    fn has_news(
        &self,
        deadline: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<bool> {
        let channel = self.launcher.channel.as_fd();
        let mut wanted = [channel, other.unwrap_or(channel)]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| rustix::time::Timespec::try_from(left).ok());
        match poll(&mut wanted, timeout.as_ref()) {
            Ok(_) => Ok(!wanted[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn ending(status: c_int) -> TraceEnding {
    if libc::WIFSIGNALED(status) {
        TraceEnding::Killed { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
    } else {
        TraceEnding::Exited(libc::WEXITSTATUS(status))
    }
}

fn time(at: libc::timespec) -> Duration {
    let nanos = u64::try_from(at.tv_nsec).unwrap_or(0);
    Duration::from_secs(u64::try_from(at.tv_sec).unwrap_or(0)) + Duration::from_nanos(nanos)
}

fn map_board() -> io::Result<NonNull<Board>> {
    // SAFETY: the kernel chooses a free address, so the new mapping replaces no existing one.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size_of::<Board>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at 0"))
}

fn zeroed() -> libc::rusage {
    // SAFETY: `rusage` is a struct of numbers, for which all zeros are valid.
    unsafe { MaybeUninit::<libc::rusage>::zeroed().assume_init() }
}

fn now() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` to its last argument, which points to a `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now
}

/// The environment of this process with the variables `variables` added or replaced, as strings of
/// the form `NAME=value`.
fn environment(variables: &[(OsString, OsString)]) -> io::Result<Vec<CString>> {
    let is_new = |name: &OsString| variables.iter().any(|(new, _)| new == name);
    let kept = std::env::vars_os().filter(|(name, _)| !is_new(name));
    let word = |(name, value): (OsString, OsString)| {
        let bytes = [name.as_bytes(), b"=", value.as_bytes()].concat();
        CString::new(bytes).map_err(io::Error::from)
    };
    kept.chain(variables.iter().cloned()).map(word).collect()
}

/// The arguments of a command, and its environment, each with a null pointer at the end.
type ExecArguments<'a> = (&'a [*const c_char], &'a [*const c_char]);

/// Data that the launcher inherits from this process.
#[derive(Clone, Copy)]
struct LauncherData {
    channel: RawFd,
    child: RawFd,
    board: *mut Board,
}

/// Runs the main loop of the launcher, until the parent's end of the channel is closed. The
/// launcher and its child must not allocate, lock or unwind: another thread of the parent may have
/// been in one of these operations during the fork.
fn serve(path: &CString, words: ExecArguments<'_>, ours: [RawFd; 2], place: LauncherData) -> ! {
    for fd in ours {
        // SAFETY: the parent's ends are not used here; closing them lets us notice the parent's
        // death.
        unsafe { libc::close(fd) };
    }
    let LauncherData { channel, child, board } = place;
    while read_word(channel).is_some() {
        // SAFETY: the board is mapped, and only this process uses it until the next message on the
        // channel.
        unsafe { (*board).errno = 0 };
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            if read_word(child) == Some(EXECUTE) {
                execute(path, words, board);
            }
            leave(127);
        }
        if pid == -1 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
            // SAFETY: the board is mapped, and only this process writes this member.
            unsafe { (*board).errno = errno };
            say(channel, ENDED);
            continue;
        }
        // SAFETY: the board is mapped, and the child does not write this member.
        unsafe { (*board).pid = pid };
        say(channel, LAUNCH);
        wait_for(pid, board);
        say(channel, ENDED);
    }
    leave(0)
}

/// Waits for the end of the command, and records its time, status and resource usage on the board.
fn wait_for(pid: libc::pid_t, board: *mut Board) {
    let mut status = 0;
    let mut usage = zeroed();
    // SAFETY: both pointers are to values of the types that the call writes.
    while unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) } == -1 {
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    let now = now();
    // SAFETY: the board is mapped, and only this process writes this member.
    unsafe { (*board).ended = now };
    // SAFETY: the board is mapped, and only this process writes this member.
    unsafe { (*board).status = status };
    // SAFETY: the board is mapped, and only this process writes this member.
    unsafe { (*board).after = usage };
}

/// Executes the command in the child; returns only if `exec` fails.
fn execute(path: &CString, (argv, envp): ExecArguments<'_>, board: *mut Board) {
    // SAFETY: no handler is installed. The start-up code of Rust ignores SIGPIPE, but programs
    // expect its default action.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let usage = KernelUsage::read(libc::RUSAGE_SELF);
    // SAFETY: the board is mapped, and only this process writes this member.
    unsafe { (*board).before = usage };
    let now = now();
    // SAFETY: the board is mapped, and only this process writes this member.
    unsafe { (*board).begun = now };
    // SAFETY: `path` and the strings of `argv` and `envp` end with NUL, and both arrays end with a
    // null pointer. `execvpe` does not search for a path with a slash, and lets the shell run a
    // script without a `#!` line.
    unsafe { libc::execvpe(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC);
    // SAFETY: the board is mapped; the launcher's parent reads it after the end of this process.
    unsafe { (*board).errno = errno };
}

/// Ends this process without running the exit handlers that it inherited by `fork`.
fn leave(status: c_int) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(status) }
}

/// Reads the next message of the other process; `None` if the other end of the channel is closed.
fn read_word(channel: RawFd) -> Option<u8> {
    let mut word = 0_u8;
    // SAFETY: `word` is one writable byte.
    match unsafe { libc::read(channel, (&raw mut word).cast(), 1) } {
        1 => Some(word),
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => read_word(channel),
        _ => None,
    }
}

fn say(channel: RawFd, word: u8) {
    // SAFETY: `word` is one readable byte. If the other end is closed, the next read reports it.
    unsafe { libc::send(channel, (&raw const word).cast(), 1, libc::MSG_NOSIGNAL) };
}

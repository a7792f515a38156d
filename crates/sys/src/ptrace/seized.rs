//! Threads that this process has seized. If a call that seizes one more thread takes long, a thread
//! of this process waits for the seized threads that have ended.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::Tid;

/// Interval of the checks for a seize call that takes long. An ended thread that blocks the call is
/// reaped one to two intervals after the start of the call.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of polls without a call after which the reaping thread ends.
const IDLE_LOOKS: u32 = 20;

static SEIZED: Mutex<BTreeSet<Tid>> = Mutex::new(BTreeSet::new());
/// Number of seize calls that have begun, and number of these calls that have not returned.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static OPEN: AtomicU32 = AtomicU32::new(0);
/// True while the reaping thread runs.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

fn seized() -> MutexGuard<'static, BTreeSet<Tid>> {
    SEIZED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a thread that was seized.
pub(super) fn note(tid: Tid) {
    seized().insert(tid);
}

/// Removes a thread that is not traced any more.
pub(crate) fn forget(tid: Tid) {
    seized().remove(&tid);
}

/// A call that seizes a thread; the call ends when this value is dropped.
pub(super) struct Attempt;

impl Attempt {
    pub(super) fn begin() -> Attempt {
        BEGUN.fetch_add(1, SeqCst);
        OPEN.fetch_add(1, SeqCst);
        // Only threads that were seized before can block this call.
        if !seized().is_empty() && !IS_WATCHED.swap(true, SeqCst) {
            let started = thread::Builder::new().name("seized".to_owned()).spawn(watch);
            if started.is_err() {
                IS_WATCHED.store(false, SeqCst);
            }
        }
        Attempt
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, SeqCst);
    }
}

fn watch() {
    let (mut last, mut idle) = (0, 0);
    while idle < IDLE_LOOKS {
        thread::sleep(POLL_INTERVAL);
        let begun = BEGUN.load(SeqCst);
        match OPEN.load(SeqCst) {
            0 => idle += 1,
            _ if begun == last => take_ends(),
            _ => idle = 0,
        }
        last = begun;
    }
    IS_WATCHED.store(false, SeqCst);
}

/// Reaps seized threads that have ended. Later calls for these threads report that they are not
/// tracees.
fn take_ends() {
    let all: Vec<Tid> = seized().iter().copied().collect();
    for tid in all {
        match has_ended(tid, libc::WNOWAIT) {
            // With `WNOWAIT`, `has_ended` did not reap the thread; this second call does.
            Ok(true) => {
                let _ = has_ended(tid, 0);
                forget(tid);
            }
            Ok(false) => {}
            Err(_) => forget(tid),
        }
    }
}

/// True if a tracee has ended. Stops of the tracee are not consumed. `options` is `WNOWAIT`, or 0
/// to reap a tracee that has ended.
fn has_ended(tid: Tid, options: libc::c_int) -> io::Result<bool> {
    // SAFETY: all zeros are a valid `siginfo_t`: plain numbers.
    let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
    let options = options | libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` is a `siginfo_t` that the call may fill in.
    if unsafe { libc::waitid(libc::P_PID, tid.unsigned_abs(), &raw mut info, options) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;
    use crate::ptrace;

    /// Lock of the tests, because each test waits for all seized threads of this process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn a_seized_process_that_has_ended_is_waited_for_and_one_that_lives_is_not() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let spawn = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (mut ended, mut living) = (spawn(), spawn());
        let [first, second] = [&ended, &living].map(|child| child.id().cast_signed());
        ptrace::seize(first, 0).unwrap();
        ptrace::seize(second, 0).unwrap();
        ended.stdin.take();
        while !has_ended(first, libc::WNOWAIT).unwrap() {
            thread::yield_now();
        }
        take_ends();
        assert!(!seized().contains(&first) && seized().contains(&second));
        assert!(ended.wait().is_err(), "it was waited for");
        ptrace::interrupt(second);
        let mut status = 0;
        // SAFETY: the call writes an int to `status`.
        assert_eq!(unsafe { libc::waitpid(second, &raw mut status, libc::__WALL) }, second);
        assert!(libc::WIFSTOPPED(status), "its stop is there to be seen");
        take_ends();
        assert!(ptrace::detach(second, 0) && !seized().contains(&second));
        living.stdin.take();
        assert!(living.wait().unwrap().success());
    }

    /// Without the reaping thread, the seize call would wait forever.
    #[test]
    fn a_process_that_executes_a_program_while_its_threads_are_seized_goes_on() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let python = "import os, sys, threading, time\n\
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n\
            print(flush=True)\n\
            sys.stdin.readline()\n\
            os.execvp('cat', ['cat'])\n";
        let mut command = Command::new("python3");
        command.args(["-c", python]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            return pagewise_skip::skip(&pagewise_skip::Lack::Tool("python3"));
        };
        let pid = child.id().cast_signed();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let threads = threads.map(|it| it.unwrap().file_name().to_str().unwrap().parse().unwrap());
        let other = threads.into_iter().find(|tid: &Tid| *tid != pid).unwrap();
        ptrace::seize(other, 0).unwrap();
        // `cat` runs until the pipe is closed: a process that has ended cannot be seized.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        // The `exec` waits until the other thread, which has ended, is reaped.
        while !has_ended(other, libc::WNOWAIT).unwrap() {
            thread::yield_now();
        }
        let begin = Instant::now();
        ptrace::seize(pid, 0).unwrap();
        assert!(begin.elapsed() >= POLL_INTERVAL, "nothing kept it waiting");
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }
}

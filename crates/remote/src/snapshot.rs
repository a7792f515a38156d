//! A snapshot of a process: pagewise makes the process fork a child, and reads the memory of the
//! child while the process runs on.
//!
//! The child is traced from its birth, stops before its first instruction, and is killed in that
//! stop. If its tracer dies, the kernel kills it (`PTRACE_O_EXITKILL`). Before this option is set,
//! or without a tracer, the child ends by itself: its stack returns to a call of `exit_group`, not
//! to the program ([`Tracee::fork`](crate::thread::Tracee)).
//!
//! The child has no exit signal, so its parent, which is the process, receives no signal, and
//! `wait` without `__WALL` or `__WCLONE` does not return the child. At the end, pagewise makes the
//! process wait for the child. Until then a [`Keeper`] keeps a note of the child outside of the
//! process: if pagewise is killed, the process that finds the note makes the target wait.
//!
//! ```text
//!  the tracer dies                    child                       process
//!  before the fork                    -                           goes on
//!  between fork and note              ends by itself, or killed   the forking thread waits for it
//!  after the note, before the end     killed                      is made to wait for it (keeper)
//!  after its end                      ended                       is made to wait for it (keeper)
//! ```

use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::{Duration, Instant};

use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use pagewise_sys::ptrace::{self, Tid};

use crate::thread::{ForkedChild, Tracee, next, rest};
use crate::undo::{Keeper, Undo, attempt_until};
use crate::{RemoteError, RemoteProcess};

/// Time limit for the first stop of the child.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit until the child has ended and its parent has waited for it. The child releases its
/// page tables before it ends.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A child for which its parent must wait. Its text form is `PID START-TICKS child CHILD
/// START-TICKS NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildUndo {
    /// PID of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// PID of the child.
    pub child: u32,
    /// Start time of the child, in clock ticks since boot.
    pub child_start_ticks: u64,
    /// PID of the child in the PID namespace of the process.
    pub number: u32,
}

/// Word that distinguishes the text of this note from the texts of other notes.
const CHILD: &str = "child";

impl fmt::Display for ChildUndo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChildUndo { pid, start_ticks, child, child_start_ticks, number } = self;
        write!(f, "{pid} {start_ticks} {CHILD} {child} {child_start_ticks} {number}")
    }
}

impl FromStr for ChildUndo {
    type Err = ();

    fn from_str(text: &str) -> Result<ChildUndo, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let [pid, start, CHILD, child, child_start, number] = words[..] else { return Err(()) };
        let id = |word: &str| word.parse::<u32>().map_err(drop);
        let ticks = |word: &str| word.parse::<u64>().map_err(drop);
        Ok(ChildUndo {
            pid: id(pid)?,
            start_ticks: ticks(start)?,
            child: id(child)?,
            child_start_ticks: ticks(child_start)?,
            number: id(number)?,
        })
    }
}

impl ChildUndo {
    /// Makes the process wait for the child. False if the child does not exist any more.
    ///
    /// # Errors
    /// As [`Undo::carry_out`].
    pub(crate) fn carry_out(&self, patience: Duration) -> Result<bool, RemoteError> {
        attempt_until(patience, &|| self.attempt())
    }

    /// True if the process has waited for the child; false if the process has no such child any
    /// more; `None` while the child is still ending.
    fn attempt(&self) -> Result<Option<bool>, RemoteError> {
        let text = ProcRoot::live().read(Pid(self.child), "stat");
        let Some(child) = text.ok().and_then(|text| stat::parse(&text).ok()) else {
            return Ok(Some(false));
        };
        if child.start_ticks != self.child_start_ticks || child.parent != Pid(self.pid) {
            return Ok(Some(false));
        }
        if !child.has_ended() {
            return Ok(None);
        }
        // The process is opened again, because it may have executed another program with other code
        // addresses.
        let target = RemoteProcess::open(self.pid, Some(self.start_ticks))?;
        let mut thread = target.any_thread()?;
        let options = u64::from((libc::WNOHANG | libc::__WALL).cast_unsigned());
        match thread.call(libc::SYS_wait4, [self.number.into(), 0, options, 0, 0, 0]) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(true)),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(false)),
            Err(error) => Err(RemoteError::system("it cannot wait for its snapshot")(error)),
        }
    }
}

/// A child of a process, stopped before its first instruction. It belongs to the thread that traces
/// the process.
#[derive(Debug)]
pub struct ForkedSnapshot {
    tid: Tid,
    undo: ChildUndo,
    since: Instant,
    has_ended: bool,
    _on_this_thread: PhantomData<*const ()>,
}

impl ForkedSnapshot {
    /// Makes the first stopped thread that can make calls fork. All threads of the process must be
    /// stopped, so that the memory of the child is of one time point.
    ///
    /// # Errors
    /// [`RemoteError::NoStack`], [`RemoteError::Restartable`] if no thread can make calls;
    /// [`RemoteError::System`] if the kernel refuses to fork, [`RemoteError::Gone`].
    pub fn fork(
        target: &RemoteProcess,
        stopped: &mut [Tracee],
        keeper: &mut dyn Keeper,
    ) -> Result<ForkedSnapshot, RemoteError> {
        let mut last = RemoteError::Gone;
        for thread in stopped {
            match target.prepare(thread) {
                Ok(()) => {
                    let child = thread
                        .fork(target.memory())
                        .map_err(RemoteError::system("the process cannot fork a snapshot"))?;
                    return ForkedSnapshot::begin(target, child, keeper);
                }
                Err(error @ (RemoteError::NoStack(_) | RemoteError::Restartable(_))) => {
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Writes the note while the forking thread is stopped: before the note exists, this thread
    /// itself waits for the child if pagewise is killed.
    fn begin(
        target: &RemoteProcess,
        child: ForkedChild,
        keeper: &mut dyn Keeper,
    ) -> Result<ForkedSnapshot, RemoteError> {
        let since = Instant::now();
        let pid = child.tid.unsigned_abs();
        let text = ProcRoot::live().read(Pid(pid), "stat").map_err(|_| RemoteError::Gone)?;
        let stat = stat::parse(&text).map_err(|_| RemoteError::Gone)?;
        let undo = ChildUndo {
            pid: target.pid(),
            start_ticks: target.start_ticks(),
            child: pid,
            child_start_ticks: stat.start_ticks,
            number: child.number,
        };
        keeper.note(&Undo::Child(undo));
        let snapshot = ForkedSnapshot {
            tid: child.tid,
            undo,
            since,
            has_ended: false,
            _on_this_thread: PhantomData,
        };
        // On an error the child is killed, and the keeper makes the process wait for it.
        let failed = RemoteError::system("cannot trace the snapshot");
        next(child.tid, since + STOP_LIMIT, &mut rest).map_err(&failed)?;
        ptrace::set_options(child.tid, libc::PTRACE_O_EXITKILL).map_err(&failed)?;
        // With this value, the kernel kills the snapshot before the process if memory runs out. If
        // the write fails, the snapshot works anyway.
        let _ = fs::write(ProcRoot::live().file(Pid(pid), "oom_score_adj"), "1000");
        Ok(snapshot)
    }

    /// PID of the child, whose memory is the memory of the process at the time of the fork.
    pub fn child(&self) -> u32 {
        self.undo.child
    }

    /// Ends the child, and makes the process wait for it. Returns the lifetime of the child.
    ///
    /// # Errors
    /// As [`Undo::carry_out`]; after an error the keeper makes the process wait.
    pub fn end(mut self, keeper: &mut dyn Keeper) -> Result<Duration, RemoteError> {
        self.kill();
        let lived = self.since.elapsed();
        self.undo.carry_out(END_LIMIT)?;
        keeper.strike(&Undo::Child(self.undo));
        Ok(lived)
    }

    fn kill(&mut self) {
        self.has_ended = true;
        if ptrace::kill(self.tid).is_err() {
            // The resumed child ends by itself.
            ptrace::resume(self.tid, 0);
        }
        let deadline = Instant::now() + END_LIMIT;
        // Before the child is dead, its first stop may be reported again.
        while next(self.tid, deadline, &mut rest).is_ok() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for ForkedSnapshot {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_a_child_is_read_as_it_was_written() {
        let undo =
            ChildUndo { pid: 7, start_ticks: 99, child: 8, child_start_ticks: 100, number: 3 };
        assert_eq!(undo.to_string().parse(), Ok(Undo::Child(undo)));
        for text in ["7 99 child 8 100", "7 99 child 8 100 x", "7 99 kid 8 100 3", ""] {
            assert_eq!(text.parse::<ChildUndo>(), Err(()), "{text}");
        }
    }
}

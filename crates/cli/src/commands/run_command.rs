//! Runs a command and takes a snapshot of it at the requested time point.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Bytes, Pid, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, resident};
use pagewise_proc::{ProcRoot, program_ending};
use pagewise_sys::trace::{Stopped, TraceEnding, Traced};

use crate::target::{CommandMoment, TakenSnapshot, captured};

/// Interval of checks of the RES, for `--at-peak`.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A growth of RES by 1/LEAP since the last snapshot causes a new snapshot at once.
const LEAP: u64 = 8;
/// A growth of RES by 1/STEP since the last snapshot causes a new snapshot after the pause of
/// [`REST`].
const STEP: u64 = 32;
/// Pause after a snapshot, as a multiple of the time for which the snapshot stopped the command.
const REST: u32 = 10;

/// Runs a command. Returns the snapshot at the requested time point, and the exit code of the
/// command.
///
/// # Errors
/// If the command cannot be run (exit codes 127 and 126, as a shell's), or no snapshot can be
/// taken.
pub(crate) fn run(
    program: &OsStr,
    arguments: &[OsString],
    when: CommandMoment,
    request: &CaptureRequest,
) -> anyhow::Result<TakenSnapshot> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let mut traced = match Traced::spawn(program, arguments) {
        Ok(traced) => traced,
        Err(error) => return Err(NotRun::new(program, error).into()),
    };
    let watch = RunWatch { pid: Pid(traced.pid()), request: *request };
    let snapshot = match when {
        CommandMoment::AtExit => watch.at_exit(&mut traced),
        CommandMoment::After(delay) => watch.after(&mut traced, delay),
        CommandMoment::AtPeak => watch.at_peak(&mut traced),
    };
    let why = traced.untraced();
    let exit = exit_code(traced.finish().context("cannot wait for the command")?);
    match snapshot? {
        Some(snapshot) => Ok(TakenSnapshot { snapshot, exit, denied: None }),
        None => bail!(
            "the command ended before it could be inspected{}",
            why.map(|why| format!(": {why}")).unwrap_or_default()
        ),
    }
}

/// A command that could not be started.
#[derive(Debug)]
pub(crate) struct NotRun {
    program: OsString,
    error: io::Error,
}

impl NotRun {
    pub(crate) fn new(program: &OsStr, error: io::Error) -> NotRun {
        NotRun { program: program.to_owned(), error }
    }

    /// Returns the exit code that a shell would return.
    pub(crate) fn code(&self) -> u8 {
        if self.error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

impl std::fmt::Display for NotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot run {}: {}", self.program.display(), self.error)
    }
}

impl std::error::Error for NotRun {}

/// Takes snapshots of a running command.
#[derive(Clone, Copy, Debug)]
struct RunWatch {
    pid: Pid,
    request: CaptureRequest,
}

impl RunWatch {
    fn capture(self, moment: ProcessMoment) -> anyhow::Result<Snapshot> {
        // A stopped process is not disturbed by a full reading.
        let wish = if self.request.wish == Wish::Auto { Wish::Full } else { self.request.wish };
        Ok(captured(&ProcRoot::live(), self.pid, &CaptureRequest { wish, moment, ..self.request })?)
    }

    fn at_exit(self, traced: &mut Traced) -> anyhow::Result<Option<Snapshot>> {
        match traced.run(None)? {
            Stopped::AtExit => self.capture(ProcessMoment::AtExit).map(Some),
            _ => Ok(None),
        }
    }

    fn after(self, traced: &mut Traced, delay: Duration) -> anyhow::Result<Option<Snapshot>> {
        let stopped = match traced.run(Some(Instant::now() + delay))? {
            Stopped::TimeIsUp => traced.freeze()?,
            stopped => stopped,
        };
        match stopped {
            Stopped::AtTime => {
                let nanos = nanoseconds(delay);
                self.capture(ProcessMoment::After(nanos)).map(Some)
            }
            Stopped::AtExit => self.capture(ProcessMoment::AtExit).map(Some),
            _ => Ok(None),
        }
    }

    /// Takes a snapshot each time RES has grown enough, and one at exit. Returns the snapshot with
    /// the highest RES.
    fn at_peak(self, traced: &mut Traced) -> anyhow::Result<Option<Snapshot>> {
        let root = ProcRoot::live();
        let mut best: Option<Snapshot> = None;
        let mut rest = Instant::now();
        loop {
            let stopped = traced.run(Some(Instant::now() + POLL_INTERVAL))?;
            let now = resident(&root, self.pid).unwrap_or(Bytes::ZERO);
            let (most, highest) = best.as_ref().map_or((Bytes::ZERO, Bytes::ZERO), sizes);
            let grown = now.0.saturating_sub(most.0);
            let due = grown > most.0 / LEAP || grown > most.0 / STEP && Instant::now() >= rest;
            match stopped {
                Stopped::TimeIsUp if due => {
                    let begin = Instant::now();
                    if traced.freeze()? == Stopped::AtTime {
                        best = Some(self.capture(ProcessMoment::AtPeak(now))?);
                        traced.thaw();
                        rest = Instant::now() + begin.elapsed() * REST;
                    }
                }
                // No snapshot is due, or the stop was not requested here.
                Stopped::TimeIsUp | Stopped::AtTime | Stopped::Executed | Stopped::Trapped => {}
                Stopped::AtExit => {
                    let last = self.capture(ProcessMoment::AtExit)?;
                    let peak = sizes(&last).1.max(highest);
                    let mut chosen = match best {
                        Some(best) if most > now => best,
                        _ => last,
                    };
                    chosen.provenance.moment = ProcessMoment::AtPeak(peak);
                    return Ok(Some(chosen));
                }
                Stopped::Ended(_) => return Ok(best),
            }
        }
    }
}

/// Returns the resident memory in a snapshot, and its peak.
fn sizes(snapshot: &Snapshot) -> (Bytes, Bytes) {
    let resident = snapshot.statm.as_ref().map_or(Bytes::ZERO, |statm| statm.resident);
    let peak =
        snapshot.status.as_ref().map_or(Bytes::ZERO, |s| s.vm_hwm.clone().unwrap_or_default());
    (resident, peak.max(resident))
}

/// Exit code of a shell after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Returns the command's exit code; after a signal, the exit code that a shell reports.
pub(crate) fn exit_code(ending: TraceEnding) -> ExitCode {
    ExitCode::from(u8::try_from(program_ending(ending).status()).unwrap_or(1))
}

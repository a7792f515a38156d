//! `pagewise shootdowns`: who has TLBs flushed, in a command until it ends, in a process or on the machine for a while.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::shootdowns::{self, Options};
use pagewise_model::bounds::MemoryLimit;
use pagewise_model::calls::Ending;
use pagewise_model::shootdowns::Recording;
use pagewise_model::{Name, Pid};
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_sys::interrupt::Interrupts;
use pagewise_sys::launch::{Launcher, Running};
use pagewise_sys::trace;
use pagewise_trace::shootdowns::{Around, Recorder};
use pagewise_trace::{Callers, Target};
use pagewise_view::text::Units;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::args::{self, Shootdowns};
use crate::commands::not_recorded;
use crate::commands::run_command::{NotRun, exit_code};
use crate::look::Look;
use crate::output::{emit, emit_beside, export};

/// Bytes of the stack that are copied for each event with `--unwind`.
const STACK: u16 = 8 << 10;
/// Callers that the kernel follows by frame pointers, at most.
const DEEPEST: u16 = 127;
/// What flame graphs are called.
const TITLE: &str = "TLB shootdowns";
/// Between looks whether it is over.
const TURN: Duration = Duration::from_millis(10);

/// Records, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: &Shootdowns, look: &args::Look) -> anyhow::Result<ExitCode> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be recorded from here");
    }
    let callers =
        if args.unwind { Callers::Tables(STACK) } else { Callers::FramePointers(DEEPEST) };
    let memory = args.memory.memory_limit;
    let limit = if args.output.json { None } else { args.rows.0 };
    let report = |recording: &Recording| shootdowns::shootdowns(recording, &Options { limit });
    if !args.command.is_empty() {
        let (recording, exit) = command(&args.command, callers, args.user_wait, memory)?;
        export(&args.exports, TITLE, || shootdowns::profile(&recording))?;
        let look = Look::on_stderr(look);
        emit_beside(&report(&recording), &args.output, &look, Units::Human)?;
        return Ok(exit);
    }
    let around = if args.user_wait { Around::in_files(Vec::new()) } else { Around::none() };
    let recording = match &args.target {
        Some(name) => watch_process(name, callers, &around, args.during, memory)?,
        None => watch(Target::Machine, None, callers, around, args.during, memory)?,
    };
    export(&args.exports, TITLE, || shootdowns::profile(&recording))?;
    emit(&report(&recording), &args.output, &Look::resolve(look), Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

fn command(
    words: &[OsString],
    callers: Callers,
    user_wait: bool,
    limit: MemoryLimit,
) -> anyhow::Result<(Recording, ExitCode)> {
    let (program, arguments) = words.split_first().context("no command was given")?;
    // A Ctrl-C is for the command; what it did until then is reported.
    let _interrupts = Interrupts::note();
    let not_run = |error| NotRun::new(program, error);
    let mut launcher = Launcher::start(program, arguments, None).map_err(not_run)?;
    // A program that is linked statically has these functions itself.
    let its_own = || trace::path_of(program).into_iter().collect();
    let around = if user_wait { Around::in_files(its_own()) } else { Around::none() };
    let mut recorder = None;
    let prepare = |pid| {
        let mut opened = Recorder::open(Target::Command(pid), callers, around.clone(), limit)?;
        opened.begin();
        recorder = Some(opened);
        Ok::<_, anyhow::Error>(())
    };
    let mut running = launcher.launch(prepare)?;
    let mut recorder = recorder.context("nothing was prepared")?;
    let ending = until_it_ends(&mut running, &mut recorder).map_err(not_run)?;
    let names = words.iter().map(|word| Name::new(word.as_bytes())).collect();
    let told = match ending {
        trace::Ending::Exited(status) => Ending::Exited(status),
        trace::Ending::Killed { signal, .. } => Ending::Killed(signal),
    };
    Ok((recorder.finish(names, Some(told))?, exit_code(ending)))
}

fn until_it_ends(
    running: &mut Running<'_>,
    recorder: &mut Recorder,
) -> std::io::Result<trace::Ending> {
    loop {
        recorder.turn(TURN);
        if let Some(outcome) = running.wait(Some(Instant::now()))? {
            return Ok(outcome.ending);
        }
    }
}

fn watch_process(
    name: &str,
    callers: Callers,
    around: &Around,
    during: Option<Duration>,
    limit: MemoryLimit,
) -> anyhow::Result<Recording> {
    let root = ProcRoot::live();
    let (root, pid) = target::hold(&root, name)?;
    if stat::parse(&root.read(pid, "stat")?)?.has_ended() {
        bail!("process {pid} has ended and waits for its parent: it flushes nothing");
    }
    let gone = || pagewise_trace::Error::Gone { pid: pid.0 };
    let number = rustix::process::Pid::from_raw(pid.0.cast_signed()).with_context(gone)?;
    let held = pidfd_open(number, PidfdFlags::empty()).map_err(|_| gone())?;
    // It was opened by its id; from here on its end is seen.
    root.check(pid)?;
    let watched =
        watch(Target::Process(pid.0), Some((pid, held)), callers, around.clone(), during, limit);
    watched.map_err(|error| match error.downcast() {
        Ok(error) => not_recorded(&root, pid, error, "CAP_PERFMON and read access to tracefs"),
        Err(error) => error,
    })
}

fn watch(
    target: Target,
    process: Option<(Pid, OwnedFd)>,
    callers: Callers,
    around: Around,
    during: Option<Duration>,
    limit: MemoryLimit,
) -> anyhow::Result<Recording> {
    let interrupts = Interrupts::note_all();
    let mut recorder = Recorder::open(target, callers, around, limit)?;
    recorder.enable()?;
    let deadline = during.map(|during| Instant::now() + during);
    let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    while !interrupts.came() && !is_over() && !process.as_ref().is_some_and(|(_, fd)| has_ended(fd))
    {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        recorder.turn(left.map_or(TURN, |left| left.min(TURN)));
    }
    Ok(recorder.finish(Vec::new(), None)?)
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

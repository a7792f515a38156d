//! `pagewise shootdowns`: the causes of TLB shootdowns in a command until it ends, or in a process
//! or on the machine for a while.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use pagewise_analysis::shootdowns::{self, ShootdownOptions};
use pagewise_model::bounds::MemoryLimit;
use pagewise_model::shootdowns::ShootdownRecording;
use pagewise_model::{Name, Pid};
use pagewise_proc::{ProcRoot, program_ending, stat, target};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::launch::{Launcher, RunningCommand};
use pagewise_sys::trace;
use pagewise_trace::shootdowns::{CallTimers, FlushRecorder};
use pagewise_trace::{Callers, TraceTarget};
use pagewise_view::text::Units;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::args;
use crate::args::{Exports, MemoryArgs, OutputArgs, RowLimit, limit};
use crate::commands::not_recorded;
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::{emit, emit_beside, export, note_begin};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct ShootdownsArgs {
    /// A PID, a process name, or a part of a name that matches one process only. The process
    /// is recorded until Ctrl-C, or until it ends
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "system"])]
    pub(crate) target: Option<String>,
    /// Record all processes and kernel threads of the machine, until Ctrl-C
    #[arg(long, conflicts_with_all = ["target", "command"])]
    pub(crate) system: bool,
    /// Stop recording after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// Show N rows of each table, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "12", value_parser = limit)]
    pub(crate) rows: RowLimit,
    /// Unwind call stacks by unwind tables, for programs without frame pointers. This copies 8 KiB
    /// of the stack at each event
    #[arg(long)]
    pub(crate) unwind: bool,
    /// Also measure the time that the program spends in each madvise, mprotect, munmap, mremap and
    /// mmap call, from the call of the C library's function to its return. Each call hits two
    /// uprobes; the report states the measured cost of the uprobes
    #[arg(long)]
    pub(crate) user_wait: bool,
    /// Run this command, and record it and its descendants until it ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) exports: Exports,
}

/// Bytes of the stack that are copied for each event with `--unwind`.
const STACK: u16 = 8 << 10;
/// Maximum number of callers that the kernel follows by frame pointers.
const DEEPEST: u16 = 127;
/// Title of flame graphs.
const TITLE: &str = "TLB shootdowns";
/// Interval of checks for the end.
const TURN: Duration = Duration::from_millis(10);

/// Records, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: &ShootdownsArgs, look: &args::LookArgs) -> anyhow::Result<ExitCode> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be recorded from here");
    }
    let callers =
        if args.unwind { Callers::Tables(STACK) } else { Callers::FramePointers(DEEPEST) };
    let memory = args.memory.memory_limit;
    let limit = if args.output.json { None } else { args.rows.0 };
    let report = |recording: &ShootdownRecording| {
        shootdowns::shootdowns(recording, &ShootdownOptions { limit })
    };
    if !args.command.is_empty() {
        let (recording, exit) = command(&args.command, callers, args.user_wait, memory)?;
        export(&args.exports, TITLE, || shootdowns::profile(&recording))?;
        let look = TerminalLook::on_stderr(look);
        emit_beside(&report(&recording), &args.output, &look, Units::Human)?;
        return Ok(exit);
    }
    let around = if args.user_wait { CallTimers::in_files(Vec::new()) } else { CallTimers::none() };
    let recording = match &args.target {
        Some(name) => watch_process(name, callers, &around, args.during, memory)?,
        None => watch(TraceTarget::Machine, None, callers, around, args.during, memory)?,
    };
    export(&args.exports, TITLE, || shootdowns::profile(&recording))?;
    emit(&report(&recording), &args.output, &TerminalLook::resolve(look), Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

fn command(
    words: &[OsString],
    callers: Callers,
    user_wait: bool,
    limit: MemoryLimit,
) -> anyhow::Result<(ShootdownRecording, ExitCode)> {
    let (program, arguments) = words.split_first().context("no command was given")?;
    // A Ctrl-C is for the command; its events until then are reported.
    let _interrupts = NotedInterrupts::note();
    let not_run = |error| NotRun::new(program, error);
    let mut launcher = Launcher::start(program, arguments, None).map_err(not_run)?;
    // A program that is linked statically has these functions itself.
    let its_own = || trace::path_of(program).into_iter().collect();
    let around = if user_wait { CallTimers::in_files(its_own()) } else { CallTimers::none() };
    let mut recorder = None;
    let prepare = |pid| {
        let mut opened =
            FlushRecorder::open(TraceTarget::Command(pid), callers, around.clone(), limit)?;
        opened.begin();
        recorder = Some(opened);
        Ok::<_, anyhow::Error>(())
    };
    let mut running = launcher.launch(prepare)?;
    let mut recorder = recorder.context("nothing was prepared")?;
    let ending = until_it_ends(&mut running, &mut recorder).map_err(not_run)?;
    let names = words.iter().map(|word| Name::new(word.as_bytes())).collect();
    Ok((recorder.finish(names, Some(program_ending(ending)))?, exit_code(ending)))
}

fn until_it_ends(
    running: &mut RunningCommand<'_>,
    recorder: &mut FlushRecorder,
) -> std::io::Result<trace::TraceEnding> {
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
    around: &CallTimers,
    during: Option<Duration>,
    limit: MemoryLimit,
) -> anyhow::Result<ShootdownRecording> {
    let root = ProcRoot::live();
    let (root, pid) = target::hold(&root, name)?;
    if stat::parse(&root.read(pid, "stat")?)?.has_ended() {
        bail!("process {pid} has ended and waits for its parent: it flushes nothing");
    }
    let gone = || pagewise_trace::TraceError::Gone { pid: pid.0 };
    let number = rustix::process::Pid::from_raw(pid.0.cast_signed()).with_context(gone)?;
    let held = pidfd_open(number, PidfdFlags::empty()).map_err(|_| gone())?;
    // The pidfd was opened by PID: check that the PID is still that of the process. From here on,
    // the pidfd reports the end of the process.
    root.check(pid)?;
    let watched = watch(
        TraceTarget::Process(pid.0),
        Some((pid, held)),
        callers,
        around.clone(),
        during,
        limit,
    );
    watched.map_err(|error| match error.downcast() {
        Ok(error) => not_recorded(&root, pid, error, "CAP_PERFMON and read access to tracefs"),
        Err(error) => error,
    })
}

fn watch(
    target: TraceTarget,
    process: Option<(Pid, OwnedFd)>,
    callers: Callers,
    around: CallTimers,
    during: Option<Duration>,
    limit: MemoryLimit,
) -> anyhow::Result<ShootdownRecording> {
    let interrupts = NotedInterrupts::note_all();
    let mut recorder = FlushRecorder::open(target, callers, around, limit)?;
    recorder.enable()?;
    match &process {
        Some((pid, _)) => note_begin(format_args!("TLB shootdowns of process {pid}"), during),
        None => note_begin("TLB shootdowns of all processes", during),
    }
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

//! `pagewise faults`: the page faults of a command until it ends, or of a process for a while.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, bail};
use clap::Args;
use pagewise_analysis::faults::{self, FaultOptions};
use pagewise_heap::{LiveBlocks, library};
use pagewise_model::faults::{FaultRecording, VERSION};
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::{ProcRoot, program_ending, stat, target};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::launch::{Launcher, RunOutcome, RunningCommand};
use pagewise_sys::system;
use pagewise_trace::TraceTarget;
use pagewise_trace::faults::{FaultRecorder, FaultsContext, FaultsRequest};
use pagewise_view::text::Units;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args;
use crate::args::{Exports, MemoryArgs, OutputArgs, RowLimit, byte_count, limit};
use crate::commands::heap::NO_LIBRARY;
use crate::commands::not_recorded;
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::{emit, emit_beside, export, note_begin, save};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// A PID, a process name, or a part of a name that matches one process only. The process
    /// is recorded until Ctrl-C, or until it ends
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "from"])]
    pub(crate) target: Option<String>,
    /// Stop recording after TIME; a command continues to run
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Record one in N faults, and count each recorded fault N times. Without root, each major
    /// fault is recorded and counts once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Measure the time that the kernel takes to handle each fault (needs root)
    #[arg(long)]
    pub(crate) latency: bool,
    /// Copy BYTES of the stack at each fault, at most 65528. Callers without frame pointers are
    /// found within these bytes. The report states how many stacks were cut off
    #[arg(long, value_name = "BYTES", default_value_t = pagewise_trace::faults::STACK, value_parser = clap::value_parser!(u16).range(8..=65528))]
    pub(crate) stack: u16,
    /// Record calls of mremap too (needs root). Without them, the type of a fault (such as first
    /// touch or copy-on-write) is unknown in memory that mremap just moved or extended. This option
    /// adds about 50 ns to every system call of the machine
    #[arg(long)]
    pub(crate) mremap: bool,
    /// Also report the call stack that allocated the heap block in which each fault occurs, for
    /// blocks of at least BYTES (default: one page). This loads the recorder library of `pagewise
    /// heap run` into the command. Heap blocks of the command's children are not recorded; their
    /// faults are
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, requires = "command", value_parser = byte_count)]
    pub(crate) heap: Option<Option<u64>>,
    /// Show N rows of each table, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "15", value_parser = limit)]
    pub(crate) rows: RowLimit,
    /// Read a saved recording instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command"])]
    pub(crate) from: Option<PathBuf>,
    /// Save the recording to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    /// Run this command, and record it and its descendants until it ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) exports: Exports,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Interval of checks for the end and for new events, and of reading mappings that no event
/// reports.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Records, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: &Faults, look: &args::LookArgs) -> anyhow::Result<ExitCode> {
    let (recording, exit) = match (&args.from, &args.target) {
        (Some(path), _) => (open(path)?, ExitCode::SUCCESS),
        (None, Some(name)) => (watch(name, args)?, ExitCode::SUCCESS),
        (None, None) => command(args)?,
    };
    if let Some(path) = &args.save {
        save(path, |out| Ok(serde_json::to_writer(out, &recording)?))?;
    }
    let words: Vec<_> = recording.command.iter().map(Name::escaped).collect();
    let title = format!("Page faults: {} ({})", words.join(" "), recording.pid);
    export(&args.exports, &title, || recording.profile())?;
    let limit = if args.output.json { None } else { args.rows.0 };
    let report = faults::faults(&recording, &FaultOptions { limit });
    if args.command.is_empty() {
        emit(&report, &args.output, &TerminalLook::resolve(look), Units::Human)?;
    } else {
        emit_beside(&report, &args.output, &TerminalLook::on_stderr(look), Units::Human)?;
    }
    Ok(exit)
}

fn open(path: &Path) -> anyhow::Result<FaultRecording> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let recording: FaultRecording = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a recording of page faults", path.display()))?;
    if recording.version != VERSION {
        bail!("{} is of another version of pagewise", path.display());
    }
    Ok(recording)
}

fn request(args: &Faults, target: TraceTarget) -> FaultsRequest {
    let Faults { every, latency, stack, mremap, .. } = *args;
    FaultsRequest { target, every, latency, stack, mremap, limit: args.memory.memory_limit }
}

fn command(args: &Faults) -> anyhow::Result<(FaultRecording, ExitCode)> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let not_run = |error| NotRun::new(program, error);
    // A Ctrl-C is for the command.
    let _interrupts = NotedInterrupts::note();
    let mut heap = match args.heap {
        Some(least) => {
            let library = library().context(NO_LIBRARY)?;
            Some(LiveBlocks::open(&library, least.unwrap_or_else(system::page_size))?)
        }
        None => None,
    };
    let environment = heap.as_ref().map(LiveBlocks::environment).unwrap_or_default();
    let mut launcher =
        Launcher::start_with(program, arguments, None, &environment).map_err(not_run)?;
    let mut recorder = None;
    let running = launcher.launch(|pid| -> anyhow::Result<()> {
        let mut new = FaultRecorder::open(request(args, TraceTarget::Command(pid)))?;
        if let Some(heap) = heap.take() {
            heap.expect(pid);
            new.ask(Box::new(heap));
        }
        new.start()?;
        recorder = Some(new);
        Ok(())
    })?;
    let pid = Pid(running.pid());
    let mut recorder = recorder.context("the command was not prepared")?;
    let outcome =
        wait(running, &mut recorder, args.during).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("the process that started the command was killed")
            }
            _ => not_run(error).into(),
        })?;
    let usage = (outcome.usage.minor_faults, outcome.usage.major_faults);
    let stopped_early = || Absent::NotCollected("the recording ended before the command".into());
    let recording = recorder.finish(FaultsContext {
        pid,
        command: args.command.iter().map(|word: &OsString| Name::new(word.as_bytes())).collect(),
        ending: Some(program_ending(outcome.ending)),
        usage: if args.during.is_some() { Err(stopped_early()) } else { Ok(usage) },
    });
    Ok((recording, exit_code(outcome.ending)))
}

fn wait(
    mut running: RunningCommand<'_>,
    recorder: &mut FaultRecorder,
    during: Option<Duration>,
) -> io::Result<RunOutcome> {
    let begin = Instant::now();
    loop {
        let left = during.map(|during| during.saturating_sub(begin.elapsed()));
        match left {
            Some(Duration::ZERO) => recorder.stop(),
            left => recorder.step(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL))),
        }
        let deadline = if left == Some(Duration::ZERO) { POLL_INTERVAL } else { Duration::ZERO };
        if let Some(outcome) = running.wait(Some(Instant::now() + deadline))? {
            return Ok(outcome);
        }
    }
}

/// Raises the soft limit of open files to the hard limit: each recorded thread needs several
/// descriptors per CPU.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn watch(name: &str, args: &Faults) -> anyhow::Result<FaultRecording> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be watched from here");
    }
    let (root, pid) = target::hold(&root, name)?;
    if root.ourselves() == Some(pid) {
        bail!("no process can watch itself: it would fault while it counts");
    }
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    if stat.has_ended() {
        bail!("process {pid} has ended and waits for its parent: it faults no more");
    }
    if stat.is_kernel_thread() {
        bail!("process {pid} is a kernel thread: it has no memory of its own");
    }
    let interrupts = NotedInterrupts::note();
    allow_files();
    let needs = match root.check_access(pid) {
        Err(_) => "CAP_PERFMON and CAP_SYS_PTRACE",
        Ok(()) => "CAP_PERFMON",
    };
    let mut recorder = FaultRecorder::open(request(args, TraceTarget::Process(pid.0)))
        .map_err(|error| not_recorded(&root, pid, error, needs))?;
    // The events were opened by PID: check that the PID is still that of the process.
    root.check(pid)?;
    recorder.start()?;
    note_begin(format_args!("page faults of process {pid}"), args.during);
    let begin = Instant::now();
    let lives = || {
        let stat = root.read(pid, "stat").ok().and_then(|text| stat::parse(&text).ok());
        stat.is_some_and(|stat| !stat.has_ended())
    };
    let is_over = || args.during.is_some_and(|during| begin.elapsed() >= during);
    while !interrupts.came() && !is_over() && lives() {
        let left = args.during.map(|during| during.saturating_sub(begin.elapsed()));
        recorder.step(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL)));
    }
    let usage = Err(Absent::NotCollected("only of a command that is run".into()));
    Ok(recorder.finish(FaultsContext { pid, command: Vec::new(), ending: None, usage }))
}

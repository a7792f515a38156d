//! `pagewise syscalls`: the memory calls of a command until it ends, or of a process for a while.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use pagewise_analysis::calls::{self, CallOptions};
use pagewise_model::Name;
use pagewise_model::bounds::MemoryLimit;
use pagewise_model::calls::CallRecording;
use pagewise_proc::calls::record;
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_sys::trace::calls::TracedProgram;
use pagewise_view::text::Units;

use crate::args::{MemoryArgs, OutputArgs, RowLimit, limit};
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::{emit, note_begin};
use crate::pause;
use crate::terminal::TerminalLook;

/// Help of `--memory-limit`.
const MEMORY_LIMIT_HELP: &str = "Limit the memory of pagewise to SIZE, at least 32M. At this limit, the recording of a \
    TARGET ends, and further calls of a COMMAND are only counted";

#[derive(Debug, Args)]
#[command(mut_arg("memory_limit", |arg| arg.help(MEMORY_LIMIT_HELP)))]
pub(crate) struct Syscalls {
    /// A PID, a process name, or a part of a name that matches one process only. The process is
    /// recorded until Ctrl-C or Ctrl-Z, or until it ends. Each system call stops the calling thread
    /// for a few microseconds. If SIGSTOP stops pagewise, each thread of the process stops at its
    /// next system call, until pagewise receives SIGCONT
    #[arg(value_name = "TARGET", required_unless_present = "command")]
    pub(crate) target: Option<String>,
    /// Stop recording after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// Stop all threads for at most TIME at the start of the recording; if the threads are expected
    /// to be stopped for longer, nothing is recorded
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) max_pause: Duration,
    /// Show the first N calls and the first N processes, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "100", value_parser = limit)]
    pub(crate) calls: RowLimit,
    /// Run this command, and record it and its descendants until all of these processes have ended.
    /// When only descendants remain, Ctrl-C ends them
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Records, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: Syscalls, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let limit = args.memory.memory_limit;
    let (recording, exit) = match &args.target {
        Some(name) => (watch(name, args.during, args.max_pause, limit)?, ExitCode::SUCCESS),
        None => command(&args.command, limit)?,
    };
    let rows = if args.output.json { None } else { args.calls.0 };
    emit(
        &calls::calls(&recording, &CallOptions { limit: rows }),
        &args.output,
        look,
        Units::Human,
    )?;
    Ok(exit)
}

fn command(words: &[OsString], limit: MemoryLimit) -> anyhow::Result<(CallRecording, ExitCode)> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = words.split_first().context("no command was given")?;
    let mut watched = match TracedProgram::spawn(program, arguments) {
        Ok(Ok(watched)) => watched,
        Ok(Err(untraced)) => bail!("the command was not run: {untraced}"),
        Err(error) => return Err(NotRun::new(program, error).into()),
    };
    let names = words.iter().map(|word| Name::new(word.as_bytes())).collect();
    let recording = record(&mut watched, names, limit).context("cannot wait for the command")?;
    let ending = watched.ending().context("the command went on without us")?;
    Ok((recording, exit_code(ending)))
}

fn watch(
    name: &str,
    during: Option<Duration>,
    max_pause: Duration,
    limit: MemoryLimit,
) -> anyhow::Result<CallRecording> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be traced from here");
    }
    let (root, pid) = target::hold(&root, name)?;
    if root.ourselves() == Some(pid) {
        bail!("no process can trace itself");
    }
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    if stat.has_ended() {
        bail!("process {pid} has ended and waits for its parent: it makes no calls");
    }
    if stat.is_kernel_thread() {
        bail!("process {pid} is a kernel thread: it has no memory of its own");
    }
    root.check_access(pid)?;
    pause::permit(&root, pid, max_pause)?;
    let deadline = during.map(|during| Instant::now() + during);
    let mut watched = TracedProgram::attach(pid.0, deadline, max_pause)
        .map_err(|error| refused(pid.0, &error))?;
    // The threads were attached to by PID: check that the PID is still that of the process.
    root.check(pid)?;
    note_begin(format_args!("memory system calls of process {pid}"), during);
    Ok(record(&mut watched, Vec::new(), limit)?)
}

fn refused(pid: u32, error: &io::Error) -> anyhow::Error {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "another tracer has it, or kernel.yama.ptrace_scope requires CAP_SYS_PTRACE"
        }
        _ => "it may have ended",
    };
    anyhow::anyhow!("cannot trace process {pid}: {error} ({why})")
}

//! `pagewise faults`: the page faults of a command until it ends, or of a process for a while.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::faults::{self, Options};
use pagewise_heap::{Live, library};
use pagewise_model::calls::Ending;
use pagewise_model::faults::{Recording, VERSION};
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_sys::interrupt::Interrupts;
use pagewise_sys::launch::{Launcher, Outcome, Running};
use pagewise_sys::{system, trace};
use pagewise_trace::Target;
use pagewise_trace::faults::{About, Recorder, Request};
use pagewise_view::text::Units;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::{self, Faults};
use crate::commands::heap::NO_LIBRARY;
use crate::commands::not_recorded;
use crate::commands::run_command::{NotRun, exit_code};
use crate::look::Look;
use crate::output::{emit, emit_beside, export, save};

/// Between looks at whether it is over, and at what has happened: mappings that no event tells are read then.
const LOOK: Duration = Duration::from_millis(10);

/// Records, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: &Faults, look: &args::Look) -> anyhow::Result<ExitCode> {
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
    let report = faults::faults(&recording, &Options { limit });
    if args.command.is_empty() {
        emit(&report, &args.output, &Look::resolve(look), Units::Human)?;
    } else {
        emit_beside(&report, &args.output, &Look::on_stderr(look), Units::Human)?;
    }
    Ok(exit)
}

fn open(path: &Path) -> anyhow::Result<Recording> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let recording: Recording = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no recording of page faults", path.display()))?;
    if recording.version != VERSION {
        bail!("{} is of another version of pagewise", path.display());
    }
    Ok(recording)
}

fn request(args: &Faults, target: Target) -> Request {
    let Faults { every, latency, stack, mremap, .. } = *args;
    Request { target, every, latency, stack, mremap, limit: args.memory.memory_limit }
}

fn command(args: &Faults) -> anyhow::Result<(Recording, ExitCode)> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let not_run = |error| NotRun::new(program, error);
    // A Ctrl-C is for the command.
    let _interrupts = Interrupts::note();
    let mut heap = match args.heap {
        Some(least) => {
            let library = library().context(NO_LIBRARY)?;
            Some(Live::open(&library, least.unwrap_or_else(system::page_size))?)
        }
        None => None,
    };
    let environment = heap.as_ref().map(Live::environment).unwrap_or_default();
    let mut launcher =
        Launcher::start_with(program, arguments, None, &environment).map_err(not_run)?;
    let mut recorder = None;
    let running = launcher.launch(|pid| -> anyhow::Result<()> {
        let mut new = Recorder::open(request(args, Target::Command(pid)))?;
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
            io::ErrorKind::UnexpectedEof => anyhow::anyhow!("what started the command was killed"),
            _ => not_run(error).into(),
        })?;
    let usage = (outcome.usage.minor_faults, outcome.usage.major_faults);
    let stopped_early = || Absent::NotCollected("the recording ended before the command".into());
    let recording = recorder.finish(About {
        pid,
        command: args.command.iter().map(|word: &OsString| Name::new(word.as_bytes())).collect(),
        ending: Some(ending(outcome.ending)),
        usage: if args.during.is_some() { Err(stopped_early()) } else { Ok(usage) },
    });
    Ok((recording, exit_code(outcome.ending)))
}

fn wait(
    mut running: Running<'_>,
    recorder: &mut Recorder,
    during: Option<Duration>,
) -> io::Result<Outcome> {
    let begin = Instant::now();
    loop {
        let left = during.map(|during| during.saturating_sub(begin.elapsed()));
        match left {
            Some(Duration::ZERO) => recorder.stop(),
            left => recorder.step(left.map_or(LOOK, |left| left.min(LOOK))),
        }
        let deadline = if left == Some(Duration::ZERO) { LOOK } else { Duration::ZERO };
        if let Some(outcome) = running.wait(Some(Instant::now() + deadline))? {
            return Ok(outcome);
        }
    }
}

/// Lets this process have as many files as it may: each thread that is watched takes some for each CPU.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // Who may not has the usual number.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn ending(ending: trace::Ending) -> Ending {
    match ending {
        trace::Ending::Exited(status) => Ending::Exited(status),
        trace::Ending::Killed { signal, .. } => Ending::Killed(signal),
    }
}

fn watch(name: &str, args: &Faults) -> anyhow::Result<Recording> {
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
    let interrupts = Interrupts::note();
    allow_files();
    let needs = match root.check_access(pid) {
        Err(_) => "CAP_PERFMON and CAP_SYS_PTRACE",
        Ok(()) => "CAP_PERFMON",
    };
    let mut recorder = Recorder::open(request(args, Target::Process(pid.0)))
        .map_err(|error| not_recorded(&root, pid, error, needs))?;
    // It was opened by its id.
    root.check(pid)?;
    recorder.start()?;
    let begin = Instant::now();
    let lives = || {
        let stat = root.read(pid, "stat").ok().and_then(|text| stat::parse(&text).ok());
        stat.is_some_and(|stat| !stat.has_ended())
    };
    let is_over = || args.during.is_some_and(|during| begin.elapsed() >= during);
    while !interrupts.came() && !is_over() && lives() {
        let left = args.during.map(|during| during.saturating_sub(begin.elapsed()));
        recorder.step(left.map_or(LOOK, |left| left.min(LOOK)));
    }
    let usage = Err(Absent::NotCollected("only of a command that is run".into()));
    Ok(recorder.finish(About { pid, command: Vec::new(), ending: None, usage }))
}

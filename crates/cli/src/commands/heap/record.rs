//! `pagewise heap run`: records the heap of a command until it ends.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_heap::{
    CollectRequest, Collector, Finished, RecorderLibrary, RecorderTrouble, Why, library, probes,
};
use pagewise_heaplog::recording::LogEnding;
use pagewise_proc::ProcRoot;
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::launch::{Launcher, RunOutcome, RunningCommand};
use pagewise_sys::trace;

use crate::commands::heap::args::HeapRun;
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::note;

/// Interval of checks for the end of the command.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Error if this build has no recorder library for the machine.
pub(crate) const NO_LIBRARY: &str =
    "not available: programs can be recorded from inside on x86-64 Linux with glibc";

/// Runs the command, and passes on its exit code.
pub(crate) fn run(args: &HeapRun) -> anyhow::Result<ExitCode> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    if let Some(plan) = probes::plan(program).with_context(|| cannot(program))? {
        return by_probes(args, &plan);
    }
    let library = the_library()?;
    let not_run = |error| NotRun::new(program, error);
    // Ctrl-C is meant for the command: pagewise records until the command ends.
    let _interrupts = NotedInterrupts::note();
    let file = args.record.output.clone().unwrap_or_default();
    let request = CollectRequest {
        file,
        every_bytes: args.record.sample,
        follow: args.follow,
        mappings: args.record.mmap,
        pools: args.pools,
        library,
    };
    let mut collector = Collector::open(request)?;
    let environment = collector.environment();
    let mut launcher =
        Launcher::start_with(program, arguments, None, &environment).map_err(not_run)?;
    let running = launcher.launch(|pid| -> io::Result<()> {
        let name =
            args.record.output.clone().unwrap_or_else(|| usual_name(Path::new(program), pid));
        collector.expect(pid, name);
        Ok(())
    })?;
    let (outcome, collector) = wait(running, collector, not_run)?;
    let collector = collector?;
    let (greeted, refused) = collector.greeted();
    let not_hooked = collector.not_hooked().to_vec();
    tell_without_tables(collector.without_tables());
    tell_not_recorded(&collector);
    let told = !collector.without_tables().is_empty();
    let finished = collector.finish(how(outcome.ending))?;
    tell(&finished, greeted, refused, &not_hooked, told);
    if probes::has_go(program) && !finished.is_empty() {
        tell_of_go();
    }
    Ok(exit_code(outcome.ending))
}

fn cannot(program: &OsStr) -> String {
    format!("cannot record {}", pagewise_model::name::escape(program.as_bytes()))
}

/// Records a statically linked program, by uprobes.
fn by_probes(args: &HeapRun, plan: &probes::ProbePlan) -> anyhow::Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    if args.record.mmap || args.pools {
        let why = "it is linked statically: only its allocation calls (malloc and similar) can be recorded; omit --mmap and --pools";
        bail!("{}: {why}", cannot(program));
    }
    let not_run = |error| NotRun::new(program, error);
    let _interrupts = NotedInterrupts::note();
    let mut launcher = Launcher::start(program, arguments, None).map_err(not_run)?;
    let mut recorder = None;
    let mut running = launcher.launch(|pid| -> anyhow::Result<()> {
        let name =
            args.record.output.clone().unwrap_or_else(|| usual_name(Path::new(program), pid));
        let command = args.command.iter().map(|word| word.as_bytes().to_vec()).collect();
        let request = probes::ProbeRequest {
            file: name,
            command,
            every_bytes: args.record.sample,
            follow: args.follow,
        };
        let new = probes::Probes::open(plan, pid, request).with_context(|| cannot(program))?;
        recorder = Some(new);
        Ok(())
    })?;
    let mut recorder = recorder.context("the command was not prepared")?;
    let mut recorded = Ok(());
    let outcome = loop {
        // If the recording fails, the command still runs to its end.
        match &recorded {
            Ok(()) => recorded = recorder.step(POLL_INTERVAL),
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
        match running.wait(Some(Instant::now())) {
            Ok(Some(outcome)) => break outcome,
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                bail!("the process that started the command was killed")
            }
            Err(error) => return Err(not_run(error).into()),
        }
    };
    recorded?;
    let (finished, lost) = recorder.finish(how(outcome.ending))?;
    tell(&finished, 1, 0, &[], false);
    if lost > 0 {
        tell_lost(lost);
    }
    Ok(exit_code(outcome.ending))
}

fn how(ending: trace::TraceEnding) -> LogEnding {
    match ending {
        trace::TraceEnding::Exited(status) => LogEnding::Exited(status),
        trace::TraceEnding::Killed { signal, .. } => LogEnding::Killed(signal),
    }
}

fn tell_of_go() {
    note(
        "only allocations of its C code are recorded: Go's runtime does not use malloc; `go tool pprof` shows the Go heap",
    );
}

fn tell_lost(lost: u64) {
    note(format_args!(
        "{lost} events were lost, since the program was faster than the recorder: the figures are too low"
    ));
}

/// Returns the recorder library. Fails if this build has none for the machine.
pub(super) fn the_library() -> anyhow::Result<RecorderLibrary> {
    library().context(NO_LIBRARY)
}

pub(super) fn usual_name(program: &Path, pid: u32) -> PathBuf {
    let mut name = program.file_name().unwrap_or(program.as_os_str()).to_owned();
    name.push(format!(".{pid}.pwh"));
    name.into()
}

/// Waits for the end of the command, also if its recording fails.
fn wait(
    mut running: RunningCommand<'_>,
    collector: Collector,
    not_run: impl Fn(io::Error) -> NotRun,
) -> anyhow::Result<(RunOutcome, Result<Collector, pagewise_heap::HeapError>)> {
    // After a failure, the collector is dropped, so that no process waits for an answer of the
    // collector.
    let mut collector = Ok(collector);
    loop {
        let mut next = POLL_INTERVAL;
        if let Ok(works) = &mut collector {
            match works.step() {
                Ok(step) => next = next.min(step),
                Err(error) => collector = Err(error),
            }
        }
        // At its start, each program waits for an answer of the collector.
        let attention = collector.as_ref().ok().and_then(Collector::attention);
        match running.wait_or(Some(Instant::now() + next), attention) {
            Ok(Some(outcome)) => {
                // A last step answers programs that still wait, such as a child of the command.
                let last = collector.and_then(|mut collector| collector.step().map(|_| collector));
                return Ok((outcome, last));
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                bail!("the process that started the command was killed")
            }
            Err(error) => return Err(not_run(error).into()),
        }
    }
}

fn tell_without_tables(processes: &[u32]) {
    for pid in processes {
        note(format_args!(
            "process {pid} was not recorded: its limits (ulimit -v, ulimit -f) leave no room for the recorder's \
             tables, 1 GiB of addresses of which little is used"
        ));
    }
}

/// Prints on standard error the allocators of the programs that are not recorded.
pub(super) fn tell_not_recorded(collector: &Collector) {
    for left_out in collector.left_out() {
        note(format_args!("{left_out}"));
    }
    for nameless in collector.nameless() {
        note(format_args!("{nameless}"));
    }
}

/// Prints on standard error the files of the recordings.
pub(super) fn tell(
    finished: &[Finished],
    greeted: usize,
    refused: usize,
    not_hooked: &[(Vec<u8>, Why)],
    told: bool,
) {
    for (program, why) in not_hooked {
        let program = pagewise_model::name::escape(program);
        note(format_args!("{program} was not recorded: it has a malloc of its own, and {why}"));
    }
    finished.iter().for_each(tell_recording);
    if finished.is_empty() {
        let why = if greeted == refused && greeted > 0 {
            "only children of the command loaded the recorder: see --follow"
        } else {
            "the command did not load the recorder: it is linked statically, or gains privileges as it starts"
        };
        if not_hooked.is_empty() && !told {
            note(format_args!("nothing was recorded: {why}"));
        }
    } else if refused > 0 {
        note(format_args!("{refused} children were not recorded: see --follow"));
    }
}

/// Prints on standard error the file of a recording, and the data that the recording lacks.
fn tell_recording(recording: &Finished) {
    let file = pagewise_model::name::escape(recording.file.as_os_str().as_bytes());
    match recording.trouble {
        Some(RecorderTrouble::Memory) => {
            note(format_args!("{file} is empty: there was no memory for the recorder's tables"));
        }
        Some(RecorderTrouble::Late) => note(format_args!(
            "{file} is empty: the recorder waited 5 s for an answer, then let its program run \
             unrecorded"
        )),
        Some(RecorderTrouble::Calls) => note(format_args!(
            "{file} ends where the program gave up system calls (seccomp), before it ended; see \
             `pagewise heap report {file}`"
        )),
        None => note(format_args!("see `pagewise heap report {file}`")),
    }
    if recording.without_new {
        note(format_args!(
            "{file} is without what C++ code allocates: the allocator's library has an operator new of its own"
        ));
    }
    if recording.broken {
        note(format_args!("{file} ends where the recorder's tables could no longer be read"));
    }
    if recording.became_another {
        note(format_args!(
            "{file} ends where the program became another (execve), which did not load the recorder: its \
                 environment was emptied, or it gains privileges or is linked statically"
        ));
    }
}

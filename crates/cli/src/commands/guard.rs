//! `pagewise guard`: runs a command with guarded objects, and reports each memory error when it
//! occurs.

pub(crate) mod args;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::guard;
use pagewise_heap::guard::{GuardEvent, GuardOptions, Listener, PageSide, Resolver};
use pagewise_heap::library;
use pagewise_model::ending::ProgramEnding;
use pagewise_model::guard::{GuardMeans, Guarded};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::{ProcRoot, program_ending};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::launch::{Launcher, RunOutcome, RunningCommand};
use pagewise_sys::trace;
use pagewise_view::text::{Units, inline};

use crate::args::{LookArgs, OutputArgs};
use crate::commands::guard::args::{AfterError, GuardArgs, MeansArg, SideArg};
use crate::commands::heap::NO_LIBRARY;
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::emit_beside;
use crate::terminal::TerminalLook;

/// Interval at which received messages are handled. The end of the command is noticed at once, and
/// another thread answers the guards.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of messages between two checks, and after the command's end: a flood of messages
/// is cut off.
const AT_A_TIME: usize = 256;
const AT_THE_END: usize = 10_000;
/// Up to this rate, guarded blocks may take a large part of the run time.
const OFTEN: u64 = 100;

/// Runs the command, reports its memory errors, and returns its exit code.
pub(crate) fn run(args: &GuardArgs, look: &LookArgs) -> anyhow::Result<ExitCode> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let library = library().context(NO_LIBRARY)?;
    let not_run = |error| NotRun::new(program, error);
    // A Ctrl-C is for the command.
    let _interrupts = NotedInterrupts::note();
    let side = match args.side {
        Some(SideArg::End) => PageSide::End,
        Some(SideArg::Start) => PageSide::Start,
        Some(SideArg::Chance) => PageSide::Chance,
        None if args.rate == 1 => PageSide::End,
        None => PageSide::Chance,
    };
    let listener = Listener::open(GuardOptions {
        rate: args.rate,
        most_bytes: args.most,
        goes_on: args.then == AfterError::Continue,
        side,
        means: match args.means {
            Some(MeansArg::Moves) => GuardMeans::Moves,
            Some(MeansArg::Marks) => GuardMeans::Marks,
            Some(MeansArg::Mappings) => GuardMeans::Mappings,
            // If few blocks are guarded, each method is fast, and `Marks` needs no descriptor in
            // the program.
            None if args.rate > OFTEN => GuardMeans::Marks,
            None => GuardMeans::Moves,
        },
        library,
    })?;
    let environment = listener.environment();
    let mut launcher =
        Launcher::start_with(program, arguments, None, &environment).map_err(not_run)?;
    let running = launcher.launch(|_| -> io::Result<()> { Ok(()) })?;
    let mut told = GuardReport::new(args, Pid(running.pid()));
    let outcome = wait(running, &listener, &mut told, not_run)?;
    // Messages sent before the end are readable once the end is seen.
    for _ in 0..AT_THE_END {
        let Some(heard) = listener.next(Duration::ZERO) else { break };
        told.handle_event(heard)?;
    }
    let guarded = told.finish(&outcome);
    let is_found = !guarded.bugs.is_empty();
    let ended_well = matches!(outcome.ending, trace::TraceEnding::Exited(_));
    let report = guard::guard(&guarded, is_for_screen(&args.output));
    emit_beside(&report, &args.output, &TerminalLook::on_stderr(look), Units::Human)?;
    Ok(match is_found && ended_well {
        true => ExitCode::from(args.error_exitcode),
        false => exit_code(outcome.ending),
    })
}

/// True if people see each memory error when it occurs.
fn is_for_screen(output: &OutputArgs) -> bool {
    output.output.is_none() && output.html.is_none() && !output.json
}

fn wait(
    mut running: RunningCommand<'_>,
    listener: &Listener,
    told: &mut GuardReport<'_>,
    not_run: impl Fn(io::Error) -> NotRun,
) -> anyhow::Result<RunOutcome> {
    loop {
        for _ in 0..AT_A_TIME {
            let Some(heard) = listener.next(Duration::ZERO) else { break };
            told.handle_event(heard)?;
        }
        match running.wait(Some(Instant::now() + POLL_INTERVAL)) {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                bail!("the process that started the command was killed")
            }
            Err(error) => return Err(not_run(error).into()),
        }
    }
}

/// Messages received so far.
struct GuardReport<'a> {
    args: &'a GuardArgs,
    began: Instant,
    resolver: Resolver,
    guarded: Guarded,
    /// Processes that sent [`GuardEvent::Hello`].
    pids: BTreeSet<u32>,
}

impl<'a> GuardReport<'a> {
    fn new(args: &'a GuardArgs, pid: Pid) -> GuardReport<'a> {
        let why = "the command did not load the guard: it is linked statically, has a malloc of its own, or gains privileges \
                   as it starts";
        GuardReport {
            args,
            began: Instant::now(),
            resolver: Resolver::default(),
            guarded: Guarded {
                pid,
                command: args.command.iter().map(|word| Name::new(word.as_bytes())).collect(),
                rate: args.rate,
                means: Err(Absent::NotSupported(why.into())),
                processes: 0,
                told: 0,
                guarded: 0,
                left_out: 0,
                most_bytes: 0,
                bugs: Vec::new(),
                bugs_dropped: 0,
                ending: ProgramEnding::Exited(0),
                took_ns: 0,
            },
            pids: BTreeSet::new(),
        }
    }

    fn handle_event(&mut self, heard: GuardEvent) -> anyhow::Result<()> {
        /// Maximum number of stored memory errors, of up to 200 KB each with their call stacks.
        /// Further memory errors are only counted.
        const MAX_BUGS: usize = 1000;
        match heard {
            GuardEvent::Hello { pid, means } => {
                self.pids.insert(pid);
                self.guarded.processes += 1;
                if pid == self.guarded.pid.0 || self.guarded.means.is_ok() {
                    self.guarded.means = Ok(means);
                }
            }
            GuardEvent::End { guarded, left_out, most_bytes } => {
                self.guarded.told += 1;
                self.guarded.guarded += guarded;
                self.guarded.left_out += left_out;
                self.guarded.most_bytes = self.guarded.most_bytes.max(most_bytes);
            }
            GuardEvent::Bug(raw) if self.guarded.bugs.len() < MAX_BUGS => {
                let bug = self.resolver.resolve(*raw);
                if is_for_screen(&self.args.output) {
                    tell(&guard::lines(&bug, self.guarded.bugs.len() + 1))?;
                }
                self.guarded.bugs.push(bug);
            }
            GuardEvent::Bug(_) => self.guarded.bugs_dropped += 1,
        }
        Ok(())
    }

    fn finish(self, outcome: &RunOutcome) -> Guarded {
        Guarded {
            ending: program_ending(outcome.ending),
            took_ns: nanoseconds(self.began.elapsed()),
            ..self.guarded
        }
    }
}

fn tell(lines: &[Vec<pagewise_model::report::CellValue>]) -> anyhow::Result<()> {
    let mut text = String::new();
    for line in lines {
        text += &inline(line);
        text.push('\n');
    }
    let written = io::stderr().lock().write_all(text.as_bytes());
    written.context("cannot write to standard error")
}

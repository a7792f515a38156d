//! `pagewise guard`: runs a command with guarded objects, and tells each mistake as it is made.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::guard;
use pagewise_heap::guard::{Event, Listener, Resolver, Side, Wanted};
use pagewise_heap::library;
use pagewise_model::calls::Ending;
use pagewise_model::guard::{Guarded, Means};
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::ProcRoot;
use pagewise_sys::interrupt::Interrupts;
use pagewise_sys::launch::{Launcher, Outcome, Running};
use pagewise_sys::trace;
use pagewise_view::text::{Units, inline};

use crate::args;
use crate::args::guard::{Guard, MeansArg, SideArg, Then};
use crate::commands::heap::NO_LIBRARY;
use crate::commands::run_command::{NotRun, exit_code};
use crate::look::Look;
use crate::output::emit_beside;

/// Between looks at what was heard; the command's end is seen at once, and guards are answered by a thread of its own.
const LOOK: Duration = Duration::from_millis(50);
/// What is heard between two such looks, and after the command's end: who never stops to say something is left.
const AT_A_TIME: usize = 256;
const AT_THE_END: usize = 10_000;
/// Up to this rate much of the time may go into what is guarded.
const OFTEN: u64 = 100;

/// Runs the command, tells what is wrong with it, and passes on its exit code.
pub(crate) fn run(args: &Guard, look: &args::Look) -> anyhow::Result<ExitCode> {
    if !ProcRoot::live().has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let library = library().context(NO_LIBRARY)?;
    let not_run = |error| NotRun::new(program, error);
    // A Ctrl-C is for the command.
    let _interrupts = Interrupts::note();
    let side = match args.side {
        Some(SideArg::End) => Side::End,
        Some(SideArg::Start) => Side::Start,
        Some(SideArg::Chance) => Side::Chance,
        None if args.rate == 1 => Side::End,
        None => Side::Chance,
    };
    let listener = Listener::open(Wanted {
        rate: args.rate,
        most_bytes: args.most,
        goes_on: args.then == Then::Continue,
        side,
        means: match args.means {
            Some(MeansArg::Moves) => Means::Moves,
            Some(MeansArg::Marks) => Means::Marks,
            Some(MeansArg::Mappings) => Means::Mappings,
            // What is guarded rarely costs little in any case, and needs no descriptor in the program.
            None if args.rate > OFTEN => Means::Marks,
            None => Means::Moves,
        },
        library,
    })?;
    let environment = listener.environment();
    let mut launcher =
        Launcher::start_with(program, arguments, None, &environment).map_err(not_run)?;
    let running = launcher.launch(|_| -> io::Result<()> { Ok(()) })?;
    let mut told = Told::new(args, Pid(running.pid()));
    let outcome = wait(running, &listener, &mut told, not_run)?;
    // What was said before the end is there once the end is seen.
    for _ in 0..AT_THE_END {
        let Some(heard) = listener.next(Duration::ZERO) else { break };
        told.take(heard)?;
    }
    let guarded = told.finish(&outcome);
    let is_found = !guarded.bugs.is_empty();
    let ended_well = matches!(outcome.ending, trace::Ending::Exited(_));
    let report = guard::guard(&guarded, is_for_screen(&args.output));
    emit_beside(&report, &args.output, &Look::on_stderr(look), Units::Human)?;
    Ok(match is_found && ended_well {
        true => ExitCode::from(args.error_exitcode),
        false => exit_code(outcome.ending),
    })
}

/// Whether people see each mistake as it comes.
fn is_for_screen(output: &args::Output) -> bool {
    output.output.is_none() && output.html.is_none() && !output.json
}

fn wait(
    mut running: Running<'_>,
    listener: &Listener,
    told: &mut Told<'_>,
    not_run: impl Fn(io::Error) -> NotRun,
) -> anyhow::Result<Outcome> {
    loop {
        for _ in 0..AT_A_TIME {
            let Some(heard) = listener.next(Duration::ZERO) else { break };
            told.take(heard)?;
        }
        match running.wait(Some(Instant::now() + LOOK)) {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                bail!("what started the command was killed")
            }
            Err(error) => return Err(not_run(error).into()),
        }
    }
}

/// What was heard so far.
struct Told<'a> {
    args: &'a Guard,
    began: Instant,
    resolver: Resolver,
    guarded: Guarded,
    /// Processes that said that they are guarded.
    pids: BTreeSet<u32>,
}

impl<'a> Told<'a> {
    fn new(args: &'a Guard, pid: Pid) -> Told<'a> {
        let why = "the command did not load the guard: it is linked statically, has a malloc of its own, or gains privileges \
                   as it starts";
        Told {
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
                ending: Ending::Exited(0),
                took_ns: 0,
            },
            pids: BTreeSet::new(),
        }
    }

    fn take(&mut self, heard: Event) -> anyhow::Result<()> {
        /// Bugs that are kept, of which each may take 200 KB with its call stacks: more are counted.
        const MOST: usize = 1000;
        match heard {
            Event::Hello { pid, means } => {
                self.pids.insert(pid);
                self.guarded.processes += 1;
                if pid == self.guarded.pid.0 || self.guarded.means.is_ok() {
                    self.guarded.means = Ok(means);
                }
            }
            Event::End { guarded, left_out, most_bytes } => {
                self.guarded.told += 1;
                self.guarded.guarded += guarded;
                self.guarded.left_out += left_out;
                self.guarded.most_bytes = self.guarded.most_bytes.max(most_bytes);
            }
            Event::Bug(raw) if self.guarded.bugs.len() < MOST => {
                let bug = self.resolver.resolve(*raw);
                if is_for_screen(&self.args.output) {
                    tell(&guard::lines(&bug, self.guarded.bugs.len() + 1))?;
                }
                self.guarded.bugs.push(bug);
            }
            Event::Bug(_) => self.guarded.bugs_dropped += 1,
        }
        Ok(())
    }

    fn finish(self, outcome: &Outcome) -> Guarded {
        Guarded {
            ending: match outcome.ending {
                trace::Ending::Exited(status) => Ending::Exited(status),
                trace::Ending::Killed { signal, .. } => Ending::Killed(signal),
            },
            took_ns: u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            ..self.guarded
        }
    }
}

fn tell(lines: &[Vec<pagewise_model::report::Value>]) -> anyhow::Result<()> {
    let mut text = String::new();
    for line in lines {
        text += &inline(line);
        text.push('\n');
    }
    let written = io::stderr().lock().write_all(text.as_bytes());
    written.context("cannot write to standard error")
}

//! C programs that fault pages when they are told to, and what is recorded of them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a part of tests, which may do both")]
#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use pagewise_proc::ProcRoot;
use pagewise_skip::{Lack, skip};
use pagewise_sys::perf_event::{Counter, Event, Kind, Mode, Whose};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_trace::{Place, Record, Sample, Session, Spaces, Symbols, Target, Wanted};

/// Records that the kernel refuses events to this user, as it says when it is asked for one directly.
pub(crate) fn skip_without_events() {
    let event = Event::new(Kind::SOFTWARE, 2);
    let mode = Mode { exclude_kernel: true, ..Mode::default() };
    match Counter::open(event, Whose::ThisThread, mode, None) {
        Err(error) => skip(&Lack::Refused { call: "perf_event_open", error: &error }),
        Ok(_) => panic!("a session cannot be opened, but events can"),
    }
}

/// Builds a program of `tests/programs`. `None`, with a word, where there is no compiler.
pub(crate) fn build(folder: &Path, program: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
    let to = folder.join(program.trim_end_matches(".c"));
    let mut command = Command::new("cc");
    command.args(["-O2", "-g", "-Wall", "-Werror"]).args(flags).arg("-o").arg(&to).arg(source);
    match command.status() {
        Ok(status) => assert!(status.success(), "{program} cannot be built"),
        Err(_) => {
            skip(&Lack::Tool("cc"));
            return None;
        }
    }
    Some(to)
}

/// A program that does its work once for each line, and answers with a line.
pub(crate) struct Running {
    child: Child,
    pub(crate) pid: u32,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Running { pid: child.id(), child, input, output: BufReader::new(output) }
    }

    /// Tells it to begin.
    pub(crate) fn tell(&mut self) {
        writeln!(self.input, "go").unwrap();
    }

    /// Waits until it has answered.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program ended");
        line
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Records all page faults in user mode of a process while it works once, and hands on each with the mappings then.
/// Whether that may be done here.
pub(crate) fn faults(
    running: &mut Running,
    carries: Carries,
    each: &mut dyn FnMut(&Spaces, &Sample<'_>),
) -> bool {
    /// `PERF_COUNT_SW_PAGE_FAULTS`.
    const FAULTS: Event = Event::new(Kind::SOFTWARE, 2);
    let carries = Carries { address: true, ..carries };
    events(running, FAULTS, 1, carries, each)
}

/// As [`faults`], each of so many of any event.
pub(crate) fn events(
    running: &mut Running,
    event: Event,
    every: u64,
    carries: Carries,
    each: &mut dyn FnMut(&Spaces, &Sample<'_>),
) -> bool {
    let carries = Carries { callers: 64, ..carries };
    let mode = Mode { exclude_kernel: true, ..Mode::default() };
    let sampling = Sampling { event, every, carries, mode, tasks: true, wake_at: 1 << 16 };
    let wanted = Wanted { name: "what is tested".into(), sampling };
    let mut session = match Session::open(Target::Process(running.pid), &[wanted], 1 << 23) {
        Ok(session) => session,
        Err(_) => {
            skip_without_events();
            return false;
        }
    };
    let mut spaces = Spaces::default();
    session.enable().unwrap();
    spaces.read(&ProcRoot::live(), running.pid);
    let mut take = |record: Record<'_>| {
        spaces.note(&record);
        if let Record::Sample(sample) = record {
            each(&spaces, &sample);
        }
    };
    running.tell();
    running.hear();
    session.wait(Duration::from_millis(1));
    session.drain(&mut take);
    session.finish(&mut take);
    assert_eq!(session.lost(), 0);
    true
}

/// The functions of places, the innermost first, `?` for those that have none.
pub(crate) fn functions(symbols: &mut Symbols, places: &[Rc<Place>]) -> Vec<String> {
    let frames = places.iter().flat_map(|place| symbols.frames(place).to_vec());
    frames.map(|frame| frame.function.unwrap_or_else(|| "?".to_owned())).collect()
}

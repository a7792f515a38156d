//! C programs that fault pages on request, and the recorded faults.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a part of tests, which may do both")]
#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagewise_proc::ProcRoot;
use pagewise_skip::{Lack, has_all_rights, skip};
use pagewise_sys::perf_event::{Mode, PerfCounter, PerfEvent, PerfScope, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_trace::{
    CodePlace, PerfRecord, PerfSample, SessionEvent, Spaces, Symbols, TraceSession, TraceTarget,
};

/// Skips a test whose session cannot be opened. Panics if this user may open events.
pub(crate) fn skip_without_events() {
    let event = PerfEvent::new(PerfType::SOFTWARE, 2);
    let mode = Mode { exclude_kernel: true, ..Mode::default() };
    match PerfCounter::open(event, PerfScope::ThisThread, mode, None) {
        Err(error) => skip(&Lack::Refused { call: "perf_event_open", error: &error }),
        Ok(_) if !has_all_rights() => skip(&Lack::Machine(TOO_LITTLE_MEMORY)),
        Ok(_) => panic!("a session cannot be opened, but events can"),
    }
}

/// All ring buffers of an ordinary user together have a limit.
pub(crate) const TOO_LITTLE_MEMORY: &str = "this user may lock too little memory for the ring buffers that the test needs \
     (kernel.perf_event_mlock_kb, RLIMIT_MEMLOCK)";

/// Number of bytes of the ring buffer of each CPU, enough for the events of a test. An ordinary
/// user may lock two ring buffers of this size by default.
pub(crate) const RING_BYTES: usize = 4 << 20;

/// Serializes the tests of a program, so that their ring buffers do not exist at the same time.
static RINGS: Mutex<()> = Mutex::new(());

/// Builds a program of `tests/programs`. Without a compiler, prints a message and returns `None`.
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

/// Runs a tool that changes programs, such as strip. If the tool is missing, prints a message and
/// returns `None`.
pub(crate) fn tool(name: &str, args: &[&str], files: &[&Path]) -> Option<()> {
    let Ok(status) = Command::new(name).args(args).args(files).status() else {
        skip(&Lack::Tool(name));
        return None;
    };
    assert!(status.success(), "{name} {args:?}");
    Some(())
}

/// A program that does its work once for each line, and answers with a line.
pub(crate) struct LineProgram {
    child: Child,
    pub(crate) pid: u32,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl LineProgram {
    pub(crate) fn start(command: &mut Command) -> LineProgram {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        LineProgram { pid: child.id(), child, input, output: BufReader::new(output) }
    }

    /// Makes the program do its work once.
    pub(crate) fn tell(&mut self) {
        writeln!(self.input, "go").unwrap();
    }

    /// Waits for the answer of the program.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program ended");
        line
    }
}

impl Drop for LineProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Records all user-mode page faults of a process while it works once, and passes on each with the
/// mappings at that time. Returns false if recording is not permitted here.
pub(crate) fn faults(
    running: &mut LineProgram,
    carries: Carries,
    each: &mut dyn FnMut(&Spaces, &PerfSample<'_>),
) -> bool {
    /// `PERF_COUNT_SW_PAGE_FAULTS`.
    const FAULTS: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 2);
    let carries = Carries { address: true, ..carries };
    events(running, FAULTS, 1, carries, each)
}

/// Like [`faults`], for any event, with a sampling rate.
pub(crate) fn events(
    running: &mut LineProgram,
    event: PerfEvent,
    every: u64,
    carries: Carries,
    each: &mut dyn FnMut(&Spaces, &PerfSample<'_>),
) -> bool {
    let carries = Carries { callers: 64, ..carries };
    let mode = Mode { exclude_kernel: true, ..Mode::default() };
    let sampling = Sampling { event, every, carries, mode, tasks: true, wake_at: 1 << 16 };
    let wanted = SessionEvent { name: "what is tested".into(), sampling };
    let _alone = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session =
        match TraceSession::open(TraceTarget::Process(running.pid), &[wanted], RING_BYTES) {
            Ok(session) => session,
            Err(_) => {
                skip_without_events();
                return false;
            }
        };
    let mut spaces = Spaces::default();
    session.enable().unwrap();
    spaces.read(&ProcRoot::live(), running.pid);
    let mut take = |record: PerfRecord<'_>| {
        spaces.note(&record);
        if let PerfRecord::Sample(sample) = record {
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

/// Returns the functions of code locations, the innermost first, with `?` for those without a name.
pub(crate) fn functions(symbols: &mut Symbols, places: &[Rc<CodePlace>]) -> Vec<String> {
    let frames = places.iter().flat_map(|place| symbols.frames(place).to_vec());
    frames.map(|frame| frame.function.unwrap_or_else(|| "?".to_owned())).collect()
}

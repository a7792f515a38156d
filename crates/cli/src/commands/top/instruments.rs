//! Commands of pagewise as child processes, whose output the panes show.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pagewise_model::Pid;
use pagewise_model::sweep::ProcessKey;
use pagewise_proc::{ProcRoot, stat};
use pagewise_tui::{InstrumentEnd, OutputStream, PageInstrument, PageSubject, TuiEvent};
use rustix::process::{Signal, kill_process};
use signal_hook::consts::SIGINT;

use super::live::LiveEvent;

/// Exit status of a diagnosis that found trouble.
const TROUBLE: i32 = 10;
/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// A child process until it is reaped: until then, no other process can get its PID.
type RunningChild = Arc<Mutex<Option<Child>>>;

/// The commands that run.
#[derive(Debug, Default)]
pub(super) struct InstrumentRuns {
    running: HashMap<(PageSubject, PageInstrument), RunningChild>,
}

impl InstrumentRuns {
    /// Starts a command. Its output and its end come as events.
    pub(super) fn start(
        &mut self,
        root: &ProcRoot,
        (subject, instrument): (PageSubject, PageInstrument),
        (columns, color): (u16, bool),
        sender: &Sender<LiveEvent>,
    ) {
        let started = match &subject {
            PageSubject::Process(key) if !is_same(root, *key) => {
                Err(io::Error::other("the process has ended"))
            }
            _ => command(&subject, instrument, columns, color).spawn(),
        };
        let messages = OutputStream::Messages;
        let output = |text: Vec<u8>| TuiEvent::Output(subject.clone(), instrument, messages, text);
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                let end = TuiEvent::Ended(subject.clone(), instrument, InstrumentEnd::Failed);
                for event in [output(format!("{error}\n").into_bytes()), end] {
                    let _ = sender.send(LiveEvent::Screen(event));
                }
                return;
            }
        };
        let pipes = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(Some(child)));
        self.running.insert((subject.clone(), instrument), child.clone());
        let sender = sender.clone();
        thread::spawn(move || {
            let send = |stream: OutputStream, text: Vec<u8>| {
                let event = TuiEvent::Output(subject.clone(), instrument, stream, text);
                sender.send(LiveEvent::Screen(event)).is_ok()
            };
            thread::scope(|scope| {
                let messages = pipes.1.map(|pipe| {
                    scope.spawn(|| pass_on(pipe, &|text| send(OutputStream::Messages, text)))
                });
                if let Some(pipe) = pipes.0 {
                    pass_on(pipe, &|text| send(OutputStream::Report, text));
                }
                drop(messages);
            });
            let end = reap(&child);
            let _ = sender.send(LiveEvent::Screen(TuiEvent::Ended(subject, instrument, end)));
        });
    }

    /// Interrupts a command; it then reports what it has.
    pub(super) fn stop(&self, subject: &PageSubject, instrument: PageInstrument) {
        if let Some(child) = self.running.get(&(subject.clone(), instrument)) {
            interrupt(child);
        }
    }

    /// Forgets a command that has ended.
    pub(super) fn forget(&mut self, subject: &PageSubject, instrument: PageInstrument) {
        self.running.remove(&(subject.clone(), instrument));
    }

    /// Interrupts all commands.
    pub(super) fn stop_all(&self) {
        self.running.values().for_each(interrupt);
    }
}

/// Passes on the output of a pipe until the end of the pipe.
fn pass_on(mut pipe: impl Read, send: &dyn Fn(Vec<u8>) -> bool) {
    let mut piece = vec![0; PIECE];
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return,
            Ok(length) if !send(piece[..length].to_vec()) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Waits for a child process whose output has ended.
fn reap(child: &RunningChild) -> InstrumentEnd {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    let status = child.take().and_then(|mut child| child.wait().ok());
    let Some(status) = status else { return InstrumentEnd::Failed };
    match (status.code(), status.signal()) {
        (Some(0 | TROUBLE), _) => InstrumentEnd::Done,
        (_, Some(SIGINT)) => InstrumentEnd::Interrupted,
        _ => InstrumentEnd::Failed,
    }
}

fn interrupt(child: &RunningChild) {
    let child = child.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = child.as_ref().and_then(|child| i32::try_from(child.id()).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // It fails only if the process has ended.
        let _ = kill_process(pid, Signal::INT);
    }
}

/// True if the process still has its PID.
fn is_same(root: &ProcRoot, key: ProcessKey) -> bool {
    let stat = root.read(key.pid, "stat").ok();
    let stat = stat.and_then(|text| stat::parse(&text).ok());
    stat.is_some_and(|stat| stat.start_ticks == key.start_ticks)
}

fn command(
    subject: &PageSubject,
    instrument: PageInstrument,
    columns: u16,
    color: bool,
) -> Command {
    let mut command = Command::new("/proc/self/exe");
    match instrument {
        PageInstrument::Diagnose => command.args(["diagnose", "--for", "10s"]),
        PageInstrument::HeapScan => command.args(["heap", "scan"]),
        PageInstrument::Faults => command.args(["faults", "--for", "5s"]),
    };
    match subject {
        PageSubject::Process(ProcessKey { pid: Pid(pid), .. }) => command.arg(pid.to_string()),
        PageSubject::Cgroup(path) => command.arg(os_string(path.as_bytes())),
    };
    command.args(["--color", if color { "always" } else { "never" }]);
    command.args(["--width", &columns.max(40).to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn os_string(bytes: &[u8]) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

//! The keeper: a process that undoes what this one has begun in targets, if this one is killed before it does so itself.
//!
//! It is a process of its own session that ignores the signals by which people and supervisors end processes. This process writes down
//! a change on the keeper's standard input before it makes it, and strikes it out once it is undone. The keeper acts when the pipe is closed
//! without a last word. If the keeper is killed, targets still work; some memory stays mapped in them until pagewise attaches next.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_heap::Attached;
use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use pagewise_remote::{Keeper, Undo, on_tracer_thread};
use pagewise_sys::interrupt::ignore_requests_to_end;

use crate::args::Keep;

/// The last word: nothing is left to undo.
const DONE: &str = "done";
/// The keeper's first word: it ignores signals from now on.
const READY: &str = "ready";
/// What lines begin with: a mapping that is to be unmapped, one that is unmapped, a process whose heap is recorded.
const NOTE: &str = "note ";
const STRIKE: &str = "strike ";
const HEAP: &str = "heap ";
/// How long the end of a process that has closed its files is awaited.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest pause of a target for an undo: it is better paused than left changed.
const PAUSE: Duration = Duration::from_secs(2);

/// The keeper of this process. Without one, what a killed process leaves is undone by the next that attaches.
#[derive(Debug)]
pub(crate) struct KeeperProcess {
    child: Option<(Child, ChildStdin)>,
    heaps: Vec<u32>,
    /// How many changes are noted and not struck out.
    open: usize,
}

impl KeeperProcess {
    /// Starts it; it is ready when this returns.
    pub(crate) fn start() -> KeeperProcess {
        KeeperProcess { child: start().ok(), heaps: Vec::new(), open: 0 }
    }

    /// Notes processes whose heap is recorded.
    pub(crate) fn note_heaps(&mut self, pids: &[u32]) {
        for pid in pids {
            if !self.heaps.contains(pid) {
                self.heaps.push(*pid);
                self.write(&format!("{HEAP}{pid}"));
            }
        }
    }

    /// Nothing is left to undo but what was noted and not struck out: the keeper does that now.
    pub(crate) fn dismiss(mut self) {
        self.write(DONE);
        if let Some((mut child, input)) = self.child.take() {
            drop(input);
            // With something to undo it may wait for a thread of the target, longer than we do.
            if self.open == 0 {
                let _ = child.wait();
            }
        }
    }

    fn write(&mut self, line: &str) {
        if let Some((_, input)) = &mut self.child {
            // If it was killed there is nothing to do about it.
            let _ = writeln!(input, "{line}");
        }
    }
}

impl Keeper for KeeperProcess {
    fn note(&mut self, undo: &Undo) {
        self.open += 1;
        self.write(&format!("{NOTE}{undo}"));
    }

    fn strike(&mut self, undo: &Undo) {
        self.open = self.open.saturating_sub(1);
        self.write(&format!("{STRIKE}{undo}"));
    }
}

fn start() -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["keep", &std::process::id().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.current_dir("/").spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim_end() != READY {
        // It ends as its input is closed.
        drop(input);
        let _ = child.wait();
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok((child, input))
}

/// Is the keeper: waits for the end of the process that started it, and undoes what it has left.
pub(crate) fn run(args: &Keep) -> ExitCode {
    ignore_requests_to_end();
    // Of its own session, it is no part of what the terminal or a shell ends together. It fails only where it is that already.
    let _ = rustix::process::setsid();
    let mut output = io::stdout();
    if writeln!(output, "{READY}").and_then(|()| output.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    let (mut heaps, mut undos, mut is_done) = (Vec::<u32>::new(), Vec::<Undo>::new(), false);
    for line in io::stdin().lock().lines() {
        // A line that is cut off is of a change that was not made.
        let Ok(line) = line else { break };
        if let Some(pid) = line.strip_prefix(HEAP) {
            heaps.extend(pid.parse::<u32>());
        } else if let Some(undo) = line.strip_prefix(NOTE) {
            undos.extend(undo.parse::<Undo>());
        } else if let Some(undo) = line.strip_prefix(STRIKE).and_then(|it| it.parse().ok()) {
            undos.retain(|noted: &Undo| *noted != undo);
        } else if line == DONE {
            is_done = true;
            break;
        }
    }
    let root = ProcRoot::live();
    if !is_done {
        let since = Instant::now();
        while !has_ended(&root, args.pid) && since.elapsed() < PATIENCE {
            sleep(Duration::from_millis(5));
        }
        heaps.iter().for_each(|&pid| end_recording(&root, pid, &mut undos));
    }
    for undo in undos {
        // Whoever attaches next finds the target as it is, which works.
        let _ = on_tracer_thread(|| undo.carry_out());
    }
    ExitCode::SUCCESS
}

/// Ends a recording that was left behind. A thread that is on its way out of the recorder is given some time.
fn end_recording(root: &ProcRoot, pid: u32, undos: &mut Vec<Undo>) {
    for _ in 0..5 {
        if root.read(Pid(pid), "stat").is_err() {
            return;
        }
        let Ok(Some(left)) = Attached::left_behind(pid, PAUSE) else { return };
        match left.end(&mut Collected(undos)) {
            Ok(_) => return,
            Err(_) => sleep(Duration::from_millis(100)),
        }
    }
}

/// Notes of the keeper to itself.
struct Collected<'a>(&'a mut Vec<Undo>);

impl Keeper for Collected<'_> {
    fn note(&mut self, undo: &Undo) {
        self.0.push(*undo);
    }

    fn strike(&mut self, undo: &Undo) {
        self.0.retain(|noted| noted != undo);
    }
}

/// Whether a process has ended.
pub(crate) fn has_ended(root: &ProcRoot, pid: u32) -> bool {
    let stat = root.read(Pid(pid), "stat").ok().and_then(|text| stat::parse(&text).ok());
    stat.is_none_or(|stat| stat.has_ended())
}

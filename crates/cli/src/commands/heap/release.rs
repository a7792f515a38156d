//! What puts programs' functions back if the process that records them is killed: another process, which waits for that.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_heap::Attached;
use pagewise_model::Pid;
use pagewise_proc::ProcRoot;

use super::attach::has_ended;
use crate::args::heap::HeapRelease;

/// What is said where all functions were put back.
const DONE: &str = "done";
/// For how long it is waited for one who has closed its files to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that waits for our end. Without it, what we leave behind is put right by who attaches next.
#[derive(Debug)]
pub(super) struct Guardian {
    child: Option<(Child, ChildStdin)>,
    told: Vec<u32>,
}

impl Guardian {
    /// Starts it.
    pub(super) fn start() -> Guardian {
        Guardian { child: start().ok(), told: Vec::new() }
    }

    /// Tells it of processes whose functions are hooked.
    pub(super) fn tell(&mut self, pids: &[u32]) {
        for pid in pids {
            if self.told.contains(pid) {
                continue;
            }
            self.told.push(*pid);
            self.say(&pid.to_string());
        }
    }

    /// All functions are as they were.
    pub(super) fn dismiss(mut self) {
        self.say(DONE);
        if let Some((mut child, input)) = self.child.take() {
            drop(input);
            // It has nothing more to do.
            let _ = child.wait();
        }
    }

    fn say(&mut self, line: &str) {
        if let Some((_, input)) = &mut self.child {
            // If it was killed there is nobody to tell.
            let _ = writeln!(input, "{line}");
        }
    }
}

fn start() -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["heap", "release", &std::process::id().to_string()]);
    // In a process group of its own: a Ctrl-C is for us.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.current_dir("/").spawn()?;
    let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, input))
}

/// Waits until who started us is gone, and puts back what it left behind.
pub(super) fn run(args: &HeapRelease) {
    let mut pids: Vec<u32> = Vec::new();
    for line in io::stdin().lock().lines() {
        match line {
            Ok(line) if line == DONE => return,
            Ok(line) => pids.extend(line.parse::<u32>()),
            Err(_) => break,
        }
    }
    let root = ProcRoot::live();
    let since = Instant::now();
    while !has_ended(&root, args.collector) && since.elapsed() < PATIENCE {
        sleep(Duration::from_millis(5));
    }
    for pid in pids {
        if root.read(Pid(pid), "stat").is_ok()
            && let Ok(Some(left)) = Attached::left_behind(pid)
        {
            // Nobody listens; who attaches next tries again.
            let _ = left.end();
        }
    }
}

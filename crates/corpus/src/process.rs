//! Starts a program of the corpus, waits until it is ready, and ends it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::CommandLine;
use crate::environment::Environment;

/// Time limit for the start of a program. A program becomes sick within about 3 s, later if other
/// processes keep the CPUs busy.
const MAX_START: Duration = Duration::from_secs(40);

/// A program that runs in its environment. When this value is dropped, the program and its children
/// are killed, and the environment is restored.
#[derive(Debug)]
pub struct Running {
    /// The process to be examined: the program, or the process that it named after `ready`.
    pub pid: u32,
    /// Folder of the program's memory cgroup, if it has one.
    pub cgroup: Option<std::path::PathBuf>,
    /// The number N of each line `step N` that the program has printed: nanoseconds, or 1000 for a
    /// failed step and 0 for a successful one.
    steps: Arc<Mutex<Vec<f64>>>,
    child: Child,
    environment: Option<Environment>,
}

impl Running {
    /// Starts `line` with further arguments and with variables `NAME=VALUE` of the environment.
    ///
    /// # Errors
    ///
    /// If the program cannot be started, ends, or does not become ready in time.
    pub fn start(
        line: &CommandLine,
        arguments: &[&str],
        variables: &[&str],
        mut environment: Environment,
    ) -> Result<Running> {
        let mut command = command(line, &environment);
        command.args(arguments);
        command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        command.current_dir(&environment.folder).process_group(0);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| line.join(" "))?;
        environment.undo.later(&format!("kill -s KILL -- -{}", child.id()))?;
        let output = child.stdout.take().context("the program has no output")?;
        let steps = Arc::default();
        let lines = read_lines(output, Arc::clone(&steps));
        let cgroup = environment.cgroup.clone();
        let mut running =
            Running { pid: child.id(), cgroup, steps, child, environment: Some(environment) };
        if let Some(pid) = wait_until_ready(&lines)? {
            running.pid = pid;
        }
        Ok(running)
    }

    /// Returns the average number N of the lines `step N` in this interval: nanoseconds, or
    /// failures per 1000 steps.
    pub fn step_time(&self, interval: Duration) -> Option<f64> {
        let from = self.steps.lock().ok()?.len();
        thread::sleep(interval);
        let steps = self.steps.lock().ok()?;
        let steps = steps.get(from..)?;
        (!steps.is_empty()).then(|| steps.iter().sum::<f64>() / steps.len() as f64)
    }

    /// Returns true if the program has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.environment.take());
        // Dropping the environment has killed the process; this call reaps it.
        let _ = self.child.wait();
    }
}

/// Returns the command that starts `line`, in the environment's cgroup if there is one.
fn command(line: &CommandLine, environment: &Environment) -> Command {
    let Some(cgroup) = &environment.cgroup else {
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        return command;
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ >\"$1/cgroup.procs\" || exit; shift; exec \"$@\"", "sh"])
        .arg(cgroup as &Path)
        .args(line)
        .env("CORPUS_CGROUP", cgroup);
    command
}

/// Reads lines in a thread until the program ends, so that the program never waits for its output.
fn read_lines(output: ChildStdout, steps: Arc<Mutex<Vec<f64>>>) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(step) = line.strip_prefix("step ").and_then(|time| time.parse().ok()) {
                if let Ok(mut steps) = steps.lock() {
                    steps.push(step);
                }
            } else if sender.send(line).is_err() {
                // The receiver may be closed after `ready`; lines with steps are still read.
            }
        }
    });
    lines
}

/// Waits for the line `ready` or `ready PID`, and returns the process ID.
fn wait_until_ready(lines: &Receiver<String>) -> Result<Option<u32>> {
    let began = Instant::now();
    loop {
        match lines.recv_timeout(MAX_START.saturating_sub(began.elapsed())) {
            Ok(line) => {
                if let Some(rest) = line.strip_prefix("ready") {
                    return Ok(rest.trim().parse().ok());
                }
            }
            Err(RecvTimeoutError::Timeout) => bail!("not ready after {} s", MAX_START.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the program ended before it was ready"),
        }
    }
}

//! Random runs: a program that performs random actions on itself, a command of pagewise that
//! inspects it, signals to the command, and outputs that are full or closed. pagewise ends in time
//! and without a crash, and the program is unharmed.
//!
//! `PAGEWISE_RUNS` is the number of runs. Run N has the seed `PAGEWISE_SEED` + N, so this seed
//! alone replays the run. `PAGEWISE_COMMANDS` is a part of the command lines that are run.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fixture::victim::Random;
use fixture::{copy_program, disk, program};
use pagewise_skip::is_root;
use rustix::process::{Pid, Signal, kill_process};

/// Actions of a program on itself, see `scripted.c`.
const ACTIONS: [&str; 19] = [
    "exec",
    "fork",
    "vfork",
    "munmap",
    "mprotect",
    "mremap",
    "dlclose",
    "stop",
    "truncate",
    "threads",
    "undumpable",
    "setuid",
    "rename",
    "unlink",
    "name",
    "seccomp",
    "limit",
    "chroot",
    "threads",
];
/// Possible last actions.
const LAST: [&str; 3] = ["exit", "kill", "leader"];

/// All commands that take a process. `PID` stands for its PID, `FILE` for a file to write.
const COMMANDS: [&str; 42] = [
    "explain PID",
    "explain PID --full --json",
    "explain PID --polite --save FILE",
    "explain PID --html FILE",
    "maps PID --full",
    "maps PID --sections",
    "maps PID --columns all --json",
    "ps --sort pss",
    "diff PID --every 15ms --for 40ms",
    "pages PID --runs",
    "pages PID --detail",
    "pages PID --touched 20ms",
    "pools PID",
    "thp PID",
    "thp PID --sample 100",
    "thp PID --fix --hold --yes",
    "thp PID --fix --hold --yes --method split",
    "thp PID --fix --hold --yes --method drop",
    "thp PID --fix --yes --method drop --sparse 10",
    "thp PID --collapse --yes",
    "thp PID --pageout --idle 10ms --yes",
    "syscalls PID --for 40ms",
    "syscalls PID --for 10ms --json",
    "shootdowns PID --for 40ms",
    "shootdowns PID --for 40ms --unwind",
    "shootdowns PID --for 40ms --user-wait",
    "faults PID --for 40ms",
    "faults PID --for 40ms --latency --save FILE",
    "faults PID --for 40ms --mremap --every 3",
    "watch PID counter --for 40ms",
    "watch PID counter 4 --rw --count 20 --for 100ms",
    "heap attach PID --for 40ms -o FILE",
    "heap attach PID --for 40ms -o FILE --follow",
    "heap attach PID --for 40ms -o FILE --mmap",
    "heap attach PID --for 40ms -o FILE --sample 4k",
    "heap attach PID --for 1ms -o FILE",
    "heap scan PID",
    "heap scan PID --every 10ms --json",
    "trim PID --json",
    "trim PID --heap --stacks --yes --settle 10ms",
    "trim PID --heap --stacks --huge --yes --settle 0s",
    "trim PID --cold 10ms --yes --settle 0s",
];

/// Destination of an output of pagewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputSink {
    File,
    Full,
    Closed,
    /// A pipe without a reader.
    Broken,
}

/// Signals to pagewise. Not all of them end it.
const SIGNALS: [&str; 7] = ["INT", "TERM", "HUP", "KILL", "STOP", "PIPE", "INT"];

/// A random run, with all choices that its seed makes. Real durations still differ.
#[derive(Clone, Debug)]
struct FuzzedRun {
    actions: Vec<String>,
    command: &'static str,
    /// Milliseconds between the first action and the start of the command.
    delay: u64,
    /// Signals, each with the microseconds after the start or after the previous signal.
    signals: Vec<(u64, &'static str)>,
    stdout: OutputSink,
    stderr: OutputSink,
}

/// Time limit of a command on any machine: with all CPUs busy, closing tracepoints took 40 s.
const MAX_END: Duration = Duration::from_secs(120);
/// Maximum time in addition to `own_time`, for a command that has a CPU for itself.
const MAX_BEYOND: Duration = Duration::from_secs(2);
/// Maximum number of times that a run which took longer is repeated alone.
const REPEATS: u32 = 5;
/// Time limit for a stopped program to continue.
const GRACE: Duration = Duration::from_secs(60);
/// Time limit for all actions of the program, if it is not stopped.
const MAX_SCRIPT: Duration = Duration::from_secs(120);

impl FuzzedRun {
    fn by_chance(seed: u64) -> FuzzedRun {
        let mut random = Random::new(seed);
        // Only the first random numbers of neighboring seeds are similar, so the first one is not
        // used.
        random.next();
        let mut actions: Vec<String> = (0..random.below(9) + 2)
            .map(|_| {
                let action = random.one_of(&ACTIONS);
                format!("{action}:{}", random.below(20_000))
            })
            .collect();
        if random.below(6) == 0 {
            actions.push(format!("{}:{}", random.one_of(&LAST), random.below(40_000)));
        }
        let signals = (0..random.below(3))
            .map(|_| (random.below(120_000), *random.one_of(&SIGNALS)))
            .collect();
        let chosen = std::env::var("PAGEWISE_COMMANDS").unwrap_or_default();
        let commands: Vec<&'static str> =
            COMMANDS.into_iter().filter(|it| it.contains(chosen.as_str())).collect();
        let sinks = [
            OutputSink::File,
            OutputSink::File,
            OutputSink::File,
            OutputSink::Full,
            OutputSink::Closed,
            OutputSink::Broken,
        ];
        FuzzedRun {
            actions,
            command: random.one_of::<&str>(&commands),
            delay: random.below(60),
            signals,
            stdout: *random.one_of(&sinks),
            stderr: *random.one_of(&sinks),
        }
    }

    /// Returns the duration that the options of the command request.
    fn own_time(&self) -> Duration {
        let words: Vec<&str> = self.command.split(' ').collect();
        let times = words.windows(2).filter_map(|pair| {
            let is_time = ["--for", "--touched", "--idle"].contains(&pair[0]);
            let number = pair[1].strip_suffix("ms").filter(|_| is_time)?;
            Some(Duration::from_millis(number.parse().unwrap()))
        });
        times.sum()
    }

    /// Returns true if the program ended as an unharmed program does.
    fn ends_well(&self, status: ExitStatus) -> bool {
        match self.actions.last().and_then(|last| last.split(':').next()) {
            Some("exit") => status.code() == Some(42),
            Some("kill") => status.signal() == Some(9),
            _ => status.success(),
        }
    }
}

/// The program, and the lines that it prints.
struct Scripted {
    child: Child,
    lines: Receiver<String>,
    bad: Vec<String>,
}

impl Scripted {
    fn start(run: &FuzzedRun, folder: &Path) -> Scripted {
        let own = folder.join("scripted");
        copy_program(&program("scripted"), &own);
        let mut child = Command::new(own)
            .args(&run.actions)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut scripted = Scripted { child, lines, bad: Vec::new() };
        assert!(scripted.wait_for("ready"), "the program begins: {:?}", scripted.bad);
        scripted
    }

    /// Returns true if the program printed a line in time; false if it did not, or has ended.
    fn wait_for(&mut self, word: &str) -> bool {
        let deadline = Instant::now() + MAX_SCRIPT;
        while let Ok(line) =
            self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if line == word {
                return true;
            }
            if line.starts_with("bad ") {
                self.bad.push(line);
            }
        }
        false
    }

    /// Returns the threads that are stopped or traced.
    fn stopped(&self) -> Vec<String> {
        let pid = self.child.id();
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let wrong = tasks.filter_map(|task| {
            let path = task.ok()?.path();
            let status = fs::read(path.join("status")).ok()?;
            let status = String::from_utf8_lossy(&status).into_owned();
            let line =
                |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let (state, tracer) = (line("State:")?, line("TracerPid:")?);
            let well = !state.starts_with(['T', 't']) && tracer == "0";
            (!well).then(|| format!("{} is in state {state}, traced by {tracer}", path.display()))
        });
        wrong.collect()
    }

    /// Ends the program, and returns the harm that was done to it.
    fn end(mut self, run: &FuzzedRun) -> Vec<String> {
        let done = self.wait_for("done");
        let began = Instant::now();
        while !self.stopped().is_empty() && began.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut harm = self.stopped();
        drop(self.child.stdin.take());
        let ended = self.wait();
        while self.wait_for("nothing more") {}
        harm.append(&mut self.bad);
        match ended {
            None => harm.push(format!("it does not end; it was done: {done}")),
            Some(status) if !run.ends_well(status) => harm.push(format!("it ended: {status}")),
            Some(_) => {}
        }
        harm
    }

    fn wait(&mut self) -> Option<ExitStatus> {
        let began = Instant::now();
        while began.elapsed() < MAX_SCRIPT {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sink(sink: OutputSink, file: &Path) -> Stdio {
    match sink {
        OutputSink::File => File::create(file).unwrap().into(),
        OutputSink::Full => File::options().write(true).open("/dev/full").unwrap().into(),
        OutputSink::Closed => Stdio::null(),
        OutputSink::Broken => Stdio::piped(),
    }
}

fn start_pagewise(run: &FuzzedRun, pid: u32, folder: &Path) -> Child {
    let words = run.command.split(' ').map(|word| match word {
        "PID" => pid.to_string(),
        "FILE" => folder.join("output").to_str().unwrap().to_owned(),
        word => word.to_owned(),
    });
    let mut script = String::from("exec env --default-signal=INT,PIPE \"$0\" \"$@\"");
    if run.stdout == OutputSink::Closed {
        script += " >&-";
    }
    if run.stderr == OutputSink::Closed {
        script += " 2>&-";
    }
    let mut child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_pagewise")])
        .args(words)
        .stdin(Stdio::null())
        .stdout(sink(run.stdout, &folder.join("stdout")))
        .stderr(sink(run.stderr, &folder.join("stderr")))
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    child
}

fn send(child: &Child, name: &str) {
    let signal = match name {
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "HUP" => Signal::HUP,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "PIPE" => Signal::PIPE,
        _ => Signal::KILL,
    };
    // `kill_process` fails if the process has ended.
    let _ = kill_process(Pid::from_child(child), signal);
}

/// Runs pagewise, and returns its errors and its duration.
fn run_pagewise(run: &FuzzedRun, pid: u32, folder: &Path) -> (Vec<String>, Duration) {
    let mut child = start_pagewise(run, pid, folder);
    let began = Instant::now();
    for (after, name) in &run.signals {
        std::thread::sleep(Duration::from_micros(*after));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        send(&child, name);
        if *name == "STOP" {
            std::thread::sleep(Duration::from_millis(20));
            send(&child, "CONT");
        }
    }
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if began.elapsed() > MAX_END => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let elapsed = began.elapsed();
    let said = fs::read(folder.join("stderr")).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let mut wrong = Vec::new();
    match status {
        None => wrong.push(format!("pagewise does not end in {MAX_END:?}: {said}")),
        // SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM.
        Some(status) if status.signal().is_some_and(|it| ![1, 2, 9, 13, 15].contains(&it)) => {
            wrong.push(format!("pagewise died: {status}: {said}"));
        }
        Some(status) if status.code() == Some(101) || said.contains("panicked at") => {
            wrong.push(format!("pagewise panicked: {status}: {said}"));
        }
        Some(_) => {}
    }
    (wrong, elapsed)
}

/// Makes one run, and returns its errors and the duration of pagewise.
fn go(run: &FuzzedRun) -> (Vec<String>, Duration) {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    // The script may execute a program as another user, which sees only its own files.
    let mut scripted = Scripted::start(run, folder.path());
    let pid = scripted.child.id();
    scripted.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    std::thread::sleep(Duration::from_millis(run.delay));
    let (mut wrong, elapsed) = run_pagewise(run, pid, folder.path());
    wrong.extend(scripted.end(run));
    (wrong, elapsed)
}

/// Returns true if a thread gets a CPU at once, and keeps it.
fn is_idle() -> bool {
    const SPIN: Duration = Duration::from_millis(50);
    let delay = || {
        let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    };
    let (began, before) = (Instant::now(), delay());
    while began.elapsed() < SPIN {
        std::hint::spin_loop();
    }
    let waited = before.zip(delay()).map(|(before, after)| Duration::from_nanos(after - before));
    waited.is_some_and(|waited| waited < SPIN / 10)
}

/// Repeats a run that exceeded its time limit, while no other run is in progress. Returns its
/// errors: none if it then ends in time. Returns `None` on a machine that is too busy to decide.
fn too_slow(run: &FuzzedRun) -> Option<Vec<String>> {
    let mut judged = Vec::new();
    for _ in 0..REPEATS {
        let idle_before = is_idle();
        let (wrong, elapsed) = go(run);
        if !wrong.is_empty() {
            return Some(wrong);
        }
        if elapsed <= run.own_time() + MAX_BEYOND {
            return Some(Vec::new());
        }
        if idle_before && is_idle() {
            judged.push(elapsed);
        }
    }
    let all = format!("pagewise takes {judged:?} alone, for {:?}", run.own_time());
    (judged.len() >= 2).then(|| vec![all])
}

#[test]
fn whatever_a_process_does_pagewise_ends_and_harms_nothing() {
    if !is_root() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let seed = number("PAGEWISE_SEED").unwrap_or_else(|| u64::try_from(now()).unwrap());
    let runs = number("PAGEWISE_RUNS").unwrap_or(60);
    eprintln!("PAGEWISE_SEED={seed}");
    let workers = std::thread::available_parallelism().map_or(2, |it| it.get() * 2).min(16);
    let (next, wrong, slow) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let note = |seed: u64, run: &FuzzedRun, found: &[String]| {
        if !found.is_empty() {
            let line = format!("PAGEWISE_SEED={seed}: {run:?}: {}", found.join("; "));
            eprintln!("HARM {line}");
            wrong.lock().unwrap().push(line);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= runs {
                        break;
                    }
                    let seed = seed + index;
                    let run = FuzzedRun::by_chance(seed);
                    let (found, elapsed) = go(&run);
                    slow.lock().unwrap().push((elapsed, seed, run.command));
                    note(seed, &run, &found);
                }
            });
        }
    });
    let mut slow = slow.into_inner().unwrap();
    slow.sort_unstable();
    eprintln!("the slowest: {:?}", &slow[slow.len().saturating_sub(5)..]);
    for (elapsed, seed, _) in &slow {
        let run = FuzzedRun::by_chance(*seed);
        if *elapsed > run.own_time() + MAX_BEYOND {
            match too_slow(&run) {
                Some(found) => note(*seed, &run, &found),
                None => eprintln!("not judged on a busy machine: {seed}: {elapsed:?}"),
            }
        }
    }
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {runs} runs went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

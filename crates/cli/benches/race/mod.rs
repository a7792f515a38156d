//! Benchmark of whole commands (runners) in interleaved rounds. A round runs every runner once. The
//! results are the wall time and peak RES of each command, ratios to the first command, and the
//! goals for these ratios.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One command of the benchmark.
#[derive(Debug)]
pub(crate) struct RaceCommand {
    name: String,
    command: Vec<String>,
    /// Command that runs once after this command, and is not measured.
    then: Option<Box<RaceCommand>>,
}

impl RaceCommand {
    /// `command` is a line of words; none of them may hold a space.
    pub(crate) fn new(name: &str, command: &str) -> RaceCommand {
        let command = command.split(' ').map(str::to_owned).collect();
        RaceCommand { name: name.to_owned(), command, then: None }
    }

    /// Returns a runner for a line of the shell.
    pub(crate) fn shell(name: &str, line: &str) -> RaceCommand {
        let command = vec!["sh".into(), "-c".into(), line.into()];
        RaceCommand { name: name.to_owned(), command, then: None }
    }

    /// Makes `then` run after this command without being measured. Used if this command would slow
    /// down the next one.
    #[allow(dead_code, reason = "others leave the machine as they found it")]
    pub(crate) fn followed_by(self, then: RaceCommand) -> RaceCommand {
        RaceCommand { then: Some(Box::new(then)), ..self }
    }

    fn is_installed(&self) -> bool {
        let program = Path::new(&self.command[0]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        program.is_file() || std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    }

    /// Runs the command once without showing its output, and returns the wall time.
    fn wall(&self) -> Duration {
        let begin = Instant::now();
        let status = quiet(Command::new(&self.command[0]).args(&self.command[1..])).status();
        let wall = begin.elapsed();
        assert!(status.is_ok_and(|s| s.success()), "{} failed: {:?}", self.name, self.command);
        wall
    }

    /// Returns the peak RES of one run in KiB, from GNU time; `None` if GNU time is not installed.
    fn peak_kib(&self) -> Option<u64> {
        let mut time = Command::new("/usr/bin/time");
        time.args(["-f", "%M"]).args(&self.command).stdin(Stdio::null()).stdout(Stdio::null());
        let said = String::from_utf8(time.output().ok()?.stderr).ok()?;
        said.lines().last()?.trim().parse().ok()
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Result of one runner: the medians over the rounds.
#[derive(Debug)]
pub(crate) struct Result {
    name: String,
    /// Median of the ratios to the first runner of the same round.
    ratio: f64,
    peak_mib: Option<f64>,
}

/// Runs a round as a warm-up, and then measures `rounds` rounds. Prints a row for each runner:
/// median, median absolute deviation, and the median of the ratios to the first runner of the same
/// round.
pub(crate) fn race(title: &str, rounds: usize, runners: &[RaceCommand]) -> Vec<Result> {
    let (here, missing): (Vec<_>, Vec<_>) = runners.iter().partition(|r| r.is_installed());
    let mut walls = vec![Vec::with_capacity(rounds); here.len()];
    for round in 0..=rounds {
        for (runner, walls) in here.iter().zip(&mut walls) {
            let wall = runner.wall().as_secs_f64() * 1e3;
            if round > 0 {
                walls.push(wall);
            }
            if let Some(then) = &runner.then {
                then.wall();
            }
        }
    }
    println!("\n{title} ({rounds} interleaved rounds)");
    println!("{:<34}{:>10}{:>8}{:>9}{:>12}", "", "median ms", "MAD", "ratio", "peak MiB");
    let results = here.iter().zip(&walls).map(|(runner, own)| row(runner, own, &walls[0]));
    let results = results.collect();
    for runner in missing {
        println!("{:<34}not installed", runner.name);
    }
    results
}

fn row(runner: &RaceCommand, own: &[f64], first: &[f64]) -> Result {
    let ratios: Vec<f64> = own.iter().zip(first).map(|(own, first)| own / first).collect();
    let mid = median(own);
    let spread = median(&own.iter().map(|wall| (wall - mid).abs()).collect::<Vec<_>>());
    let ratio = median(&ratios);
    let peak_mib = runner.peak_kib().map(|kib| kib as f64 / 1024.0);
    let peak = peak_mib.map_or("?".into(), |mib| format!("{mib:.1}"));
    println!("{:<34}{mid:>10.1}{spread:>8.1}{ratio:>8.2}x{peak:>12}", runner.name);
    Result { name: runner.name.clone(), ratio, peak_mib }
}

/// Prints whether a runner met its goals: a ratio to the first runner, and a peak RES if one is
/// given.
pub(crate) fn goal(results: &[Result], name: &str, ratio: f64, peak_mib: Option<f64>) {
    let Some(result) = results.iter().find(|result| result.name == name) else { return };
    let memory = peak_mib.is_none_or(|most| result.peak_mib.is_none_or(|peak| peak < most));
    let met = if result.ratio <= ratio && memory { "met" } else { "MISSED" };
    let memory = peak_mib.map_or(String::new(), |most| format!(" and < {most} MiB"));
    println!("goal {met}: {name} <= {ratio}x{memory}: {:.2}x", result.ratio);
}

/// Returns the median of the values; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// A C program of `fixtures/programs`, running and ready; killed when dropped.
#[derive(Debug)]
pub(crate) struct RaceTarget {
    child: Child,
}

impl RaceTarget {
    /// Compiles and starts a program, and waits until the program prints that it is ready.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> RaceTarget {
        let mut child = Command::new(compile(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let ready = said.lines().any(|line| line.is_ok_and(|line| line == "ready"));
        assert!(ready, "{name} ended before it was ready");
        RaceTarget { child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RaceTarget {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a program of `fixtures/programs` with the C compiler, and returns its path.
pub(crate) fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/programs")
        .join(format!("{name}.c"));
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status =
        Command::new("cc").arg("-O2").arg("-pthread").arg("-o").arg(&built).arg(&source).status();
    assert!(status.is_ok_and(|s| s.success()), "cc cannot compile {}", source.display());
    built
}

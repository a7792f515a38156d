//! `cargo xtask ci`: every check, the quick ones first, the tests last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::features::FEATURES_OF_TESTS;
use crate::time_limit::{TEST_PROGRAM_LIMIT, wait_at_most};

/// One cargo command that must succeed.
struct CheckStep {
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Component of the toolchain that the step needs, if a distribution may omit it. If the
    /// component is not installed, the step is skipped.
    component: Option<&'static str>,
}

const STEPS: &[CheckStep] = &[
    CheckStep { args: &["fmt", "--all", "--check"], env: &[], component: Some("fmt") },
    CheckStep {
        args: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: &[],
        component: Some("clippy"),
    },
    CheckStep {
        args: &["doc", "--workspace", "--no-deps", "--features", FEATURES_OF_TESTS],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        component: None,
    },
];

/// The step of [`STEPS`] that builds the documentation. For this, cargo also checks every crate.
const DOC: &str = "doc";

/// The arguments that clippy has in [`STEPS`], in the encoding in which `cargo clippy` passes them
/// to clippy.
const CLIPPY_ARGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Runs every check. The last line of output counts the tests: `N passed, N failed, N skipped`.
pub(crate) fn run() -> Result<ExitCode> {
    let began = Instant::now();
    say("tidy");
    crate::tidy::run()?;
    say("words");
    crate::words::run(tools_required())?;
    STEPS.iter().try_for_each(CheckStep::run)?;
    check_arm()?;
    conclude(began)
}

/// Checks the code for ARM, if its standard library and a C compiler for it are installed.
fn check_arm() -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    const COMPILER: &str = "aarch64-linux-gnu-gcc";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let library =
        Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    let has_library = library
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    if !has_library {
        println!("skipped: the standard library for {TARGET} is not installed");
        return Ok(());
    }
    if Command::new(COMPILER).arg("--version").output().is_err() {
        println!("skipped: {COMPILER} is not installed");
        return Ok(());
    }
    const ARM: CheckStep = CheckStep {
        args: &["check", "--workspace", "--all-targets", "--target", TARGET],
        env: &[],
        component: None,
    };
    ARM.run()
}

/// Runs the tests alone. The last line of output counts the tests, as in [`run`].
pub(crate) fn run_tests() -> Result<ExitCode> {
    conclude(Instant::now())
}

/// Runs the tests, and prints the duration of all checks since `began` and the result of the tests.
fn conclude(began: Instant) -> Result<ExitCode> {
    let (tally, skips) = test()?;
    let skipped = skips.tests.len() as u64;
    print!("{skips}");
    println!("all checks took {} s", began.elapsed().as_secs());
    // libtest counts a skipped test as passed.
    let passed = tally.passed.saturating_sub(skipped);
    println!("{passed} passed, {} failed, {skipped} skipped", tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl CheckStep {
    fn command(&self) -> Result<Command> {
        let mut command = cargo_here()?;
        command.args(self.args).envs(self.env.iter().copied());
        if self.args.first() == Some(&DOC)
            && let Some(driver) = clippy_driver()
        {
            // With the wrapper and the arguments of clippy, cargo reuses the results of the clippy
            // step and does not check the crates a second time.
            command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", CLIPPY_ARGS);
        }
        Ok(command)
    }

    fn run(&self) -> Result<()> {
        if let Some(component) = self.component
            && !is_installed(component)
        {
            ensure!(!tools_required(), "`cargo {component}` is not installed");
            println!("skipped: `cargo {component}` is not installed");
            return Ok(());
        }
        let command = self.args.join(" ");
        say(&command);
        let status = self.command()?.status();
        let status = status.with_context(|| format!("cargo {command}"))?;
        ensure!(status.success(), "cargo {command} failed");
        Ok(())
    }
}

/// Number of tests, over all test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TestTally {
    passed: u64,
    failed: u64,
}

impl TestTally {
    /// Reads the summaries in the output of a test program. A program that fails without a summary
    /// counts as one failure.
    fn of_output(output: &[u8], succeeded: bool) -> TestTally {
        let mut tally = TestTally::default();
        String::from_utf8_lossy(output).lines().for_each(|line| tally.add(line));
        if !succeeded && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    fn merge(&mut self, other: TestTally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Adds the counts in a line of libtest's output, if the line is a summary:
    /// `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|l| l.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((n, "passed")) => self.passed += n.parse().unwrap_or(0),
                Some((n, "failed")) => self.failed += n.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

/// The tests that this machine cannot run, by the lines that the crate `skip` writes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Skips {
    /// Each test that was skipped as a whole, with the reason.
    tests: BTreeMap<String, String>,
    /// Each test that skipped some of its cases, with the reasons.
    parts: BTreeMap<String, BTreeSet<String>>,
}

impl Skips {
    fn parse(text: &str) -> Skips {
        let mut skips = Skips::default();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["test", test, reason] => {
                    skips.tests.insert(test.to_owned(), reason.to_owned());
                }
                [_, test, reason] => {
                    skips.parts.entry(test.to_owned()).or_default().insert(reason.to_owned());
                }
                _ => {}
            }
        }
        skips
    }
}

impl Display for Skips {
    /// Prints each reason on a line, and its tests below it.
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let mut by_reason: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (test, reason) in &self.tests {
            by_reason.entry(("skipped", reason)).or_default().push(test);
        }
        for (test, reasons) in &self.parts {
            for reason in reasons {
                by_reason.entry(("cases left out", reason)).or_default().push(test);
            }
        }
        for ((what, reason), tests) in by_reason {
            writeln!(to, "{what}: {reason}")?;
            tests.iter().try_for_each(|test| writeln!(to, "    {test}"))?;
        }
        Ok(())
    }
}

/// Test programs that change settings of the machine, compare with counters of the whole machine,
/// or keep all CPUs busy: each runs alone, after all others.
const ALONE: &[&str] = &[
    "huge_pages",
    "kills",
    "lab",
    "live",
    "machine",
    "memory_limit",
    "pages",
    "pid_reuse",
    "ram",
    "remedies",
    "shootdowns",
    "stat",
];

/// Test programs that take longest, the longest first: they start first, so that the last program
/// to end is a short one.
const LONG: &[&str] = &[
    "heap",
    "record",
    "c",
    "all_commands",
    DOC_TESTS,
    LOOM_TESTS,
    "views",
    "look",
    "statistics",
    "simulators",
    "file",
    "pagewise_analysis",
    "damaged",
    "global",
    "screen",
    "pagewise_scan",
    "remote_calls",
];

/// Title of the job that runs the examples in the documentation.
const DOC_TESTS: &str = "test --workspace --doc";

/// Title of the job that runs the tests of a ring buffer under every possible interleaving of its
/// threads.
const LOOM_TESTS: &str = "test -p pagewise-alloc --lib --features loom ring::threads";

/// A test program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// Name of the cargo target: `kills`, `pagewise_alloc`.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// The folder of its package, where cargo runs it.
    pub(crate) folder: PathBuf,
}

/// A command that runs tests.
struct TestJob {
    /// Name of the cargo target; for a job that cargo runs, its title.
    name: String,
    /// First line of its output.
    title: String,
    command: Command,
}

impl TestProgram {
    fn job(&self, skips: &Path, portable: Option<&Path>) -> TestJob {
        let mut command = with_default_signals(Command::new(&self.path));
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("PAGEWISE_SKIPS", skips);
        command.envs(portable.map(|file| ("PAGEWISE_STATIC", file)));
        if Some(&self.target.as_str()) == LONG.first() {
            // This program has the most tests: with fewer threads, it would still run after all
            // other programs have ended.
            command.env("RUST_TEST_THREADS", (cpus() * 2).to_string());
        }
        TestJob { name: self.target.clone(), title: self.path.display().to_string(), command }
    }
}

/// Returns a job in which cargo builds and runs tests. The title has the arguments of cargo.
fn cargo_job(title: &str, skips: &Path) -> Result<TestJob> {
    let mut command = with_default_signals(cargo_here()?);
    command.args(title.split(' ')).arg("--no-fail-fast").env("PAGEWISE_SKIPS", skips);
    Ok(TestJob { name: title.to_owned(), title: title.to_owned(), command })
}

/// Runs all tests, several test programs at a time, and prints the output of each program when it
/// ends.
fn test() -> Result<(TestTally, Skips)> {
    let skips = crate::root()?.join("target").join("skipped-tests");
    fs::create_dir_all(skips.parent().context("it is in target")?)?;
    fs::write(&skips, "").with_context(|| skips.display().to_string())?;

    let portable = build_portable()?;
    let programs = build_tests()?;
    let (alone, together): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.target.as_str()));
    let job = |program: &TestProgram| program.job(&skips, portable.as_deref());
    let mut together: Vec<TestJob> = together.iter().map(job).collect();
    together.push(cargo_job(DOC_TESTS, &skips)?);
    together.push(cargo_job(LOOM_TESTS, &skips)?);
    together
        .sort_by_key(|job| LONG.iter().position(|long| *long == job.name).unwrap_or(LONG.len()));
    // Most tests sleep for much of their time, for example while they record a process, so more
    // programs than CPUs run at a time.
    let jobs = cpus() + 2;
    say(&format!("{} test programs, {jobs} at a time", together.len()));
    let mut tally = run_jobs(together, jobs)?;
    say(&format!("{} test programs, one at a time", alone.len()));
    tally.merge(run_jobs(alone.iter().map(job).collect(), 1)?);
    Ok((tally, Skips::parse(&fs::read_to_string(&skips)?)))
}

/// Builds `pagewise` as a statically linked file, which some tests run. Returns `None` without a
/// static C library.
fn build_portable() -> Result<Option<PathBuf>> {
    if !crate::portable::has_static_libc() {
        println!("the static C library is not installed");
        return Ok(None);
    }
    say("xtask static --debug");
    // The static program is built before the tests: the build of the tests then replaces it at its
    // path by a dynamically linked program.
    crate::portable::build(false).map(Some)
}

/// Builds all test programs.
fn build_tests() -> Result<Vec<TestProgram>> {
    say("test --workspace --no-run");
    build_tests_of(&["--workspace"])
}

/// Builds the test programs of some packages.
pub(crate) fn test_programs_of(packages: &[&str]) -> Result<Vec<TestProgram>> {
    let options: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
    build_tests_of(&options)
}

fn build_tests_of(options: &[&str]) -> Result<Vec<TestProgram>> {
    let output = cargo_here()?
        .arg("test")
        .args(options)
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo test --no-run")?;
    ensure!(output.status.success(), "cargo test --no-run failed");
    let programs = test_programs(&String::from_utf8_lossy(&output.stdout));
    ensure!(!programs.is_empty(), "cargo built no test program");
    Ok(programs)
}

/// Returns the test programs that cargo lists in its JSON messages.
fn test_programs(messages: &str) -> Vec<TestProgram> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| {
        message["reason"] == "compiler-artifact" && message["profile"]["test"] == true
    });
    let program = |message: Value| {
        Some(TestProgram {
            target: message["target"]["name"].as_str()?.to_owned(),
            path: PathBuf::from(message["executable"].as_str()?),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    tests.filter_map(program).collect()
}

/// Runs commands, `jobs` at a time.
fn run_jobs(commands: Vec<TestJob>, jobs: usize) -> Result<TestTally> {
    let queue = Mutex::new(VecDeque::from(commands));
    let tally = Mutex::new(TestTally::default());
    let next = || queue.lock().expect("no thread panics while it holds the lock").pop_front();
    let work = || -> Result<()> {
        while let Some(job) = next() {
            let began = Instant::now();
            let (output, succeeded) = output_of(job.command)?;
            let mut tally = tally.lock().expect("no thread panics while it holds the lock");
            println!("\n{} ({:.1} s)", job.title, began.elapsed().as_secs_f64());
            print_output(&output)?;
            tally.merge(TestTally::of_output(&output, succeeded));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no job panics"))
    })?;
    Ok(tally.into_inner().expect("no job panics"))
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a command. Returns its standard output and standard error in the order of the writes, and
/// true if it succeeded. The output goes to a file: a pipe would end only when all processes that
/// the command leaves behind have closed it.
/// command leaves behind.
fn output_of(mut command: Command) -> Result<(Vec<u8>, bool)> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("output-{}-{}", process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = crate::root()?.join("target").join(name);
    let mut file = fs::File::create(&path).with_context(|| path.display().to_string())?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let child = command.spawn();
    let status =
        child.and_then(|mut child| wait_at_most(&mut child, TEST_PROGRAM_LIMIT, &mut file));
    let status = status.with_context(|| format!("{command:?}"));
    let output = fs::read(&path)?;
    fs::remove_file(&path)?;
    Ok((output, status?.success()))
}

fn print_output(output: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(output)?;
    Ok(stdout.flush()?)
}

fn say(step: &str) {
    println!("\n== {step}");
}

fn cargo_here() -> Result<Command> {
    let mut cargo = crate::cargo();
    cargo.current_dir(crate::root()?);
    Ok(cargo)
}

/// Returns the same command with the default actions of SIGHUP, SIGINT and SIGQUIT, if `env` can
/// set them. Tests send these signals, but a process that is started by nohup or in the background
/// of a script inherits that they are ignored.
fn with_default_signals(command: Command) -> Command {
    const OPTION: &str = "--default-signal=HUP,INT,QUIT";
    let can = Command::new("env").args([OPTION, "true"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return command;
    }
    let mut outer = Command::new("env");
    outer.arg(OPTION).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        outer.current_dir(folder);
    }
    outer
}

/// Returns the path of the compiler that `cargo clippy` runs in place of `rustc`.
fn clippy_driver() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(output.stdout).ok()?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    driver.is_file().then_some(driver)
}

fn is_installed(component: &str) -> bool {
    crate::cargo()
        .args([component, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns true if a missing tool is an error, as in CI, which installs all tools.
fn tools_required() -> bool {
    std::env::var_os("PAGEWISE_REQUIRE_TOOLS").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_several_test_binaries_add_up() {
        let mut tally = TestTally::default();
        tally.add("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n");
        tally.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured\n");
        assert_eq!(tally, TestTally { passed: 7, failed: 3 });
    }

    #[test]
    fn skipped_tests_are_counted_once_and_listed_by_reason() {
        let text = "test\tcli::a\tneeds root\npart\tcli::b\tno swap\ntest\tcli::c\tneeds root\n\
                    test\tcli::a\tneeds root\npart\tcli::b\tno swap\n";
        let skips = Skips::parse(text);
        assert_eq!(skips.tests.len(), 2);
        let listed =
            "cases left out: no swap\n    cli::b\nskipped: needs root\n    cli::a\n    cli::c\n";
        assert_eq!(skips.to_string(), listed);
    }

    #[test]
    fn a_program_that_dies_before_its_summary_is_a_failure() {
        let output = b"running 2 tests\ntest a ... ok\n";
        assert_eq!(TestTally::of_output(output, false), TestTally { passed: 0, failed: 1 });
        let output = b"test result: FAILED. 2 passed; 3 failed; 0 ignored\n";
        assert_eq!(TestTally::of_output(output, false), TestTally { passed: 2, failed: 3 });
    }

    #[test]
    fn test_programs_are_read_from_the_messages_of_cargo() {
        let messages = r#"{"reason":"compiler-artifact","profile":{"test":true},"target":{"name":"kills"},"executable":"/t/kills-1","manifest_path":"/w/cli/Cargo.toml"}
{"reason":"compiler-artifact","profile":{"test":false},"target":{"name":"pagewise"},"executable":"/t/pagewise","manifest_path":"/w/cli/Cargo.toml"}
{"reason":"build-finished","success":true}"#;
        let kills = TestProgram {
            target: "kills".to_owned(),
            path: PathBuf::from("/t/kills-1"),
            folder: PathBuf::from("/w/cli"),
        };
        assert_eq!(test_programs(messages), [kills]);
    }

    #[test]
    fn output_keeps_the_order_of_both_streams() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; echo c; exit 1"]);
        assert_eq!(output_of(command).unwrap(), (b"a\nb\nc\n".to_vec(), false));
    }

    #[test]
    fn a_process_that_a_command_leaves_behind_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!"]);
        let (output, succeeded) = output_of(command).unwrap();
        let pid = String::from_utf8(output).unwrap();
        assert!(succeeded && Command::new("kill").arg(pid.trim()).status().unwrap().success());
    }

    #[test]
    fn other_lines_count_nothing() {
        let mut tally = TestTally::default();
        tally.add("test a_test ... ok\n");
        tally.add("the program printed: 5 passed; 5 failed\n");
        assert_eq!(tally, TestTally::default());
    }
}

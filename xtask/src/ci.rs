//! `cargo xtask ci`: every check, the quick ones first, the tests last.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// One cargo command that must succeed.
struct Step {
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// A part of the toolchain that a distribution may leave out; its absence skips the step.
    component: Option<&'static str>,
}

const STEPS: &[Step] = &[
    Step { args: &["fmt", "--all", "--check"], env: &[], component: Some("fmt") },
    Step {
        args: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: &[],
        component: Some("clippy"),
    },
    Step {
        args: &["doc", "--workspace", "--no-deps"],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        component: None,
    },
    // Every order in which the threads of a ring may run. A folder of its own, or all else would be built again.
    Step {
        args: &[
            "test",
            "-p",
            "pagewise-alloc",
            "--lib",
            "--target-dir",
            "target/loom",
            "ring::threads",
        ],
        env: &[("RUSTFLAGS", "--cfg loom")],
        component: None,
    },
];

/// Runs every check; the last line of output is `N passed, N failed, N skipped`, of the tests.
pub(crate) fn run() -> Result<ExitCode> {
    let began = Instant::now();
    say("tidy");
    crate::tidy::run()?;
    for step in STEPS {
        step.run()?;
    }
    let (tally, skips) = test()?;
    let skipped = skips.tests.len() as u64;
    print!("{skips}");
    println!("all checks took {} s", began.elapsed().as_secs());
    // libtest counts a skipped test as passed.
    let passed = tally.passed.saturating_sub(skipped);
    println!("{passed} passed, {} failed, {skipped} skipped", tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Step {
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
        let status = cargo_here()?.args(self.args).envs(self.env.iter().copied()).status();
        let status = status.with_context(|| format!("cargo {command}"))?;
        ensure!(status.success(), "cargo {command} failed");
        Ok(())
    }
}

/// How many tests there were, over all test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Adds what a line of libtest's output says, if it is a summary:
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
    /// Each test of which cases were left out, with the reasons.
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
    /// One reason a line, and below it the tests.
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

/// Runs the tests, passing their output on as it comes.
fn test() -> Result<(Tally, Skips)> {
    say("test --workspace --no-fail-fast");
    let skips = crate::root()?.join("target").join("skipped-tests");
    fs::create_dir_all(skips.parent().context("it is in target")?)?;
    fs::write(&skips, "").with_context(|| skips.display().to_string())?;
    let mut child = with_default_signals(cargo_here()?)
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("PAGEWISE_SKIPS", &skips)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo test")?;
    let mut tally = Tally::default();
    let mut output = BufReader::new(child.stdout.take().context("the output was piped")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        tally.add(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait()?;
    // What did not compile, or died before its summary, is a failure that no summary counts.
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok((tally, Skips::parse(&fs::read_to_string(&skips)?)))
}

fn say(step: &str) {
    println!("\n== {step}");
}

fn cargo_here() -> Result<Command> {
    let mut cargo = crate::cargo();
    cargo.current_dir(crate::root()?);
    Ok(cargo)
}

/// The same command with the usual effect of signals that people send, where `env` can do that: under nohup, or in the background of a
/// script, they are ignored by all that is started, and tests send them.
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

fn is_installed(component: &str) -> bool {
    crate::cargo()
        .args([component, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a missing tool is an error: so in CI, which installs them all.
fn tools_required() -> bool {
    std::env::var_os("PAGEWISE_REQUIRE_TOOLS").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_several_test_binaries_add_up() {
        let mut tally = Tally::default();
        tally.add("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n");
        tally.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured\n");
        assert_eq!(tally, Tally { passed: 7, failed: 3 });
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
    fn other_lines_count_nothing() {
        let mut tally = Tally::default();
        tally.add("test a_test ... ok\n");
        tally.add("the program printed: 5 passed; 5 failed\n");
        assert_eq!(tally, Tally::default());
    }
}

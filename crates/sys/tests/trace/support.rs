//! The traced program, built twice, and checks of the program that do not use the code under test.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, skip};
use pagewise_sys::trace::{Stopped, TraceEnding, Traced};

/// Time limit of a test, so that a hang becomes a failure with the name of the test.
const PATIENCE: Duration = Duration::from_secs(300);

static DYNAMIC: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("acts-dynamic", &[]));
static STATIC: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("acts-static", &["-static"]));

/// Path of the program `acts`, built from `acts.c` with dynamic linking. If it cannot be built, the
/// function records a skipped test and returns `None`.
pub(crate) fn acts() -> Option<&'static Path> {
    if DYNAMIC.is_none() {
        skip(&Lack::Tool("cc"));
    }
    DYNAMIC.as_deref()
}

pub(crate) fn acts_static() -> Option<&'static Path> {
    if STATIC.is_none() {
        skip(&Lack::Ability { of: "cc", what: "there is no static C library" });
    }
    STATIC.as_deref()
}

fn compile(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trace/acts.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o"]);
    command.arg(&output).args(flags);
    command.status().is_ok_and(|status| status.success()).then_some(output)
}

/// Starts `acts` with the words of `line` as arguments, under a tracer.
pub(crate) fn spawn(program: &Path, line: &str) -> Traced {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    Traced::spawn(program.as_os_str(), &words).unwrap()
}

/// Runs `acts` until it is about to exit, checks that its memory is whole, and returns its ending.
pub(crate) fn ending(program: &Path, line: &str) -> TraceEnding {
    within_patience(|| {
        let mut traced = spawn(program, line);
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit, "{line}");
        assert_memory_is_whole(traced.task());
        traced.finish().unwrap()
    })
}

/// Ending of `acts` without tracing.
pub(crate) fn untraced_ending(program: &Path, line: &str) -> TraceEnding {
    use std::os::unix::process::ExitStatusExt;
    let status = Command::new(program).args(line.split_whitespace()).status().unwrap();
    match (status.code(), status.signal()) {
        (Some(code), _) => TraceEnding::Exited(code),
        (None, signal) => {
            TraceEnding::Killed { signal: signal.unwrap(), core: status.core_dumped() }
        }
    }
}

/// Asserts that half of the 16 MiB mapping of `acts` is resident, by the kernel's count.
pub(crate) fn assert_memory_is_whole(task: u32) {
    let smaps = fs::read_to_string(format!("/proc/{task}/smaps")).unwrap();
    let mapping = smaps.split("\nSize:").find(|part| part.trim_start().starts_with("16384 kB"));
    let mapping = mapping.unwrap_or_else(|| panic!("no mapping of 16 MiB in:\n{smaps}"));
    let kib = |name: &str| {
        let value = mapping.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // The kernel may swap pages out meanwhile.
    assert_eq!(kib("Rss:") + kib("Swap:"), 8192, "{mapping}");
}

/// State of a process: the letter after the name in `/proc/<pid>/stat`.
pub(crate) fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('-')
}

pub(crate) fn kill(pid: u32, signal: &str) {
    send(&pid.to_string(), signal);
}

pub(crate) fn kill_group(leader: u32, signal: &str) {
    send(&format!("-{leader}"), signal);
}

fn send(whom: &str, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, "--", whom]).status().unwrap();
    assert!(sent.success());
}

/// Copies a program with the command `cp`. If this process wrote the file, a child that another
/// test forks meanwhile would keep it open, and the kernel executes no file that is open for
/// writing.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--").args([from, to]).status().unwrap();
    assert!(status.success());
}

/// Writes a script from a child process, for the same reason as [`copy_program`].
pub(crate) fn write_program(to: &Path, text: &str) {
    let write = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
    let status = Command::new("sh").args(["-c", write]).arg(to).arg(text).status().unwrap();
    assert!(status.success());
}

/// Waits until `holds` returns true.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `work`, and ends the test process with a message if `work` hangs: a stuck tracer thread
/// cannot be joined.
pub(crate) fn within_patience<T>(work: impl FnOnce() -> T) -> T {
    let (done, watched) = mpsc::channel::<()>();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    let result = work();
    drop(done);
    result
}

/// The example `resident_at_exit`, which `cargo test` builds: a tracer that is a process of its
/// own.
pub(crate) fn tracer() -> Command {
    let tests = std::env::current_exe().unwrap();
    let build = tests.parent().and_then(Path::parent).unwrap();
    let example = build.join("examples/resident_at_exit");
    assert!(example.exists(), "cargo build --examples makes {}", example.display());
    let mut command = Command::new(example);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

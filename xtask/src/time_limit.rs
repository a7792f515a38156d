//! Ends a test program that hangs: prints the states of its processes, and kills them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit of one test program. The slowest takes 16 minutes on two CPUs with a load of 20.
pub(crate) const TEST_PROGRAM_LIMIT: Duration = Duration::from_secs(25 * 60);

/// Time between killing the processes that a test waits for and killing the test program.
const TIME_TO_FAIL: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for a child. After `limit`, writes the state of its descendants to `log` and kills them,
/// so that the tests that wait for them fail and the program ends with its summary. If the program
/// does not end, it is killed too.
pub(crate) fn wait_at_most(
    child: &mut Child,
    limit: Duration,
    log: &mut File,
) -> io::Result<ExitStatus> {
    if let Some(status) = wait_until(child, Instant::now() + limit)? {
        return Ok(status);
    }
    let root = child.id();
    let processes = descendants(&parents(), root);
    writeln!(log, "\nthe program has not ended after {} s; its processes:", limit.as_secs())?;
    for &pid in [root].iter().chain(&processes) {
        log.write_all(process_state(pid).as_bytes())?;
    }
    for &pid in &processes {
        // `kill_process` fails if the process has ended.
        let _ = kill_process(pid_of(pid)?, Signal::KILL);
    }
    if let Some(status) = wait_until(child, Instant::now() + TIME_TO_FAIL)? {
        return Ok(status);
    }
    writeln!(log, "\nit does not end without them either, and is killed")?;
    child.kill()?;
    child.wait()
}

fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn pid_of(pid: u32) -> io::Result<Pid> {
    Pid::from_raw(pid.cast_signed())
        .ok_or_else(|| io::Error::other(format!("not a process ID: {pid}")))
}

/// Returns the parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(&fs::read_to_string(stat_path(pid)).ok()?)?))).collect()
}

fn stat_path(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

/// Returns the parent that `/proc/PID/stat` names: the second field after the command, which may
/// contain parentheses and spaces.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns all descendants of a process. `parents` has the parent of each process.
fn descendants(parents: &BTreeMap<u32, u32>, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|&(_, of)| *of == parent).map(|(&pid, _)| pid));
        next += 1;
    }
    found.split_off(1)
}

/// Returns a line for the process, and a line for each thread: state, function of the kernel in
/// which it waits, and system call with its arguments. A dash stands for a value that the kernel
/// does not report.
fn process_state(pid: u32) -> String {
    let folder = Path::new("/proc").join(pid.to_string());
    let words = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = words.split(|&byte| byte == 0).map(|word| word.escape_ascii()).collect();
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    let mut text = format!("  {pid}: {}\n", words.join(" ").trim_end());
    for thread in fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
        let value = |file: &str| match fs::read_to_string(thread.path().join(file)) {
            Ok(value) if !value.trim().is_empty() => value.trim().to_owned(),
            _ => "-".to_owned(),
        };
        let stat = value("stat");
        let state = stat.rsplit_once(") ").map_or("-", |(_, fields)| &fields[..1]);
        let name = thread.file_name();
        let [wait, call] = [value("wchan"), value("syscall")];
        let line = format!("    {} {state} {wait} [{call}]", name.to_string_lossy());
        writeln!(text, "{line} {}", value("comm").escape_debug()).expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a script. The time limit begins when the script has `children` descendants. Returns the
    /// exit status of the script, and the log.
    fn limited(script: &str, children: usize, limit: Duration) -> (ExitStatus, String) {
        let memory = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC);
        let mut log = File::from(memory.expect("a file in memory"));
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(Stdio::null());
        let mut child = child.spawn().expect("a shell");
        while descendants(&parents(), child.id()).len() < children {
            thread::sleep(POLL_INTERVAL);
        }
        let status = wait_at_most(&mut child, limit, &mut log).expect("an end");
        let mut text = String::new();
        log.rewind().expect("a file");
        log.read_to_string(&mut text).expect("text");
        (status, text)
    }

    #[test]
    fn a_program_that_waits_for_a_hanging_process_ends_by_itself() {
        let (status, text) = limited("sleep 1000; exit 3", 1, Duration::from_secs(1));
        assert_eq!(status.code(), Some(3));
        assert!(text.contains("sleep 1000") && text.contains("has not ended after 1 s"), "{text}");
        assert!(!text.contains("is killed"), "{text}");
    }

    #[test]
    fn a_program_that_ends_in_time_is_left_alone() {
        let (status, text) = limited("exit 4", 0, Duration::from_secs(60));
        assert_eq!((status.code(), text.as_str()), (Some(4), ""));
    }

    #[test]
    fn descendants_are_found_through_their_parents() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 9), (5, 3), (9, 1)]);
        assert_eq!(descendants(&parents, 2), [3, 5]);
        assert_eq!(parent("7 (a) b) c) S 12 7 7"), Some(12));
    }
}

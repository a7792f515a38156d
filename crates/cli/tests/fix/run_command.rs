//! `explain -- COMMAND`: the command runs as without pagewise, and the snapshot is of the requested
//! time point.

use crate::fixture;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{StaysBehind, interruptible, number, pagewise, program, sum};

const MIB: u64 = 1 << 20;

/// Output and ending of a command, and the report of it.
struct CommandRun {
    status: ExitStatus,
    stdout: String,
    report: Value,
}

/// Runs `explain OPTIONS -- COMMAND` with the report in a file, so that standard output is the
/// command's.
fn explained(options: &[&str], command: &[&str]) -> CommandRun {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let output = ["explain", "--json", "--output", path.to_str().unwrap()];
    let words = [&output, options, &["--"], command].concat();
    let output = pagewise(&words);
    let report = fs::read(path)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    CommandRun {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        report: serde_json::from_slice(&report).unwrap(),
    }
}

#[test]
fn a_commands_exit_code_is_passed_on() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        let told = explained(&[], &["sh", "-c", script]);
        assert_eq!(told.status.code(), Some(code), "{script}");
    }
}

#[test]
fn a_command_that_cannot_run_has_a_shells_exit_code() {
    for (command, code) in [("/no/such/program", 127), ("/", 126)] {
        let output = pagewise(&["explain", "--", command]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(command) && output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_command_is_seen_with_all_its_memory_as_it_exits() {
    // The input of `big` is closed from the start, so `big` ends at once.
    let told = explained(&[], &[program("big").to_str().unwrap(), "32"]);
    assert!(told.status.success());
    assert!(told.stdout.ends_with("ready\n"), "the command's output is its own: {}", told.stdout);
    let res = number(&told.report, "totals.res");
    assert!((32 * MIB..40 * MIB).contains(&res), "{res}");
    assert_eq!(told.report["provenance"]["moment"], "at exit");
}

#[test]
fn threads_that_an_exit_ends_are_seen_with_their_stacks() {
    let told = explained(&[], &[program("threads").to_str().unwrap(), "6"]);
    assert!(told.status.success());
    let pools = told.report["pools"].as_array().unwrap();
    for worker in 0..6 {
        let name = format!("worker-{worker}");
        let is_its = |pool: &&Value| pool["name"].as_str().is_some_and(|n| n.contains(&name));
        assert!(pools.iter().any(|pool| is_its(&pool)), "{name} has no stack among {pools:#?}");
    }
    assert_eq!(sum(&told.report["pools"], "resident"), number(&told.report, "totals.res"));
}

#[test]
fn memory_released_before_the_exit_is_in_the_peak() {
    let peak = program("peak");
    let command = [peak.to_str().unwrap(), "64", "2000"];
    let at_exit = explained(&[], &command);
    let res = number(&at_exit.report, "totals.res");
    assert!(res < 16 * MIB, "{res}");
    assert!(number(&at_exit.report, "totals.peak_res") >= 64 * MIB);
    let at_peak = explained(&["--at-peak"], &command);
    let res = number(&at_peak.report, "totals.res");
    // A process that grows quickly has grown a little more since the last snapshot.
    assert!((56 * MIB..80 * MIB).contains(&res), "{res}");
    let moment = &at_peak.report["provenance"]["moment"];
    assert_eq!(moment[0], "near the peak RES");
    assert!(moment[1].as_u64().unwrap() >= 64 * MIB);
    for told in [at_exit, at_peak] {
        assert_eq!(told.status.code(), Some(3));
    }
}

#[test]
fn a_command_runs_on_after_the_moment_it_was_seen_at() {
    let script = "echo before; sleep 3; echo after; exit 4";
    let told = explained(&["--at", "200ms"], &["sh", "-c", script]);
    assert_eq!((told.stdout.as_str(), told.status.code()), ("before\nafter\n", Some(4)));
    let moment = &told.report["provenance"]["moment"];
    assert_eq!((moment[0].as_str(), moment[1].as_u64()), (Some("after"), Some(200_000_000)));
    // If a command ends before the time of --at, its snapshot is taken at its exit.
    let told = explained(&["--at", "1h"], &["true"]);
    assert_eq!(told.report["provenance"]["moment"], "at exit");
}

#[test]
fn standard_input_is_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = running(&folder, &["cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"line\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"line\n"[..], Some(0)));
}

/// Returns `pagewise explain` for a command, in a process group of its own. It writes the report to
/// the file `report` of the folder.
fn running(folder: &TempDir, command: &[&str]) -> Command {
    let mut pagewise = interruptible();
    pagewise.args(["explain", "--output"]).arg(folder.path().join("report")).arg("--");
    pagewise.args(command).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    pagewise
}

#[test]
fn an_interrupt_ends_the_command_and_the_report_is_still_written() {
    let handles = "trap 'exit 5' INT; echo; while :; do sleep 0.01; done";
    // The second script replaces the shell by another program at about the time when it writes its
    // line, so both names are possible.
    let cases = [(handles, 5, &["sh"][..]), ("echo; exec sleep 60", 130, &["sh", "sleep"])];
    for (script, code, names) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut child = running(&folder, &["sh", "-c", script]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let group = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{script}");
        let report = fs::read_to_string(folder.path().join("report")).unwrap();
        let is_of = |name: &&str| report.contains(&format!("Memory of {name} ("));
        assert!(names.iter().any(is_of), "{report}");
    }
}

#[test]
fn children_that_outlive_the_command_are_not_waited_for() {
    let stays = StaysBehind::new();
    let told = explained(&[], &["sh", "-c", &stays.script("exit 4")]);
    assert_eq!(told.status.code(), Some(4));
    assert!(stays.is_there());
}

#[test]
fn a_snapshot_is_saved_of_a_command_as_of_any_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let told = explained(&["--save", path.to_str().unwrap()], &["true"]);
    let again = pagewise(&["explain", "--json", "--from", path.to_str().unwrap()]);
    assert!(again.status.success() && Path::new(&path).exists());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["totals"], told.report["totals"]);
    assert_eq!(again["pools"], told.report["pools"]);
}

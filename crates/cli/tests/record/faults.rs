//! `faults` reports each fault at its source line, and counts all faults. Compared with the counts
//! of the programs themselves (getrusage around each step), `perf stat` of the same tracepoint, and
//! the source lines at which the programs touch memory.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use pagewise_skip::{Lack, is_root, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{
    FAULT_TRACEPOINT, disk, interruptible, number, program, reported, skip_without_events,
};

/// Output of a command, and the report of it.
struct FaultsRun {
    output: Output,
    facts: BTreeMap<String, u64>,
    report: Value,
}

impl FaultsRun {
    fn fact(&self, key: &str) -> u64 {
        *self.facts.get(key).unwrap_or_else(|| panic!("{key} is not in {:?}", self.facts))
    }

    /// Returns the number of faults of a function, and the most common kind.
    fn function(&self, name: &str) -> (u64, String) {
        let rows = self.report["functions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["function"] == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not in {rows:?}"));
        (number(row, "faults"), row["most_kind"].as_str().unwrap().to_owned())
    }

    /// Returns the number of faults of a line of the fixture.
    fn line(&self, line: u64) -> u64 {
        let rows = self.report["lines"].as_array().unwrap().iter();
        let is_it = |row: &&Value| {
            row["line"] == line && row["file"].as_str().unwrap().ends_with("/faults.c")
        };
        rows.filter(is_it).map(|row| number(row, "faults")).sum()
    }
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Runs `faults OPTIONS -- faults ACT PAGES ARGUMENT` in a folder on a disk.
fn told(options: &[&str], act: &[&str]) -> FaultsRun {
    let program = program("faults");
    let command: Vec<&str> = [&[program.to_str().unwrap()], act].concat();
    told_by(&[env!("CARGO_BIN_EXE_pagewise")], options, &command)
}

fn told_by(pagewise: &[&str], options: &[&str], command: &[&str]) -> FaultsRun {
    let folder = folder();
    let words: Vec<&str> = [&["faults"], options].concat();
    let (output, report) = reported(&folder, pagewise, &words, command);
    let fact = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    let facts = String::from_utf8_lossy(&output.stdout).lines().filter_map(fact).collect();
    FaultsRun { output, facts, report }
}

/// Returns true if this user can use the tracepoints; records a skip if not.
fn has_tracepoints() -> bool {
    if !is_root() {
        return false;
    }
    let told = told_by(&[env!("CARGO_BIN_EXE_pagewise")], &[], &["true"]);
    let has = told.report["recording"]["source"] == "tracepoints";
    if !has {
        skip_without_events(FAULT_TRACEPOINT);
    }
    has
}

fn lost(report: &Value) -> u64 {
    number(report, "recording.lost")
}

#[test]
fn two_functions_in_a_ratio_of_three_to_one_are_reported_exactly() {
    if !has_tracepoints() {
        return;
    }
    for (act, times) in [
        (&["ratio", "5000"][..], 1),
        (&["threads", "2000", "4"], 4),
        (&["children", "2000", "3"], 3),
    ] {
        let pages: u64 = act[1].parse().unwrap();
        // A debug build reads slowly: small records stay in the ring buffers while the recorder is
        // delayed.
        let told = told(&["--stack", "512"], act);
        assert_eq!(told.output.status.code(), Some(7), "{act:?}");
        assert_eq!(lost(&told.report), 0);
        let anonymous = "minor anonymous".to_owned();
        assert_eq!(told.function("touch_three"), (3 * pages * times, anonymous.clone()));
        assert_eq!(told.function("touch_one"), (pages * times, anonymous));
        assert_eq!(told.line(told.fact("touch_three.line")), 3 * pages * times, "{act:?}");
        assert_eq!(told.line(told.fact("touch_one.line")), pages * times, "{act:?}");
        let mapped = told.report["mappings"].as_array().unwrap();
        let most = number(&mapped[0], "faults");
        assert!(most >= 3 * pages, "{act:?}: {:?}", mapped[0]);
        assert_eq!(mapped[0]["quadrant"], "private anonymous");
    }
}

#[test]
fn each_kind_of_fault_has_the_count_of_the_program() {
    if !has_tracepoints() {
        return;
    }
    let steps = |act: &str, expected: &[(&str, &str)]| {
        let told = told(&["--latency"], &[act, "600"]);
        assert_eq!((told.output.status.code(), lost(&told.report)), (Some(7), 0), "{act}");
        for (function, kind) in expected {
            let fact = |of| told.fact(&format!("{function}.{of}"));
            let counted = fact("minflt") + fact("majflt");
            // The program also counts at most two faults of its printing and of its reading of the
            // counters.
            let (found, most) = told.function(function);
            assert!(
                found <= counted && counted - found <= 2,
                "{act} {function}: {found} {counted}"
            );
            assert_eq!(most, *kind, "{act} {function}");
        }
    };
    steps("copy", &[("touch_one", "minor anonymous"), ("write_again", "copy-on-write")]);
    steps("zero", &[("read_all", "zero page"), ("write_again", "copy-on-write")]);
    steps(
        "files",
        &[
            ("read_all", "minor file"),
            ("touch_one", "copy-on-write"),
            ("touch_three", "minor file"),
            ("write_again", "write-protect"),
        ],
    );
    steps("major", &[("read_all", "major")]);
}

#[test]
fn quadrants_are_those_of_the_mappings() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&[], &["files", "500"]);
    let of = |key: &str| number(&told.report, &format!("quadrants.{key}"));
    assert_eq!(of("shared_file.file"), 500);
    assert_eq!(of("shared_file.write_protect"), 500);
    assert!(of("private_file.copy_on_write") >= 500);
    assert_eq!(of("private_anonymous.file"), 0);
    let all: u64 =
        ["private_anonymous", "shared_anonymous", "private_file", "shared_file", "nowhere"]
            .map(|quadrant| of(&format!("{quadrant}.faults")))
            .iter()
            .sum();
    assert_eq!(all, number(&told.report, "totals.faults"));
}

#[test]
fn faults_in_system_calls_are_separate() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&[], &["kernel", "700"]);
    let found = number(&told.report, "totals.kernel_faults");
    assert!((700..750).contains(&found), "{found}");
    // read(2) of the C library has no frame pointer: only unwind tables show its caller.
    let stacks = told.report["stacks"].as_array().unwrap();
    let most = &stacks[0];
    assert_eq!(number(most, "faults"), 700);
    let called = |at: usize| most["frames"][at].as_str().unwrap().to_owned();
    assert!(called(1).starts_with("fill (") && called(2).starts_with("main ("), "{most}");
}

#[test]
fn huge_pages_are_one_fault_each() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&[], &["huge", "4"]);
    if told.fact("touch_one.minflt") > 8 {
        return skip(&Lack::Chance("no huge page is free"));
    }
    assert_eq!(told.function("touch_one"), (4, "huge".to_owned()));
    assert_eq!(number(&told.report, "kinds.huge.faults"), 4);
}

#[test]
fn an_access_that_is_refused_is_of_no_known_kind_and_the_signal_is_passed_on() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&[], &["crash", "100"]);
    assert_eq!(told.output.status.code(), Some(128 + 11));
    assert_eq!(told.report["recording"]["ending"], "signal 11");
    assert_eq!(told.function("touch_one").0, 101);
    assert_eq!(number(&told.report, "kinds.unknown.faults"), 1);
}

#[test]
fn faults_in_memory_that_was_moved_a_moment_ago_are_known_where_mremap_is_followed() {
    const PAGES: u64 = 300;
    if !has_tracepoints() {
        return;
    }
    let told = told(&["--mremap"], &["moved", &PAGES.to_string()]);
    let lacks_it = told.report["remarks"].to_string();
    assert!(!lacks_it.contains("mremap"), "{lacks_it}");
    // The program touches a page directly after mremap extended the mapping, so no record of an
    // mmap event contains the address.
    assert_eq!(told.function("touch_one"), (PAGES - 1, "minor anonymous".to_owned()));
    assert_eq!(number(&told.report, "kinds.unknown.faults"), 0);
}

#[test]
fn callers_without_frame_pointers_are_found_as_far_as_the_stack_was_copied_and_it_is_said_how_often()
 {
    if !has_tracepoints() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let folder = folder();
    // Each call has 2 KiB on the stack between its return address and the return address of the
    // next call.
    let source = "#include <stdlib.h>\n#include <sys/mman.h>\n\
                  __attribute__((noinline)) static void touch(volatile char *at) { at[0] = 1; }\n\
                  __attribute__((noinline)) static void deep(volatile char *at, int left) {\n  volatile char room[2048];\n\
                  room[left] = 1;\n  if (left) deep(at, left - 1); else touch(at);\n  room[left] = 2;\n}\n\
                  int main(void) {\n  char *at = mmap(0, 1000 * 4096L, 3, 34, -1, 0);\n  madvise(at, 1000 * 4096L, 15);\n\
                  for (int i = 0; i < 1000; i++) deep(at + i * 4096L, 5);\n  return 0;\n}\n";
    fs::write(folder.path().join("deep.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fomit-frame-pointer", "-fno-inline", "-o", "deep", "deep.c"]);
    assert!(cc.current_dir(folder.path()).status().unwrap().success());
    let deep = folder.path().join("deep");
    let told = |options: &[&str]| {
        told_by(&[env!("CARGO_BIN_EXE_pagewise")], options, &[deep.to_str().unwrap()])
    };
    let from_main = |told: &FaultsRun| {
        let rows = told.report["stacks"].as_array().unwrap().iter();
        let is_it = |row: &&Value| {
            let frames = row["frames"].as_array().unwrap();
            let is = |at: usize, name: &str| {
                frames.get(at).is_some_and(|it| it.as_str().unwrap().starts_with(name))
            };
            is(0, "touch") && (1..7).all(|at| is(at, "deep")) && is(7, "main")
        };
        rows.filter(is_it).map(|row| number(row, "faults")).sum::<u64>()
    };
    let short = told(&[]);
    assert_eq!(from_main(&short), 0);
    assert!(number(&short.report, "recording.stacks_cut") >= 1000, "{}", short.report["recording"]);
    let long = told(&["--stack", "16384"]);
    assert_eq!(from_main(&long), 1000, "{}", long.report["stacks"]);
    assert_eq!(number(&long.report, "recording.stack_bytes"), 16384);
    // Stacks of faults in the dynamic linker may be cut off.
    assert!(number(&long.report, "recording.stacks_cut") < 200, "{}", long.report["recording"]);
}

#[test]
fn each_of_very_frequent_faults_is_recorded_or_counted_as_lost() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&[], &["fast", "0", "1500"]);
    // On a busy machine, this build may read the ring buffers too late, after they are full.
    let (all, found) = (told.fact("touch_one.faults"), told.function("touch_one").0);
    let lost = lost(&told.report);
    assert!(found <= all && found + lost >= all, "{found} and {lost} lost, of {all}");
    assert!(found > 0, "{found} and {lost} lost, of {all}");
    let rate =
        told.fact("touch_one.faults") * 1000 / (told.fact("touch_one.nanoseconds") / 1_000_000);
    eprintln!("{rate} faults a second");
    // The fixture releases memory and touches it again, which the report finds.
    let findings = told.report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["id"] == "touched-again"), "{findings:?}");
}

#[test]
fn there_are_as_many_as_perf_counts() {
    if !has_tracepoints() {
        return;
    }
    let program = program("faults");
    let perf = |name: &str| {
        let output = Command::new("perf")
            .args(["stat", "-x", ",", "-e", name, "--"])
            .arg(&program)
            .args(["ratio", "3000"])
            .env("LC_ALL", "C")
            .stdout(Stdio::null())
            .output();
        let Ok(output) = output else {
            skip(&Lack::Tool("perf"));
            return None;
        };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().find_map(|line| line.split(',').next()?.parse::<u64>().ok())
    };
    let Some(theirs) = perf("exceptions:page_fault_user") else { return };
    let told = told(&[], &["ratio", "3000"]);
    let ours = number(&told.report, "totals.user_faults");
    assert_eq!(number(&told.report, "totals.user_faults_counted"), ours);
    // The dynamic linker places libraries differently in each run, so the numbers of faults differ.
    assert!(ours.abs_diff(theirs) <= 30, "{ours} {theirs}");
    let rusage = number(&told.report, "totals.minflt") + number(&told.report, "totals.majflt");
    let all = number(&told.report, "totals.faults");
    // Faults of execve itself cause no event.
    assert!(all <= rusage && rusage - all < 60, "{all} {rusage}");
}

#[test]
fn each_sample_stands_for_several_allocations() {
    if !has_tracepoints() {
        return;
    }
    let told = told(&["--every", "50"], &["ratio", "10000"]);
    let (three, one) = (told.function("touch_three").0, told.function("touch_one").0);
    assert!(three.is_multiple_of(50) && three.abs_diff(30_000) <= 50, "{three}");
    assert!(one.abs_diff(10_000) <= 50, "{one}");
    assert!(number(&told.report, "totals.user_faults_counted") > 40_000);
}

#[test]
fn latencies_are_there_where_they_are_asked_for() {
    if !has_tracepoints() {
        return;
    }
    let timed = told(&["--latency"], &["ratio", "2000"]);
    let anonymous = &timed.report["kinds"]["anonymous"];
    let (median, longest) = (number(anonymous, "median_ns"), number(anonymous, "longest_ns"));
    assert!(median > 0 && median <= longest && longest < 60_000_000_000, "{anonymous}");
    let plain = told(&[], &["ratio", "2000"]);
    assert!(plain.report["kinds"]["anonymous"]["median_ns"].is_null());
}

/// Starts the fixture with threads that wait for permission to touch memory.
fn held(threads: u32) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(program("faults"))
        .args(["held", "1000", &threads.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    hear(&mut out, "ready");
    (child, out)
}

fn hear(out: &mut impl BufRead, what: &str) {
    let mut line = String::new();
    while !line.starts_with(what) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "no {what}");
    }
}

#[test]
fn a_running_process_is_recorded_until_ctrl_c_with_all_its_threads() {
    if !has_tracepoints() {
        return;
    }
    let (mut child, mut out) = held(3);
    let folder = folder();
    let path = folder.path().join("report.json");
    let mut watcher = interruptible()
        .args(["faults", &child.id().to_string(), "--json", "--output"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fixture::wait_until_recording(&mut watcher);
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    hear(&mut out, "touch.done");
    let pid = Pid::from_raw(watcher.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(watcher.wait().unwrap().success());
    let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let told = FaultsRun { output: pagewise_version(), facts: BTreeMap::new(), report };
    assert_eq!(told.function("touch_three").0, 9000);
    assert_eq!(told.function("touch_one").0, 3000);
    assert_eq!(told.report["recording"]["ending"], "still running");
    let threads = told.report["threads"].as_array().unwrap();
    let many = threads.iter().filter(|thread| number(thread, "faults") >= 4000).count();
    assert_eq!(many, 3, "{threads:?}");
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn pagewise_version() -> Output {
    fixture::pagewise(&["--version"])
}

#[test]
fn a_process_that_ends_ends_its_recording_and_one_that_is_not_there_is_said_so() {
    if !has_tracepoints() {
        return;
    }
    let (mut child, _out) = held(2);
    let pid = child.id().to_string();
    let mut watcher = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args(["faults", &pid])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fixture::wait_until_recording(&mut watcher);
    child.kill().unwrap();
    child.wait().unwrap();
    let output = watcher.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Page faults of "));
    let gone = fixture::pagewise(&["faults", &pid]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(!gone.stderr.is_empty());
}

#[test]
fn an_unprivileged_user_sees_the_permitted_events_and_the_needed_rights() {
    if !is_root() {
        return;
    }
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if paranoid.trim().parse::<i32>().map_or(true, |level| level > 2) {
        return skip(&Lack::Machine("only root may record events (perf_event_paranoid)"));
    }
    // Other users may not read the target folder.
    let folder = folder();
    let [ours, theirs] = ["pagewise", "faults"].map(|name| folder.path().join(name));
    fixture::copy_program(Path::new(env!("CARGO_BIN_EXE_pagewise")), &ours);
    fixture::copy_program(&program("faults"), &theirs);
    let as_nobody =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", ours.to_str().unwrap()];
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip(&Lack::Tool("setpriv"));
    }
    let reach = Command::new(as_nobody[0]).args(&as_nobody[1..]).arg("--version").output().unwrap();
    if !reach.status.success() {
        return skip(&Lack::Machine("another user cannot reach the folder of the tests"));
    }
    // These few events fit into the small ring buffer of an unprivileged user, even if it is read
    // late.
    let told = told_by(&as_nobody, &[], &[theirs.to_str().unwrap(), "ratio", "100"]);
    assert_eq!(told.output.status.code(), Some(7));
    assert_eq!(told.report["recording"]["source"], "counters");
    assert_eq!(told.function("touch_three").0, 300);
    assert_eq!(told.line(told.fact("touch_one.line")), 100);
    assert_eq!(lost(&told.report), 0);
    let unknown = told.report["kinds"]["copy_on_write"]["faults"]["absent"].to_string();
    assert!(unknown.contains("root"), "{unknown}");
    if paranoid.trim() == "2" {
        let unseen = told.report["totals"]["kernel_faults"]["absent"].to_string();
        assert!(unseen.contains("CAP_PERFMON"), "{unseen}");
    }
}

#[test]
fn a_saved_file_gives_the_same_report() {
    if !has_tracepoints() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("faults.json");
    let told = told(&["--save", path.to_str().unwrap()], &["ratio", "500"]);
    let again = fixture::json(&["faults", "--json", "--from", path.to_str().unwrap()]);
    assert_eq!(again, told.report);
    fs::write(&path, b"{}").unwrap();
    assert_eq!(
        fixture::pagewise(&["faults", "--from", path.to_str().unwrap()]).status.code(),
        Some(1)
    );
}

#[test]
fn missing_and_running_commands_are_reported_as_by_a_shell() {
    let missing = fixture::pagewise(&["faults", "--", "/no/such/command"]);
    assert_eq!(missing.status.code(), Some(127));
    if !has_tracepoints() {
        return;
    }
    let told = told_by(
        &[env!("CARGO_BIN_EXE_pagewise")],
        &["--for", "100ms"],
        &["sh", "-c", "sleep 10; ls / >/dev/null; exit 3"],
    );
    assert_eq!(told.output.status.code(), Some(3));
    let seconds = told.report["recording"]["seconds"].as_f64().unwrap();
    assert!(seconds < 10.0, "the recording ends before the command: {seconds}");
    let threads = told.report["threads"].to_string();
    assert!(!threads.contains("\"ls\""), "{threads}");
}

//! Recorders keep their memory limit with any number of call stacks, processes, calls and accesses,
//! and report the entries that they merged. The tests read VmHWM of the recorder, and compare the
//! reports with the counts of the recorded programs themselves.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{disk, number, program};

/// Maximum number of bytes of pagewise itself, including its code: a debug build with debugging
/// information.
const BASE: u64 = 48 << 20;
/// The smallest permitted memory limit.
const LIMIT: &str = "32M";
const BYTES: u64 = 32 << 20;

/// Result of a recording: the report, the peak memory of the recorder, and the command's output.
struct BoundedRun {
    report: Value,
    peak: u64,
    printed: String,
}

/// Runs `pagewise COMMAND OPTIONS --memory-limit LIMIT -- everstacks WORDS`.
fn recorded(command: &str, options: &[&str], words: &[&str]) -> BoundedRun {
    let folder: TempDir = tempfile::tempdir_in(disk()).unwrap();
    let [report, printed] = ["report.json", "printed"].map(|name| folder.path().join(name));
    let mut pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    pagewise.args([command, "--memory-limit", LIMIT, "--json", "--output"]).arg(&report);
    pagewise.args(options).arg("--").arg(program("everstacks")).args(words);
    let peak = peak_of(pagewise.stdout(fs::File::create(&printed).unwrap()));
    let report = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    BoundedRun { report, peak, printed: fs::read_to_string(printed).unwrap() }
}

/// Returns the peak memory of a command, in bytes.
fn peak_of(command: &mut Command) -> u64 {
    let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        peak = high_water_mark(child.id()).unwrap_or(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "{status}");
    peak
}

fn high_water_mark(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns true if this user can use tracepoints; records a skip if not.
fn has_tracepoints(name: &str) -> bool {
    if !is_root() {
        return false;
    }
    let found = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .any(|root| Path::new(root).join("events").join(name).exists());
    if !found {
        skip(&Lack::KernelFile(&format!("/sys/kernel/tracing/events/{name}/id")));
    }
    found
}

fn keeps_its_limit(recorded: &BoundedRun) {
    assert!(recorded.peak < BYTES + BASE, "{} MiB", recorded.peak >> 20);
}

#[test]
fn faults_of_ever_new_call_stacks_are_counted_in_bounded_memory() {
    if !has_tracepoints("exceptions/page_fault_user") {
        return;
    }
    let told = recorded("faults", &["--stack", "8"], &["fault", "60000", "0", "2000"]);
    keeps_its_limit(&told);
    let apart = &told.report["kept_apart"];
    assert_eq!(number(apart, "memory_limit"), BYTES);
    let (others, all) = (number(apart, "other_stacks"), number(&told.report, "totals.faults"));
    assert!(others > 20_000, "{apart}");
    assert!(number(apart, "folded_stacks") > 20_000 && number(apart, "stack_error") > 0, "{apart}");
    // No fault is lost: the sums by stack, function, mapping and thread are equal.
    let sum = |key: &str| fixture::sum(&told.report[key], "faults");
    assert_eq!([sum("stacks"), sum("functions"), sum("mappings"), sum("threads")], [all; 4]);
    let functions = told.report["functions"].as_array().unwrap();
    let of = |name: &str| functions.iter().find(|row| row["function"] == name).unwrap();
    assert_eq!(number(of("[other call stacks]"), "faults"), others);
    // The counts are those of the kernel, which loses no events.
    let minflt: u64 = told.printed.trim().strip_prefix("minflt = ").unwrap().parse().unwrap();
    assert!(minflt >= 60_000);
    let user = number(&told.report, "totals.user_faults_counted");
    let found = number(&told.report, "totals.user_faults") + number(&told.report, "recording.lost");
    assert_eq!(found, user);
    assert!(user <= minflt + 200 && user + 200 >= minflt, "{user} and {minflt}");
}

#[test]
fn processes_that_have_ended_leave_their_memory_to_others() {
    if !has_tracepoints("exceptions/page_fault_user") {
        return;
    }
    let told = recorded("faults", &["--stack", "8"], &["fault", "1", "3000"]);
    keeps_its_limit(&told);
    let all = number(&told.report, "totals.faults");
    let sum = |key: &str| fixture::sum(&told.report[key], "faults");
    assert_eq!([sum("threads"), sum("mappings"), sum("stacks")], [all; 3]);
    assert!(number(&told.report, "kept_apart.other_threads") > 0, "{}", told.report["kept_apart"]);
    // All processes share a few call stacks, which are not merged.
    assert_eq!(number(&told.report, "kept_apart.other_stacks"), 0);
    let threads = told.report["threads"].as_array().unwrap();
    let others = threads.iter().find(|row| row["name"] == "[other threads]").unwrap();
    assert!(others["pid"].get("absent").is_some(), "{others}");
}

#[test]
fn flushes_of_ever_new_call_stacks_are_counted_in_bounded_memory() {
    if !has_tracepoints("tlb/tlb_flush") {
        return;
    }
    let told = recorded("shootdowns", &[], &["unmap", "60000", "0", "2000"]);
    keeps_its_limit(&told);
    let apart = &told.report["kept_apart"];
    assert!(number(apart, "other_stacks") > 20_000, "{apart}");
    assert!(number(apart, "folded_stacks") > 20_000 && number(apart, "stack_error") > 0, "{apart}");
}

#[test]
fn calls_that_do_not_fit_are_counted() {
    let told = recorded("syscalls", &[], &["unmap", "40000"]);
    keeps_its_limit(&told);
    let (calls, lost) =
        (number(&told.report, "totals.calls"), number(&told.report, "recording.lost"));
    assert!(calls + lost >= 80_000 && lost > 20_000, "{calls} {lost}");
    // The recorder needs memory for each child process and for its calls.
    let told = recorded("syscalls", &[], &["fault", "1", "4000"]);
    keeps_its_limit(&told);
    let processes = number(&told.report, "recording.processes");
    assert_eq!(processes + number(&told.report, "recording.lost_processes"), 4001);
    assert!(processes > 100 && processes < 4001, "{processes}");
}

#[test]
fn accesses_that_do_not_fit_are_counted_and_their_stacks_are_others() {
    if !is_root() {
        return;
    }
    let words = ["write", "30000", "0", "10000"];
    let told = recorded("watch", &["--symbol", "watched"], &words);
    keeps_its_limit(&told);
    let watched = &told.report["watched"];
    let hits = told.report["hits"].as_array().unwrap().len() as u64;
    // A lost event need not be a lost access: if only the event with the copied memory is lost, the
    // access is counted.
    let (count, lost) = (number(watched, "count"), number(watched, "lost"));
    assert!(count <= 30_000 && count + lost >= 30_000, "{watched}");
    assert_eq!(hits + number(watched, "dropped"), number(watched, "count"));
    assert!(number(watched, "dropped") > 0 && number(watched, "other_stacks") > 0, "{watched}");
    assert_eq!(number(watched, "memory_limit"), BYTES);
}

#[test]
fn a_heap_of_more_call_stacks_than_its_tables_hold_is_recorded_in_bounded_memory() {
    let folder: TempDir = tempfile::tempdir_in(disk()).unwrap();
    let recording = folder.path().join("heap.pwh");
    let mut pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    pagewise.args(["heap", "run", "--output"]).arg(&recording).arg("--");
    pagewise.arg(program("everstacks")).args(["malloc", "1000000"]).stdout(Stdio::null());
    let peak = peak_of(&mut pagewise);
    assert!(peak < (256 << 20), "{} MiB", peak >> 20);
    let output = fixture::pagewise(&["heap", "report", recording.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the recorder's tables were full"), "{text}");
    let report = fixture::json(&["heap", "report", "--json", recording.to_str().unwrap()]);
    // Every call is counted, some without their caller.
    assert!(number(&report, "totals.allocations") >= 1_000_000, "{}", report["totals"]);
}

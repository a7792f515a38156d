//! `pagewise diagnose` as a user runs it: the report, the exit status, saved evidence, and remedies
//! that are carried out.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use pagewise_corpus::ProgramForm;
use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use crate::fixture::{interruptible, pagewise, program};

/// A program that has reached the state to be diagnosed. It ends with the test.
struct ReadyProgram(Child);

impl ReadyProgram {
    /// Starts a program, and waits until it prints `ready`.
    fn start(command: &mut Command) -> ReadyProgram {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let program = ReadyProgram(child);
        let mut lines = output.lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the program ended early");
        program
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Returns RES in bytes, from the page tables.
    fn resident(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn diagnose(&self, options: &[&str]) -> (Output, Value) {
        let pid = self.pid();
        let output = pagewise(&[&["diagnose", &pid, "--json"], options].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
        (output, report)
    }
}

impl Drop for ReadyProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program with threads whose arenas are mostly free.
fn arenas() -> ReadyProgram {
    ReadyProgram::start(Command::new(program("arena_heavy")).args(["4", "24", "256", "1000"]))
}

#[test]
fn the_remedy_of_arenas_that_are_mostly_free_releases_what_it_promises() {
    let sick = arenas();
    let before = sick.resident();
    let (output, report) = sick.diagnose(&["--for", "2s"]);
    assert_eq!(output.status.code(), Some(10), "{report:#}");
    assert_eq!(report["healthy"], false);
    let cause = &report["causes"][0];
    assert_eq!(cause["id"], "many-arenas", "{report:#}");
    assert_eq!(cause["confidence"], "certain");
    let promised = cause["cost"]["bytes"].as_u64().unwrap();
    let command = cause["remedy_now_command"].as_str().unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let fixed = pagewise(&words);
    assert!(fixed.status.success(), "{command}: {}", String::from_utf8_lossy(&fixed.stderr));
    let released = before.saturating_sub(sick.resident());
    assert!(released >= promised / 10 * 9, "{released} of {promised}");
}

/// Starts pagewise on a terminal of its own, which `script` provides.
fn on_a_terminal(words: &str) -> Option<Child> {
    let command = format!("{} {words}", env!("CARGO_BIN_EXE_pagewise"));
    let mut script = Command::new("script");
    script.args(["-qefc", &command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let started = script.spawn();
    if started.is_err() {
        skip(&Lack::Tool("script"));
    }
    started.ok()
}

/// Answers the question of a command on a terminal, and returns its output.
fn answered(mut child: Child, answer: &str) -> String {
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut text, mut buffer, mut is_asked) = (Vec::new(), [0; 4096], false);
    loop {
        let count = output.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        text.extend_from_slice(&buffer[..count]);
        if !is_asked && String::from_utf8_lossy(&text).contains("[y/N]") {
            is_asked = true;
            input.write_all(answer.as_bytes()).unwrap();
        }
    }
    child.wait().unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(is_asked, "no question: {text}");
    text
}

#[test]
fn on_a_terminal_the_recorder_of_allocations_is_loaded_only_after_the_answer_yes() {
    if !is_root() {
        return;
    }
    let labels = pagewise_corpus::labels().unwrap();
    let label = labels.iter().find(|label| label.name == "cache_audit_list").unwrap();
    let Ok(growing) = label.start(ProgramForm::Sick, false).unwrap() else { return };
    let pid = growing.pid;
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let words = format!("diagnose {pid} --for 5s --max-pause 10s");
    let Some(child) = on_a_terminal(&words) else { return };
    let refused = answered(child, "n\n");
    assert!(!maps().contains("libpagewise_preload"), "{refused}");
    let permitted = answered(on_a_terminal(&words).unwrap(), "y\n");
    assert!(maps().contains("libpagewise_preload"), "{permitted}");
    let words: Vec<&str> = permitted.split_whitespace().collect();
    assert!(words.join(" ").contains("allocates most of it"), "{permitted}");
    assert!(!permitted.contains(".pwh"), "{permitted}");
}

#[test]
fn the_pause_of_an_attached_recorder_is_measured() {
    if !is_root() {
        return;
    }
    let sick = arenas();
    let options = ["--for", "1s", "--attach", "--max-pause", "2s"];
    let (output, report) = sick.diagnose(&options);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let pause = report["cost"]["longest_pause_us"].as_u64().unwrap();
    assert!(pause > 0 && pause != 2_000_000, "{pause}: {text}");
    assert!(!text.contains(".pwh"), "{text}");
}

#[test]
fn saved_evidence_gives_the_same_conclusions() {
    let sick = arenas();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evidence.json");
    let file = file.to_str().unwrap();
    let (_, live) = sick.diagnose(&["--for", "1s", "--save", file]);
    drop(sick);
    let output = pagewise(&["diagnose", "--from", file, "--json"]);
    let saved: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(10));
    assert_eq!(live, saved);
}

#[test]
fn a_healthy_process_has_no_cause() {
    let healthy = ReadyProgram::start(
        Command::new("sh").args(["-c", "echo ready; while :; do sleep 0.1; done"]),
    );
    let (output, report) = healthy.diagnose(&["--for", "2s"]);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["healthy"], &report["causes"]), (&true.into(), &Value::Array(vec![])));
}

#[test]
fn an_interrupt_ends_the_observation_and_the_report_is_written() {
    let sick = arenas();
    let mut command = interruptible();
    command.args(["diagnose", &sick.pid(), "--for", "10m", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while !catches_interrupts(child.id()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(10), "{report:#}");
    assert_eq!(report["causes"][0]["id"], "many-arenas", "{report:#}");
}

/// Returns true if a process has a handler of SIGINT.
fn catches_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << 1 != 0
}

#[test]
fn what_cannot_be_observed_is_an_error() {
    let missing = pagewise(&["diagnose", "4194305"]);
    assert_eq!(missing.status.code(), Some(1));
    let ourselves = pagewise(&["diagnose", "self"]);
    assert_eq!(ourselves.status.code(), Some(1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.json");
    std::fs::write(&file, "{\"pagewise_evidence\": 1}").unwrap();
    let broken = pagewise(&["diagnose", "--from", file.to_str().unwrap()]);
    assert_eq!(broken.status.code(), Some(1));
    let text = String::from_utf8_lossy(&broken.stderr);
    assert!(text.contains("is not saved evidence"), "{text}");
}

#[test]
fn the_report_for_people_fits_80_columns_and_25_lines() {
    let sick = arenas();
    // In the shortest observation, the process is read only once, so most causes cannot be found.
    for window in ["1ms", "1s"] {
        let output = pagewise(&["diagnose", &sick.pid(), "--for", window, "--width", "80"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() <= 25, "{text}");
        assert!(text.contains("pagewise trim"), "{text}");
    }
}

#[test]
fn the_machine_and_a_cgroup_are_reported_with_their_processes() {
    let sick = arenas();
    let created = created_tasks();
    let before = processes_with_memory();
    let output = pagewise(&["diagnose", "--system", "--for", "1s", "--json"]);
    let after = processes_with_memory();
    let created = created_tasks() - created;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
    let is_healthy = report["healthy"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if is_healthy { 0 } else { 10 }), "{report:#}");
    // Other tests start and end processes meanwhile, so the number of processes lies within bounds.
    let (least, most) = (before.intersection(&after).count(), before.len() + created);
    let seen = report["machine"]["processes_seen"].as_u64().unwrap();
    assert!((least as u64..=most as u64).contains(&seen), "{least} to {most}: {report:#}");
    assert!(report["processes"].is_array() && report["cgroups"].is_array());
    let Some(path) = cgroup_of(&sick.pid()) else { return };
    let output = pagewise(&["diagnose", &path, "--for", "1s", "--json"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}"));
    assert!(!report["processes"].as_array().unwrap().is_empty(), "{report:#}");
    assert!(report["machine"]["cgroups_seen"].as_u64().unwrap() > 0, "{report:#}");
    let unknown = pagewise(&["diagnose", "/no/such/cgroup", "--for", "1s"]);
    assert_eq!(unknown.status.code(), Some(1));
}

/// Returns the process ID and the start time of each process that has memory of its own.
fn processes_with_memory() -> HashSet<(u32, String)> {
    let process = |pid: u32| {
        // Kernel threads have no line with memory. Every user may read this file, unlike the link
        // `exe`.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
        status.contains("\nVmRSS:").then(|| (pid, started.to_owned()))
    };
    let listed = std::fs::read_dir("/proc").unwrap().flatten();
    listed.filter_map(|it| process(it.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns the number of processes and threads that the machine created since its start.
fn created_tasks() -> usize {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("processes ")).unwrap();
    line.parse().unwrap()
}

/// Returns the memory cgroup of a process, if it has one.
fn cgroup_of(pid: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let words = text.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let words = words.filter(|words| words.len() == 3);
    let memory = words.into_iter().find(|words| words[1].split(',').any(|it| it == "memory"))?;
    (memory[2] != "/").then(|| memory[2].to_owned())
}

#[test]
fn every_cause_of_the_corpus_is_in_the_table() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/sick");
    let mut causes = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        causes.extend(text.lines().filter_map(|line| {
            let (_, id) = line.split_once("@cause: ")?;
            Some(id.trim().to_owned())
        }));
    }
    assert!(causes.len() > 30, "{causes:?}");
    let words: Vec<&str> = causes.iter().map(String::as_str).collect();
    let output = pagewise(&[&["define", "--json"], &words[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

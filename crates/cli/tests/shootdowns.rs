//! `shootdowns` reports as many flushes as the kernel counts, each with its caller. Compared with
//! perf, the TLB row of /proc/interrupts, and programs that flush a given number of times.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use fixture::{
    as_nobody, interruptible, number, program, readable_copies, reported, skip_without_events, sum,
    vmstat,
};

/// Time limit for an event that must happen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns true if shootdowns can be recorded here; records a skip if not.
fn can_record() -> bool {
    if !is_root() {
        return false;
    }
    let output = fixture::pagewise(&["shootdowns", "--json", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let orders = &report["totals"]["flush_orders"];
    if orders.is_u64() {
        return true;
    }
    skip_without_events("/sys/kernel/tracing/events/tlb/tlb_flush/id");
    false
}

fn has_two_cpus() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        skip(&Lack::Cpus(2));
    }
    enough
}

fn shoot() -> String {
    program("shoot").to_str().unwrap().to_owned()
}

/// Returns the report of a command. Asserts that no event was lost.
fn report_of(command: &[&str]) -> Value {
    let report = fixture::json(&[&["shootdowns", "--json", "--"], command].concat());
    assert_eq!(number(&report, "recording.lost"), 0);
    report
}

/// Returns the rows of a table in which a key has a value.
fn rows<'r>(report: &'r Value, table: &str, key: &str, value: &str) -> Vec<&'r Value> {
    let rows = report[table].as_array().unwrap_or_else(|| panic!("no {table}: {report}"));
    rows.iter().filter(|row| row[key] == value).collect()
}

fn sum_of(rows: &[&Value], key: &str) -> u64 {
    rows.iter().map(|row| number(row, key)).sum()
}

/// Returns the sum of the TLB row of /proc/interrupts.
fn interrupts() -> Option<u64> {
    let text = fs::read_to_string("/proc/interrupts").unwrap();
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(row.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

/// Returns the line of a program's source that has these words.
fn line_of(source: &str, words: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs").join(source);
    let text = fs::read_to_string(path).unwrap();
    let at = text.lines().position(|line| line.contains(words)).unwrap();
    format!("{source}:{}", at + 1)
}

/// Runs `perf stat` of a command with a tracefs of its own. Returns the words of the output;
/// `None`, after printing a message, without perf.
fn perf_stat(events: &[&str], to: &Path) -> Option<Vec<String>> {
    let script = "mount -t tracefs t /sys/kernel/tracing 2>/dev/null; exec \"$@\"";
    let mut words = ["unshare", "-m", "sh", "-c", script, "sh", "perf", "stat", "-x,"]
        .map(str::to_owned)
        .to_vec();
    words.extend(["-o".to_owned(), to.to_str().unwrap().to_owned()]);
    for event in events {
        words.extend(["-e".to_owned(), (*event).to_owned()]);
        if *event == "tlb:tlb_flush" {
            words.extend(["--filter".to_owned(), "reason == 4".to_owned()]);
        }
    }
    words.push("--".to_owned());
    let tried = Command::new(&words[0]).args(&words[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        skip(&Lack::Ability { of: "perf", what: "cannot count tracepoints" });
        return None;
    }
    Some(words)
}

#[test]
fn flush_requests_and_interrupts_are_as_many_as_perf_counts_of_the_same_run() {
    if !can_record() || !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts");
    let events = ["tlb:tlb_flush", "csd:csd_queue_cpu"];
    let Some(perf) = perf_stat(&events, &counts) else { return };
    for how in ["madvise", "munmap", "mprotect", "write"] {
        let mut command: Vec<&str> = perf.iter().map(String::as_str).collect();
        let program = shoot();
        command.extend([program.as_str(), how, "2", "2000"]);
        let report = report_of(&command);
        let text = fs::read_to_string(&counts).unwrap();
        let theirs = |event: &str| -> u64 {
            let row = text.lines().find(|line| line.contains(event)).unwrap();
            row.split(',').next().unwrap().parse().unwrap_or_else(|_| panic!("{row}"))
        };
        // The counts may differ a little: before execve the process is a fork of perf, which copies
        // pages, and a child flushes at its end.
        let mine = rows(&report, "by_process", "process", "shoot");
        let (orders, ipis) = (sum_of(&mine, "flush_orders"), sum_of(&mine, "ipis"));
        let their_orders = theirs("tlb_flush");
        assert!(orders.abs_diff(their_orders) <= 20, "{how}: {orders} and {their_orders}");
        // The kernel also queues functions on other CPUs for purposes other than flushes.
        let queued = theirs("csd_queue_cpu");
        assert!(ipis <= queued + 20, "{how}: {ipis} of {queued}");
        assert!(ipis * 10 >= queued.saturating_sub(200) * 5, "{how}: {ipis} of {queued}");
    }
}

#[test]
fn each_call_of_each_thread_is_reported_by_function_and_line() {
    if !can_record() || !has_two_cpus() {
        return;
    }
    let line = line_of("shoot.c", "madvise((void *)shared");
    let until = Instant::now() + PATIENCE;
    loop {
        let before = interrupts();
        let report = report_of(&[&shoot(), "madvise", "2", "1500"]);
        let after = interrupts();
        let calls = rows(&report, "calls", "function", "drops_a_page");
        assert_eq!(sum_of(&calls, "count"), 2 * 1500);
        assert_eq!(calls.len(), 2, "one stack begins in main, one in a thread");
        for call in &calls {
            assert_eq!(call["call"], "madvise(MADV_DONTNEED)");
            assert_eq!(call["line"], line.as_str());
        }
        let stacks = rows(&report, "by_stack", "function", "drops_a_page");
        let causes = rows(&report, "by_cause", "cause", "madvise(MADV_DONTNEED)");
        let ipis = sum_of(&stacks, "ipis");
        assert_eq!(ipis, sum_of(&causes, "ipis"));
        // If another program keeps one of two CPUs busy, the kernel need not interrupt that CPU.
        if ipis == 0 {
            assert!(Instant::now() < until, "nobody was interrupted: {}", report["totals"]);
            continue;
        }
        let shot = sum_of(&calls, "shooting");
        assert!(shot > 0 && shot <= number(causes[0], "shootdowns"), "{shot}");
        let received = sum(&report["by_cpu"], "received");
        let machine: Option<u64> = report["by_cpu"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cpu| cpu["machine_shootdowns"].as_u64())
            .sum();
        if let (Some(before), Some(after), Some(machine)) = (before, after, machine) {
            assert!(received <= machine, "{received} of {machine}");
            assert!(machine <= after - before, "{machine} of {}", after - before);
        }
        return;
    }
}

/// Returns the count and the mean in the row of `latency` with this name.
fn latency(report: &Value, what: &str) -> Option<(u64, u64)> {
    let row = rows(report, "latency", "what", what).first().copied()?;
    Some((number(row, "count"), number(row, "mean")))
}

#[test]
fn the_wait_in_the_program_is_within_what_the_program_itself_measures() {
    if !can_record() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    // Returns the list of uprobes of the kernel.
    let known = || fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    let before = known();
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <time.h>\n#include <sys/mman.h>\n\
                  static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);\n\
                  return t.tv_sec * 1000000000L + t.tv_nsec; }\n\
                  int main(void) {\n  long sum = 0;\n  char *p = mmap(0, 4096, 3, 34, -1, 0);\n\
                  for (int i = 0; i < 300; i++) {\n    *(volatile char *)p = 1;\n    long began = now();\n\
                  if (madvise(p, 4096, MADV_DONTNEED)) return 1;\n    sum += now() - began;\n  }\n\
                  printf(\"%ld\\n\", sum);\n  return 0;\n}\n";
    fs::write(folder.path().join("timed.c"), source).unwrap();
    let built = |flags: &[&str], name: &str| {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-o", name, "timed.c"]).args(flags).current_dir(&folder);
        cc.output().is_ok_and(|output| output.status.success())
    };
    assert!(built(&[], "timed"));
    let mut programs = vec!["timed"];
    // A statically linked program contains its own copies of the measured functions.
    programs.extend(built(&["-static"], "alone").then_some("alone"));
    for program in programs {
        let path = folder.path().join(program);
        let pagewise = [env!("CARGO_BIN_EXE_pagewise")];
        let words = ["shootdowns", "--user-wait"];
        let (output, report) = reported(&folder, &pagewise, &words, &[path.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let wait = &report["recording"]["user_wait"];
        if wait["absent"].is_string() {
            return skip_without_events("/sys/bus/event_source/devices/uprobe/type");
        }
        assert!(number(wait, "cost_ns") > 0, "{wait}");
        let theirs: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let sum = |suffixes: [&str; 2]| {
            let each = suffixes.map(|suffix| {
                latency(&report, &format!("madvise(MADV_DONTNEED){suffix}")).unwrap_or_default()
            });
            each.iter().fold((0, 0), |(count, sum), (n, mean)| (count + n, sum + n * mean))
        };
        let (calls, in_kernel) = sum([", shooting", ", not"]);
        let (waits, in_program) = sum([", shooting, in the program", ", not, in the program"]);
        assert_eq!((calls, waits), (300, 300), "{program}: {}", report["latency"]);
        assert!(in_kernel <= in_program, "{program}: {in_kernel} {in_program}");
        assert!(in_program <= theirs, "{program}: {in_program} {theirs}");
    }
    // Later, threads can be created as before, and another process that uses the library runs
    // normally.
    let report = report_of(&[&shoot(), "madvise", "2", "100"]);
    assert_eq!(report["recording"]["ending"], "exit 0");
    assert!(report["recording"]["user_wait"]["absent"].is_string());
    assert_eq!(known(), before);
}

#[test]
fn probes_in_a_program_vanish_with_their_owner_even_on_sigkill() {
    if !can_record() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let known = || fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    let before = known();
    let mut child = recording(&["--user-wait", "--", &shoot(), "madvise", "2", "4000"]);
    until_it_records(&child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(known(), before);
    // The program runs without probes after the recording, and so does another run of it.
    let output = Command::new(shoot()).args(["madvise", "2", "100"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_program_with_one_thread_interrupts_hardly_anyone() {
    if !can_record() {
        return;
    }
    let report = report_of(&[&shoot(), "madvise", "1", "2000"]);
    let calls = rows(&report, "calls", "function", "drops_a_page");
    assert_eq!(sum_of(&calls, "count"), 2000);
    // A CPU on which the process ran before may still use its page tables, and is then interrupted.
    let ipis = number(&report, "totals.ipis");
    assert!(ipis < 200, "{ipis}");
}

#[test]
fn each_cause_has_its_name_and_its_function() {
    if !can_record() || !has_two_cpus() {
        return;
    }
    let ways = [
        ("mprotect", "mprotect", "protects_a_page"),
        ("munmap", "munmap", "unmaps_a_page"),
        ("mremap", "mremap", "moves_a_page"),
        ("write", "copy-on-write", "writes_pages"),
    ];
    for (how, cause, function) in ways {
        let until = Instant::now() + PATIENCE;
        loop {
            let report = report_of(&[&shoot(), how, "2", "1000"]);
            let stacks = rows(&report, "by_stack", "function", function);
            let named: Vec<&&Value> = stacks.iter().filter(|row| row["cause"] == cause).collect();
            let flushes: u64 = named
                .iter()
                .map(|row| number(row, "flush_orders") + number(row, "local_flushes"))
                .sum();
            let others = sum_of(&stacks, "flush_orders")
                - named.iter().map(|row| number(row, "flush_orders")).sum::<u64>();
            // If a write copies a page that was just mapped, the flush has the cause copy-on-write.
            assert!(others <= flushes / 10, "{how}: {others} of {flushes}");
            if flushes >= 900 {
                break;
            }
            assert!(Instant::now() < until, "{how}: {flushes} of {}", report["by_cause"]);
        }
    }
}

/// Changed settings of the kernel. Their earlier values are written back on drop, also if the test
/// fails.
struct ChangedSettings(Vec<(&'static str, String)>);

impl ChangedSettings {
    /// Changes settings. Returns `None`, after recording a skip, if a setting is missing or cannot
    /// be written.
    fn to(settings: &[(&'static str, &str)]) -> Option<ChangedSettings> {
        let mut changed = ChangedSettings(Vec::new());
        for (path, value) in settings {
            let Ok(before) = fs::read_to_string(path) else {
                skip(&Lack::KernelFile(path));
                return None;
            };
            changed.0.push((path, before.trim().to_owned()));
            if fs::write(path, value).is_err() {
                skip(&Lack::Machine(&format!("{path} cannot be written")));
                return None;
            }
        }
        Some(changed)
    }
}

impl Drop for ChangedSettings {
    fn drop(&mut self) {
        for (path, before) in self.0.iter().rev() {
            // The chosen word is the one in brackets.
            let chosen = before.split(['[', ']']).nth(1).unwrap_or(before);
            // An error is ignored: a failing test must report its own failure.
            let _ = fs::write(path, chosen);
        }
    }
}

/// Makes the kernel act on the memory of a program, until a recording of the machine reports
/// flushes with `cause`, in `process` if one is given. `done` are the kernel's counters of such
/// actions.
fn is_told_by_itself(
    kind: &str,
    cause: &str,
    process: Option<&str>,
    done: &[&str],
    settings: &[(&'static str, &str)],
    mut also: impl FnMut(),
) {
    if !can_record() || !has_two_cpus() {
        return;
    }
    let Some(_changed) = ChangedSettings::to(settings) else { return };
    let until = Instant::now() + PATIENCE;
    let (before, mut is_of_others) = (vmstat(done), false);
    loop {
        // Each try starts a new program: memory that was merged or collapsed once stays so.
        let mut program = Command::new(program("stirred"))
            .args([kind, "32"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let recorder =
            (said == "ready\n").then(|| recording(&["--json", "--system", "--for", "2s"]));
        also();
        let told = recorder.map(end_of);
        drop(program.stdin.take());
        let ended = program.wait().unwrap();
        let Some((code, text)) = told else {
            return skip(&Lack::Machine(&format!("the program cannot cause it: {ended}")));
        };
        assert_eq!(code, Some(0));
        let report: Value = serde_json::from_str(&text).unwrap();
        let mut stacks = rows(&report, "by_stack", "cause", cause);
        is_of_others |= !stacks.is_empty();
        stacks.retain(|row| process.is_none_or(|process| row["process"] == process));
        if sum_of(&stacks, "flush_orders") + sum_of(&stacks, "local_flushes") > 0 {
            return;
        }
        if Instant::now() >= until && is_of_others {
            return skip(&Lack::Chance(&format!("{cause} happened to other processes only")));
        }
        if Instant::now() >= until {
            let grown = vmstat(done) - before;
            assert_eq!(grown, 0, "the kernel did it {grown} times: {}", report["by_cause"]);
            return skip(&Lack::Machine(&format!("the kernel never does it: {cause}")));
        }
    }
}

#[test]
fn flushes_of_ksm_have_the_cause_ksm() {
    const RUN: &str = "/sys/kernel/mm/ksm/run";
    const PAGES: &str = "/sys/kernel/mm/ksm/pages_to_scan";
    const SLEEP: &str = "/sys/kernel/mm/ksm/sleep_millisecs";
    const SMART: &str = "/sys/kernel/mm/ksm/smart_scan";
    let mut settings = vec![(PAGES, "20000"), (SLEEP, "5"), (RUN, "1")];
    if Path::new(SMART).exists() {
        settings.insert(0, (SMART, "0"));
    }
    is_told_by_itself(
        "same",
        "KSM",
        Some("ksmd"),
        &["ksm_swpin_copy", "cow_ksm"],
        &settings,
        || {},
    );
}

#[test]
fn flushes_of_compaction_have_the_cause_compaction() {
    let compact = || {
        for _ in 0..3 {
            // The result does not matter: compaction only has to move pages.
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    is_told_by_itself("holes", "compaction", None, &["pgmigrate_success"], &[], compact);
}

#[test]
fn flushes_of_khugepaged_have_the_cause_collapse() {
    const FOLDER: [&str; 4] = [
        "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ];
    let settings =
        [(FOLDER[0], "10"), (FOLDER[1], "10"), (FOLDER[2], "100000"), (FOLDER[3], "madvise")];
    is_told_by_itself(
        "small",
        "huge page collapse",
        Some("khugepaged"),
        &["thp_collapse_alloc"],
        &settings,
        || {},
    );
}

#[test]
fn flushes_of_numa_balancing_have_its_cause_and_the_programs_time() {
    let settings = [("/proc/sys/kernel/numa_balancing", "1")];
    is_told_by_itself(
        "plain",
        "NUMA balancing",
        Some("stirred"),
        &["numa_pte_updates"],
        &settings,
        || {},
    );
}

#[test]
fn a_command_has_its_streams_and_its_exit_status() {
    if !can_record() {
        return;
    }
    let output = fixture::pagewise(&["shootdowns", "--", "sh", "-c", "echo said; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "said\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("TLB shootdowns of sh"), "{said}");
    let missing = fixture::pagewise(&["shootdowns", "--", "./no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
}

/// A program that flushes until it is killed.
struct FlushingProgram(Child);

impl FlushingProgram {
    fn start() -> FlushingProgram {
        let child = Command::new(shoot())
            .args(["madvise", "2", "1000000000000"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        FlushingProgram(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for FlushingProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a recorder has opened its events.
fn until_it_records(recorder: &Child) {
    let until = Instant::now() + PATIENCE;
    let folder = format!("/proc/{}/fd", recorder.id());
    let is_open = || {
        let files = fs::read_dir(&folder).into_iter().flatten().flatten();
        let links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.into_iter().filter(|to| to.to_string_lossy().contains("perf_event")).count() >= 2
    };
    while !is_open() {
        assert!(Instant::now() < until, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
}

fn end_of(mut recorder: Child) -> (Option<i32>, String) {
    let mut text = String::new();
    recorder.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    (recorder.wait().unwrap().code(), text)
}

fn recording(args: &[&str]) -> Child {
    let mut command = interruptible();
    command.arg("shootdowns").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_running_process_is_recorded_until_ctrl_c_and_goes_on() {
    if !can_record() {
        return;
    }
    let mut busy = FlushingProgram::start();
    let mut recorder = recording(&["--json", &busy.pid()]);
    fixture::wait_until_recording(&mut recorder);
    fixture::wait_for_work(busy.0.id());
    kill_process(Pid::from_raw(recorder.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    let (code, text) = end_of(recorder);
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&text).unwrap();
    let calls = rows(&report, "calls", "function", "drops_a_page");
    assert!(sum_of(&calls, "count") > 0, "{report}");
    assert!(busy.0.try_wait().unwrap().is_none());
}

#[test]
fn an_interrupt_is_the_commands_and_the_report_is_still_written() {
    if !can_record() {
        return;
    }
    let handles = "trap 'exit 5' INT; echo; while :; do sleep 0.01; done";
    for (script, code) in [(handles, 5), ("echo; exec sleep 60", 130)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let mut child = interruptible()
            .args(["shootdowns", "--json", "--output"])
            .arg(&path)
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let group = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{script}");
        let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(number(&report, "totals.flushes") > 0);
    }
}

#[test]
fn a_process_that_ends_ends_its_recording() {
    if !can_record() {
        return;
    }
    let busy = FlushingProgram::start();
    let mut recorder = recording(&["--json", &busy.pid()]);
    fixture::wait_until_recording(&mut recorder);
    fixture::wait_for_work(busy.0.id());
    drop(busy);
    let (code, text) = end_of(recorder);
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(number(&report, "totals.flushes") > 0);
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let output = fixture::pagewise(&["shootdowns", &gone.id().to_string()]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_machine_is_listed_by_process() {
    if !can_record() {
        return;
    }
    let busy = FlushingProgram::start();
    let report = fixture::json(&["shootdowns", "--system", "--for", "2s", "--json"]);
    assert_eq!(report["recording"]["scope"], "machine");
    let rows = report["by_process"].as_array().unwrap();
    let its = rows.iter().find(|row| row["pid"] == u64::from(busy.0.id())).unwrap();
    assert_eq!(its["process"], "shoot");
    assert!(number(its, "local_flushes") > 0, "{its}");
}

#[test]
fn a_refusal_names_the_needed_privilege() {
    if !is_root() {
        return;
    }
    let folder = readable_copies(&[]);
    let output = as_nobody()
        .arg(folder.path().join("pagewise"))
        .args(["shootdowns", "--", "sh", "-c", "exit 3"])
        .output();
    let Ok(output) = output else { return skip(&Lack::Tool("setpriv")) };
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("tlb:tlb_flush") && said.contains("root"), "{said}");
}

#[test]
fn without_rights_the_machines_interrupts_are_shown_and_unknown_values_are_not_zero() {
    if !is_root() {
        return;
    }
    let folder = readable_copies(&[shoot().as_ref()]);
    let before = interrupts();
    let output = as_nobody()
        .arg(folder.path().join("pagewise"))
        .args(["shootdowns", "--json", "--"])
        .arg(folder.path().join("shoot"))
        .args(["madvise", "2", "300"])
        .output();
    let Ok(output) = output else { return skip(&Lack::Tool("setpriv")) };
    let after = interrupts();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["flush_orders", "shootdowns", "ipis", "waited", "received", "flushes"] {
        let value = &report["totals"][key];
        assert!(value["absent"].as_str().unwrap().contains("root"), "{key}: {value}");
    }
    if let (Some(before), Some(after)) = (before, after) {
        let told = number(&report, "totals.machine_shootdowns");
        assert!(told <= after - before, "{told} of {}", after - before);
        assert_eq!(told, sum(&report["by_cpu"], "machine_shootdowns"));
    }
}

#[test]
fn a_process_with_more_threads_than_files_may_be_open_is_recorded_by_cpu() {
    if !can_record() {
        return;
    }
    // Each of 12 threads would need a dozen files for each CPU.
    const THREADS: u64 = 12;
    let program = shoot();
    let mut busy = Command::new(&program)
        .args(["madvise", &THREADS.to_string(), "100000000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let tasks = || fs::read_dir(format!("/proc/{}/task", busy.id())).map_or(0, Iterator::count);
    let until = Instant::now() + PATIENCE;
    while tasks() < usize::try_from(THREADS).unwrap() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let files = 60 + 14 * cpus;
    // Another process flushes meanwhile, and is not recorded.
    let mut other = Command::new(&program).args(["madvise", "2", "100000000"]).spawn().unwrap();
    let script = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_pagewise"), "shootdowns", "--json", "--for"])
        .args(["300ms", &busy.id().to_string()])
        .output()
        .unwrap();
    for child in [&mut busy, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let calls = rows(&report, "calls", "function", "drops_a_page");
    assert!(sum_of(&calls, "count") > 0, "{report}");
    let pids: Vec<u64> =
        report["by_process"].as_array().unwrap().iter().map(|row| number(row, "pid")).collect();
    assert_eq!(pids, [u64::from(busy.id())]);
    // Counts without their events cannot be attributed to a process.
    let interrupts = &report["by_cpu"][0]["call_function_interrupts"];
    assert!(interrupts["absent"].as_str().unwrap().contains("ulimit"), "{interrupts}");
}

#[test]
fn exported_call_stacks_have_every_flush_request() {
    if !can_record() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (collapsed, graph) = (file("collapsed"), file("graph.svg"));
    let options = ["shootdowns", "--json", "--collapsed", &collapsed, "--flamegraph", &graph, "--"];
    let report = fixture::json(&[&options[..], &[&shoot(), "madvise", "2", "500"]].concat());
    let text = fs::read_to_string(collapsed).unwrap();
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(text.lines().map(count).sum::<u64>(), number(&report, "totals.flush_orders"));
    if number(&report, "totals.flush_orders") > 0 {
        assert!(
            text.lines().any(|line| line.contains("drops_a_page;") && line.contains("madvise"))
        );
        assert!(fs::read_to_string(graph).unwrap().contains("<svg"));
    }
}

#[test]
fn callers_are_found_by_unwind_tables_in_a_program_without_frame_pointers() {
    if !can_record() {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) {
        return skip(&Lack::Architecture("x86_64"));
    }
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let bare = folder.path().join("bare");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/shoot.c");
    let built = Command::new("cc")
        .args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o"])
        .args([&bare, &source])
        .status();
    assert!(built.unwrap().success());
    let command = ["shootdowns", "--unwind", "--json", "--", bare.to_str().unwrap()];
    let report = fixture::json(&[&command[..], &["mprotect", "1", "300"]].concat());
    assert_eq!(report["recording"]["stacks"], "unwind tables");
    let calls = rows(&report, "calls", "function", "protects_a_page");
    assert_eq!(sum_of(&calls, "count"), 300);
    for call in calls {
        let stack = call["stack"].as_array().unwrap();
        assert!(stack.iter().any(|frame| frame["function"] == "main"), "{call}");
    }
}

/// Returns the code of a process's C library, from the memory of the process.
fn code_of_libc(pid: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is_code = |line: &&str| line.contains(" r-xp ") && line.ends_with("/libc.so.6");
    let range = maps.lines().find(is_code).and_then(|line| line.split(' ').next()).unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
    let mut code = vec![0; usize::try_from(end - start).unwrap()];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut code, start).unwrap();
    code
}

/// Probes a process, and compares the code of the C library before and during the probe. Returns
/// true for this process if the code changed, and true for another process if the code changed
/// there.
fn uprobes_change_code() -> (bool, bool) {
    let mut both = [(); 2].map(|()| {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    });
    // The program answers once the C library is mapped.
    for child in &mut both {
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
    let [watched, other] = [both[0].id(), both[1].id()];
    let before = [watched, other].map(code_of_libc);
    let mut recording = interruptible();
    recording.args(["shootdowns", "--user-wait", &watched.to_string()]);
    let mut recording = recording.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut is_changed = false;
    while !is_changed && recording.try_wait().unwrap().is_none() {
        is_changed = code_of_libc(watched) != before[0];
    }
    let is_other_changed = code_of_libc(other) != before[1];
    let _ = kill_process(Pid::from_child(&recording), Signal::INT);
    recording.wait().unwrap();
    for mut child in both {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    (is_changed, is_other_changed)
}

#[test]
fn uprobes_of_a_process_change_the_code_of_no_other() {
    if !is_root() {
        return;
    }
    // If another command places probes in all processes during the test, the code of the other
    // process changes too.
    let tries: Vec<(bool, bool)> = (0..3).map(|_| uprobes_change_code()).collect();
    if tries.iter().all(|(is_changed, _)| !is_changed) {
        return skip_without_events("/sys/bus/event_source/devices/uprobe/type");
    }
    if !tries.contains(&(true, false)) {
        skip(&Lack::Kernel(6, 10));
    }
}

//! `pagewise heap attach`: it records the allocations of a running program, and does not harm the
//! program, which checks itself. `PAGEWISE_RUNS` is the number of times that pagewise attaches to
//! busy programs.

use crate::fixture;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fixture::recorder::{begins_with_a_jump, by_function, heap, report};
use fixture::{OtherGlibc, number};
use pagewise_skip::{Lack, is_root, skip};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running `busy_heap`, or another program that prints `ready`.
struct BusyHeap {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl BusyHeap {
    fn start(threads: u32) -> BusyHeap {
        BusyHeap::start_command(
            Command::new(fixture::program("busy_heap")).arg(threads.to_string()),
        )
    }

    /// Starts any program that prints `ready`.
    fn start_command(command: &mut Command) -> BusyHeap {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut busy = BusyHeap { child, input, output };
        busy.wait_for("ready");
        busy
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if line.trim() == word {
                return;
            }
            line.clear();
        }
        panic!("it ended before it said {word}");
    }

    /// Makes the program allocate some blocks.
    fn ask(&mut self) {
        self.ask_for(b"x");
    }

    fn ask_for(&mut self, what: &[u8; 1]) {
        self.input.as_mut().unwrap().write_all(what).unwrap();
        self.wait_for("done");
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends the program, and asserts that it has found no error in its blocks.
    fn end(mut self) {
        drop(self.input.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the program found errors, or was killed: {status}");
    }
}

impl Drop for BusyHeap {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attach(busy: &BusyHeap, file: &Path, more: &[&str]) -> Output {
    let pid = busy.pid();
    // A busy machine takes long to stop threads.
    let patient = ["--max-pause", "10s"];
    heap(&[&["attach", &pid, "-o", file.to_str().unwrap()], &patient[..], more].concat())
}

/// Begins to record until Ctrl-C. Returns once the recording has begun.
fn begin(busy: &BusyHeap, file: &Path) -> Child {
    begin_with(busy, file, &[])
}

fn begin_with(busy: &BusyHeap, file: &Path, more: &[&str]) -> Child {
    let mut command = fixture::interruptible();
    command.args(["heap", "attach", &busy.pid(), "--max-pause", "10s", "-o"]).arg(file).args(more);
    command.stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until(|| is_hooked(busy.child.id()));
    child
}

/// Returns true if `malloc` of the process's C library begins with a jump, as in the memory that a
/// debugger reads.
fn is_hooked(pid: u32) -> bool {
    begins_with_a_jump(pid, "libc.so.6", "malloc")
}

fn wait_until(mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(180), "it never came to be");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn only_allocations_during_the_attach_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let mut busy = BusyHeap::start(0);
    busy.ask();
    let recording = begin(&busy, &file);
    busy.ask();
    busy.ask();
    interrupt(&recording);
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!is_hooked(busy.child.id()), "functions are as they were");
    busy.ask();
    busy.end();
    let report = report(&file);
    assert_eq!(report["recording"]["attached"], true);
    assert_eq!(by_function(&report)["asked"], [200, 4800, 180]);
    assert_eq!(number(&report, "totals.unknown_frees"), 20, "of blocks that were there before");
    assert_eq!(number(&report, "totals.leaked_blocks"), 20);
}

/// Starts `steady`.
fn steady(how: &str) -> BusyHeap {
    BusyHeap::start_command(Command::new(fixture::program("steady")).arg(how))
}

/// Records for 4 s. Returns the findings, and the report.
fn findings_of(busy: &BusyHeap, more: &[&str]) -> (Vec<String>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steady.pwh");
    let output = attach(busy, &file, &[&["--for", "4s"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let report = report(&file);
    let ids = report["findings"].as_array().unwrap().iter();
    (ids.map(|finding| finding["id"].as_str().unwrap().to_owned()).collect(), report)
}

#[test]
fn a_program_whose_blocks_are_replaced_neither_leaks_nor_has_a_fragmented_heap() {
    for more in [&[][..], &["--sample", "64k"]] {
        let busy = steady("steady");
        let (findings, report) = findings_of(&busy, more);
        busy.end();
        let is_verdict = |id: &String| ["grows", "held-unused", "spike"].contains(&id.as_str());
        assert!(!findings.iter().any(is_verdict), "{more:?}: {findings:?} {}", report["findings"]);
    }
}

#[test]
fn a_program_that_leaks_is_found_to() {
    let busy = steady("leaks");
    // If the program gets no CPU for a second, it leaks nothing in this second, and `grows` is not
    // found. On a busy machine, that happens in most recordings.
    let found = (0..15).map(|_| findings_of(&busy, &[])).find(|(findings, _)| {
        assert!(!findings.contains(&"held-unused".to_owned()), "{findings:?}");
        findings.contains(&"grows".to_owned())
    });
    busy.end();
    let (_, report) = found.unwrap();
    let all = report["findings"].as_array().unwrap();
    let finding = all.iter().find(|finding| finding["id"] == "grows").unwrap();
    let grew = number(&finding["evidence"], "grew_by");
    let forgotten = by_function(&report)["forgotten"][1];
    // The finding compares the minimum of each quarter, so leaks in the first and in the last
    // quarter may be missing.
    assert!(grew <= forgotten && grew >= forgotten / 4, "{grew} of {forgotten}");
}

#[test]
fn thread_caches_freed_at_exit_are_not_blocks_of_the_program() {
    assert_no_frees_of_caches(steady("threads"));
}

#[test]
fn thread_caches_of_other_versions_of_glibc_are_not_blocks_of_the_program() {
    // Before glibc 2.34, the frees of a thread cache at the end of its thread count as frees of
    // unknown blocks.
    for library in OtherGlibc::since(34) {
        eprintln!("glibc {}", library.version);
        let program = library.program("steady");
        assert_no_frees_of_caches(BusyHeap::start_command(Command::new(program).arg("threads")));
    }
}

/// Records a program whose threads end, and compares the recorded frees with the frees that it
/// counts.
fn assert_no_frees_of_caches(mut busy: BusyHeap) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("threads.pwh");
    let recording = begin(&busy, &file);
    busy.ask();
    interrupt(&recording);
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    busy.end();
    let report = report(&file);
    // The program counts 24 threads, each of which allocates and frees 50 blocks, and frees 50
    // older ones.
    assert_eq!(by_function(&report)["item"][0], 24 * 50);
    assert_eq!(number(&report, "totals.frees"), 24 * 50);
    assert_eq!(number(&report, "totals.unknown_frees"), 24 * 50);
}

/// Returns the number of times that pagewise attaches to a busy program: `PAGEWISE_RUNS`, or
/// `otherwise`.
fn rounds(otherwise: usize) -> usize {
    std::env::var("PAGEWISE_RUNS").map_or(otherwise, |runs| runs.parse().unwrap())
}

#[test]
fn a_busy_program_is_attached_to_many_times_and_finds_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let busy = BusyHeap::start(4);
    let mut missing = BTreeSet::from(["some", "zeros", "longer", "aligned"]);
    let begin = Instant::now();
    let mut round = 0;
    // A separate thread calls each function, and may get no CPU during a recording.
    while round < rounds(20) || !missing.is_empty() {
        let output = attach(&busy, &file, &["--for", "30ms"]);
        assert!(output.status.success(), "{output:?}");
        let functions = by_function(&report(&file));
        missing
            .retain(|&name| functions.get(name).is_none_or(|&[allocations, ..]| allocations == 0));
        assert!(begin.elapsed() < Duration::from_secs(300), "not seen: {missing:?}");
        round += 1;
    }
    assert!(!is_hooked(busy.child.id()));
    busy.end();
}

#[test]
fn samples_of_a_busy_program_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let busy = BusyHeap::start(2);
    wait_until(|| {
        let output = attach(&busy, &file, &["--for", "300ms", "--sample", "64k"]);
        assert!(output.status.success(), "{output:?}");
        let report = report(&file);
        assert_eq!(report["totals"]["estimated"], true);
        by_function(&report).contains_key("zeros")
    });
    busy.end();
}

#[test]
fn a_program_whose_collector_is_killed_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let mut busy = BusyHeap::start(2);
    let mut recording = begin(&busy, &file);
    recording.kill().unwrap();
    recording.wait().unwrap();
    wait_until(|| !is_hooked(busy.child.id()));
    busy.ask();
    let output = attach(&busy, &file, &["--for", "10ms"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!is_hooked(busy.child.id()));
    busy.end();
}

#[test]
fn a_thread_that_loads_the_recorder_continues_without_pagewise() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    for _ in 0..rounds(8) {
        let mut busy = BusyHeap::start(2);
        let mut recording = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        recording.args(["heap", "attach", &busy.pid(), "--max-pause", "10s", "-o"]).arg(&file);
        recording.stdout(Stdio::null()).stderr(Stdio::null());
        let mut recording = recording.spawn().unwrap();
        // Once the loader has mapped the recorder, it still has to relocate and initialize it.
        let maps = format!("/proc/{}/maps", busy.pid());
        let is_mapped =
            || std::fs::read_to_string(&maps).unwrap().contains("libpagewise_preload.so");
        while !is_mapped() && recording.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        recording.kill().unwrap();
        recording.wait().unwrap();
        busy.ask();
        wait_until(|| !is_hooked(busy.child.id()));
        busy.end();
    }
}

/// Returns the mappings of a process, by their addresses: sizes and names.
fn mappings(pid: &str) -> std::collections::BTreeMap<String, (u64, String)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let row = |line: &str| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let address = |digits| u64::from_str_radix(digits, 16).unwrap();
        let name = rest.split_whitespace().nth(4).unwrap_or_default().to_owned();
        (range.to_owned(), (address(end) - address(start), name))
    };
    maps.lines().map(row).collect()
}

#[test]
fn less_than_a_mebibyte_of_addresses_is_left_in_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // An idle program allocates no blocks of its own between the snapshots.
    let mut command = Command::new(fixture::program("arena_heavy"));
    let program = BusyHeap::start_command(command.args(["8", "4", "64", "400000000"]));
    let before = mappings(&program.pid());
    for round in 0..2 {
        let output = attach(&program, &folder.path().join("heap.pwh"), &["--for", "50ms"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let now = mappings(&program.pid());
        // The loader allocates some blocks for the library in the program's own heap.
        let is_new = |range: &String, name: &str| !before.contains_key(range) && name != "[heap]";
        let new: Vec<_> = now.iter().filter(|(range, (_, name))| is_new(range, name)).collect();
        let left: u64 = new.iter().map(|(_, (size, _))| size).sum();
        assert!(left > 0 && left < 1 << 20, "round {round}: {left} bytes: {new:?}");
        // pagewise prints this amount. The remaining memory is the library with its variables.
        let named = format!("off: {} KiB of addresses", left >> 10);
        assert!(said.contains(&named), "{left}: {said}");
        let unnamed = new.iter().filter(|(_, (_, name))| name.is_empty()).count();
        assert!(unnamed <= 1, "round {round}: {new:?}");
    }
}

#[test]
fn changes_of_a_killed_run_are_undone_by_the_next_attach() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let mut busy = BusyHeap::start(2);
    let mut recording = begin(&busy, &file);
    let pid = recording.id();
    // A second recording detects the first one.
    let output = attach(&busy, &folder.path().join("second.pwh"), &["--for", "10ms"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("another recording"), "{output:?}");
    assert!(is_hooked(busy.child.id()));
    // The keeper, which would act after the end of the recording process, is killed first.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let guardian = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    kill_process(guardian, Signal::KILL).unwrap();
    recording.kill().unwrap();
    recording.wait().unwrap();
    busy.ask();
    if !is_hooked(busy.child.id()) {
        // Any run of pagewise undoes changes of killed runs, also runs of other tests.
        busy.end();
        return skip(&Lack::Chance("another run of pagewise has undone the changes already"));
    }
    let file = folder.path().join("next.pwh");
    let recording = begin(&busy, &file);
    wait_until(|| std::fs::metadata(&file).is_ok_and(|it| it.len() > 500));
    interrupt(&recording);
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!is_hooked(busy.child.id()));
    assert!(by_function(&report(&file)).contains_key("some"));
    busy.end();
}

/// Returns true if a process has mapped the memory of a recorder.
fn has_recorder_memory(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.contains("/memfd:pagewise-heap")
}

#[test]
fn memory_of_the_recorder_is_unmapped_once_a_stopped_thread_has_left_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut busy = BusyHeap::start(8);
    let pid = Pid::from_raw(busy.child.id().cast_signed()).unwrap();
    let mut stayed = false;
    // SIGSTOP stops a thread at any instruction: in some of these attempts, a thread is in the
    // recorder.
    for number in 0..200 {
        let recording = begin(&busy, &folder.path().join(format!("{number}.pwh")));
        kill_process(pid, Signal::STOP).unwrap();
        interrupt(&recording);
        let output = recording.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!is_hooked(busy.child.id()));
        let error = String::from_utf8_lossy(&output.stderr);
        stayed = error.contains("has not left the recorder yet");
        assert_eq!(has_recorder_memory(busy.child.id()), stayed, "{error}");
        kill_process(pid, Signal::CONT).unwrap();
        if stayed {
            break;
        }
    }
    assert!(stayed, "no thread was in the recorder when it was stopped");
    wait_until(|| !has_recorder_memory(busy.child.id()));
    busy.ask();
    busy.end();
}

/// glibc's setuid holds a lock that the loader needs, until each thread has received a signal.
#[test]
fn a_program_that_changes_its_user_id_all_the_time_goes_on() {
    use std::io::{BufRead, BufReader, Write};
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(fixture::program("setuids"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "ready");
    let mut input = child.stdin.take().unwrap();
    let mut times = || -> u64 {
        input.write_all(b"x").unwrap();
        lines.next().unwrap().parse().unwrap()
    };
    let pid = child.id().to_string();
    for number in 0..3 {
        let file = folder.path().join(format!("{number}.pwh"));
        let words = ["attach", &pid, "--for", "10ms", "--max-pause", "10s", "-o"];
        let output = heap(&[&words[..], &[file.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{output:?}");
        let before = times();
        wait_until(|| times() > before);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// If a thread in glibc's setuid entered the loader, the thread would wait for itself.
#[test]
fn a_thread_that_waits_in_setuid_is_not_made_to_load_the_recorder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let program = fixture::program("setuid_waits");
    let mut waiting = BusyHeap::start_command(Command::new(program).arg(file.path()));
    let tasks = format!("/proc/{}/task", waiting.pid());
    let calls = || {
        let tasks = std::fs::read_dir(&tasks).unwrap();
        let calls = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("syscall")));
        calls.map(|call| call.unwrap_or_default()).collect::<Vec<_>>()
    };
    let number_of = |call: &str| calls().iter().filter(|line| line.starts_with(call)).count();
    let [flocks, futexes] = ["73 ", "202 "];
    wait_until(|| number_of(flocks) == 2 && number_of(futexes) == 1);
    let folder = tempfile::tempdir().unwrap();
    let output = attach(&waiting, &folder.path().join("none.pwh"), &["--for", "10ms"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no thread of process") && !output.status.success(), "{output:?}");
    flock(&file, FlockOperation::Unlock).unwrap();
    waiting.wait_for("done");
    waiting.end();
}

/// Starts `plugged`, which loads and unloads two libraries that are built here.
fn plugged(folder: &Path, more: &[&str]) -> BusyHeap {
    let library = |name: &str, size: u32| {
        let source = format!(
            "#include <stdlib.h>\nvoid *{name}(void) {{ void *block = malloc({size}); __asm__ volatile(\"\"::\"r\"(block)); return block; }}\n"
        );
        let (path, text) = (folder.join(format!("{name}.so")), folder.join(format!("{name}.c")));
        std::fs::write(&text, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-shared", "-fPIC", "-o"]).args([&path, &text]);
        assert!(cc.status().unwrap().success());
        path
    };
    let libraries = [library("of_first", 1111), library("of_second", 2222)];
    BusyHeap::start_command(Command::new(fixture::program("plugged")).args(libraries).args(more))
}

#[test]
fn a_program_that_loads_libraries_and_forks_all_the_time_finds_nothing_wrong() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let file = folder.path().join("busy.pwh");
    let busy = plugged(folder.path(), &[]);
    let mut seen = [0; 2];
    for round in 0..rounds(8) {
        let more = [&["--mmap"][..], &["--follow"], &["--sample", "64k"], &[]][round % 4];
        let output = attach(&busy, &file, &[&["--for", "50ms"], more].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(!is_hooked(busy.child.id()), "functions are as they were");
        if round % 4 == 2 {
            continue;
        }
        let report = report(&file);
        // The libraries are sometimes loaded at each other's address.
        let functions = by_function(&report);
        for ((name, size), seen) in
            [("of_first", 1111), ("of_second", 2222)].into_iter().zip(&mut seen)
        {
            let [allocations, bytes, _] = functions.get(name).copied().unwrap_or_default();
            assert_eq!(bytes, allocations * size, "{name}: {functions:?}");
            *seen += allocations;
        }
    }
    assert!(seen.iter().all(|&allocations| allocations > 0), "{seen:?}");
    busy.end();
}

#[test]
fn mappings_and_children_are_recorded_where_that_is_asked_for() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let file = folder.path().join("busy.pwh");
    let mut busy = plugged(folder.path(), &["alone"]);
    let recording = begin_with(&busy, &file, &["--mmap", "--follow"]);
    busy.ask_for(b"m");
    busy.ask_for(b"f");
    interrupt(&recording);
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // No block of the child is in the recording of the parent.
    let report_of = report(&file);
    assert!(!by_function(&report_of).contains_key("in_child"));
    let mapped: Vec<_> = report_of["sites"].as_array().unwrap().iter().collect();
    let mapped: Vec<_> = mapped.into_iter().filter(|site| site["kind"] == "mapping").collect();
    assert_eq!(mapped.len(), 1, "the C library's own are none of the program's: {report_of}");
    assert!(mapped[0]["stack"][1].as_str().unwrap().starts_with("maps "), "{mapped:?}");
    assert_eq!(number(mapped[0], "allocations"), 10);
    assert_eq!(number(mapped[0], "leaked_bytes"), 6 * (64 << 10));
    let others = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let child = others.filter(|path| path.to_string_lossy().contains(".pwh.")).collect::<Vec<_>>();
    assert_eq!(child.len(), 1, "{output:?}");
    assert_eq!(by_function(&report(&child[0]))["in_child"], [50, 1500, 0]);
    // Without the options, neither mappings nor children are recorded.
    assert!(attach(&busy, &file, &["--for", "10ms"]).status.success());
    busy.ask_for(b"m");
    busy.end();
}

#[test]
fn a_peak_of_one_thread_is_known_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("busy.pwh");
    let mut busy = BusyHeap::start(0);
    let recording = begin(&busy, &file);
    busy.ask();
    busy.ask();
    interrupt(&recording);
    assert!(recording.wait_with_output().unwrap().status.success());
    busy.end();
    let report = report(&file);
    // Ten of the first hundred blocks stay. Later, one block at a time is live, until ten more
    // stay.
    assert_eq!(number(&report, "totals.peak_bytes"), 20 * 24, "{}", report["totals"]);
    assert_eq!(number(&report, "totals.peak_within"), 0);
}

#[test]
fn a_program_that_was_begun_with_a_recorder_can_be_attached_to() {
    let folder = tempfile::tempdir().unwrap();
    let (run, file) = (folder.path().join("run.pwh"), folder.path().join("busy.pwh"));
    // In a child that is not followed, the recorder library interposes malloc, but does not record.
    let script = format!("{} 0; true", fixture::program("busy_heap").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["heap", "run", "-o"]).arg(&run).args(["--", "sh", "-c", &script]);
    let mut command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(command.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let pid = line.trim().strip_prefix("pid = ").unwrap().to_owned();
    for _ in 0..2 {
        let output = heap(&[
            "attach",
            &pid,
            "--for",
            "300ms",
            "--max-pause",
            "10s",
            "-o",
            file.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{output:?}");
    }
    let file = folder.path().join("more.pwh");
    let mut attach = fixture::interruptible();
    attach.args(["heap", "attach", &pid, "--max-pause", "10s", "-o"]).arg(&file);
    let attach = attach.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = command.stdin.take().unwrap();
    wait_until(|| {
        // The attach is complete when calls reach the file.
        input.write_all(b"x").unwrap();
        std::fs::metadata(&file).is_ok_and(|it| it.len() > 500)
    });
    interrupt(&attach);
    let output = attach.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let [allocations, bytes, _] = by_function(&report(&file))["asked"];
    assert!(allocations > 0 && bytes == 24 * allocations);
    drop(input);
    let output = command.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_refused_attach_gives_the_reason() {
    let refused = |pid: u32, expected: &str| {
        let output = heap(&["attach", &pid.to_string(), "--for", "10ms"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    let stopped = fixture::Fixture::start("quadrants", &[]);
    refused(stopped.pid, "it is stopped");
    let busy = |command: &mut Command, expected: &str| {
        let mut busy = BusyHeap::start_command(command);
        refused(busy.child.id(), expected);
        busy.ask();
        busy.end();
    };
    if let Some(program) = fixture::static_program("busy_heap") {
        busy(&mut Command::new(program), "linked statically");
    }
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs");
    let musl = folder.path().join("musl");
    let mut build = Command::new("musl-gcc");
    build.args(["-pthread", "-o"]).arg(&musl).arg(sources.join("busy_heap.c"));
    match build.status() {
        Ok(status) => {
            assert!(status.success());
            busy(&mut Command::new(musl), "its C library is musl's");
        }
        Err(_) => skip(&Lack::Tool("musl-gcc")),
    }
    // A zombie, a process that is gone, and a kernel thread.
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id();
    let is_zombie =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z");
    wait_until(is_zombie);
    refused(pid, "a zombie");
    gone.wait().unwrap();
    refused(pid, "the process does not exist");
    let is_kernel = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    if is_kernel {
        refused(2, "a thread of the kernel");
    }
    // A process that strace already traces.
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null"]).arg(fixture::program("busy_heap")).arg("0");
    match traced.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
        Ok(mut strace) => {
            let mut lines = BufReader::new(strace.stdout.take().unwrap()).lines();
            let pid = lines.next().unwrap().unwrap();
            refused(
                pid.strip_prefix("pid = ").unwrap().parse().unwrap(),
                "a debugger or tracer has it",
            );
            drop(strace.stdin.take());
            assert!(lines.all(|line| line.is_ok()) && strace.wait().unwrap().success());
        }
        Err(_) => skip(&Lack::Tool("strace")),
    }
}

#[test]
fn a_process_with_a_seccomp_filter_is_not_changed() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("filtered"));
    let text = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(void) {
            struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
            struct sock_fprog filter = {1, code};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) return 1;
            char byte;
            return write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 0;
        }"#;
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").arg("-o").args([&program, &source]).status();
    assert!(built.unwrap().success());
    let busy = BusyHeap::start_command(&mut Command::new(program));
    let output = attach(&busy, &folder.path().join("x.pwh"), &["--for", "10ms"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("(seccomp)"), "{output:?}");
    busy.end();
}

#[test]
fn other_pid_namespaces_are_recorded_and_other_users_are_not() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let file = folder.path().join("x.pwh");
    let program = fixture::program("busy_heap");
    let inside = BusyHeap::start_command(
        Command::new("unshare").args(["--pid", "--fork", "--"]).arg(&program).arg("1"),
    );
    let children = format!("/proc/{0}/task/{0}/children", inside.child.id());
    let pid = std::fs::read_to_string(children).unwrap().trim().to_owned();
    for _ in 0..2 {
        let output = heap(&[
            "attach",
            &pid,
            "--for",
            "2s",
            "--max-pause",
            "10s",
            "-o",
            file.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{output:?}");
        assert!(by_function(&report(&file)).contains_key("some"));
    }
    inside.end();
    // Other users may not trace root's processes.
    let busy = BusyHeap::start(0);
    let readable = fixture::readable_copies(&[]);
    let mut command = fixture::as_nobody();
    command.arg(readable.path().join("pagewise"));
    match command.args(["heap", "attach", &busy.pid()]).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("owner root") && said.contains("CAP_SYS_PTRACE"), "{said}");
        }
        Err(_) => skip(&Lack::Tool("setpriv")),
    }
    busy.end();
}

//! `heap scan` of programs that count their own live blocks, against these counts, `mallinfo2` and
//! the effect of `malloc_trim`; of programs that damage their own heap; and of busy ones.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may do both")]

mod fixture;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use fixture::{json, number, sum};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// A program that allocates at random, one round each time it is asked.
struct RandomProgram {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// Numbers of a line `key number key number ..`.
type ProgramFacts = BTreeMap<String, u64>;

impl RandomProgram {
    fn start(program: &Path, threads: u32, seed: u32, modes: &str, tunables: &str) -> Self {
        let mut command = Command::new(program);
        command.args([&threads.to_string(), &seed.to_string(), modes]);
        command.env_remove("MALLOC_ARENA_MAX").env("GLIBC_TUNABLES", tunables);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        RandomProgram { child, lines }
    }

    fn answer(&mut self) -> ProgramFacts {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs = words.chunks_exact(2);
        pairs.map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
    }

    fn send(&mut self, letters: &str) {
        self.child.stdin.as_mut().unwrap().write_all(letters.as_bytes()).unwrap();
    }

    fn ask(&mut self, letters: &str) -> ProgramFacts {
        self.send(letters);
        self.answer()
    }

    fn scan(&self, more: &[&str]) -> Value {
        let pid = self.child.id().to_string();
        json(&[&["heap", "scan", &pid, "--json"], more].concat())
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.lines.read_to_string(&mut String::new()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for RandomProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arenas(report: &Value, key: &str) -> u64 {
    sum(&report["arenas"], key)
}

/// Compares a scan with what the program and the C library count. `before` are the blocks of the C
/// library itself, which the program does not count: those of its threads.
fn assert_equal(report: &Value, facts: &ProgramFacts, before: &Value, moves_brk: bool) {
    let live =
        |key: &str| number(report, &format!("live.{key}")) - number(before, &format!("live.{key}"));
    assert_eq!((live("blocks"), live("bytes")), (facts["blocks"], facts["bytes"]), "live");
    let free = |key: &str| number(report, &format!("free.{key}"));
    assert_eq!(free("bytes") - free("tcache"), facts["fordblks"], "free");
    assert_eq!(free("fastbins"), facts["fsmblks"], "fastbins");
    assert_eq!(free("unlisted"), 0);
    assert_eq!(arenas(report, "held"), facts["arena"], "held");
    // For the C library blocks in thread caches are in use, and so is foreign memory in the heap.
    let used = arenas(report, "live_chunks") + arenas(report, "own") + free("tcache");
    assert!(used == facts["uordblks"] || moves_brk && used < facts["uordblks"], "used: {used}");
    let mapped = |key: &str| number(report, &format!("mapped.{key}"));
    assert_eq!((mapped("blocks"), mapped("held")), (facts["hblks"], facts["hblkhd"]), "mapped");
    assert_eq!(
        (mapped("counted_blocks"), mapped("counted_bytes")),
        (mapped("blocks"), mapped("held"))
    );
    let sizes = report["sizes"].as_array().unwrap();
    let by_size: u64 = sizes.iter().map(|it| number(it, "size") * number(it, "blocks")).sum();
    assert_eq!(by_size, number(report, "live.bytes"), "by size");
    for table in ["corruption", "gaps"] {
        assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
    }
}

/// Runs a program through some rounds, and compares a scan after each.
fn rounds(program: &Path, threads: u32, seed: u32, modes: &str, tunables: &str, count: u32) {
    let mut target = RandomProgram::start(program, threads, seed, modes, tunables);
    target.answer();
    let before = target.scan(&[]);
    for round in 0..count {
        let facts = target.ask("r");
        let report = target.scan(&["--top", "all"]);
        eprintln!("{threads} threads, seed {seed}, {modes:?}, {tunables:?}, round {round}");
        assert_equal(&report, &facts, &before, modes.contains('s'));
        let seen = arenas(&report, "threads");
        assert_eq!(seen, u64::from(threads) + 1, "each thread has an arena");
    }
    let scanned = number(&target.scan(&[]), "free.trimmable");
    let trimmed = target.ask("t")["trimmed"];
    // Reading the resident size can fault in a page of the program.
    assert!(scanned.abs_diff(trimmed) <= 64 << 10, "{scanned} and {trimmed}");
    assert!(number(&target.scan(&[]), "free.trimmable") <= 64 << 10, "a second time");
    target.end();
}

#[test]
fn live_blocks_of_one_thread_are_those_that_the_program_counts() {
    let program = fixture::program("scanned");
    for (seed, modes) in (0..).zip(["", "m", "a", "ma", "k", "kma", "s", "b", "bmk", "smak"]) {
        rounds(&program, 0, seed, modes, "", 4);
    }
}

#[test]
fn live_blocks_of_several_threads_are_those_that_the_program_counts() {
    let program = fixture::program("scanned");
    for (seed, modes) in (0..).zip(["", "m", "a", "ma", "k", "kma", "b", "bmak"]) {
        rounds(&program, 1 + seed % 4, seed, modes, "", 4);
    }
}

#[test]
fn a_statically_linked_program_is_scanned_alike() {
    let Some(program) = fixture::static_program("scanned") else { return };
    for (threads, modes) in [(0, ""), (1, "mak"), (0, "s"), (2, "b")] {
        rounds(&program, threads, 11, modes, "", 3);
    }
}

#[test]
fn settings_of_malloc_change_no_count() {
    let program = fixture::program("scanned");
    let all = [
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.tcache_count=500",
        "glibc.malloc.arena_max=1",
        "glibc.malloc.mmap_threshold=20000",
        "glibc.malloc.mxfast=0",
        "glibc.malloc.hugetlb=1",
    ];
    for (seed, tunables) in (100..).zip(all) {
        rounds(&program, 2, seed, "mak", tunables, 2);
    }
}

#[test]
fn a_damaged_heap_is_reported_and_walked_on() {
    let program = fixture::program("scanned");
    for way in "012345678".chars() {
        let mut target = RandomProgram::start(&program, 1, 7, "m", "");
        target.answer();
        let whole = {
            target.ask("r");
            target.scan(&[])
        };
        target.ask(&format!("x{way}"));
        let report = target.scan(&[]);
        let list = report["corruption"].as_array().unwrap();
        eprintln!("way {way}: {} contradictions, {}", list.len(), report["scan"]["corrupted"]);
        assert!(!list.is_empty(), "way {way}: nothing was noticed");
        let first = report["findings"].as_array().unwrap().first().unwrap();
        assert_eq!(first["id"], "heap-corrupted");
        // Another arena is as whole as before.
        let other = |report: &Value| {
            let all = report["arenas"].as_array().unwrap().iter();
            all.filter(|it| it["kind"] == "thread").map(|it| number(it, "blocks")).sum::<u64>()
        };
        assert_eq!(other(&report), other(&whole));
        assert!(number(&report, "mapped.blocks") >= number(&whole, "mapped.blocks"));
        // Damage of one word costs few blocks.
        if "0123457".contains(way) {
            let blocks = number(&report, "live.blocks").abs_diff(number(&whole, "live.blocks"));
            assert!(blocks <= 100, "way {way}: {blocks} blocks");
        }
    }
}

#[test]
fn a_program_that_never_leaves_malloc_is_not_corrupted() {
    let program = fixture::program("scanned");
    for threads in [0, 3] {
        let mut target = RandomProgram::start(&program, threads, 3, "w", "");
        target.answer();
        target.ask("r");
        for _ in 0..5 {
            let report = target.scan(&[]);
            assert!(number(&report, "live.blocks") > 0);
            for finding in report["findings"].as_array().unwrap() {
                assert_ne!(finding["id"], "heap-corrupted", "{finding}");
            }
        }
    }
}

/// Children of a process, zombies too.
fn children(pid: u32) -> Vec<String> {
    let folders = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let stats = folders.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
    let parent = pid.to_string();
    let is_child = |stat: &String| {
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&parent))
    };
    stats.filter(is_child).collect()
}

/// Ends a program that waits for the end of its input.
fn end(mut child: Child) -> std::process::ExitStatus {
    drop(child.stdin.take());
    child.wait().unwrap()
}

#[test]
fn a_forked_snapshot_has_the_same_heap_and_is_gone_afterwards() {
    let program = fixture::program("scanned");
    // On busy CPUs it takes long to stop all threads.
    let fork = ["--fork", "--max-pause", "10s", "--top", "all"];
    for (threads, modes) in [(0, "mak"), (3, "mak")] {
        let mut target = RandomProgram::start(&program, threads, 21, modes, "");
        target.answer();
        let before = target.scan(&fork);
        for _ in 0..3 {
            let facts = target.ask("r");
            let report = target.scan(&fork);
            assert_equal(&report, &facts, &before, false);
            assert_eq!(arenas(&report, "threads"), u64::from(threads) + 1);
            assert!(number(&report, "pause_us") > 0, "{report}");
            assert!(number(&report, "scan.snapshot_ns") > 0, "{report}");
            assert!(number(&report, "scan.expected_pause_ns") > 0, "{report}");
            assert_eq!(number(&report, "process.pid"), u64::from(target.child.id()));
            assert_eq!(children(target.child.id()), Vec::<String>::new());
        }
        // Stacks and registers are those of the process, and lead to the same blocks.
        let leaks = |options: &[&str]| {
            let report = target.scan(options);
            (number(&report, "leaked.blocks"), number(&report, "reachable.blocks"))
        };
        let max = ["--max-pause", "10s", "--leaks"];
        assert_eq!(leaks(&[&max[..], &["--fork"]].concat()), leaks(&max));
        target.end();
    }
}

#[test]
fn a_busy_program_is_scanned_by_snapshots() {
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 3, 3, "w", "");
    target.answer();
    target.ask("r");
    for _ in 0..5 {
        let report = target.scan(&["--fork", "--max-pause", "10s"]);
        assert!(number(&report, "live.blocks") > 0);
        for finding in report["findings"].as_array().unwrap() {
            assert_ne!(finding["id"], "heap-corrupted", "{finding}");
        }
    }
}

#[test]
fn a_process_that_must_not_fork_is_not_made_to() {
    let program = fixture::program("unforkable");
    let reasons = [
        ("vfork", "waits for a child of vfork"),
        ("dontfork", "MADV_DONTFORK"),
        ("userfaultfd", "userfaultfd"),
        ("strict", "strict seccomp mode"),
        ("tasks", "RLIMIT_NPROC"),
    ];
    for (way, reason) in reasons {
        let mut child = Command::new(&program)
            .arg(way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said: Vec<String> =
            lines.map(Result::unwrap).take_while(|line| line != "ready").collect();
        if said.contains(&"way.made = 0".to_owned()) {
            end(child);
            pagewise_skip::skip_part(&Lack::Machine(&format!("it cannot be made here: {way}")));
            continue;
        }
        let pid = child.id();
        let is_ready = |path: &str, text: &str| {
            let path = format!("/proc/{pid}/{path}");
            std::fs::read_to_string(path).unwrap_or_default().contains(text)
        };
        while way == "vfork" && !is_ready("stat", ") D ")
            || way == "strict" && !is_ready("status", "Seccomp:\t1")
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let output =
            fixture::pagewise(&["heap", "scan", &pid.to_string(), "--fork", "--max-pause", "10s"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{way}: {output:?}");
        // A child of vfork is the program's own.
        let own = usize::from(way == "vfork");
        assert_eq!(children(pid).len(), own, "{way}");
        let status = end(child);
        assert!(status.success(), "{way}: {status}");
    }
}

#[test]
fn growth_between_two_scans_is_by_size() {
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 0, 5, "", "");
    target.answer();
    let report = target.scan(&["--every", "10ms"]);
    assert_eq!(report["growth"]["live_bytes"], 0);
    assert_eq!(report["grown"].as_array().unwrap().len(), 0);
    assert!(number(&report, "growth.interval_ns") >= 10_000_000);
    target.end();
}

#[test]
fn a_saved_scan_gives_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scan.json");
    let file = file.to_str().unwrap();
    let program = fixture::program("scanned");
    let mut target = RandomProgram::start(&program, 1, 5, "m", "");
    target.answer();
    target.ask("r");
    let live = target.scan(&["--save", file]);
    assert_eq!(json(&["heap", "scan", "--from", file, "--json"]), live);
    target.end();
}

#[test]
fn a_core_file_has_the_heap_of_the_process_that_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = RandomProgram::start(&fixture::program("scanned"), 1, 7, "m", "");
    program.answer();
    let pid = program.child.id().to_string();
    let prefix = folder.path().join("core");
    let gcore = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
    let Ok(made) = gcore else { return skip(&Lack::Tool("gcore")) };
    assert!(made.status.success(), "{made:?}");

    let core = format!("{}.{pid}", prefix.display());
    let (process, core_scan) =
        (program.scan(&[]), json(&["heap", "scan", "--core", &core, "--leaks", "--json"]));
    assert!(number(&process, "live.blocks") > 0, "{process}");
    for key in ["live.blocks", "live.bytes", "free.bytes"] {
        assert_eq!(number(&core_scan, key), number(&process, key), "{key}");
    }
    // Nothing is known about the residence of its pages, and the process may be gone.
    let page = fixture::pagewise(&["heap", "scan", "--core", &core]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("of heap are in the core file"), "{page}");
    assert!(!page.contains("malloc_trim(0)` would") && !page.contains("pagewise trim"), "{page}");
    program.end();
}

#[test]
fn a_command_is_scanned_at_its_exit() {
    let program = fixture::program("scanned");
    let (program, folder) = (program.to_str().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args([
            "heap",
            "scan",
            "--json",
            "-o",
            path.to_str().unwrap(),
            "--",
            program,
            "2",
            "9",
            "m",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"r").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.lines().last().unwrap().split(' ').collect();
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let blocks: u64 = words[1].parse().unwrap();
    // Each thread has one block of the C library.
    assert_eq!(number(&report, "live.blocks"), blocks + 2);
    assert_eq!(number(&report, "pause_us"), 0);
}

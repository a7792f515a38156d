//! `faults --heap` reports the line of each fault, and the line that allocated the block at the
//! address at the time of the fault. Compared with a program that allocates at some lines and
//! touches known numbers of pages at others.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use fixture::{
    FAULT_TRACEPOINT, disk, number, program, reported, skip_without_events, static_program,
};

/// Output of a command, and the report of it.
struct FaultsHeapRun {
    output: Output,
    facts: BTreeMap<String, u64>,
    report: Value,
}

impl FaultsHeapRun {
    fn line(&self, of: &str) -> u64 {
        self.facts[&format!("{of}.line")]
    }

    fn rows(&self) -> impl Iterator<Item = &Value> {
        self.report["allocations"].as_array().unwrap().iter()
    }

    /// Returns the number of pages that the line `touched` touched in blocks that the line
    /// `allocated` allocated.
    fn pages(&self, touched: &str, allocated: &str) -> u64 {
        let is_it = |row: &&Value| {
            row["touched_by"] == "program"
                && row["touched_line"] == self.line(touched)
                && row["allocated_line"] == self.line(allocated)
        };
        self.rows().filter(is_it).map(|row| number(row, "faults")).sum()
    }

    /// Returns the number of pages that the allocator touched in blocks that the line `allocated`
    /// allocated.
    fn allocator(&self, allocated: &str) -> u64 {
        let is_it = |row: &&Value| {
            row["touched_by"] == "allocator" && row["allocated_line"] == self.line(allocated)
        };
        self.rows().filter(is_it).map(|row| number(row, "faults")).sum()
    }

    fn sum(&self, key: &str) -> u64 {
        number(&self.report, &format!("heap.{key}"))
    }
}

/// Runs `faults OPTIONS -- COMMAND`; `None`, with a message, if page faults cannot be recorded with
/// their error codes.
fn told(options: &[&str], command: &[&str]) -> Option<FaultsHeapRun> {
    if !is_root() {
        return None;
    }
    if cfg!(not(all(target_arch = "x86_64", target_env = "gnu"))) {
        skip(&Lack::Machine("only x86-64 programs with glibc are recorded from inside"));
        return None;
    }
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let words = [&["faults"], options].concat();
    let record = || reported(&folder, &[env!("CARGO_BIN_EXE_pagewise")], &words, command);
    // On a machine whose CPUs are busy, events are lost before pagewise reads them.
    let has_all = |(_, report): &(_, Value)| {
        report["recording"]["source"] != "tracepoints" || number(report, "recording.lost") == 0
    };
    let Some((output, report)) = (0..5).map(|_| record()).find(has_all) else {
        skip(&Lack::Chance("events were lost in each of five recordings"));
        return None;
    };
    if report["recording"]["source"] != "tracepoints" {
        skip_without_events(FAULT_TRACEPOINT);
        return None;
    }
    let fact = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    let facts = String::from_utf8_lossy(&output.stdout).lines().filter_map(fact).collect();
    Some(FaultsHeapRun { output, facts, report })
}

fn told_of(options: &[&str], act: &[&str]) -> Option<FaultsHeapRun> {
    let program = program("heapfaults");
    let told = told(options, &[&[program.to_str().unwrap()], act].concat())?;
    assert_eq!(told.output.status.code(), Some(7));
    Some(told)
}

#[test]
fn faults_are_of_the_block_that_was_there_then_though_others_have_its_place_later() {
    for (act, times) in [("pairs", 1), ("threads", 3)] {
        let rounds = 60;
        let Some(told) = told_of(&["--heap"], &[act, &rounds.to_string()]) else { return };
        let all = rounds * times;
        let pages =
            [("left", "first"), ("right", "first"), ("left", "second"), ("right", "second")]
                .map(|(touched, allocated)| told.pages(touched, allocated));
        assert_eq!(pages, [30 * all, 10 * all, 0, 50 * all], "{act}: {}", told.report["heap"]);
        assert_eq!(told.sum("in_blocks"), 90 * all, "{act}");
        // The allocator touches the first page of each block, which has its header.
        assert!(told.allocator("second") >= all, "{act}: {}", told.report["allocations"]);
        let first = told.rows().find(|row| row["allocated_line"] == told.line("first")).unwrap();
        assert_eq!(number(first, "blocks"), all);
        assert_eq!(number(first, "bytes"), all * 41 * rustix::param::page_size() as u64);
        assert_eq!(
            (&first["allocated_function"], &first["called_from"]),
            (&"first".into(), &"pairs".into())
        );
    }
}

#[test]
fn each_fault_has_an_owner() {
    let Some(told) = told_of(&["--heap"], &["pairs"]) else { return };
    let all = ["in_blocks", "by_allocator", "elsewhere", "by_recorder", "unrecorded"];
    let sum: u64 = all.iter().map(|key| told.sum(key)).sum();
    assert_eq!(sum, number(&told.report, "totals.faults"));
    let stacks = told.report["allocation_stacks"].as_array().unwrap();
    let of_stacks: u64 = stacks.iter().map(|row| number(row, "faults")).sum();
    assert_eq!(of_stacks, told.sum("in_blocks") + told.sum("by_allocator"));
    let frames = |row: &Value| row["frames"].as_array().unwrap().clone();
    let is_second = |row: &&Value| frames(row)[0].as_str().unwrap().starts_with("second (");
    let second = frames(stacks.iter().find(is_second).unwrap());
    let names = ["second (", "pairs (", "main ("];
    assert!(names.iter().zip(&second).all(|(name, it)| it.as_str().unwrap().starts_with(name)));
}

#[test]
fn a_block_that_grew_belongs_to_the_caller_of_realloc() {
    let Some(told) = told_of(&["--heap", "--mremap"], &["grown", "40"]) else { return };
    assert_eq!(told.pages("left", "first"), 40 * 40);
    assert_eq!(told.pages("right", "grown"), 40 * 30);
}

#[test]
fn faults_in_a_system_call_belong_to_the_calling_line() {
    let Some(told) = told_of(&["--heap"], &["filled", "40"]) else { return };
    // Each block lies on one page more, since it begins after its header.
    assert_eq!(told.pages("filled", "first"), 40 * 41);
}

#[test]
fn pages_of_small_blocks_are_touched_by_the_allocator() {
    let Some(told) = told_of(&["--heap"], &["small", "100"]) else { return };
    // The program allocates 1600 blocks of 1008 bytes, including their headers.
    let pages = 1600 * 1008 / rustix::param::page_size() as u64;
    let found = told.allocator("small");
    assert!((pages - 20..=pages + 5).contains(&found), "{found} {pages}");
    let blocks = |told: &FaultsHeapRun| {
        let small = told.rows().find(|row| row["allocated_line"] == told.line("small")).unwrap();
        small["blocks"].as_u64()
    };
    assert_eq!(blocks(&told), None, "they are not told of");
    let Some(all) = told_of(&["--heap=1"], &["small", "100"]) else { return };
    assert_eq!(blocks(&all), Some(1600));
}

#[test]
fn a_process_that_becomes_another_program_is_that_one_from_then_on() {
    let program = program("heapfaults");
    let words = format!("x=$(printf '%s' a); exec env X=1 {} pairs 20", program.display());
    let Some(told) = told(&["--heap"], &["sh", "-c", &words]) else { return };
    assert_eq!(told.output.status.code(), Some(7));
    assert_eq!(told.pages("left", "first"), 20 * 30);
    assert_eq!(told.pages("right", "second"), 20 * 50);
}

#[test]
fn children_are_not_recorded_and_that_is_said() {
    let program = program("heapfaults");
    let words = format!("{} pairs 20; exit 3", program.display());
    let Some(told) = told(&["--heap"], &["sh", "-c", &words]) else { return };
    assert_eq!(told.output.status.code(), Some(3));
    assert_eq!(told.pages("left", "first"), 0);
    assert!(told.sum("unrecorded") >= 20 * 90, "{}", told.report["heap"]);
    assert_eq!(told.sum("unrecorded_processes"), 1);
}

#[test]
fn a_program_without_a_loader_has_no_recorder_and_that_is_said() {
    let Some(program) = static_program("heapfaults") else { return };
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let saved = folder.path().join("faults.json");
    let options = ["--heap", "--save", saved.to_str().unwrap()];
    let Some(told) = told(&options, &[program.to_str().unwrap(), "pairs"]) else { return };
    assert_eq!(told.output.status.code(), Some(7));
    assert!(told.report["heap"].is_null());
    let text = fixture::pagewise(&["faults", "--from", saved.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).replace('\n', " ");
    assert!(text.contains("the command did not load the recorder"), "{text}");
}

#[test]
fn saved_files_of_this_and_earlier_versions_open() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let path = folder.path().join("faults.json");
    let path = path.to_str().unwrap();
    let Some(told) = told_of(&["--heap", "--save", path], &["pairs", "10"]) else { return };
    let again = fixture::json(&["faults", "--json", "--from", path]);
    assert_eq!(again, told.report);
    // Earlier versions wrote the file without data on heaps.
    let mut saved: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    saved.as_object_mut().unwrap().remove("heap");
    for row in saved["rows"].as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("owner");
    }
    fs::write(path, saved.to_string()).unwrap();
    let old = fixture::json(&["faults", "--json", "--from", path]);
    assert!(old["heap"].is_null() && old["allocations"].is_null());
    assert_eq!(old["functions"], told.report["functions"]);
    // Invalid indices are harmless.
    for row in saved["rows"].as_array_mut().unwrap() {
        row["owner"] = serde_json::json!({ "block": 4_000_000_000_u32 });
    }
    saved["heap"] = serde_json::json!({ "least": 1, "lost": 0, "refused": 0,
        "allocations": [{ "blocks": 1, "bytes": 1, "frames": [4_000_000_000_u32] }] });
    fs::write(path, saved.to_string()).unwrap();
    let broken = fixture::json(&["faults", "--json", "--from", path]);
    assert_eq!(broken["allocations"], serde_json::json!([]));
}

#[test]
fn a_watched_block_is_reported_with_its_allocation() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir_in(disk()).unwrap();
    // Some sizes fill their chunk, others do not; large blocks have mappings of their own.
    for size in [40, 1000, 1031, 300_000] {
        let mut recorded = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args(["heap", "run", "-o", folder.path().join("word.pwh").to_str().unwrap(), "--"])
            .arg(program("heapfaults"))
            .args(["word", &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(recorded.stdout.take().unwrap());
        let mut facts = BTreeMap::new();
        loop {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "it ends too early");
            match line.trim().split_once(" = ") {
                Some((key, value)) => facts.insert(key.to_owned(), value.parse::<u64>().unwrap()),
                None => break,
            };
        }
        let watch = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args(["watch", &facts["process.pid"].to_string()])
            .args([&format!("{:#x}", facts["word.address"]), "8", "--count", "1", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut watch = watch;
        let mut said = BufReader::new(watch.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("watching "), "{line}");
        recorded.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let watched = watch.wait_with_output().unwrap();
        drop(recorded.stdin.take());
        assert_eq!(recorded.wait().unwrap().code(), Some(7));
        let report: Value = serde_json::from_slice(&watched.stdout).unwrap();
        let watched = &report["watched"];
        assert_eq!(watched["block_offset"], 24, "{size}: {watched}");
        let room = number(watched, "block_room");
        match size {
            300_000 => assert!(watched["block_size"].is_null(), "{watched}"),
            _ => assert_eq!(number(watched, "block_size"), size + 1, "{watched}"),
        }
        let page = rustix::param::page_size() as u64;
        assert!(room > size && room < size + page.max(32), "{watched}");
        let by = watched["allocated_by"].as_str().unwrap();
        assert!(by.starts_with("word") && by.contains(&facts["small.line"].to_string()), "{by}");
        assert_eq!(report["hits"].as_array().unwrap().len(), 1);
    }
}

//! `heap scan` of programs that count their own live blocks, against these counts, `mallinfo2`,
//! `malloc_info` and the effect of `malloc_trim`; of programs that damage their own heap; and of
//! busy ones.
//!
//! `PAGEWISE_GLIBC` names a folder with other C libraries. `PAGEWISE_RUNS` is the number of random
//! programs for each C library, the first of which has the seed `PAGEWISE_SEED`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may do both")]

mod fixture;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use fixture::victim::Random;
use fixture::{OtherGlibc, json, number, sum};
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

    /// Its output up to a line.
    fn text_until(&mut self, last: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(&format!("{last}\n")) {
            assert!(self.lines.read_line(&mut text).unwrap() > 0, "{text}");
        }
        text
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
        // Other work on the machine can make the pause long.
        json(&[&["heap", "scan", &pid, "--json", "--max-pause", "1min"], more].concat())
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
    assert_eq!(mapped("blocks") + mapped("cached_blocks"), facts["hblks"], "mapped");
    let counted = (mapped("counted_blocks"), mapped("counted_bytes"));
    assert_eq!(counted, (facts["hblks"], facts["hblkhd"]), "counted");
    // Since 2.43 glibc counts 16 bytes too many at each `realloc` of such a block.
    let excess = facts["hblkhd"].checked_sub(mapped("held")).unwrap();
    let may_exceed = facts["glibc"] >= 43 && excess.is_multiple_of(16);
    assert!(excess == 0 || may_exceed, "mapped bytes: {excess}");
    let sizes = report["sizes"].as_array().unwrap();
    let by_size: u64 = sizes.iter().map(|it| number(it, "size") * number(it, "blocks")).sum();
    assert_eq!(by_size, number(report, "live.bytes"), "by size");
    for table in ["corruption", "gaps"] {
        assert_eq!(report[table].as_array().unwrap().len(), 0, "{}", report[table]);
    }
}

/// Number of blocks by size in a report, without those of `before`.
fn blocks_by_size(report: &Value, before: &Value) -> ProgramFacts {
    let sizes = |report: &Value| -> ProgramFacts {
        let rows = report["sizes"].as_array().unwrap().iter();
        rows.map(|row| (number(row, "size").to_string(), number(row, "blocks"))).collect()
    };
    let before = sizes(before);
    let rows = sizes(report).into_iter();
    let rows = rows.map(|(size, blocks)| {
        let others = before.get(&size).copied().unwrap_or(0);
        (size, blocks.checked_sub(others).unwrap())
    });
    rows.filter(|(_, blocks)| *blocks > 0).collect()
}

/// Bytes that an arena has from the system, those in fastbins, and those in `top` and bins.
type ArenaSums = [u64; 3];

fn arena_sums(report: &Value) -> Vec<ArenaSums> {
    let sums = |arena: &Value| {
        let bins = ["unsorted", "small_bins", "large_bins", "unlisted", "top"];
        let free: u64 = bins.map(|bin| number(arena, bin)).iter().sum();
        [number(arena, "system"), number(arena, "fastbins"), free]
    };
    let mut all: Vec<ArenaSums> = report["arenas"].as_array().unwrap().iter().map(sums).collect();
    all.sort_unstable();
    all
}

/// The same in the text of `malloc_info`.
fn arena_sums_of_malloc_info(text: &str) -> Vec<ArenaSums> {
    let attribute = |heap: &str, element: &str, name: &str| -> Option<u64> {
        let element = heap.split_once(&format!("<{element} "))?.1.split_once('>')?.0;
        element.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok()
    };
    let sums = |heap: &str| {
        let rest = |name: &str| attribute(heap, "total type=\"rest\"", name).unwrap();
        // Each size but that of `top` has the flag of a used chunk before it.
        let free = rest("size") - (rest("count") - 1);
        let fastbins = attribute(heap, "total type=\"fast\"", "size").unwrap_or(0);
        [attribute(heap, "system type=\"current\"", "size").unwrap(), fastbins, free]
    };
    let heaps = text.split("<heap ").skip(1).map(|heap| heap.split("</heap>").next().unwrap());
    let mut all: Vec<ArenaSums> = heaps.map(sums).filter(|heap| heap[0] > 0).collect();
    all.sort_unstable();
    all
}

/// Runs a program through some rounds, and compares a scan after each.
fn rounds(program: &Path, threads: u32, seed: u32, modes: &str, tunables: &str, count: u32) {
    let mut target = RandomProgram::start(program, threads, seed, modes, tunables);
    target.answer();
    let before = target.scan(&["--top", "all"]);
    for round in 0..count {
        let facts = target.ask("r");
        let report = target.scan(&["--top", "all"]);
        eprintln!("{threads} threads, seed {seed}, {modes:?}, {tunables:?}, round {round}");
        assert_equal(&report, &facts, &before, modes.contains('s'));
        assert_eq!(blocks_by_size(&report, &before), target.ask("l"), "blocks by size");
        target.send("i");
        let text = target.text_until("</malloc>");
        assert_eq!(arena_sums(&report), arena_sums_of_malloc_info(&text), "{text}");
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
fn heaps_of_other_versions_of_glibc_are_walked_alike() {
    for library in OtherGlibc::all() {
        eprintln!("glibc {}", library.version);
        let program = library.program("scanned");
        for (seed, modes) in (0..).zip(["", "mak", "s", "bmk"]) {
            rounds(&program, 0, seed, modes, "", 2);
        }
        for (seed, modes) in (1..).zip(["mac", "kb"]) {
            rounds(&program, 2 * seed, seed, modes, "", 2);
        }
        // Since 2.42 thread caches hold large blocks, and since 2.43 mapped ones.
        let large = "glibc.malloc.tcache_max=65536:glibc.malloc.mmap_threshold=20000";
        rounds(&program, 2, 3, "mac", large, 2);
    }
}

/// Settings of malloc for random programs.
const RANDOM_TUNABLES: [&str; 13] = [
    "",
    "glibc.malloc.tcache_count=0",
    "glibc.malloc.tcache_count=3",
    "glibc.malloc.tcache_count=127",
    "glibc.malloc.tcache_max=200",
    "glibc.malloc.tcache_max=65536:glibc.malloc.mmap_threshold=20000",
    "glibc.malloc.arena_max=1",
    "glibc.malloc.arena_max=2",
    "glibc.malloc.mmap_threshold=20000",
    "glibc.malloc.mxfast=0",
    "glibc.malloc.hugetlb=1",
    "glibc.malloc.perturb=165",
    "glibc.malloc.trim_threshold=4096:glibc.malloc.top_pad=0",
];

/// A random program of a seed, in a few rounds.
fn random_rounds(program: &Path, seed: u32) {
    let mut random = Random::new(seed.into());
    let threads = u32::try_from(random.below(5)).unwrap();
    let mut modes: String = "makcb".chars().filter(|_| random.below(2) == 0).collect();
    let tunables = RANDOM_TUNABLES[usize::try_from(random.next() % 13).unwrap()];
    // sbrk is not safe among threads; with huge pages, malloc fails where the end was moved.
    if threads == 0 && !modes.contains('b') && !tunables.contains("hugetlb") {
        modes.push('s');
    }
    rounds(program, threads, seed, &modes, tunables, 2);
}

#[test]
fn random_programs_have_the_blocks_that_they_count() {
    let given = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u32>().unwrap());
    let seed = given("PAGEWISE_SEED").unwrap_or_else(std::process::id);
    let others =
        if std::env::var_os("PAGEWISE_GLIBC").is_some() { OtherGlibc::all() } else { vec![] };
    let others = others.iter().map(|library| library.program("scanned"));
    for program in std::iter::once(fixture::program("scanned")).chain(others) {
        eprintln!("{}, PAGEWISE_SEED={seed}", program.display());
        for seed in (seed..).take(given("PAGEWISE_RUNS").map_or(3, |runs| runs as usize)) {
            random_rounds(&program, seed);
        }
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
    let number_of = words.iter().position(|word| *word == "blocks").unwrap() + 1;
    let blocks: u64 = words[number_of].parse().unwrap();
    // Each thread has one block of the C library.
    assert_eq!(number(&report, "live.blocks"), blocks + 2);
    assert_eq!(number(&report, "pause_us"), 0);
}

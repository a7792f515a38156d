//! Memory that the allocator holds but that is not live, as `pagewise heap` reports it, in programs
//! that leave known blocks in known arenas. Compared with glibc's `malloc_info` and `mallinfo2`,
//! and with the kernel's smaps.

use crate::fixture;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fixture::recorder::report;
use fixture::{OtherGlibc, number};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// Constants of `arenas.c`.
const THREADS: u64 = 8;
const BLOCKS: u64 = 16384;
const SIZE: u64 = 240;
const CHUNK: u64 = 256;
const HEAP: u64 = 64 << 20;

/// A recorded program that waits for input.
struct WaitingRecorded {
    child: Child,
    file: PathBuf,
    _folder: tempfile::TempDir,
    said: String,
}

impl WaitingRecorded {
    /// Starts the program, and reads its output until it waits.
    fn start(more: &[&str], every: u64) -> WaitingRecorded {
        WaitingRecorded::start_program(&fixture::program("arenas"), more, every)
    }

    fn start_program(program: &Path, more: &[&str], every: u64) -> WaitingRecorded {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("arenas.pwh");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        command.args(["heap", "run", "-o", file.to_str().unwrap()]).args(more).arg("--");
        command.arg(program).arg(every.to_string());
        command.env_remove("MALLOC_ARENA_MAX").env_remove("GLIBC_TUNABLES");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
            said.push_str(&line.unwrap());
            said.push('\n');
            if said.ends_with("ready\n") {
                break;
            }
        }
        WaitingRecorded { child, file, _folder: folder, said }
    }

    /// Returns the report of a recording that contains a snapshot taken while the program waits.
    fn settled(&self) -> Value {
        let deadline = Instant::now() + Duration::from_secs(180);
        let looks = |report: &Value| report["layouts"].as_array().unwrap().len();
        let before = looks(&report(&self.file));
        loop {
            let report = at_end(&self.file);
            // One new snapshot may have begun before the program waited, so two new snapshots are
            // needed.
            if looks(&report) >= before + 2 {
                return report;
            }
            assert!(
                Instant::now() < deadline,
                "the collector does not look at {}",
                self.file.display()
            );
            // Without this sleep, the reports would use the CPU time that the collector needs.
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Returns the numbers of an element of `malloc_info` by arena; the last number is the total.
    fn told(&self, element: &str) -> Vec<u64> {
        let lines = self.said.lines().filter_map(|line| line.trim().strip_prefix(element));
        let size = |line: &str| line.split("size=\"").nth(1)?.split('"').next()?.parse().ok();
        lines.map(|line| size(line).unwrap()).collect()
    }

    /// Returns a number of `mallinfo2`.
    fn info(&self, name: &str) -> u64 {
        let line = self.said.lines().find(|line| line.starts_with("mallinfo2")).unwrap();
        let mut words = line.split(' ').skip_while(|word| *word != name);
        words.nth(1).unwrap().parse().unwrap()
    }

    /// Returns the PID of the program.
    fn pid(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let mut children: Vec<u32> = fs::read_to_string(path)
            .unwrap()
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        // The launcher may be a process between pagewise and the program.
        while let Some(pid) = children.pop() {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            if name.trim() == "arenas" {
                return pid;
            }
            let path = format!("/proc/{pid}/task/{pid}/children");
            let more = fs::read_to_string(path).unwrap_or_default();
            children.extend(more.split_whitespace().map(|word| word.parse::<u32>().unwrap()));
        }
        panic!("the program is not there");
    }

    /// Returns the size and the resident bytes of each heap of an arena, from smaps. Behind each
    /// heap is a mapping without access, into which the heap may grow.
    fn heaps(&self) -> Vec<(u64, u64)> {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let mut mappings: Vec<(u64, u64, bool, u64)> = Vec::new();
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap();
            if let Some((start, end)) = first.split_once('-') {
                let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).unwrap());
                mappings.push((start, end, line.contains(" rw-p 00000000 00:00 0"), 0));
            } else if let Some(rss) = line.strip_prefix("Rss:") {
                let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
                mappings.last_mut().unwrap().3 = kib * 1024;
            }
        }
        let pairs = mappings.iter().zip(&mappings[1..]);
        let heaps = pairs.filter(|((start, end, is_memory, _), (next, reserved, is_next, _))| {
            let reserves = next == end && !is_next && *reserved >= start + HEAP;
            *is_memory && start % HEAP == 0 && reserves
        });
        heaps.map(|((start, end, _, rss), _)| (end - start, *rss)).collect()
    }

    fn end(mut self) -> Value {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        report(&self.file)
    }
}

fn at_end(file: &Path) -> Value {
    let words = ["heap", "report", file.to_str().unwrap(), "--json", "--at", "end"];
    fixture::json(&words)
}

fn arenas(report: &Value, kind: &str) -> Vec<Value> {
    let all = report["arenas"].as_array().unwrap().iter();
    all.filter(|area| area["kind"] == kind).cloned().collect()
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

fn findings(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect()
}

/// Returns true if the kernel has PAGEMAP_SCAN; records a skip if not.
fn can_scan() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(7));
    if !is_new {
        skip(&Lack::Kernel(6, 7));
    }
    is_new
}

#[test]
fn arenas_have_what_the_program_the_c_library_and_the_kernel_say() {
    if !can_scan() {
        return;
    }
    assert_described(WaitingRecorded::start(&[], 16));
}

#[test]
fn arenas_of_other_versions_of_glibc_are_described_alike() {
    if !can_scan() {
        return;
    }
    // The program calls `mallinfo2`, which glibc has since 2.33.
    for library in OtherGlibc::since(33) {
        eprintln!("glibc {}", library.version);
        assert_described(WaitingRecorded::start_program(&library.program("arenas"), &[], 16));
    }
}

/// Compares the reported arenas of a program that keeps one of 16 blocks with the numbers of the
/// program's source, of the C library and of the kernel.
fn assert_described(waiting: WaitingRecorded) {
    let report = waiting.settled();
    let kept = BLOCKS / 16;
    let others = arenas(&report, "arena");
    assert_eq!(others.len() as u64, THREADS);
    for arena in &others {
        // The source of the program has these numbers.
        assert_eq!((number(arena, "blocks"), number(arena, "live")), (kept, kept * SIZE));
        assert_eq!((number(arena, "threads"), number(arena, "parts")), (1, 1));
        // Fifteen free chunks are between two chunks that stay, and the word before each chunk
        // counts as part of the chunk.
        assert_eq!(number(arena, "gap"), 15 * CHUNK);
        assert!(
            number(arena, "empty") <= 16 << 10,
            "the arena's own page, and one at the end: {arena}"
        );
    }
    // The report is compared with the C library: accessible parts of arenas, bytes in use (with
    // blocks of the C library and of thread caches), and the last chunks.
    let of = |areas: &[Value], key: &str| -> Vec<u64> {
        sorted(areas.iter().map(|area| number(area, key)).collect())
    };
    let held = waiting.told("<aspace type=\"mprotect\"");
    let all = *held.last().unwrap();
    assert_eq!(of(&others, "held"), sorted(held[1..=others.len()].to_vec()));
    let main = arenas(&report, "main");
    assert_eq!(number(&main[0], "held"), held[0]);
    assert_eq!(number(&main[0], "top"), waiting.info("keepcost"));
    assert_eq!(number(&report["layout"], "held"), all + waiting.info("hblkhd"));
    let system = waiting.told("<system type=\"current\"");
    let free = waiting.told("<total type=\"rest\"");
    let (system, free) = (&system[1..=others.len()], &free[1..=others.len()]);
    for (arena, (system, free)) in others.iter().zip(system.iter().zip(free)) {
        let used = system - free;
        let live = number(arena, "blocks") * CHUNK;
        assert!((live..live + (16 << 10)).contains(&used), "{used} of {live}");
    }
    // The report is compared with the kernel.
    let heaps = waiting.heaps();
    assert_eq!(of(&others, "held"), sorted(heaps.iter().map(|heap| heap.0).collect()));
    assert_eq!(of(&others, "resident"), sorted(heaps.iter().map(|heap| heap.1).collect()));
    // All pages of the arenas are sparsely used, by blocks of the function `keep`.
    let sparse = number(&report["layout"], "sparse");
    assert!(sparse * 100 >= 99 * THREADS * BLOCKS * CHUNK, "{sparse}");
    let first = &report["pinned"][0];
    assert!(first["stack"][0].as_str().unwrap().starts_with("keep "), "{first}");
    assert!(number(first, "kept") * 10 >= sparse * 9);
    assert!(number(&report["page_use"][1], "pages") * 100 >= 99 * THREADS * kept);
    assert_eq!(number(&report["layout"], "unclear"), 0);
    let report = waiting.end();
    assert!(findings(&report).contains(&"held-unused"));
    let all = report["findings"].as_array().unwrap();
    let claim = all.iter().find(|it| it["id"] == "held-unused").unwrap().to_string();
    assert!(claim.contains("arenas 1-8"), "{claim}");
    assert!(claim.contains("keep "), "{claim}");
}

#[test]
fn a_program_that_frees_nothing_does_not_fragment() {
    if !can_scan() {
        return;
    }
    let waiting = WaitingRecorded::start(&[], 1);
    let report = waiting.settled();
    let pages: u64 = (0..9).map(|at| number(&report["page_use"][at], "pages")).sum();
    assert!(number(&report["page_use"][8], "pages") * 100 >= 99 * pages);
    let layout = &report["layout"];
    assert!(number(layout, "sparse") + number(layout, "empty") <= 1 << 20, "{layout}");
    let live: u64 = arenas(&report, "arena").iter().map(|arena| number(arena, "live")).sum();
    assert_eq!(live, THREADS * BLOCKS * SIZE);
    assert!(!findings(&waiting.end()).contains(&"held-unused"));
}

#[test]
fn sampled_recordings_report_arenas_and_not_pages() {
    if !can_scan() {
        return;
    }
    let waiting = WaitingRecorded::start(&["--sample", "8k"], 1);
    let report = waiting.settled();
    let others = arenas(&report, "arena");
    assert_eq!(others.len() as u64, THREADS);
    let live: u64 = others.iter().map(|arena| number(arena, "live")).sum();
    let known = THREADS * BLOCKS * SIZE;
    // Nearly 4000 samples: the standard error is 1.6 %.
    assert!(live.abs_diff(known) * 10 < known, "{live} of {known}");
    let held: u64 = others.iter().map(|arena| number(arena, "held")).sum();
    assert_eq!(held, waiting.heaps().iter().map(|heap| heap.0).sum::<u64>());
    assert!(others[0]["empty"]["absent"].as_str().unwrap().contains("sampled"));
    assert!(report["page_use"].is_null());
    waiting.end();
}

//! `heap scan --leaks`, `--retained` and `--why` of a program with known leaks and hidden pointers,
//! against LeakSanitizer and memcheck on the same source.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may do both")]

mod fixture;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fixture::{json, number, pagewise, program};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// Usable bytes beyond the requested ones: of the block with a mapping of its own.
const ROUNDING: u64 = 8;

/// Leaks of `leaks.c` by the size of their first block: number of leaks, and all blocks of these.
const LEAKS: [(u64, u64, u64); 8] = [
    (104, 10, 10),
    (120, 1, 6),
    (152, 1, 3),
    (168, 1, 1),
    (184, 2, 3),
    (344, 1, 4),
    (408, 1, 1),
    (0x10_0ff0, 1, 1),
];

/// Sizes of blocks that `leaks live` keeps by one hidden pointer each.
const KEPT: [u64; 8] = [216, 232, 248, 264, 280, 296, 312, 328];

fn at_exit(program: &Path) -> Value {
    let path = program.to_str().unwrap();
    json(&["heap", "scan", "--leaks", "--json", "--", path, "exit"])
}

/// Number of leaks and of their blocks by size.
fn leaks(report: &Value) -> BTreeMap<u64, (u64, u64)> {
    let rows = report["leaks"].as_array().unwrap().iter();
    rows.map(|row| (number(row, "size"), (number(row, "leaks"), number(row, "blocks")))).collect()
}

fn leaked(report: &Value) -> (u64, u64) {
    (number(report, "leaked.blocks"), number(report, "leaked.bytes"))
}

#[test]
fn leaks_are_found_at_exit_each_under_its_head() {
    let report = at_exit(&program("leaks"));
    let expected = LEAKS.iter().map(|&(size, leaks, blocks)| (size, (leaks, blocks)));
    assert_eq!(leaks(&report), expected.collect(), "{}", report["leaks"]);
    assert_eq!(number(&report, "leaked.blocks"), LEAKS.iter().map(|leak| leak.2).sum::<u64>());
}

/// The program, built with LeakSanitizer.
fn sanitized() -> Option<PathBuf> {
    let program = fixture::disk().join("leaks-sanitized");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/leaks.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-pthread", "-fsanitize=leak", "-o"]).arg(&program).arg(source);
    let built = cc.output().unwrap();
    if !built.status.success() {
        skip(&Lack::Ability { of: "cc", what: "it cannot link with LeakSanitizer" });
        return None;
    }
    Some(program)
}

#[test]
fn leaks_are_those_of_leak_sanitizer() {
    let Some(sanitized) = sanitized() else { return };
    let output = Command::new(sanitized).arg("exit").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("LeakSanitizer has encountered a fatal error") {
        skip(&Lack::Ability { of: "LeakSanitizer", what: "it cannot trace its own process" });
        return;
    }
    // SUMMARY: LeakSanitizer: 1057536 byte(s) leaked in 29 allocation(s).
    let summary = text.lines().find(|line| line.starts_with("SUMMARY")).expect("it reports leaks");
    let numbers: Vec<u64> = summary.split(' ').filter_map(|word| word.parse().ok()).collect();
    let expected = (numbers[1], numbers[0] + ROUNDING);
    assert_eq!(leaked(&at_exit(&program("leaks"))), expected, "{text}");
}

#[test]
fn leaks_are_those_of_memcheck() {
    let path = program("leaks");
    let mut valgrind = Command::new("valgrind");
    let output = valgrind.args(["--leak-check=full", "--log-fd=1"]).arg(&path).arg("exit").output();
    let Ok(output) = output else {
        skip(&Lack::Tool("valgrind"));
        return;
    };
    // ==1==    definitely lost: 1,055,256 bytes in 18 blocks
    let text = String::from_utf8_lossy(&output.stdout).replace(',', "");
    let sums = |of: &str| -> (u64, u64) {
        let line = text.lines().find(|line| line.contains(of)).expect("memcheck sums up");
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        (numbers[1], numbers[0])
    };
    let (definite, indirect) = (sums("definitely lost:"), sums("indirectly lost:"));
    let report = at_exit(&path);
    let expected = (definite.0 + indirect.0, definite.1 + indirect.1 + ROUNDING);
    assert_eq!(leaked(&report), expected, "{text}");
    assert_eq!(leaks(&report).values().map(|leak| leak.0).sum::<u64>(), definite.0, "{text}");
}

/// `leaks live`, until it is dropped.
struct LiveProgram(Child);

impl LiveProgram {
    fn start() -> LiveProgram {
        let mut command = Command::new(program("leaks"));
        command.arg("live").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let waits = |child: &Child| {
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
            call.is_ok_and(|call| call.starts_with("0 "))
        };
        while !waits(&child) {
            std::thread::yield_now();
        }
        LiveProgram(child)
    }

    fn scan(&self, more: &[&str]) -> Value {
        let pid = self.0.id().to_string();
        json(&[&["heap", "scan", &pid, "--json", "--top", "all"], more].concat())
    }
}

impl Drop for LiveProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn hidden_pointers_of_a_live_program_keep_their_blocks() {
    let target = LiveProgram::start();
    let report = target.scan(&["--leaks", "--retained"]);
    let expected = LEAKS.iter().map(|&(size, leaks, blocks)| (size, (leaks, blocks)));
    assert_eq!(leaks(&report), expected.collect(), "{}", report["leaks"]);
    let sizes: Vec<u64> =
        report["sizes"].as_array().unwrap().iter().map(|row| number(row, "size")).collect();
    assert!(KEPT.iter().all(|size| sizes.contains(size)), "each is live: {sizes:?}");
    // The whole list is retained by the variable that leads to its first block.
    let rows = report["retained"].as_array().unwrap();
    let of = |root: &str| {
        let row =
            rows.iter().find(|row| row["root"].as_str().is_some_and(|it| it.starts_with(root)));
        row.unwrap_or_else(|| panic!("no {root} in {rows:?}"))
    };
    let amounts = |row: &Value| (number(row, "blocks"), number(row, "bytes"));
    assert_eq!(amounts(of("leaks.c: list (leaks)")), (1000, 328_000));
    assert_eq!(amounts(of("leaks.c: array (leaks)")), (64, 64 * 424));
    assert_eq!(amounts(of("leaks.c: interior (leaks)")), (1, 216));
    assert_eq!(of("leaks.c: list (leaks)")["kind"], "variable");
    let threads = rows.iter().filter(|row| {
        row["root"]
            .as_str()
            .is_some_and(|root| root.starts_with("leaks.c: of_thread (leaks), thread "))
    });
    assert_eq!(threads.count(), 3, "one of each thread: {rows:?}");
    let sum: u64 = rows.iter().map(|row| number(row, "bytes")).sum();
    assert_eq!(sum, number(&report, "reachable.bytes"), "each byte is retained once");
}

#[test]
fn the_path_to_a_block_begins_at_its_variable() {
    let target = LiveProgram::start();
    let report = target.scan(&["--retained"]);
    let rows = report["retained"].as_array().unwrap();
    let list = rows.iter().find(|row| row["root"] == "leaks.c: list (leaks)").unwrap();
    let first = number(&list["path"][0], "at");
    let kept = target.scan(&["--why", &format!("{:#x}", first + 16)]);
    assert_eq!(number(&kept, "why.block"), first);
    assert_eq!(number(&kept, "why.retained_blocks"), 1000);
    let paths = kept["why"]["paths"].as_array().unwrap();
    assert_eq!(paths[0]["root"], "leaks.c: list (leaks)");
    assert_eq!(number(&paths[0], "length"), 1);
}

#[test]
fn the_page_shows_what_each_root_retains() {
    let target = LiveProgram::start();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let pid = target.0.id().to_string();
    let output = pagewise(&["heap", "scan", &pid, "--retained", "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(page).unwrap();
    let data =
        page.split_once("id=\"retained-data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let names = data["names"].as_array().unwrap();
    assert!(names.iter().any(|name| name == "leaks.c: list (leaks)"), "{names:?}");
    assert!(names.iter().any(|name| name == "1000 x 328 B"), "{names:?}");
}

/// Programs that free what they lose, or lose nothing: each command and its arguments.
const CLEAN: [&[&str]; 8] = [
    &["perl", "-e", "my %a = map { $_ => [$_] } 1..10000; print scalar %a"],
    &["jq", "-n", "[range(10000)] | add"],
    &[
        "sqlite3",
        ":memory:",
        "create table a(b); insert into a values (1), (2); select sum(b) from a",
    ],
    &["git", "--version"],
    &["gzip", "--version"],
    &["sed", "s/a/b/", "/dev/null"],
    &["sort", "/dev/null"],
    &["awk", "BEGIN { for (at = 0; at < 10000; at++) a[at] = at; print length(a) }"],
];

#[test]
fn clean_programs_lose_no_more_than_memcheck_reports() {
    let mut compared = 0;
    for command in CLEAN {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--leak-check=full", "--log-file=/dev/fd/2", "--trace-children=no"]);
        let Ok(output) = valgrind.args(command).output() else {
            skip(&Lack::Tool("valgrind"));
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr).replace(',', "");
        let lost = |of: &str| -> u64 {
            let line = text.lines().find(|line| line.contains(of));
            let numbers = line.map(|line| line.split(' ').filter_map(|word| word.parse().ok()));
            numbers.and_then(|mut numbers| numbers.nth(1)).unwrap_or(0)
        };
        if !text.contains("HEAP SUMMARY") {
            eprintln!("{command:?} does not run under memcheck");
            continue;
        }
        let output = pagewise(&[&["heap", "scan", "--leaks", "--json", "--"], command].concat());
        let Ok(report) = serde_json::from_slice::<Value>(last_object(&output.stdout)) else {
            eprintln!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        };
        let known = lost("definitely lost:") + lost("indirectly lost:");
        assert!(leaked(&report).0 <= known, "{command:?} lost {known}: {}", report["leaks"]);
        compared += 1;
    }
    assert!(compared > 0, "no program was compared");
}

/// The report behind the output of the command.
fn last_object(output: &[u8]) -> &[u8] {
    let start = output.windows(2).rposition(|pair| pair == b"\n{").map_or(0, |at| at + 1);
    &output[start..]
}

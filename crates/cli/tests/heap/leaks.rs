//! `heap scan --leaks`, `--retained` and `--why` of a program with known leaks and hidden pointers,
//! against LeakSanitizer and memcheck on the same source.

use crate::fixture;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fixture::recorder::{attached, begins_with_a_jump};
use fixture::{FixtureLink, json, number, pagewise, program};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// Number of usable bytes beyond the requested bytes in the block that has a mapping of its own.
const ROUNDING: u64 = 8;

/// Leaks of `leaks.c` by the size of their first block: number of leaks, and number of all blocks
/// of these leaks.
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

/// Returns the number of leaks and of their blocks by size.
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

/// glibc keeps the stack of an ended thread for the next thread. Only this stack has a pointer to
/// the ended thread's table of thread-local storage.
#[test]
fn the_table_of_a_thread_that_ended_is_not_lost() {
    let program = program("after_threads");
    let words = ["heap", "scan", "--leaks", "--json", "--", program.to_str().unwrap(), "t64u8"];
    let output = pagewise(&words);
    let report: Value = serde_json::from_slice(last_object(&output.stdout)).unwrap();
    assert_eq!(leaked(&report), (0, 0), "{report}");
    assert!(number(&report, "live.blocks") > 128, "its blocks and the table: {report}");
}

#[test]
fn leaks_of_a_program_with_musl_are_the_same_with_the_requested_sizes() {
    for link in [FixtureLink::Musl, FixtureLink::MuslStatic] {
        let Some(program) = fixture::musl_program(link, "leaks") else { return };
        let report = at_exit(&program);
        let requested = |size| if size > 1 << 20 { size - ROUNDING } else { size };
        let expected =
            LEAKS.iter().map(|&(size, leaks, blocks)| (requested(size), (leaks, blocks)));
        assert_eq!(leaks(&report), expected.collect(), "{link:?}: {}", report["leaks"]);
        assert_eq!(report["scan"]["allocator"], "musl");
    }
}

#[test]
fn leaks_of_a_program_with_mimalloc_are_the_same() {
    let Some(library) = fixture::mimalloc() else { return };
    let program = program("leaks");
    let preload = format!("LD_PRELOAD={}", library.display());
    let program = ["env", &preload, program.to_str().unwrap(), "exit"];
    let report = json(&[&["heap", "scan", "--leaks", "--json", "--"], &program[..]].concat());
    let leaked: u64 = LEAKS.iter().map(|leak| leak.2).sum();
    assert_eq!(number(&report, "leaked.blocks"), leaked, "{}", report["leaks"]);
}

/// The block sizes differ; the leaks are the same.
#[test]
fn leaks_of_a_program_with_jemalloc_are_those_of_glibc() {
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !Path::new(LIBRARY).exists() {
        return skip(&Lack::Tool(LIBRARY));
    }
    let program = program("leaks");
    let preload = format!("LD_PRELOAD={LIBRARY}");
    let command = ["env", &preload, program.to_str().unwrap(), "exit"];
    let report = json(&[&["heap", "scan", "--leaks", "--json", "--"], &command[..]].concat());
    let names = report["allocators"].as_array().unwrap();
    assert!(names.iter().any(|it| it["name"] == "jemalloc"), "{names:?}");
    let found = leaks(&report).into_values();
    let found = found.fold((0, 0), |sum, (leaks, blocks)| (sum.0 + leaks, sum.1 + blocks));
    let expected = LEAKS.iter().fold((0, 0), |sum, leak| (sum.0 + leak.1, sum.1 + leak.2));
    assert_eq!(found, expected, "{}", report["leaks"]);
}

/// Builds a program with LeakSanitizer.
fn sanitized(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let program = fixture::disk().join(format!("{name}-sanitized"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs");
    let source = sources.join(name).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-pthread", "-fsanitize=leak"]).args(flags);
    cc.arg("-o").arg(&program).arg(source);
    let built = cc.output().unwrap();
    if !built.status.success() {
        skip(&Lack::Ability { of: "cc", what: "it cannot link with LeakSanitizer" });
        return None;
    }
    Some(program)
}

#[test]
fn leaks_are_those_of_leak_sanitizer() {
    let Some(sanitized) = sanitized("leaks", &[]) else { return };
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
    let text = String::from_utf8_lossy(&output.stdout);
    let losses = memcheck_losses(&text);
    let report = at_exit(&path);
    assert_eq!(leaked(&report), (losses.0, losses.1 + ROUNDING), "{text}");
    let definite = memcheck_sums(&text, "definitely lost:").0;
    assert_eq!(leaks(&report).values().map(|leak| leak.0).sum::<u64>(), definite, "{text}");
}

/// Returns the number and bytes of blocks in a line of memcheck's summary, which has no such line
/// if all blocks were freed.
pub(super) fn memcheck_sums(text: &str, of: &str) -> (u64, u64) {
    assert!(text.contains("HEAP SUMMARY"), "{text}");
    // ==1==    definitely lost: 1,055,256 bytes in 18 blocks
    let line = text.lines().find(|line| line.contains(of)).unwrap_or_default().replace(',', "");
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    let (bytes, blocks) = (numbers.next(), numbers.next());
    (blocks.unwrap_or(0), bytes.unwrap_or(0))
}

/// A program that waits for its input, until it is dropped.
pub(super) struct LiveProgram(Child);

impl LiveProgram {
    /// Starts `leaks live`.
    fn start() -> LiveProgram {
        let (target, line) = LiveProgram::waiting(&program("leaks"), &["live"]);
        assert_eq!(line, "ready\n");
        target
    }

    /// Starts a program, and waits until it prints a line. Returns the waiting program, and the
    /// line.
    fn waiting(program: &Path, words: &[&str]) -> (LiveProgram, String) {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        while !waits(child.id()) {
            std::thread::yield_now();
        }
        (LiveProgram(child), line)
    }

    /// Starts a command, gives it input, and waits until it waits for more input. Returns `None` if
    /// the command cannot be started, or ends.
    pub(super) fn of_input(mut command: Command, input: &str) -> Option<LiveProgram> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut target = LiveProgram(command.spawn().ok()?);
        let _ = target.0.stdin.as_mut().unwrap().write_all(input.as_bytes());
        target.is_quiet().then_some(target)
    }

    pub(super) fn scan(&self, more: &[&str]) -> Value {
        let pid = self.0.id().to_string();
        // Other work on the machine can make the pause long.
        let usual = ["heap", "scan", &pid, "--json", "--top", "all", "--max-pause", "1min"];
        json(&[&usual, more].concat())
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
fn the_roots_of_blocks_that_several_keep_are_named() {
    let target = LiveProgram::start();
    let report = target.scan(&["--retained"]);
    let rows = report["retained"].as_array().unwrap();
    let is_shared = |row: &&Value| row["kind"] == "several" && row["path"][0]["size"] == 440;
    let row = rows.iter().find(is_shared).unwrap_or_else(|| panic!("{rows:?}"));
    let sorted = |roots: &Value| {
        let roots = roots.as_array().unwrap().iter();
        let mut names: Vec<String> = roots.map(|it| it.as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(sorted(&row["roots"]), ["leaks.c: one (leaks)", "leaks.c: two (leaks)"]);
    assert_eq!(row["more_roots"], false);
    let address = number(&row["path"][0], "at");
    let kept = target.scan(&["--why", &format!("{address:#x}")]);
    assert_eq!(sorted(&kept["why"]["roots"]), ["leaks.c: one (leaks)", "leaks.c: two (leaks)"]);
    assert_eq!(kept["why"]["more_roots"], false);
    let pid = target.0.id().to_string();
    let words = ["heap", "scan", &pid, "--retained", "--top", "all", "--width", "300"];
    let words = [&words[..], &["--max-pause", "1min"]].concat();
    let page = String::from_utf8(pagewise(&words).stdout).unwrap();
    let names = [
        "leaks.c: one (leaks), leaks.c: two (leaks)",
        "leaks.c: two (leaks), leaks.c: one (leaks)",
    ];
    assert!(names.iter().any(|names| page.contains(names)), "{page}");
}

#[test]
fn the_page_shows_what_each_root_retains() {
    let target = LiveProgram::start();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let pid = target.0.id().to_string();
    let words = ["heap", "scan", &pid, "--retained", "--max-pause", "1min", "--html"];
    let output = pagewise(&[&words[..], &[page.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(page).unwrap();
    let data =
        page.split_once("id=\"retained-data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let names = data["names"].as_array().unwrap();
    assert!(names.iter().any(|name| name == "leaks.c: list (leaks)"), "{names:?}");
    assert!(names.iter().any(|name| name == "1000 x 328 B"), "{names:?}");
}

/// Starts `leaks live` under `pagewise heap run` with options. Returns the command, and the PID of
/// the program, once the program waits.
fn recorded(more: &[&str], file: &Path) -> (LiveProgram, u32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["heap", "run", "-o"]).arg(file).args(more).arg("--");
    let mut child = command
        .arg(program("leaks"))
        .arg("live")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = descendant(child.id()).expect("it runs the program");
    while !waits(pid) {
        std::thread::yield_now();
    }
    (LiveProgram(child), pid)
}

/// Returns the process or its descendant that runs the program `leaks`: pagewise starts the program
/// by a launcher.
fn descendant(pid: u32) -> Option<u32> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if program.ends_with("leaks") {
        return Some(pid);
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().find_map(|pid| descendant(pid.parse().unwrap()))
}

/// Returns true if a process waits for its input.
fn waits(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
    call.is_ok_and(|call| call.starts_with("0 "))
}

fn leaks_of(pid: u32) -> Value {
    let pid = pid.to_string();
    json(&["heap", "scan", &pid, "--leaks", "--json", "--top", "all", "--max-pause", "1min"])
}

/// Returns the line of each allocation in the function `lose` of `leaks.c`, by the size of the
/// block.
fn lines_of_lose() -> BTreeMap<u64, Vec<String>> {
    let source = include_str!("../../../../fixtures/programs/leaks.c");
    let lines = (1..).zip(source.lines());
    let lines = lines.skip_while(|(_, line)| !line.contains(" lose(void)"));
    let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (number, line) in lines.take_while(|(_, line)| *line != "}") {
        let calls = line.split_once("node(").or_else(|| line.split_once("block("));
        let Some((size, _)) = calls.and_then(|(_, after)| after.split_once(')')) else { continue };
        let size = match size.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap() + ROUNDING,
            None => size.parse().unwrap(),
        };
        found.entry(size).or_default().push(format!("lose leaks.c:{number}"));
    }
    found
}

/// Returns the number of leaks by size; some sizes have several rows.
fn leaks_by_size(rows: &[Value]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(number(row, "size")).or_default() += number(row, "leaks");
    }
    counts
}

/// Checks the call stack of a row of leaks against the source.
fn assert_stack(row: &Value, lines: &BTreeMap<u64, Vec<String>>) {
    let frames = row["stack"].as_array().unwrap_or_else(|| panic!("{row}"));
    let stack: Vec<&str> = frames.iter().map(|frame| frame.as_str().unwrap()).collect();
    let lines = &lines[&number(row, "size")];
    assert!(lines.iter().any(|line| stack.contains(&line.as_str())), "{row}: {lines:?}");
    assert!(stack.iter().any(|frame| frame.starts_with("main leaks.c:")), "{row}");
    let first = row["allocated_by"].as_str().unwrap();
    assert!(first.starts_with("block leaks.c:"), "{row}");
    assert_eq!(first, stack[0], "{row}");
}

fn assert_stacks(report: &Value) {
    let (lines, rows) = (lines_of_lose(), report["leaks"].as_array().unwrap());
    rows.iter().for_each(|row| assert_stack(row, &lines));
    let expected = LEAKS.iter().map(|&(size, leaks, _)| (size, leaks)).collect();
    assert_eq!(leaks_by_size(rows), expected, "{rows:?}");
    // Two calls in `lose` allocate blocks of 184 bytes.
    assert_eq!(rows.iter().filter(|row| row["size"] == 184).count(), 2, "{rows:?}");
}

/// Lets a recorded program end.
fn end(mut recorder: LiveProgram) {
    drop(recorder.0.stdin.take());
    assert!(recorder.0.wait().unwrap().success());
}

#[test]
fn leaks_of_a_recorded_program_have_the_call_stacks_of_its_source() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let (recorder, pid) = recorded(&[], &folder.path().join("leaks.pwh"));
    let report = leaks_of(pid);
    assert_stacks(&report);
    // The finding is about the largest leak, which a call of `block` in `lose` allocated.
    let of_leak = |it: &&Value| it["id"] == "leaked-blocks";
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(of_leak).unwrap_or_else(|| panic!("{findings:?}"));
    let words = finding.to_string();
    assert!(words.contains(report["leaks"][0]["allocated_by"].as_str().unwrap()), "{words}");
    let text = pagewise(&["heap", "scan", &pid.to_string(), "--leaks", "--max-pause", "1min"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("ALLOCATED BY"), "{text}");
    // Pointers of the recorder keep no block alive.
    let words = ["heap", "scan", &pid.to_string(), "--retained", "--json", "--max-pause", "1min"];
    let retained = json(&words);
    let of_list = |row: &&Value| row["root"] == "leaks.c: list (leaks)";
    let row = retained["retained"].as_array().unwrap().iter().find(of_list);
    assert_eq!(number(row.expect("the list has a row"), "blocks"), 1000, "{retained}");
    // A saved scan has the same call stacks.
    let saved = folder.path().join("scan.json");
    let saved = saved.to_str().unwrap();
    let words =
        ["heap", "scan", &pid.to_string(), "--leaks", "--max-pause", "1min", "--save", saved];
    assert!(pagewise(&words).status.success());
    assert_stacks(&json(&["heap", "scan", "--from", saved, "--json", "--top", "all"]));
    end(recorder);
}

#[test]
fn leaks_that_sampling_left_out_have_no_call_stack() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let (recorder, pid) = recorded(&["--sample", "512k"], &folder.path().join("leaks.pwh"));
    let report = leaks_of(pid);
    let (lines, rows) = (lines_of_lose(), report["leaks"].as_array().unwrap());
    let expected = LEAKS.iter().map(|&(size, leaks, _)| (size, leaks)).collect();
    assert_eq!(leaks_by_size(rows), expected, "{rows:?}");
    let (known, unknown): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row["stack"].is_array());
    known.into_iter().for_each(|row| assert_stack(row, &lines));
    // Ten blocks of 104 bytes are allocated, and one allocation per 512 KiB on average is recorded.
    assert!(unknown.iter().any(|row| row["size"] == 104), "{rows:?}");
    let reason = unknown[0]["stack"]["absent"].as_str().unwrap();
    assert!(reason.contains("sampling left it out"), "{reason}");
    end(recorder);
}

/// Checks that no leak has a call stack, and that the reason contains some words.
fn assert_no_stacks(report: &Value, reason: &str) {
    let rows = report["leaks"].as_array().unwrap();
    assert_eq!(rows.len(), LEAKS.len(), "{rows:?}");
    for absent in rows.iter().flat_map(|row| [&row["stack"], &row["allocated_by"]]) {
        let words = absent["absent"].as_str().unwrap_or_else(|| panic!("{absent}"));
        assert!(words.contains(reason), "{words}");
    }
}

#[test]
fn leaks_that_no_recorder_saw_have_no_call_stack() {
    let target = LiveProgram::start();
    assert_no_stacks(&target.scan(&["--leaks"]), "pagewise heap run");
    let pid = target.0.id().to_string();
    let text = pagewise(&["heap", "scan", &pid, "--leaks", "--max-pause", "1min"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Leaks by size") && !text.contains("ALLOCATED BY"), "{text}");
}

#[test]
fn leaks_older_than_the_recorder_have_no_call_stack() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let file = folder.path().join("leaks.pwh");
    let target = LiveProgram::start();
    let pid = target.0.id();
    let mut meanwhile = Value::Null;
    let is_hooked = || begins_with_a_jump(pid, "libc.so.6", "malloc");
    attached(pid, &file, is_hooked, || meanwhile = target.scan(&["--leaks"]));
    assert_no_stacks(&meanwhile, "older than the recording");
    assert_no_stacks(&target.scan(&["--leaks"]), "pagewise heap run");
}

#[test]
fn leaks_of_an_ended_recording_have_its_call_stacks() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let file = folder.path().join("leaks.pwh");
    let mut command = Command::new(program("leaks"));
    command.arg("later").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = LiveProgram(command.spawn().unwrap());
    let pid = target.0.id();
    let mut lines = BufReader::new(target.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "waiting");
    let input = target.0.stdin.as_mut().unwrap();
    attached(
        pid,
        &file,
        || begins_with_a_jump(pid, "libc.so.6", "malloc"),
        || {
            input.write_all(b"\n").unwrap();
            assert_eq!(lines.next().unwrap(), "ready");
            while !waits(pid) {
                std::thread::yield_now();
            }
        },
    );
    assert_no_stacks(&target.scan(&["--leaks"]), "--recording");
    let file = file.to_str().unwrap();
    let report = target.scan(&["--leaks", "--recording", file]);
    if report["leaks"][0]["stack"].to_string().contains("Linux 6.7 or newer") {
        return skip(&Lack::Kernel(6, 7));
    }
    assert_stacks(&report);
    let other = LiveProgram::start();
    let pid = other.0.id().to_string();
    let refused = pagewise(&["heap", "scan", &pid, "--leaks", "--recording", file]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && said.contains("is a recording of process"),
        "{said}"
    );
}

/// Returns the number and bytes of the blocks that `lost` prints.
fn printed(line: &str) -> (u64, u64) {
    let sizes = lost_sizes(line);
    (sizes.len() as u64, sizes.iter().sum())
}

fn lost_sizes(line: &str) -> Vec<u64> {
    let sizes = line.strip_prefix("lost").unwrap().split_whitespace();
    sizes.map(|size| size.parse().unwrap()).collect()
}

/// Returns the seeds of random graphs: `PAGEWISE_RUNS` seeds, from `PAGEWISE_SEED` on.
fn seeds() -> impl Iterator<Item = String> {
    let given = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u32>().unwrap());
    let first = given("PAGEWISE_SEED").unwrap_or_else(std::process::id);
    eprintln!("PAGEWISE_SEED={first}");
    (first..first + given("PAGEWISE_RUNS").unwrap_or(4)).map(|seed| seed.to_string())
}

#[test]
fn lost_blocks_of_random_graphs_are_those_of_their_own_search() {
    for program in [program("lost"), fixture::program_as_cpp("lost")] {
        for (seed, modes) in seeds().flat_map(|seed| ["", "i"].map(|modes| (seed.clone(), modes))) {
            let (target, line) = LiveProgram::waiting(&program, &[&seed, modes]);
            let report = target.scan(&["--leaks"]);
            assert_eq!(leaked(&report), printed(&line), "{}, {seed} {modes}", program.display());
            let lost = lost_sizes(&line);
            assert!(leaks(&report).keys().all(|size| lost.contains(size)), "{seed} {modes}");
        }
    }
}

#[test]
fn leak_sanitizer_and_memcheck_find_the_lost_blocks_of_random_graphs() {
    let Some(sanitized) = sanitized("lost", &["-xc++", "-Wl,--no-as-needed,-lstdc++"]) else {
        return;
    };
    let plain = program("lost");
    for seed in seeds().take(3) {
        let mut command = Command::new(&sanitized);
        command.env("LSAN_OPTIONS", "report_objects=1:max_leaks=1000").args([&seed, "ic"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains("LeakSanitizer has encountered a fatal error") {
            skip(&Lack::Ability { of: "LeakSanitizer", what: "it cannot trace its own process" });
            return;
        }
        // 0x7f3c1a2b0010 (24 bytes)
        let objects = text.lines().filter_map(|line| {
            line.strip_prefix("0x")?.split_once(" (")?.1.strip_suffix(" bytes)")?.parse().ok()
        });
        let mut found: Vec<u64> = objects.collect();
        found.sort_unstable();
        assert_eq!(found, lost_sizes(&String::from_utf8_lossy(&output.stdout)), "{seed}: {text}");

        // If only interior pointers lead to a block, memcheck does not decide if the block is lost.
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--leak-check=full", "--log-file=/dev/fd/2"]).arg(&plain);
        let Ok(output) = valgrind.args([&seed, "e"]).output() else {
            skip(&Lack::Tool("valgrind"));
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(memcheck_losses(&text), printed(&line), "{seed}: {text}");
    }
}

/// Returns the number and bytes of blocks that memcheck calls lost, directly or indirectly.
fn memcheck_losses(text: &str) -> (u64, u64) {
    let (definite, indirect) =
        (memcheck_sums(text, "definitely lost:"), memcheck_sums(text, "indirectly lost:"));
    (definite.0 + indirect.0, definite.1 + indirect.1)
}

/// Programs that leak nothing: each command and its arguments.
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
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !text.contains("HEAP SUMMARY") {
            eprintln!("{command:?} does not run under memcheck");
            continue;
        }
        let output = pagewise(&[&["heap", "scan", "--leaks", "--json", "--"], command].concat());
        let Ok(report) = serde_json::from_slice::<Value>(last_object(&output.stdout)) else {
            eprintln!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        };
        let known = memcheck_losses(&text).0;
        assert!(leaked(&report).0 <= known, "{command:?} lost {known}: {}", report["leaks"]);
        compared += 1;
    }
    assert!(compared > 0, "no program was compared");
}

/// A program with its arguments, and the input after which it waits for more input.
struct WaitingProgram(&'static [&'static str], &'static str);

/// Programs that most machines have.
const WAITING: [WaitingProgram; 13] = [
    WaitingProgram(
        &["sqlite3", ":memory:"],
        "create table a(b, c);\n\
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) \
         insert into a select i, 'text' || i from n;\n\
         create index d on a(c);\nselect count(*) from a where c like '%7%';\n",
    ),
    WaitingProgram(&["git", "hash-object", "--stdin-paths"], "/dev/null\n/etc/passwd\n"),
    WaitingProgram(&["jq", "-c", ".a[] | {b: .}"], "{\"a\": [1, \"two\", [1, 2, 3]]}\n"),
    WaitingProgram(&["perl", "-ne", "$a{$_} = [split //]; print eval"], "2 + 3\n"),
    WaitingProgram(
        &[
            "/usr/bin/python3",
            "-c",
            "import json, sys\nfor line in sys.stdin: print(json.loads(line))",
        ],
        "{\"a\": [1, 2, {}]}\n",
    ),
    WaitingProgram(&["bash"], "for i in {1..999}; do a[i]=x$i; done; echo ${#a[*]}; unset a\n"),
    WaitingProgram(&["zsh", "-f"], "for i in {1..999}; do a[i]=x$i; done; echo ${#a}\n"),
    WaitingProgram(&["sh"], "i=0; while [ $i -lt 999 ]; do i=$((i + 1)); x=$x$i; done; echo $x\n"),
    WaitingProgram(&["sed", "-u", "-E", "s/(a+)b/<\\1>/g;h;G"], "aab caab\nsecond\n"),
    WaitingProgram(&["grep", "-E", "(a|b)+c|[[:alpha:]]{3,}d"], "aabc\nxyzd\nno\n"),
    WaitingProgram(&["sort", "-k2"], "b 2\na 1\n"),
    WaitingProgram(&["awk", "{ a[$1] = $2; n = split($0, parts, \"e\"); print n }"], "some line\n"),
    WaitingProgram(&["gdb", "-q", "-nx", "/bin/sh"], "print 1 + 2\ninfo functions alloc\n"),
];

/// Other programs, if `PAGEWISE_PROGRAMS` is `all`.
const MORE_WAITING: [WaitingProgram; 8] = [
    WaitingProgram(&["node", "-i"], "let a = []; for (let i = 0; i < 9999; i++) a.push({i})\n"),
    WaitingProgram(&["lua5.4", "-i"], "t = {} for i = 1, 9999 do t[i] = {i} end\n"),
    WaitingProgram(&["ruby", "-ne", "print eval($_)"], "1 + 2\n"),
    WaitingProgram(&["php", "-n", "-r", "while ($a = fgets(STDIN)) echo strrev($a);"], "abc\n"),
    WaitingProgram(&["gawk", "{ a[$1] = $2; n = split($0, parts, /e/); print n }"], "some line\n"),
    WaitingProgram(&["bc", "-q"], "scale = 50; a = 1; for (i = 1; i < 50; i++) a = a * i\n"),
    WaitingProgram(&["ed"], "a\none\ntwo\n.\ng/o/s//0/\n"),
    WaitingProgram(&["vim", "-u", "NONE", "-es"], "a\none\ntwo\n.\n%s/o/0/g\nundo\n"),
];

impl WaitingProgram {
    /// Starts the program. Returns `None` if it is not installed or does not wait.
    fn start(&self) -> Option<LiveProgram> {
        let mut command = Command::new(self.0[0]);
        command.args(&self.0[1..]);
        LiveProgram::of_input(command, self.1)
    }

    /// Returns the number of blocks that memcheck calls lost at the end of the program.
    fn lost_at_exit(&self) -> Option<u64> {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--leak-check=full", "--trace-children=no"]);
        valgrind.arg(format!("--log-file={}", log.path().display())).args(self.0);
        valgrind.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = valgrind.spawn().ok()?;
        let _ = child.stdin.take().unwrap().write_all(self.1.as_bytes());
        child.wait().unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        let possible = memcheck_sums(&text, "possibly lost:").0;
        Some(memcheck_losses(&text).0 + possible)
    }
}

impl LiveProgram {
    /// Waits until the program sleeps and uses no CPU time. Returns false if the program ends
    /// instead.
    fn is_quiet(&mut self) -> bool {
        let state = |pid: u32| -> Option<(String, String)> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some((fields[0].to_owned(), fields[11..13].join(" ")))
        };
        let (mut before, mut same) = (None, 0);
        while same < 10 {
            std::thread::sleep(Duration::from_millis(100));
            if self.0.try_wait().unwrap().is_some() {
                return false;
            }
            let now = state(self.0.id());
            let sleeps = now.as_ref().is_some_and(|now| now.0 == "S") && now == before;
            same = if sleeps { same + 1 } else { 0 };
            before = now;
        }
        true
    }
}

#[test]
fn real_programs_that_wait_have_no_false_leaks() {
    let all = std::env::var_os("PAGEWISE_PROGRAMS").is_some_and(|programs| programs == "all");
    let more = MORE_WAITING.iter().filter(|_| all);
    let (mut compared, mut live) = (0, 0);
    for program in WAITING.iter().chain(more) {
        let Some(target) = program.start() else {
            eprintln!("{:?} is not installed, or does not wait", program.0);
            continue;
        };
        let report = target.scan(&["--leaks"]);
        drop(target);
        let (found, blocks) = (leaked(&report).0, number(&report, "live.blocks"));
        eprintln!("{:?}: {found} of {blocks} blocks are lost", program.0);
        compared += 1;
        live += blocks;
        // A lost block is never freed: memcheck finds it at the end, too.
        if found > 0 {
            let Some(known) = program.lost_at_exit() else {
                skip(&Lack::Tool("valgrind"));
                return;
            };
            assert!(found <= known, "{:?}: memcheck finds {known}: {report}", program.0);
        }
    }
    assert!(compared >= 5 && live > 1000, "{compared} programs, {live} blocks");
}

/// Returns the report, which follows the output of the command.
fn last_object(output: &[u8]) -> &[u8] {
    let start = output.windows(2).rposition(|pair| pair == b"\n{").map_or(0, |at| at + 1);
    &output[start..]
}

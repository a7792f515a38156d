//! `guard`: programs with one memory error each, and programs without. Compared with
//! AddressSanitizer, valgrind's memcheck, and plain runs of the programs.

use crate::fixture;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use pagewise_skip::{Lack, skip};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{disk, pagewise, program};

/// Errors that the processor or the call itself detects at once.
const AT_ONCE: &[&str] = &[
    "overflow_read_1",
    "overflow_write_1",
    "overflow_read_8",
    "overflow_write_8",
    "overflow_write_large",
    "overflow_read_large",
    "overflow_write_pages",
    "calloc_overflow",
    "memalign_overflow",
    "after_free_read",
    "after_free_write",
    "after_free_thread",
    "after_free_late",
    "after_realloc",
    "double_free",
    "double_free_thread",
    "realloc_freed",
    "free_middle",
    "free_odd",
    "free_stack",
    "free_static",
];

/// Errors that AddressSanitizer misses: unaligned accesses that begin in the object, or errors that
/// end the program.
const BESIDE: &[&str] = &["overflow_read_across", "overflow_write_across", "free_mapping"];

/// Errors that are detected at once if objects are at the start of their pages.
const BEFORE: &[&str] =
    &["underflow_read_1", "underflow_write_1", "underflow_write_8", "underflow_write_pages"];

/// Writes that are detected when the object is freed.
const AT_FREE: &[&str] = &[
    "slack_write_1",
    "slack_write_3",
    "overflow_empty",
    "underflow_write_1",
    "underflow_write_8",
    "underflow_write_pages",
];

/// Runs a command with all its objects guarded. Returns the output, and the report.
fn guard(words: &[&str], command: &[&str]) -> (Output, Value) {
    let folder = TempDir::new().unwrap();
    let words = [&["guard"], words].concat();
    fixture::reported(&folder, &[env!("CARGO_BIN_EXE_pagewise")], &words, command)
}

fn misuse(words: &[&str], name: &str) -> (Output, Value) {
    let program = program("misuse");
    guard(words, &[program.to_str().unwrap(), name])
}

/// The run of the program with an error, all its objects guarded: one for all tests.
fn guarded_misuse(name: &'static str) -> Arc<(Output, Value)> {
    type GuardedRun = Arc<OnceLock<Arc<(Output, Value)>>>;
    static RUNS: Mutex<BTreeMap<&str, GuardedRun>> = Mutex::new(BTreeMap::new());
    let run = Arc::clone(RUNS.lock().unwrap().entry(name).or_default());
    Arc::clone(run.get_or_init(|| Arc::new(misuse(&["--rate", "1"], name))))
}

/// The only memory error of a report.
fn only(report: &Value) -> &Value {
    let bugs = report["bugs"].as_array().unwrap();
    assert_eq!(bugs.len(), 1, "{report:#}");
    &bugs[0]
}

/// Lines of the program in a call stack.
fn lines(stack: &Value) -> Vec<u32> {
    let frames = stack.as_array().into_iter().flatten().map(|frame| frame.as_str().unwrap());
    frames.filter_map(line_of).collect()
}

/// The line of `misuse.c` that a text names.
fn line_of(text: &str) -> Option<u32> {
    let (_, line) = text.split_once("misuse.c:")?;
    let digits: String = line.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// AddressSanitizer's report of an error.
#[derive(Debug, Default, PartialEq)]
struct AsanVerdict {
    kind: String,
    access: String,
    stack: Vec<u32>,
    allocated: Vec<u32>,
    freed: Vec<u32>,
}

/// The program built with AddressSanitizer; `None`, after recording a skip, if the compiler lacks
/// it.
fn sanitized() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/misuse.c");
        let path = disk().join("misuse-sanitized");
        let options = ["-O1", "-g", "-w", "-fno-omit-frame-pointer", "-pthread"];
        let mut cc = Command::new("cc");
        cc.args(options).arg("-fsanitize=address").arg("-o").arg(&path).arg(source);
        cc.output().is_ok_and(|output| output.status.success()).then_some(path)
    });
    if built.is_none() {
        skip(&Lack::Ability { of: "cc", what: "has no AddressSanitizer" });
    }
    built.as_ref()
}

fn verdict(name: &str) -> Option<AsanVerdict> {
    let output = Command::new(sanitized()?)
        .arg(name)
        .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut verdict = AsanVerdict::default();
    let mut part = 0;
    for line in said.lines() {
        if let Some((_, what)) = line.split_once("ERROR: AddressSanitizer: ") {
            verdict.kind = what.to_owned();
        } else if line.starts_with("READ of size") {
            verdict.access = "read".to_owned();
        } else if line.starts_with("WRITE of size") {
            verdict.access = "write".to_owned();
        } else if line.contains("to the left of") || line.contains("bytes before") {
            verdict.kind += " before";
        } else if line.contains("allocated by thread") {
            part = 1;
        } else if line.starts_with("freed by thread") {
            part = 2;
        } else if line.starts_with("SUMMARY") {
            break;
        } else if line.contains(" created by ") || line.contains("is located in stack") {
            part = 3;
        } else if line.trim_start().starts_with('#') {
            let to = match part {
                0 => &mut verdict.stack,
                1 => &mut verdict.allocated,
                2 => &mut verdict.freed,
                _ => continue,
            };
            to.extend(line_of(line));
        }
    }
    assert!(!verdict.kind.is_empty(), "{name}: {said}");
    Some(verdict)
}

/// AddressSanitizer's name for an error of ours.
fn translated(bug: &Value) -> (&'static str, &str) {
    let access = bug["access"].as_str().unwrap();
    let kind = match bug["kind"].as_str().unwrap() {
        "overflow" | "underflow" => "heap-buffer-overflow",
        "use-after-free" => "heap-use-after-free",
        "double-free" => "attempting double-free",
        "invalid-free" => "attempting free on address which was not malloc()-ed",
        other => panic!("{other}"),
    };
    match access {
        "free" => (kind, ""),
        "written before free" => (kind, "write"),
        access => (kind, access),
    }
}

#[test]
fn every_memory_error_is_found_with_the_stacks_that_addresssanitizer_gives() {
    let cases = AT_ONCE.iter().map(|name| (name, "end"));
    for (name, side) in cases.chain(BEFORE.iter().map(|name| (name, "start"))) {
        let Some(verdict) = verdict(name) else { return };
        let (output, report) = misuse(&["--rate", "1", "--side", side], name);
        let bug = only(&report);
        let (kind, access) = translated(bug);
        assert!(verdict.kind.contains(kind), "{name}: {verdict:?} {bug:#}");
        assert_eq!(access, verdict.access, "{name}: {bug:#}");
        assert_eq!(lines(&bug["stack"]), verdict.stack, "{name}: {bug:#}");
        assert_eq!(lines(&bug["allocation_stack"]), verdict.allocated, "{name}: {bug:#}");
        assert_eq!(lines(&bug["free_stack"]), verdict.freed, "{name}: {bug:#}");
        let is_before = verdict.kind.ends_with(" before");
        assert_eq!(bug["kind"] == "underflow", is_before, "{name}: {bug:#}");
        // The signal of the processor, or of the C library's own check.
        let signal = if bug["access"] == "free" { 6 } else { 11 };
        assert_eq!(output.status.code(), Some(128 + signal), "{name}");
    }
}

#[test]
fn a_write_beside_an_object_is_found_at_its_free() {
    for name in AT_FREE {
        let Some(verdict) = verdict(name) else { return };
        let run = guarded_misuse(name);
        let (output, report) = &*run;
        let bug = only(report);
        let (kind, access) = translated(bug);
        assert!(verdict.kind.contains(kind), "{name}: {verdict:?} {bug:#}");
        assert_eq!(access, verdict.access, "{name}: {bug:#}");
        assert_eq!(lines(&bug["allocation_stack"]), verdict.allocated, "{name}: {bug:#}");
        assert_eq!(lines(&bug["stack"])[0], line("/* free */"), "{name}: {bug:#}");
        assert_eq!(bug["kind"] == "underflow", verdict.kind.ends_with(" before"), "{name}");
        assert_eq!(output.status.code(), Some(128 + 6), "{name}");
    }
}

/// The line of the program that ends with a comment.
fn line(end: &str) -> u32 {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/misuse.c");
    let text = fs::read_to_string(source).unwrap();
    let at = text.lines().position(|line| line.ends_with(end)).unwrap();
    u32::try_from(at + 1).unwrap()
}

#[test]
fn memcheck_finds_the_same() {
    let program = program("misuse");
    for name in AT_ONCE.iter().chain(BESIDE).chain(AT_FREE) {
        let mut valgrind = Command::new("valgrind");
        // These errors need neither a debugger nor the check for undefined values, which take time.
        valgrind.args(["-q", "--vgdb=no", "--undef-value-errors=no"]).arg(&program).arg(name);
        let Ok(output) = valgrind.output() else { return skip(&Lack::Tool("valgrind")) };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let first = said.lines().next().unwrap_or_default().to_owned();
        let run = guarded_misuse(name);
        let bug = only(&run.1);
        let words = match bug["access"].as_str().unwrap() {
            "read" => "Invalid read",
            "write" | "written before free" => "Invalid write",
            _ => "Invalid free() / delete / delete[] / realloc()",
        };
        assert!(first.contains(words), "{name}: {said} {bug:#}");
        // If memcheck names the object, the distance of the access is compared.
        let Some((_, place)) = said.split_once(" is ") else { continue };
        let place = place.lines().next().unwrap();
        let Some((_, size)) = place.split_once("a block of size ") else { continue };
        let size: String = size.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(bug["size"].as_u64().unwrap().to_string(), size, "{name}: {place}");
        let distance = place.split(' ').next().unwrap().replace(',', "");
        // memcheck reports the start of an access, pagewise the first byte outside of the object.
        let ours = match bug["kind"].as_str().unwrap() {
            "overflow" if !name.ends_with("_across") => bug["distance"].as_u64(),
            "use-after-free" => {
                Some(bug["address"].as_u64().unwrap() - bug["object"].as_u64().unwrap())
            }
            _ => continue,
        };
        assert_eq!(ours.unwrap().to_string(), distance, "{name}: {place}");
    }
}

#[test]
fn an_access_a_page_away_is_still_reported_with_its_object() {
    for (name, access) in [("overflow_read_page", "read"), ("overflow_write_page", "write")] {
        let (_, report) = misuse(&["--rate", "1"], name);
        let bug = only(&report);
        assert_eq!(
            (bug["kind"].as_str(), bug["access"].as_str()),
            (Some("overflow"), Some(access)),
            "{bug:#}"
        );
        assert_eq!(bug["distance"], 4095, "{bug:#}");
        assert_eq!(lines(&bug["allocation_stack"])[0], line("/* allocation */"));
    }
}

#[test]
fn unfreed_objects_are_checked_at_the_end() {
    let (output, report) = misuse(&["--rate", "1"], "never_freed_slack");
    let bug = only(&report);
    assert_eq!(bug["access"], "written before end", "{bug:#}");
    assert_eq!(bug["distance"], 1, "{bug:#}");
    assert!(bug["stack"]["absent"].is_string(), "{bug:#}");
    // The program ended well; the exit code is that of a found error.
    assert_eq!(output.status.code(), Some(99));
    let (output, _) = misuse(&["--rate", "1", "--error-exitcode", "3"], "never_freed_slack");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_program_goes_on_where_it_is_to() {
    for name in AT_ONCE.iter().chain(BESIDE).chain(AT_FREE) {
        let (output, report) = misuse(&["--rate", "1", "--then", "continue"], name);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(99), "{name}: {said} {report:#}");
        assert_eq!(report["guard"]["ending"], "exit 0", "{name}");
        assert!(!report["bugs"].as_array().unwrap().is_empty(), "{name}");
        assert_eq!(report["bugs"][0]["goes_on"], true, "{name}");
        assert_eq!(report["guard"]["told"], 1, "{name}");
    }
}

#[test]
fn all_means_find_the_same() {
    for name in AT_ONCE.iter().chain(BESIDE).chain(AT_FREE) {
        let best = guarded_misuse(name);
        for means in ["marks", "mappings"] {
            let (_, other) = misuse(&["--rate", "1", "--means", means], name);
            assert_eq!(other["guard"]["means"], means);
            let (one, other) = (only(&best.1), only(&other));
            for key in ["kind", "access", "distance", "stack", "allocation_stack", "free_stack"] {
                assert_eq!(one[key], other[key], "{name} {key}");
            }
        }
    }
    for means in ["marks", "mappings"] {
        let (output, report) = misuse(&["--rate", "1", "--means", means], "none");
        assert_eq!(output.status.code(), Some(0), "{report:#}");
        assert_eq!(report["guard"]["bugs"], 0, "{report:#}");
    }
}

#[test]
fn a_program_has_its_own_handler_as_well() {
    let (output, report) = misuse(&["--rate", "1"], "own_handler");
    assert_eq!(only(&report)["kind"], "overflow");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 faults\n");
    assert_eq!(output.status.code(), Some(99));
    let (output, report) = misuse(&["--rate", "1"], "blocked");
    assert_eq!(only(&report)["kind"], "overflow");
    assert_eq!(output.status.code(), Some(128 + 11));
}

#[test]
fn a_child_of_fork_has_the_objects_of_its_parent() {
    let (output, report) = misuse(&["--rate", "1"], "after_free_fork");
    let bug = only(&report);
    assert_eq!(bug["kind"], "use-after-free");
    // The parent still has the object, and ends well.
    assert_eq!(output.status.code(), Some(99), "{report:#}");
    let (parent, child) = (&bug["allocated_by"], &bug["freed_by"]);
    assert_eq!(parent, &report["guard"]["pid"]);
    assert_ne!(parent, child);
    assert_eq!(child, &bug["pid"]);
    assert_eq!(lines(&bug["allocation_stack"])[0], line("/* allocation */"));
    assert_eq!(lines(&bug["free_stack"])[0], line("/* free */"));
}

#[test]
fn freed_memory_stays_inaccessible_whatever_the_program_does() {
    // In a child of `fork`, and if the program closes descriptors that it has not opened.
    for name in
        ["after_free_child", "after_free_closed", "closed_after_free", "reopened_after_free"]
    {
        let (output, report) = misuse(&["--rate", "1"], name);
        let bug = only(&report);
        assert_eq!(bug["kind"], "use-after-free", "{name}");
        assert_eq!(lines(&bug["allocation_stack"])[0], line("/* allocation */"), "{name}");
        assert_eq!(lines(&bug["free_stack"])[0], line("/* free */"), "{name}");
        let ending = output.status.code();
        assert_eq!(ending, Some(if name == "after_free_child" { 99 } else { 128 + 11 }), "{name}");
    }
}

/// Output and ending of a command, plain and guarded.
fn compare(command: &[&str]) {
    let plainly = Command::new(command[0])
        .args(&command[1..])
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "0")
        .stdin(Stdio::null())
        .output();
    let Ok(plainly) = plainly else {
        return skip(&Lack::Tool(command[0]));
    };
    for rate in ["1", "100"] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("report.json");
        let guarded = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args(["guard", "--rate", rate, "--json", "-o"])
            .arg(&path)
            .arg("--")
            .args(command)
            .env("PYTHONMALLOC", "malloc")
            .env("PYTHONHASHSEED", "0")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(guarded, plainly, "{command:?} at rate {rate}: {report:#}");
        assert_eq!(report["guard"]["bugs"], 0, "{command:?}");
        let guarded = report["guard"]["guarded"].as_u64().unwrap();
        assert!(guarded > 0 || rate != "1", "{report:#}");
    }
}

#[test]
fn a_recording_survives_a_call_that_leads_to_malloc_in_two_ways() {
    let (program, folder) = (program("indirect"), TempDir::new().unwrap());
    let file = folder.path().join("indirect.pwh");
    let words = ["heap", "run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()];
    let output = pagewise(&words);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "10\n".repeat(8));
}

#[test]
fn programs_without_memory_errors_run_as_without_guard() {
    let [misuse, threads, indirect] = ["misuse", "churned", "indirect"].map(program);
    compare(&[misuse.to_str().unwrap(), "none"]);
    compare(&[threads.to_str().unwrap()]);
    compare(&[indirect.to_str().unwrap()]);
    let script = "import json, re, subprocess, threading\n\
        words = [json.dumps({'n': n, 's': str(n) * 9}) for n in range(3000)]\n\
        t = [threading.Thread(target=lambda: re.findall('[0-9]+', ' '.join(words))) for _ in range(3)]\n\
        [x.start() for x in t], [x.join() for x in t]\n\
        print(sum(json.loads(w)['n'] for w in words), subprocess.check_output(['echo', 'x']))\n";
    compare(&["python3", "-c", script]);
    let rows = "with recursive c(x) as (select 1 union all select x+1 from c where x<20000) \
                select count(*), sum(x), max(y) from (select x, 'abc'||x y from c order by 2)";
    compare(&["sqlite3", ":memory:", rows]);
}

#[test]
fn unguarded_programs_are_reported() {
    let Some(fixture) = fixture::Fixture::linked(fixture::FixtureLink::Static, "quadrants", &[])
    else {
        return;
    };
    let path = fs::read_link(format!("/proc/{}/exe", fixture.pid)).unwrap();
    let output = fixture::pagewise_aside(&["guard", "--json", "--", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = text.find('{').map(|at| &text[at..]).unwrap_or_default();
    assert!(json.contains("linked statically"), "{text}");
}

#[test]
fn memory_is_bounded_and_unguarded_blocks_are_reported() {
    let (_, report) = misuse(&["--rate", "1", "--most", "64K"], "none");
    assert_eq!(report["guard"]["bugs"], 0);
    assert!(report["guard"]["left_out"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report["guard"]["most_bytes"].as_u64().unwrap() <= 64 << 10, "{report:#}");
}

/// The C++ program, built with further options; `None` without a compiler.
fn operators(name: &str, options: &[&str]) -> Option<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/operators.cpp");
    let path = disk().join(name);
    // Other tests build it at the same time.
    let built = tempfile::NamedTempFile::new_in(disk()).unwrap().into_temp_path();
    let mut compiler = Command::new("c++");
    compiler.args(["-O1", "-g", "-w", "-std=c++17", "-fsized-deallocation", "-pthread"]);
    compiler.args(["-fno-omit-frame-pointer", "-o"]).arg(&built).arg(source).args(options);
    let is_built = compiler.output().is_ok_and(|output| output.status.success());
    if !is_built {
        skip(&Lack::Tool("c++"));
    }
    is_built.then(|| built.persist(&path).unwrap());
    is_built.then_some(path)
}

/// The line of the C++ program that contains `part` and ends with the comment `end`.
fn line_with(part: &str, end: &str) -> u32 {
    let source = include_str!("../../../../fixtures/programs/operators.cpp");
    let mut lines = (1..).zip(source.lines());
    let is_it = |line: &str| line.ends_with(&format!("// {end}")) && line.contains(part);
    lines.find(|(_, line)| is_it(line)).unwrap().0
}

fn has_line(stack: &Value, line: u32) -> bool {
    stack.to_string().contains(&format!("operators.cpp:{line}"))
}

/// Error, functions that allocated and freed the object, size passed to `delete`, and allocating
/// function.
type Mismatched = (&'static str, &'static str, &'static str, Option<u64>, &'static str);

const MISMATCHED: &[Mismatched] = &[
    ("new_free", "new", "malloc", None, "new"),
    ("new_array_free", "new[]", "malloc", None, "new array"),
    ("new_realloc", "new", "malloc", None, "new"),
    ("malloc_delete", "malloc", "new", Some(32), "malloc"),
    ("malloc_delete_array", "malloc", "new[]", None, "malloc"),
    ("new_array_delete", "new[]", "new", Some(32), "new array"),
    ("new_delete_array", "new", "new[]", None, "new"),
    ("sized_delete", "new", "new", Some(72), "new"),
];

#[test]
fn objects_that_are_freed_by_another_function_are_found_as_addresssanitizer_does() {
    let Some(program) = operators("operators", &[]) else { return };
    let sanitized = operators("operators-sanitized", &["-fsanitize=address"]);
    let program = program.to_str().unwrap();
    for &(name, made_by, freed_as, size, allocation) in MISMATCHED {
        let (output, report) = guard(&["--rate", "1"], &[program, name]);
        assert_eq!(output.status.code(), Some(128 + 6), "{name}: as by the C library's own check");
        let bug = only(&report);
        let words = ["kind", "access", "made_by", "freed_as"].map(|key| bug[key].as_str().unwrap());
        assert_eq!(words, ["mismatch", "free", made_by, freed_as], "{name}");
        assert_eq!(bug["freed_size"].as_u64(), size, "{name}");
        assert!(has_line(&bug["allocation_stack"], line_with("", allocation)), "{name}: {bug:#}");
        let wrong = (1..).zip(include_str!("../../../../fixtures/programs/operators.cpp").lines());
        let mut wrong = wrong.skip_while(|(_, line)| !line.contains(&format!("\"{name}\"")));
        let (line, _) = wrong.find(|(_, line)| line.ends_with("// bad")).unwrap();
        assert!(has_line(&bug["stack"], line), "{name}, {line}: {bug:#}");
        let Some(sanitized) = &sanitized else { continue };
        let other = Command::new(sanitized).arg(name).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&other.stderr).into_owned();
        let is_known =
            said.contains("alloc-dealloc-mismatch") || said.contains("new-delete-type-mismatch");
        assert!(is_known && said.contains(&format!("operators.cpp:{line}")), "{name}: {said}");
        // The program can go on.
        let (output, report) = guard(&["--rate", "1", "--then", "continue"], &[program, name]);
        assert_eq!(output.status.code(), Some(99), "{name}");
        assert_eq!(only(&report)["kind"], "mismatch");
    }
}

#[test]
fn correct_programs_of_cpp_free_all_as_they_should() {
    let ways: [(&str, &[&str]); 3] = [
        ("operators", &[]),
        ("operators-static", &["-static-libstdc++", "-static-libgcc"]),
        ("operators-fixed", &["-no-pie", "-fno-pie"]),
    ];
    for (name, options) in ways {
        let Some(program) = operators(name, options) else { continue };
        let program = program.to_str().unwrap();
        for rate in ["1", "3"] {
            let (output, report) = guard(&["--rate", rate, "--most", "1G"], &[program, "correct"]);
            assert_eq!(report["bugs"].as_array().unwrap().len(), 0, "{name}: {report:#}");
            assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
        }
    }
}

#[test]
fn a_free_of_unmapped_memory_is_found() {
    let Some(program) = operators("operators", &[]) else { return };
    let (output, report) = guard(&["--rate", "1"], &[program.to_str().unwrap(), "free_unmapped"]);
    let bug = only(&report);
    assert_eq!((&bug["kind"], &bug["access"]), (&"invalid-free".into(), &"free".into()));
    assert!(has_line(&bug["stack"], line_with("gone", "bad")), "{bug:#}");
    assert_eq!(output.status.code(), Some(128 + 6));
}

#[test]
fn a_program_that_a_signal_ends_is_not_said_to_have_nothing_wrong() {
    let Some(program) = operators("operators", &[]) else { return };
    let program = program.to_str().unwrap();
    for rate in ["1", "1000"] {
        let (output, report) = guard(&["--rate", rate], &[program, "fault"]);
        let bug = only(&report);
        let words = ["kind", "access"].map(|key| bug[key].as_str().unwrap());
        assert_eq!((words, bug["address"].as_u64()), (["segv", "read"], Some(16)));
        assert!(has_line(&bug["stack"], line_with("", "fault")), "{bug:#}");
        assert_eq!(output.status.code(), Some(128 + 11));
    }
    // A handler cannot run without stack space.
    for (name, signal) in
        [("fault", "killed by SIGSEGV: a read at 0x10"), ("overflow_of_stack", "killed by SIGSEGV")]
    {
        let output = pagewise(&["guard", "--rate", "1", "--", program, name]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(signal) && !said.contains("Nothing wrong"), "{said}");
        assert_eq!(output.status.code(), Some(128 + 11));
    }
}

#[test]
fn the_chance_of_being_guarded_is_the_rate() {
    let threads = program("churned");
    let (_, all) = guard(&["--rate", "1"], &[threads.to_str().unwrap()]);
    let all = all["guard"]["guarded"].as_f64().unwrap();
    let (_, some) = guard(&["--rate", "100"], &[threads.to_str().unwrap()]);
    let some = some["guard"]["guarded"].as_f64().unwrap();
    // The count is binomially distributed: within five standard deviations.
    let (expected, spread) = (all / 100.0, (all * 0.01 * 0.99).sqrt());
    assert!((some - expected).abs() < 5.0 * spread, "{some} of {all}");
}

#[test]
fn the_names_of_kinds_are_those_of_the_documentation() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = fs::read_to_string(text).unwrap();
    let kinds: BTreeSet<&str> = [
        "overflow",
        "underflow",
        "use-after-free",
        "double-free",
        "invalid-free",
        "mismatch",
        "wild",
        "segv",
        "bus",
    ]
    .into();
    for kind in kinds {
        assert!(text.contains(&format!("`{kind}`")), "{kind}");
    }
}

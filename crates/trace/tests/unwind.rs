//! Call stacks by unwind tables against what a program is known to call, and against `perf script`.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![cfg(target_arch = "x86_64")]

mod common;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{LineProgram, TOO_LITTLE_MEMORY, build, events, faults, functions};
use pagewise_model::bounds::MemoryLimit;
use pagewise_skip::{Lack, has_all_rights, skip};
use pagewise_sys::perf_event::{PerfEvent, PerfType};
use pagewise_sys::perf_ring::Carries;
use pagewise_trace::{Callers, Finder, RecordedStacks, StackId, Symbols, Unwinder};

const CHAIN: [&str; 7] = ["sixth", "fifth", "fourth", "third", "second", "first", "main"];
const PAGES: usize = 300;

/// Number of occurrences of each list of functions: by tables, and by frame pointers.
type StackCounts = BTreeMap<Vec<String>, usize>;

fn record(flags: &[&str]) -> Option<(StackCounts, StackCounts)> {
    // Incomplete stacks are not counted here: which deep functions of the loader fault depends on
    // the pages of the libraries that are in memory.
    let (tables, pointers, _) = record_with(flags, 8192)?;
    Some((tables, pointers))
}

/// Records with the given number of stack bytes. Also returns the number of incomplete stacks.
fn record_with(flags: &[&str], stack: u16) -> Option<(StackCounts, StackCounts, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "chain.c", flags)?;
    // The loader's frames are as long as the search path for libraries that cargo sets: they would
    // not fit into the copy.
    let mut running = LineProgram::start(Command::new(program).arg(PAGES.to_string()).env_clear());
    let (mut stacks, mut unwinder) = (RecordedStacks::default(), Unwinder::default());
    let mut counts: [BTreeMap<StackId, usize>; 2] = Default::default();
    let mut pointers = Finder::new(Callers::FramePointers(64), MemoryLimit::DEFAULT);
    let carries = Carries { callers: pointers.carries().callers, ..Unwinder::carries(stack) };
    let done = faults(&mut running, carries, &mut |spaces, sample| {
        let addresses = unwinder.unwind(spaces, sample).iter().copied();
        let by_tables = stacks.number(spaces, sample.pid, addresses);
        let addresses = pointers.find(spaces, sample).iter().copied();
        let by_pointers = stacks.number(spaces, sample.pid, addresses);
        *counts[0].entry(by_tables).or_default() += 1;
        *counts[1].entry(by_pointers).or_default() += 1;
    });
    let mut symbols = Symbols::default();
    let [tables, pointers] = counts.map(|counts| {
        let mut by_names = StackCounts::new();
        for (stack, count) in counts {
            let names = functions(&mut symbols, &stacks.places()[stack.index()]);
            *by_names.entry(names).or_default() += count;
        }
        by_names
    });
    done.then_some((tables, pointers, unwinder.cut()))
}

/// Number of stacks that begin with the whole chain.
fn whole(counts: &StackCounts) -> usize {
    let whole = counts.iter().filter(|(names, _)| names.starts_with(&CHAIN.map(str::to_owned)));
    whole.map(|(_, count)| count).sum()
}

#[test]
fn unwind_tables_name_all_callers_without_frame_pointers() {
    let Some((tables, pointers)) = record(&["-fomit-frame-pointer"]) else { return };
    assert_eq!(whole(&tables), PAGES, "{tables:#?}");
    assert_eq!(whole(&pointers), 0, "{pointers:#?}");
    // To the very beginning, in the C library and out of the program again.
    let (names, _) = tables.iter().max_by_key(|(_, count)| **count).unwrap();
    assert_eq!(names.last().map(String::as_str), Some("_start"), "{names:?}");
}

#[test]
fn stacks_of_which_too_little_was_copied_are_counted() {
    let Some((tables, _, cut)) = record_with(&["-fomit-frame-pointer"], 64) else { return };
    assert_eq!(whole(&tables), 0, "{tables:#?}");
    assert!(cut >= u64::try_from(PAGES).unwrap(), "{cut}");
}

#[test]
fn tables_and_frame_pointers_agree_where_there_are_both() {
    let Some((tables, pointers)) = record(&["-fno-omit-frame-pointer"]) else { return };
    assert_eq!(whole(&tables), PAGES, "{tables:#?}");
    // A function that calls none need not push the pointer, so its caller is left out.
    let count = |counts: &StackCounts| -> usize {
        let has =
            |names: &Vec<String>| CHAIN[2..].iter().all(|name| names.iter().any(|it| it == name));
        counts.iter().filter(|(names, _)| has(names)).map(|(_, count)| count).sum()
    };
    assert_eq!((count(&tables), count(&pointers)), (PAGES, PAGES), "{pointers:#?}");
}

/// The interrupted function has made no call: its address is exact, not a return address.
#[test]
fn the_interrupted_function_is_the_caller_of_a_signal_handler() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-fomit-frame-pointer"];
    let Some(program) = build(folder.path(), "handler.c", &flags) else { return };
    // The loader's frames are as long as the search path for libraries that cargo sets: they would
    // not fit into the copy.
    let mut running = LineProgram::start(Command::new(program).arg(PAGES.to_string()).env_clear());
    let (mut stacks, mut unwinder) = (RecordedStacks::default(), Unwinder::default());
    let mut counts: BTreeMap<StackId, usize> = BTreeMap::new();
    let done = faults(&mut running, Unwinder::carries(8192), &mut |spaces, sample| {
        let addresses = unwinder.unwind(spaces, sample).iter().copied();
        *counts.entry(stacks.number(spaces, sample.pid, addresses)).or_default() += 1;
    });
    if !done {
        return;
    }
    let (stack, count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
    assert_eq!(*count, PAGES);
    let names = functions(&mut Symbols::default(), &stacks.places()[stack.index()]);
    // Frame 1 is the signal trampoline, which the handler returns to.
    assert_eq!(names[0], "handles", "{names:?}");
    assert_eq!(names[2..5], ["interrupted", "calls", "main"], "{names:?}");
}

/// The vDSO has no frame pointers and is in no file.
#[test]
fn the_time_is_answered_by_the_vdso() {
    /// `PERF_COUNT_SW_CPU_CLOCK`, in nanoseconds.
    const CLOCK: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 0);
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "clock.c", &["-fomit-frame-pointer"]) else { return };
    let mut running = LineProgram::start(&mut Command::new(program));
    let (mut stacks, mut unwinder) = (RecordedStacks::default(), Unwinder::default());
    let mut counts: BTreeMap<StackId, usize> = BTreeMap::new();
    let carries = Unwinder::carries(4096);
    let done = events(&mut running, CLOCK, 500_000, carries, &mut |spaces, sample| {
        let addresses: Vec<u64> = unwinder.unwind(spaces, sample).to_vec();
        let region = addresses.first().and_then(|first| spaces.find(sample.pid, *first));
        if region.is_some_and(|region| region.name.as_bytes() == b"[vdso]") {
            let stack = stacks.number(spaces, sample.pid, addresses.into_iter());
            *counts.entry(stack).or_default() += 1;
        }
    });
    if !done || counts.is_empty() {
        return skip(&Lack::Machine("the clock is read by system calls, not in the vDSO"));
    }
    let mut symbols = Symbols::default();
    for stack in counts.keys() {
        let names = functions(&mut symbols, &stacks.places()[stack.index()]);
        let at =
            names.iter().position(|name| name == "asks").unwrap_or_else(|| panic!("{names:?}"));
        assert!((1..4).contains(&at) && names[at + 1] == "main", "{names:?}");
        assert_eq!(names.last().map(String::as_str), Some("_start"), "{names:?}");
    }
}

#[test]
fn perf_finds_the_same_callers() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-fomit-frame-pointer"]) else { return };
    let data = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    // A ring for all samples, in case perf is not scheduled for long.
    perf.args([
        "record",
        "-q",
        "-m",
        "4M",
        "-e",
        "page-faults:u",
        "-c",
        "1",
        "--call-graph",
        "dwarf,8192",
    ]);
    perf.arg("-o").arg(&data).arg("--").arg(&program).arg(PAGES.to_string());
    let Ok(mut child) = perf.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() else {
        return skip(&Lack::Tool("perf"));
    };
    match child.stdin.take().unwrap().write_all(b"go\n") {
        // perf has ended already if it may not record.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    if !child.wait().unwrap().success() {
        return match has_all_rights() {
            true => skip(&Lack::Ability { of: "perf", what: "may not record" }),
            false => skip(&Lack::Machine(TOO_LITTLE_MEMORY)),
        };
    }
    let mut script = Command::new("perf");
    script.args(["script", "-F", "ip,sym", "-i"]).arg(&data);
    let output = script.stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stack = |block: &str| -> Vec<String> {
        let names = block.lines().filter_map(|line| line.split_whitespace().nth(1));
        names.map(|name| name.split('+').next().unwrap_or(name).to_owned()).collect()
    };
    let mut theirs = StackCounts::new();
    for block in text.split("\n\n").map(stack).filter(|stack| !stack.is_empty()) {
        *theirs.entry(block).or_default() += 1;
    }
    if whole(&theirs) == 0 {
        return skip(&Lack::Ability { of: "perf", what: "does not unwind by tables" });
    }
    let Some((ours, _)) = record(&["-fomit-frame-pointer"]) else { return };
    assert_eq!(whole(&theirs), whole(&ours), "{theirs:#?}");
    let longest = |counts: &StackCounts| {
        let counts =
            counts.iter().filter(|(names, _)| names.first().is_some_and(|it| it == "sixth"));
        counts.max_by_key(|(_, count)| **count).map(|(names, _)| names.clone()).unwrap()
    };
    let (ours, theirs) = (longest(&ours), longest(&theirs));
    assert_eq!(ours[..7], theirs[..7]);
    // Outside of the program, where the C library has names for both.
    if !ours.contains(&"?".to_owned()) && !theirs.contains(&"[unknown]".to_owned()) {
        assert_eq!(ours, theirs);
    }
}

/// Measures the cost: `cargo test --release -p pagewise-trace --test unwind -- --ignored
/// --nocapture`.
#[test]
#[ignore = "it measures"]
fn cost_of_a_frame() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-fomit-frame-pointer"]) else { return };
    let mut running = LineProgram::start(Command::new(program).arg("2000"));
    let mut unwinder = Unwinder::default();
    let mut costs: Vec<(u128, usize)> = Vec::new();
    faults(&mut running, Unwinder::carries(1024), &mut |spaces, sample| {
        const TIMES: u32 = 200;
        let frames = unwinder.unwind(spaces, sample).len();
        let start = Instant::now();
        for _ in 0..TIMES {
            std::hint::black_box(unwinder.unwind(spaces, sample));
        }
        costs.push((start.elapsed().as_nanos() / u128::from(TIMES), frames));
    });
    costs.sort_unstable();
    let (median, frames) = costs[costs.len() / 2];
    println!("{} stacks: median {median} ns a stack of {frames} frames", costs.len());
}

//! `trim`, on programs that check their live blocks and stacks all the time.
//!
//! `PAGEWISE_TRIMS` is the number of times that each program is trimmed under load.

use crate::fixture;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use pagewise_skip::{Lack, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use fixture::{json, pagewise, program};

const MIB: u64 = 1 << 20;
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// A program that checks on request that all its bytes are as it wrote them. It is killed when this
/// value is dropped.
struct CheckedProgram {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    facts: BTreeMap<String, u64>,
}

impl CheckedProgram {
    fn start(command: &mut Command) -> CheckedProgram {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut facts = BTreeMap::new();
        let mut line = String::new();
        while stdout.read_line(&mut line).unwrap() > 0 && line != "ready\n" {
            let (key, value) = line.trim().split_once(" = ").unwrap();
            facts.insert(key.to_owned(), value.parse().unwrap());
            line.clear();
        }
        CheckedProgram { child, stdin, stdout, facts }
    }

    /// Starts `arena_heavy.c` with this number of threads and microseconds between checks.
    fn arenas(threads: u32, rest: u32) -> CheckedProgram {
        let arguments = [threads, 12, 256, rest].map(|number| number.to_string());
        CheckedProgram::start(Command::new(program("arena_heavy")).args(arguments))
    }

    /// Starts `deep_stack.c` with a recursion of this depth.
    fn stacks(mib: u64) -> CheckedProgram {
        CheckedProgram::start(Command::new(program("deep_stack")).arg(mib.to_string()))
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Fills the heap of `arena_heavy.c` again, and frees most of it.
    fn refill(&mut self) {
        self.stdin.write_all(b"r").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        assert_eq!(answer, "refilled\n");
    }

    /// Asserts that all threads still run, and that no byte was ever wrong.
    fn assert_intact(&mut self) {
        self.stdin.write_all(b"q").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        assert!(answer.starts_with("ok "), "{answer:?}: {:?}", self.child.try_wait());
    }

    /// Returns the resident memory, from the page tables.
    fn resident(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn trim(&self, options: &[&str]) -> Value {
        json(&[&["trim", &self.pid(), "--json"], options].concat())
    }
}

impl Drop for CheckedProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number of bytes"))
}

/// Returns the row of a part of the memory in a report.
fn part<'v>(report: &'v Value, name: &str) -> &'v Value {
    let parts = report["parts"].as_array().unwrap();
    parts.iter().find(|part| part["part"] == name).unwrap()
}

#[test]
fn without_yes_nothing_changes() {
    let mut stacks = CheckedProgram::stacks(32);
    let before = stacks.resident();
    let report = stacks.trim(&[]);
    assert!(bytes(&report["estimate"]["stacks"]) > 32 * MIB, "{report}");
    assert!(bytes(&report["estimate"]["huge"]) < MIB, "{report}");
    assert!(report["returned"].is_null() && report["pause_us"].is_null(), "{report}");
    assert!(stacks.resident() > before - 2 * MIB);
    stacks.assert_intact();
}

#[test]
fn free_pages_of_arenas_are_released_and_live_blocks_keep_their_bytes() {
    let mut arenas = CheckedProgram::arenas(8, 20_000);
    let before = arenas.resident();
    // On busy CPUs the copy for the estimate takes long.
    let report = arenas.trim(&["--heap", "--yes", "--settle", "200ms", "--max-pause", "5s"]);
    let after = arenas.resident();
    arenas.assert_intact();
    // Each live block keeps one or two pages resident, and each thread keeps some pages of its
    // latest blocks.
    let kept = arenas.facts["heap.live"] * 8 + 8 * MIB;
    let expected = arenas.facts["heap.allocated"] - kept;
    let returned = bytes(&report["returned"]["heap"]);
    assert!(returned > expected, "{returned} of {expected}: {report}");
    // The threads allocate and free between the estimate and the release, so both amounts differ a
    // little.
    let estimate = bytes(&report["estimate"]["heap"]);
    assert!(estimate.abs_diff(returned) < 4 * MIB, "{returned} of {estimate}: {report}");
    assert!(before - after > expected, "{before} to {after}: {report}");
    assert!(bytes(&report["pause_us"]) > 0, "{report}");
    assert_eq!(part(&report, "heap")["functions"], serde_json::json!(["malloc_trim"]));
    assert!(bytes(&report["cost"]["waited_ns"]) >= 200_000_000, "{report}");
    assert!(report["returned"]["stacks"]["absent"].is_string(), "{report}");
}

#[test]
fn stacks_are_released_below_the_stack_pointer_alone() {
    let mut stacks = CheckedProgram::stacks(64);
    let before = stacks.resident();
    let report = stacks.trim(&["--stacks", "--yes", "--settle", "0s"]);
    let after = stacks.resident();
    stacks.assert_intact();
    let deep = stacks.facts["stacks.deep"];
    assert!(bytes(&report["returned"]["stacks"]) > deep - 2 * MIB, "{report}");
    assert!(before - after > deep - 2 * MIB, "{before} to {after}: {report}");
    // The thread `parked` always fails: its stack pointer is in an array on its own stack.
    // `coroutine` and `handler` fail if no attempt finds them outside of their arrays.
    let part = part(&report, "stacks");
    assert!(bytes(&part["failed"]) >= 1, "{report}");
    assert!(part["why"].as_str().unwrap().contains("cannot be followed"), "{report}");
}

/// Durations in microseconds for which runs of `trim` stopped a thread.
#[derive(Default)]
struct TrimStops {
    /// Stops to copy the heap for the estimate, without runs that did not copy the heap.
    copies: Vec<u64>,
    /// Stops to release memory.
    releases: Vec<u64>,
    /// Bytes that the heap returned.
    returned: Vec<i64>,
}

impl TrimStops {
    fn add(&mut self, report: &Value) {
        self.returned.extend(report["returned"]["heap"].as_i64());
        let copy = report["estimate"]["longest_stop_ns"].as_u64();
        self.copies.extend(copy.map(|it| it.div_ceil(1000)));
        self.releases.push(bytes(&report["pause_us"]));
    }
}

impl fmt::Display for TrimStops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [("copy for the estimate", &self.copies), ("release", &self.releases)];
        for (name, durations) in named {
            let mut sorted = durations.clone();
            sorted.sort_unstable();
            let at = |percent: usize| sorted.get(sorted.len() * percent / 100).unwrap_or(&0);
            let (count, longest) = (sorted.len(), sorted.last().unwrap_or(&0));
            let (median, most) = (at(50), at(99));
            write!(
                f,
                "{name}: {count} stops, median {median} us, 99 % {most} us, longest {longest} us; "
            )?;
        }
        let mut returned = self.returned.clone();
        returned.sort_unstable();
        let median = returned.get(returned.len() / 2).unwrap_or(&0);
        write!(f, "{} KiB of heap returned (median)", median / 1024)
    }
}

#[test]
fn programs_that_are_trimmed_again_and_again_under_load_lose_no_byte() {
    let rounds = std::env::var("PAGEWISE_TRIMS").map_or(5, |number| number.parse().unwrap());
    let mut programs = [CheckedProgram::arenas(8, 0), CheckedProgram::stacks(8)];
    let mut done = BTreeMap::new();
    let mut stops: [TrimStops; 2] = Default::default();
    for _ in 0..rounds {
        programs[0].refill();
        for (program, stops) in programs.iter_mut().zip(&mut stops) {
            let pid = program.pid();
            let words = ["trim", &pid, "--json", "--heap", "--stacks", "--yes", "--settle", "0s"];
            let output = pagewise(&words);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
            let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
            for part in report["parts"].as_array().unwrap() {
                let key = (part["part"].as_str().unwrap().to_owned(), part["done"].is_number());
                *done.entry(key).or_insert(0) += 1;
            }
            stops.add(&report);
            // Fails the test if a byte was wrong.
            program.assert_intact();
        }
    }
    let [arenas, stacks] = stops;
    eprintln!("{rounds} rounds, 0 bytes lost: {done:?}");
    eprintln!("arena-heavy program: {arenas}");
    eprintln!("program with deep stacks: {stacks}");
    assert!(done.contains_key(&("heap".to_owned(), true)), "{done:?}");
    assert!(done.contains_key(&("stacks".to_owned(), true)), "{done:?}");
}

#[test]
fn jemalloc_releases_its_free_pages_itself() {
    if !fs::exists(JEMALLOC).unwrap() {
        return skip(&Lack::Tool(JEMALLOC));
    }
    let mut command = Command::new(program("arena_heavy"));
    command.args(["4", "12", "256", "20000"]).env("LD_PRELOAD", JEMALLOC);
    // By default, jemalloc releases most free pages itself after some seconds.
    command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1");
    let mut arenas = CheckedProgram::start(&mut command);
    let report = arenas.trim(&["--heap", "--yes", "--settle", "0s", "--max-pause", "10s"]);
    arenas.assert_intact();
    let functions = &part(&report, "heap")["functions"];
    assert!(functions.as_array().unwrap().iter().any(|it| it == "mallctl"), "{report}");
    assert!(bytes(&report["returned"]["heap"]) > 20 * MIB, "{report}");
    assert_is_as_estimated(&report);
}

/// Asserts that the heap released the estimated amount, apart from the amounts that its threads
/// allocated and freed during the trim.
fn assert_is_as_estimated(report: &Value) {
    let [estimate, returned] =
        ["estimate", "returned"].map(|key| report[key]["heap"].as_i64().unwrap_or_default());
    assert!(returned.abs_diff(estimate) < 4 * MIB + returned.unsigned_abs() / 10, "{report}");
}

/// Trims a program with the allocator `library` in place of the C library's, and with a setting
/// that keeps this allocator from releasing pages itself. Asserts that the report names `function`,
/// and returns the report.
fn another_allocator(library: &str, function: &str, setting: (&str, &str)) -> Option<Value> {
    if !fs::exists(library).unwrap() {
        skip(&Lack::Tool(library));
        return None;
    }
    let mut command = Command::new(program("arena_heavy"));
    command.args(["4", "12", "256", "20000"]).env("LD_PRELOAD", library);
    let mut arenas = CheckedProgram::start(command.env(setting.0, setting.1));
    let report = arenas.trim(&["--heap", "--yes", "--settle", "0s", "--max-pause", "10s"]);
    arenas.assert_intact();
    let heap = part(&report, "heap");
    let functions = heap["functions"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert!(functions.iter().any(|it| it == function), "{report}");
    assert_eq!(heap["failed"], 0, "{report}");
    Some(report)
}

#[test]
fn tcmalloc_releases_its_free_pages_itself() {
    let library = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
    let setting = ("TCMALLOC_RELEASE_RATE", "0");
    let function = "MallocExtension_ReleaseFreeMemory";
    let Some(report) = another_allocator(library, function, setting) else { return };
    assert!(bytes(&report["returned"]["heap"]) > 8 * MIB, "{report}");
    assert_is_as_estimated(&report);
}

#[test]
fn mimalloc_collects_its_free_pages_itself() {
    // mimalloc collects only the pages of the calling thread, so the amount depends on the thread.
    let library = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2";
    let setting = ("MIMALLOC_PURGE_DELAY", "-1");
    let Some(report) = another_allocator(library, "mi_collect", setting) else { return };
    let why = report["estimate"]["heap"]["absent"].as_str().unwrap();
    assert!(why.contains("pages of one thread"), "{why}");
}

/// Returns true if the machine has swap now.
fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

#[test]
fn cold_memory_moves_to_swap_or_is_refused_without() {
    let mut stacks = CheckedProgram::stacks(32);
    let before = has_swap();
    let output =
        pagewise(&["trim", &stacks.pid(), "--json", "--cold", "50ms", "--yes", "--settle", "0s"]);
    stacks.assert_intact();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{output:?}, swap: {before}, {}", has_swap()));
    match report["returned"]["cold"].as_i64() {
        Some(_) => {
            assert!(before || has_swap(), "there is no swap: {report}");
            assert!(part(&report, "cold")["done"].is_number(), "{report}");
        }
        None => {
            let why = report["returned"]["cold"]["absent"].as_str().unwrap();
            assert!(why.contains("swap is off"), "{why}");
            assert!(!before || !has_swap(), "there is swap: {report}");
            assert_eq!(output.status.code(), Some(1));
        }
    }
}

#[test]
fn only_selected_parts_are_read() {
    let mut arenas = CheckedProgram::arenas(2, 20_000);
    let report = arenas.trim(&["--heap", "--max-pause", "10s"]);
    arenas.assert_intact();
    let estimate = &report["estimate"];
    assert!(estimate["heap"].is_number(), "{report}");
    assert!(bytes(&estimate["longest_stop_ns"]) > 0, "{report}");
    for part in ["stacks", "huge"] {
        let why = estimate[part]["absent"].as_str().unwrap();
        assert!(why.contains(&format!("--{part} was not given")), "{report}");
    }
}

#[test]
fn a_copy_that_is_refused_has_no_duration_of_a_stop() {
    let mut arenas = CheckedProgram::arenas(2, 20_000);
    let report = arenas.trim(&["--heap", "--max-pause", "1us"]);
    arenas.assert_intact();
    assert!(report["estimate"]["heap"]["absent"].is_string(), "{report}");
    assert!(!report["estimate"]["longest_stop_ns"].is_number(), "{report}");
}

#[test]
fn the_heap_of_several_threads_is_released_while_all_of_them_run() {
    let mut arenas = CheckedProgram::arenas(4, 20_000);
    let threads = || fs::read_dir(format!("/proc/{}/task", arenas.child.id())).unwrap().count();
    let maps = || fs::read_to_string(format!("/proc/{}/maps", arenas.child.id())).unwrap();
    let before = threads();
    let report = arenas.trim(&["--heap", "--yes", "--settle", "0s", "--max-pause", "10s"]);
    // The thread that called the function has ended, and its memory is unmapped.
    assert_eq!(threads(), before);
    assert!(!maps().lines().any(|it| it.contains(" r-xp 00000000 00:00 0 ") && !it.contains('[')));
    assert!(bytes(&report["returned"]["heap"]) > 20 * MIB, "{report}");
    arenas.assert_intact();
}

#[test]
fn a_static_program_releases_its_free_pages() {
    let Some(program) = fixture::static_program("arena_heavy") else { return };
    let mut arenas = CheckedProgram::start(Command::new(program).args(["4", "12", "256", "20000"]));
    let report = arenas.trim(&["--heap", "--yes", "--settle", "0s"]);
    arenas.assert_intact();
    assert!(bytes(&report["returned"]["heap"]) > 20 * MIB, "{report}");
}

#[test]
fn a_stopped_process_is_left_as_it_is() {
    let mut stacks = CheckedProgram::stacks(8);
    let pid = Pid::from_raw(stacks.child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", stacks.pid())).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    while !is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = pagewise(&[
        "trim",
        &stacks.pid(),
        "--json",
        "--heap",
        "--stacks",
        "--yes",
        "--settle",
        "0s",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["heap", "stacks"] {
        let why = report["returned"][key]["absent"].as_str().unwrap();
        assert!(why.contains("it is stopped"), "{why}");
    }
    kill_process(pid, Signal::CONT).unwrap();
    stacks.assert_intact();
}

#[test]
fn yes_needs_a_selection() {
    let output = pagewise(&["trim", "1", "--yes"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Starts `heap_states.c` in a state.
fn in_state(state: &str) -> CheckedProgram {
    CheckedProgram::start(Command::new(program("heap_states")).args([state, "80"]))
}

impl CheckedProgram {
    fn explain(&self, options: &[&str]) -> Value {
        json(&[&["explain", &self.pid(), "--json"], options].concat())
    }
}

/// Returns the findings about the heap.
fn heap_findings(report: &Value) -> Vec<&Value> {
    let ids = ["trimmable-heap", "fragmented-heap", "leaked-blocks"];
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|it| ids.iter().any(|id| it["id"] == *id)).collect()
}

/// Returns the lower and the upper bound of a share of the sampled heap.
fn bounds(report: &Value, key: &str) -> (u64, u64) {
    let bounds = &report["heap_sample"][key];
    (bytes(&bounds["low"]), bytes(&bounds["high"]))
}

#[test]
fn explain_names_a_trimmable_heap_and_trim_returns_what_it_says() {
    let programs = [in_state("trimmable"), CheckedProgram::arenas(8, 20_000)];
    for mut program in programs {
        for reading in fixture::READINGS {
            let report = program.explain(&[reading]);
            let found = heap_findings(&report);
            assert_eq!(found.len(), 1, "{reading}: {report}");
            assert_eq!(found[0]["id"], "trimmable-heap");
            let command = format!("`pagewise trim {} --heap --yes`", program.pid());
            assert!(found[0]["next_step"].to_string().contains(&command), "{}", found[0]);
        }
        let report = program.explain(&[]);
        let (low, high) = bounds(&report, "trimmable");
        let top = bounds(&report, "top").1;
        assert!(low > 40 * MIB && high < 100 * MIB, "{low} {high}");
        let options = ["--heap", "--yes", "--settle", "0s", "--max-pause", "5s"];
        let returned = bytes(&program.trim(&options)["returned"]["heap"]);
        program.assert_intact();
        // Threads allocate and free during the release, so the bounds have a tolerance.
        let slack = 4 * MIB;
        assert!(returned + slack >= low && returned <= high + top + slack, "{returned}: {report}");
        let after = program.explain(&[]);
        assert_eq!(heap_findings(&after), Vec::<&Value>::new(), "{after}");
    }
}

#[test]
fn explain_names_a_fragmented_heap_which_no_trim_but_a_copy_makes_smaller() {
    let mut fragmented = in_state("fragmented");
    let report = fragmented.explain(&[]);
    let found = heap_findings(&report);
    assert_eq!(found.len(), 1, "{report}");
    assert_eq!(found[0]["id"], "fragmented-heap");
    let (low, high) = bounds(&report, "pinned");
    assert!(low > 60 * MIB && high < 85 * MIB, "{report}");
    let options = ["--heap", "--yes", "--settle", "0s", "--max-pause", "5s"];
    let returned = fragmented.trim(&options)["returned"]["heap"].as_i64().unwrap();
    assert!(returned < 4 << 20, "{returned}");
    fragmented.assert_intact();
    // The following command is the remedy that the finding names.
    let mut copied = in_state("copied");
    assert_eq!(heap_findings(&copied.explain(&[])), Vec::<&Value>::new());
    assert!(copied.resident() + low < fragmented.resident() + 8 * MIB);
    copied.assert_intact();
}

#[test]
fn explain_claims_no_leak_from_one_snapshot_and_names_the_command_that_finds_it() {
    let mut leaking = in_state("leaking");
    let report = leaking.explain(&[]);
    assert_eq!(heap_findings(&report), Vec::<&Value>::new());
    assert!(bounds(&report, "live").0 > 70 * MIB, "{report}");
    let page = pagewise(&["explain", &leaking.pid()]);
    let page = String::from_utf8(page.stdout).unwrap();
    let pid = leaking.pid();
    assert!(page.contains(&format!("`pagewise heap scan {pid} --leaks`")), "{page}");
    let scan = json(&["heap", "scan", &pid, "--leaks", "--json", "--max-pause", "5s"]);
    assert!(bytes(&scan["leaked"]["bytes"]) > 70 * MIB, "{}", scan["leaked"]);
    leaking.assert_intact();
}

#[test]
fn explain_has_no_finding_about_a_heap_that_is_in_use_or_free_at_its_end() {
    for state in ["cache", "top", "trimmed"] {
        let mut program = in_state(state);
        let report = program.explain(&[]);
        assert_eq!(heap_findings(&report), Vec::<&Value>::new(), "{state}");
        let sample = &report["heap_sample"];
        match state {
            "cache" => assert!(bounds(&report, "live").0 > 70 * MIB, "{sample}"),
            "top" => assert!(bounds(&report, "top").0 > 70 * MIB, "{sample}"),
            _ => assert!(sample["absent"].is_string(), "{sample}"),
        }
        program.assert_intact();
    }
}

#[test]
fn a_saved_snapshot_has_the_sample_of_the_heap_and_so_has_a_core() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.json");
    let file = file.to_str().unwrap();
    let program = in_state("fragmented");
    let live = program.explain(&["--save", file]);
    let saved = json(&["explain", "--from", file, "--json"]);
    assert_eq!(saved["heap_sample"], live["heap_sample"]);
    assert_eq!(saved["findings"], live["findings"]);
    assert_eq!(heap_findings(&saved).len(), 1, "{saved}");

    let prefix = folder.path().join("core");
    let gcore = Command::new("gcore").arg("-o").arg(&prefix).arg(program.pid()).output();
    let Ok(made) = gcore else { return skip(&Lack::Tool("gcore")) };
    assert!(made.status.success(), "{made:?}");
    let core = format!("{}.{}", prefix.display(), program.pid());
    let report = json(&["explain", "--core", &core, "--json"]);
    let found = heap_findings(&report);
    assert_eq!(found.len(), 1, "{report}");
    assert_eq!(found[0]["id"], "fragmented-heap");
}

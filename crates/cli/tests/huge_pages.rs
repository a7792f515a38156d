//! `thp`, `run --thp` and `trim --cold`, on programs that write to their memory and check it all
//! the time.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, has_all_rights, is_root, skip, skip_part};
use serde_json::Value;

use fixture::{json, number, pagewise, program, sum, vmstat};

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;

/// A program that runs on until it is dropped or ended.
struct RunningHuge {
    child: Child,
    stdout: BufReader<ChildStdout>,
    facts: BTreeMap<String, u64>,
}

impl RunningHuge {
    fn start(command: &mut Command) -> RunningHuge {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut running = RunningHuge { child, stdout, facts: BTreeMap::new() };
        running.read_facts();
        running
    }

    /// Starts `huge.c`. Returns `None`, after recording a skip, if the kernel gave it too few huge
    /// pages.
    fn huge(mib: u64, period_kib: u64) -> Option<RunningHuge> {
        let arguments = [mib, period_kib].map(|n| n.to_string());
        let running = RunningHuge::start(Command::new(program("huge")).args(arguments));
        let huge = running.counter("AnonHugePages");
        if huge < mib * MIB {
            let why = format!("only {huge} bytes of huge pages instead of {mib} MiB");
            skip(&Lack::Chance(&why));
            return None;
        }
        Some(running)
    }

    fn read_facts(&mut self) {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 && line != "ready\n" {
            let (key, value) = line.trim().split_once(" = ").unwrap();
            self.facts.insert(key.to_owned(), value.parse().unwrap());
            line.clear();
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Asserts that `heap_states.c` finds all its live blocks as it filled them.
    fn assert_intact(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"q").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok 1\n", "{:?}", self.child.try_wait());
    }

    /// Returns a line of `smaps_rollup`, in bytes.
    fn counter(&self, name: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    }

    /// Returns the `VmFlags` of the mapping at `huge.start`.
    fn flags(&self) -> String {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let from = smaps.find(&format!("{:x}-", self.facts["huge.start"])).unwrap();
        let line = smaps[from..].lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        format!("{line} ")
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.pid()]).status().unwrap().success());
    }

    /// Stops every thread of the program.
    fn stop(&self) {
        self.signal("STOP");
        let stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        };
        let begin = Instant::now();
        let tasks = || fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        while !tasks().all(|task| stopped(task.unwrap())) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }

    /// Ends `huge.c`. Asserts that the program never found its memory changed, and checked it at
    /// least once.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "it found its memory changed: {rest}");
        let rounds = rest.trim().strip_prefix("huge.rounds = ").map(|n| n.parse::<u64>().unwrap());
        assert!(rounds.is_none_or(|rounds| rounds > 0), "{rest}");
    }
}

impl Drop for RunningHuge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of huge pages that the kernel has made of base pages since boot, in any
/// process.
fn collapsed() -> u64 {
    vmstat(&["thp_collapse_alloc"])
}

/// Returns the number of bytes that khugepaged may have added, since `collapsed` was `before`, to a
/// process whose mappings request huge pages: each of its runs makes up to eight huge pages
/// (`pages_to_scan`).
fn added_by_khugepaged(before: u64) -> u64 {
    (collapsed() - before) * HUGE
}

fn thp(running: &RunningHuge, options: &[&str]) -> Value {
    json(&[&["thp", &running.pid(), "--json"], options].concat())
}

fn finds_bloat(report: &Value) -> bool {
    report["findings"].as_array().unwrap().iter().any(|f| f["id"] == "huge-page-bloat")
}

/// Returns the row of the mapping that `huge.c` made.
fn its_row<'a>(running: &RunningHuge, report: &'a Value) -> &'a Value {
    let rows = report["mappings"].as_array().unwrap();
    rows.iter().find(|row| row["start"] == running.facts["huge.start"]).unwrap()
}

#[test]
fn bloat_is_what_was_never_written_to_the_byte() {
    for (period, zero) in [(2048, 511), (512, 508), (16, 384), (4, 0)] {
        let Some(running) = RunningHuge::huge(32, period) else { return };
        let report = thp(&running, &[]);
        assert_eq!(number(&report, "total.huge"), 32 * MIB, "every {period} KiB");
        assert_eq!(number(&report, "total.bloat"), 16 * zero * 4096, "every {period} KiB");
        let row = its_row(&running, &report);
        assert_eq!(number(row, "huge"), 32 * MIB);
        assert_eq!(number(row, "bloat"), number(&report, "total.bloat"));
        assert_eq!(sum(&report["mappings"], "rss"), number(&report, "total.resident"));
        assert_eq!(finds_bloat(&report), zero > 0, "every {period} KiB");
        running.end();
    }
}

#[test]
fn a_report_changes_nothing() {
    let Some(running) = RunningHuge::huge(32, 2048) else { return };
    // A running program would touch its own pages meanwhile.
    running.stop();
    let seen = || {
        let names = ["Rss", "AnonHugePages", "Anonymous", "Swap"];
        (names.map(|name| running.counter(name)), running.status("VmPTE"))
    };
    let before = seen();
    thp(&running, &[]);
    thp(&running, &["--sample"]);
    thp(&running, &["--fix", "--hold"]);
    thp(&running, &["--collapse"]);
    assert_eq!(seen(), before);
    running.signal("CONT");
    running.end();
}

#[test]
fn the_interval_of_a_sample_contains_the_true_value() {
    let Some(running) = RunningHuge::huge(64, 16) else { return };
    let truth = 64 * MIB / 4 * 3;
    // 95 % of the intervals contain the true value, and more with evenly spread samples. Fewer than
    // 15 of 20 would be far below.
    let good = (0..20).filter(|_| {
        let report = thp(&running, &["--sample", "2000"]);
        let total = &report["total"];
        let [low, high] = ["bloat_low", "bloat_high"].map(|key| number(total, key));
        assert!(low < high && high - low < 4 * MIB, "{low} to {high}");
        (low..=high).contains(&truth)
    });
    assert!(good.count() >= 15);
    running.end();
}

#[test]
fn a_plan_changes_nothing_and_a_fix_releases_zero_pages() {
    let Some(running) = RunningHuge::huge(64, 2048) else { return };
    let plan = &thp(&running, &["--fix"])["plan"];
    assert_eq!((number(plan, "ranges"), number(plan, "bytes")), (32, 64 * MIB));
    assert_eq!(number(plan, "change"), 64 * MIB - 32 * 4096);
    assert_eq!(running.counter("AnonHugePages"), 64 * MIB);

    let before = collapsed();
    let fix = &thp(&running, &["--fix", "--yes"])["fix"];
    assert!(number(fix, "rss_before") >= 64 * MIB, "{fix}");
    assert!(number(fix, "rss_after") < 5 * MIB + added_by_khugepaged(before), "{fix}");
    // A range that khugepaged made huge again meanwhile counts as failed.
    let failed = number(fix, "failed");
    assert_eq!(number(fix, "done") + failed, 32, "{fix}");
    assert!(failed <= collapsed() - before, "{fix}");
    // Advice from outside needs CAP_SYS_NICE; without it the process is stopped for a moment.
    if has_all_rights() {
        assert_eq!(number(fix, "longest_stop_ns"), 0, "splitting from outside stops nobody");
    }
    assert!(fix["seconds"].as_f64().unwrap() > 0.0);
    let rss = running.counter("Rss");
    assert!(rss < 5 * MIB + added_by_khugepaged(before), "{rss}");
    assert!(running.flags().contains(" hg "), "without --hold nothing is forbidden");
    running.end();
}

#[test]
fn every_chosen_method_releases_zero_pages_and_keeps_written_ones() {
    for method in ["split", "drop", "swap"] {
        let Some(running) = RunningHuge::huge(32, 64) else { return };
        if method != "drop" && !has_all_rights() {
            let words = ["thp", &running.pid(), "--fix", "--yes", "--method", method];
            let output = pagewise(&words);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!output.status.success() && said.contains("needs CAP_SYS_NICE"), "{said}");
            skip_part(&Lack::Root);
            continue;
        }
        let before = collapsed();
        let fix = &thp(&running, &["--fix", "--yes", "--method", method])["fix"];
        assert_eq!(fix["method"], method);
        assert!(number(fix, "rss_after") < 8 * MIB + added_by_khugepaged(before), "{fix}");
        let stops = number(fix, "longest_stop_ns");
        assert_eq!(stops > 0, method == "drop", "{method}: {stops}");
        running.end();
    }
}

#[test]
fn hold_forbids_huge_pages_where_they_were_sparse() {
    let Some(running) = RunningHuge::huge(32, 2048) else { return };
    let fix = &thp(&running, &["--fix", "--hold", "--yes"])["fix"];
    assert!(number(fix, "longest_stop_ns") > 0, "one thread was stopped for a moment: {fix}");
    assert!(fix["not_held"].is_null(), "{fix}");
    assert!(running.flags().contains(" nh "), "{}", running.flags());
    assert!(running.counter("Rss") < 5 * MIB);
    running.end();
}

#[test]
fn dense_huge_pages_are_spared() {
    let Some(running) = RunningHuge::huge(32, 4) else { return };
    let report = thp(&running, &["--fix", "--yes"]);
    assert_eq!(number(&report["fix"], "done"), 0);
    assert_eq!(running.counter("AnonHugePages"), 32 * MIB);
    // A quarter of each huge page is used, so the page is sparse with `--sparse 50`, and not with
    // `--sparse 80`.
    let Some(partly) = RunningHuge::huge(32, 16) else { return };
    assert_eq!(number(&thp(&partly, &["--fix"])["plan"], "ranges"), 16);
    let plan = &thp(&partly, &["--fix", "--sparse", "80"])["plan"];
    assert_eq!((number(plan, "ranges"), number(plan, "spared")), (0, 32 * MIB));
    running.end();
    partly.end();
}

#[test]
fn split_pages_can_be_made_huge_again() {
    if !is_root() {
        return;
    }
    let Some(running) = RunningHuge::huge(16, 4) else { return };
    let split = format!("{}-{}", running.facts["huge.start"], running.facts["huge.start"] + HUGE);
    assert_eq!(running.counter("AnonHugePages"), 16 * MIB, "{split}");
    let arguments = ["16", "4", "default"];
    let small = RunningHuge::start(Command::new(program("huge")).args(arguments));
    if small.counter("AnonHugePages") > 0 {
        return skip(&Lack::Machine("the kernel makes huge pages without being asked"));
    }
    let plan = &thp(&small, &["--collapse"])["plan"];
    assert_eq!(number(plan, "ranges"), 8);
    // The kernel may have no huge page free for some of the ranges.
    let huge = repeated(|| {
        let words = ["thp", &small.pid(), "--json", "--collapse", "--yes"];
        let output = pagewise(&words);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (done, failed) = (number(&report, "fix.done"), number(&report, "fix.failed"));
        let huge = small.counter("AnonHugePages");
        // khugepaged may have collapsed some of the ranges already.
        assert!(done * HUGE <= huge && done + failed <= 8, "{report}");
        assert_eq!(output.status.success(), done > 0 || failed == 0, "{report}");
        (huge == 16 * MIB).then_some(huge)
    });
    if huge.is_none() {
        return skip(&Lack::Chance("the kernel gives no huge pages"));
    }
    running.end();
    small.end();
}

#[test]
fn a_stopped_process_can_be_repaired_and_stays_stopped() {
    let Some(running) = RunningHuge::huge(16, 2048) else { return };
    running.stop();
    thp(&running, &["--fix", "--hold", "--yes"]);
    assert!(running.counter("Rss") < 5 * MIB);
    assert!(running.status("State").starts_with('T'));
    running.signal("CONT");
    running.end();
}

#[test]
fn a_sparse_std_map_is_found_and_named() {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sparse_map");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/sparse_map.cpp");
    let done = Command::new("c++").args(["-O1", "-o"]).arg(&built).arg(source).status();
    if !done.is_ok_and(|status| status.success()) {
        return skip(&Lack::Tool("c++"));
    }
    let running = RunningHuge::start(&mut Command::new(built));
    if running.facts["collapsed"] == 0 {
        return skip(&Lack::Chance("the kernel collapses no pages"));
    }
    let report = thp(&running, &[]);
    assert!(finds_bloat(&report));
    let bloat = number(&report, "total.bloat");
    assert!(bloat > running.facts["heap"] / 10 * 8, "{bloat} of {}", running.facts["heap"]);
    let rows = report["mappings"].as_array().unwrap();
    let heap = rows.iter().find(|row| row["name"] == "[heap]").unwrap();
    assert_eq!(number(heap, "bloat"), bloat, "all of it is in the heap");
    assert_eq!(report["findings"][0]["evidence"]["worst"], "[heap]");
    let before = collapsed();
    thp(&running, &["--fix", "--yes"]);
    let rss = running.counter("Rss");
    assert!(rss < bloat / 4 + added_by_khugepaged(before), "{rss} after {bloat}");
    running.end();
}

/// Repeats an attempt until it has a result, for a minute at most.
fn repeated<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(result) = attempt() {
            return Some(result);
        }
    }
    None
}

/// A setting of the machine, which is restored when this value is dropped.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn change(path: &'static str, value: &str) -> Option<Setting> {
        let text = fs::read_to_string(path).ok()?;
        let before = text.split(['[', ']']).nth(1)?.to_owned();
        fs::write(path, value).ok()?;
        Some(Setting { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.before);
    }
}

#[test]
fn smaller_huge_pages_are_listed_by_size() {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    if !is_root() {
        return;
    }
    let Some(setting) = Setting::change(ENABLED, "madvise") else {
        return skip(&Lack::KernelFile(ENABLED));
    };
    // The memory is too small for a huge page of 2 MiB.
    let running = RunningHuge::start(Command::new(program("huge")).args(["1", "64"]));
    drop(setting);
    let report = thp(&running, &[]);
    // One page of sixteen was written.
    let bloat = MIB / 16 * 15;
    let row =
        serde_json::json!({"size": 65536, "rss": MIB, "bloat": bloat, "mapped": "base entries"});
    assert_eq!(report["sizes"], Value::Array(vec![row]));
    assert_eq!(number(&report, "total.huge"), 0);
    running.end();
}

/// A swap file, in use until it is dropped.
struct Swap(tempfile::TempDir);

impl Swap {
    fn on(mib: u64) -> Option<Swap> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("swap");
        let script = format!(
            "umask 077; dd if=/dev/zero of=$0 bs=1M count={mib} status=none && mkswap -q $0 && swapon $0"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&path).stderr(Stdio::null()).stdout(Stdio::null());
        command.status().unwrap().success().then_some(Swap(folder))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.0.path().join("swap")).status();
    }
}

#[test]
fn unused_pages_go_to_swap() {
    if !is_root() {
        return;
    }
    let Some(_swap) = Swap::on(128) else {
        return skip(&Lack::Machine("no swap file can be used"));
    };
    let big = RunningHuge::start(Command::new(program("big")).arg("64"));
    let page_out = ["--pageout", "--idle", "300ms"];
    // If the program waits for a CPU, it may not sleep yet, and still use its memory.
    let plan = repeated(|| {
        let report = thp(&big, &page_out);
        (number(&report, "plan.change") >= 64 * MIB).then_some(report)
    });
    let plan = &plan.unwrap()["plan"];
    assert!(number(plan, "change") < 66 * MIB, "{plan}");
    assert_eq!(big.counter("Swap"), 0);
    let fix = &thp(&big, &[&page_out[..], &["--yes"]].concat())["fix"];
    assert!(number(fix, "rss_after") < 16 * MIB, "{fix}");
    assert!(big.counter("Swap") >= 48 * MIB);
    // Memory that is in use is not swapped out.
    let Some(busy) = RunningHuge::huge(16, 4) else { return };
    let spared = repeated(|| {
        let spared = number(&thp(&busy, &page_out), "plan.spared");
        (spared >= 16 * MIB).then_some(spared)
    });
    assert!(spared.is_some(), "memory in use is taken for idle");
    busy.end();
}

#[test]
fn trim_moves_cold_memory_to_swap_and_no_byte_is_lost() {
    if !is_root() {
        return;
    }
    let Some(_swap) = Swap::on(192) else {
        return skip(&Lack::Machine("no swap file can be used"));
    };
    // One block in 13 is live and checked, so each page has one.
    let mut running =
        RunningHuge::start(Command::new(program("heap_states")).args(["fragmented", "64"]));
    let pid = running.pid();
    let cold = ["trim", &pid, "--json", "--cold", "500ms"];
    let report = json(&cold);
    let estimate = number(&report, "estimate.cold");
    assert!((60 * MIB..80 * MIB).contains(&estimate), "{report}");
    assert_eq!(running.counter("Swap"), 0);

    let report = json(&[&cold[..], &["--yes", "--settle", "0s"]].concat());
    let swapped = running.counter("Swap");
    assert!(swapped >= 48 * MIB, "{swapped}: {report}");
    let returned = number(&report, "returned.cold");
    assert!(returned.abs_diff(swapped) < 4 * MIB, "{returned} of {swapped}: {report}");
    assert!(returned <= estimate + 4 * MIB, "{returned} of {estimate}: {report}");
    running.assert_intact();
    assert!(running.counter("Rss") > 48 * MIB, "the check reads all pages");

    let again = [&cold[..], &["--yes", "--settle", "10s"]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    let mut trim = command.args(again).stdout(Stdio::piped()).spawn().unwrap();
    while running.counter("Rss") > 32 * MIB && trim.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    // The program reads its pages while trim counts page faults.
    std::thread::sleep(Duration::from_secs(1));
    running.assert_intact();
    let output = trim.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let faults = ["minor_faults", "major_faults"].map(|it| number(&report["cost"], it));
    assert!(faults.iter().sum::<u64>() > 100, "{faults:?}: {report}");
}

#[test]
fn swapped_shared_memory_is_in_every_sum_alike() {
    if !is_root() {
        return;
    }
    let Some(_swap) = Swap::on(128) else {
        return skip(&Lack::Machine("no swap file can be used"));
    };
    let swapped = RunningHuge::start(Command::new(program("swapped")).args(["32", "8"]));
    let in_swap = swapped.counter("Swap");
    let status = fs::read_to_string(format!("/proc/{}/status", swapped.pid())).unwrap();
    let private = status.lines().find_map(|line| line.strip_prefix("VmSwap:")).unwrap();
    let private = private.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    if in_swap < private + 16 * MIB {
        return skip(&Lack::Machine("the kernel does not page out shared memory when asked"));
    }
    let report = json(&["explain", &swapped.pid(), "--json", "--full"]);
    assert_eq!(number(&report, "totals.swap"), in_swap);
    assert_eq!(number(&report, "totals.swap_private"), private);
    let quadrants = report["quadrants"]["effective"].as_object().unwrap();
    let swapped_in = |row: &Value| number(row, "swapped");
    assert_eq!(quadrants.values().map(swapped_in).sum::<u64>(), in_swap);
    let listing = json(&["ps", "--json", "--full"]);
    let rows = listing["processes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["pid"] == u64::from(swapped.child.id())).unwrap();
    assert_eq!(number(row, "swap"), in_swap);
    let output = pagewise(&["explain", &swapped.pid(), "--full"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("SWAP (private)"));
    // Page tables do not show swapped shared memory.
    let fast = json(&["explain", &swapped.pid(), "--json", "--fast"]);
    assert!(fast["totals"]["swap"]["absent"].is_string(), "{}", fast["totals"]);
    assert_eq!(number(&fast, "totals.swap_private"), private);
}

#[test]
fn run_starts_a_program_without_huge_pages() {
    let script = "grep THP_enabled /proc/self/status; exit 5";
    for (which, line) in [("never", "THP_enabled:\t0\n"), ("always", "THP_enabled:\t1\n")] {
        let output = pagewise(&["run", "--thp", which, "--", "sh", "-c", script]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), line, "{which}");
        assert_eq!(output.status.code(), Some(5));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["run", "--thp=never", "--"]).arg(program("huge")).args(["16", "2048", "default"]);
    let running = RunningHuge::start(&mut command);
    assert_eq!(running.counter("AnonHugePages"), 0);
    let report = thp(&running, &[]);
    assert_eq!((number(&report, "total.huge"), number(&report, "total.bloat")), (0, 0));
    assert!(!finds_bloat(&report));
    running.end();
    for (program, code) in [("/no/such/program", 127), ("/", 126)] {
        let output = pagewise(&["run", "--thp=never", "--", program]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn a_process_that_ends_while_it_is_read_is_an_error_and_no_panic() {
    let Some(first) = RunningHuge::huge(256, 2048) else { return };
    drop(first);
    let mut gone = 0;
    for delay in 0..12 {
        let Some(mut running) = RunningHuge::huge(256, 2048) else { return };
        let pid = running.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(delay * 5));
            let _ = running.child.kill();
            running
        });
        let output = pagewise(&["thp", &pid, "--fix", "--yes", "--json"]);
        drop(killer.join().unwrap());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => drop(serde_json::from_slice::<Value>(&output.stdout).unwrap()),
            Some(1) => gone += 1,
            code => panic!("{code:?}: {said}"),
        }
    }
    assert!(gone > 0, "no round caught the process going");
}

#[test]
fn another_user_gets_the_reason_of_a_refusal() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65534;
    let Some(running) = RunningHuge::huge(16, 2048) else { return };
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let binary = open.path().join("pagewise");
    fixture::copy_program(env!("CARGO_BIN_EXE_pagewise").as_ref(), &binary);
    let mut command = Command::new(binary);
    command.args(["thp", &running.pid(), "--json"]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let absent = report.is_some_and(|report| report["total"]["absent"].is_string());
    assert!(absent || said.contains("CAP_SYS_PTRACE"), "{said}");
    running.end();
}

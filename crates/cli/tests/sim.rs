//! `sim` on traces with known answers, and on commands under valgrind, against valgrind's own
//! counts.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagewise_skip::{Lack, skip};
use serde_json::Value;

use fixture::{StaysBehind, json, number, pagewise};

/// Returns a trace in lackey's format that loads a byte of each of `pages` pages, `times` times.
fn page_by_page(pages: u64, times: u64) -> String {
    let mut trace = "==1== Lackey, an example Valgrind tool\n".to_owned();
    for page in (0..times).flat_map(|_| 0..pages) {
        writeln!(trace, "I  0401ab70,3\n L {:08x},1", 0x1000_0000 + page * 4096).unwrap();
    }
    trace
}

fn file(folder: &Path, text: impl AsRef<[u8]>) -> String {
    let path = folder.join("trace");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Runs `sim` for the CPU with known data, without its prefetcher.
fn on_i7(command: &str, more: &[&str]) -> Value {
    let known = ["sim", command, "--cpu", "i7-6800k", "--prefetch", "none", "--json"];
    json(&[&known, more].concat())
}

fn has_valgrind() -> bool {
    let there = Command::new("valgrind").arg("--version").output().is_ok();
    if !there {
        skip(&Lack::Tool("valgrind"));
    }
    there
}

/// Builds a C program that touches memory in many ways and ends by itself.
fn strides(folder: &Path) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/strides.c");
    let program = folder.join("strides");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).status();
    if !built.is_ok_and(|status| status.success()) {
        skip(&Lack::Tool("cc"));
        return None;
    }
    Some(program)
}

/// Runs a program with only PATH in its environment: the environment lies on the stack and changes
/// its addresses.
fn bare(program: &str, args: &[&str]) -> Output {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Command::new(program).args(args).env_clear().env("PATH", path).output().unwrap()
}

#[test]
fn pages_that_fit_the_second_level_alone_miss_the_first_and_walk_once() {
    let folder = tempfile::tempdir().unwrap();
    let report = on_i7("tlb", &["--trace", &file(folder.path(), page_by_page(1000, 3))]);
    assert_eq!(number(&report, "accesses"), 3000);
    assert_eq!(number(&report, "dtlb_misses"), 3000);
    assert_eq!(number(&report, "stlb_misses"), 1000);
    // The accessed lines of all 1000 pages lie in the same set, so the second and third pass miss
    // in the first level of cache too.
    assert_eq!(number(&report, "l1d_misses"), 3000);
    assert_eq!(report["pages"][1]["page_size"], 2 << 20);
    assert_eq!(
        (number(&report, "pages.1.dtlb_misses"), number(&report, "pages.1.stlb_misses")),
        (2, 2)
    );
    assert_eq!(number(&report, "pages.2.stlb_misses"), 1);
    assert_eq!(report["model"]["cpu"], "i7-6800K");
    assert_eq!(
        (&report["simulated"], &report["cut_off"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
}

#[test]
fn each_policy_has_its_row_and_the_chosen_one_is_the_headline() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), page_by_page(9, 100));
    // Nine cache lines are accessed in turn in a set of 8 ways. LRU and FIFO never have the next
    // line; random replacement often has it.
    let report = on_i7("cache", &["--trace", &trace, "--policy", "random"]);
    let misses = |policy: &str| {
        let rows = report["policies"].as_array().unwrap();
        number(rows.iter().find(|row| row["policy"] == policy).unwrap(), "l1d_misses")
    };
    assert_eq!((misses("LRU"), misses("FIFO")), (900, 900));
    assert!(misses("random") < 700, "{report}");
    assert_eq!(number(&report, "l1d_misses"), misses("random"));
    assert_eq!(report["policies"].as_array().unwrap().len(), 4);
    let larger = on_i7("cache", &["--trace", &trace, "--l1d", "64K,16,64"]);
    assert_eq!(number(&larger, "l1d_misses"), 9);
}

#[test]
fn memory_for_half_the_pages_of_a_loop_makes_lru_fault_on_each() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), page_by_page(20, 5));
    let report = json(&["sim", "pages", "--memory", "40K", "--trace", &trace, "--json"]);
    assert_eq!((number(&report, "pages"), number(&report, "accesses")), (20, 100));
    assert_eq!(report["policies"][0]["policy"], "LRU");
    assert_eq!(number(&report, "policies.0.refaults"), 80);
    assert_eq!(number(&report, "policies.0.written_back"), 0);
}

#[test]
fn a_workload_matches_its_name_and_stops_at_its_limit() {
    let limit = ["--workload", "mem-access", "--limit", "100000"];
    let report = on_i7("tlb", &[&limit[..], &["--order", "sequential"]].concat());
    assert_eq!((number(&report, "accesses"), number(&report, "writes")), (100_000, 12_500));
    assert_eq!(report["cut_off"], true);
    // 12 whole windows, and a part of the next one: each window has 8 pages, and the accesses to
    // each page begin with a write.
    assert_eq!(
        (number(&report, "stlb_misses"), number(&report, "stlb_misses_by_writes")),
        (104, 104)
    );
    let chase = ["--workload", "chase", "--size", "16K", "--limit", "1000"];
    let report = on_i7("cache", &chase);
    assert_eq!((number(&report, "l1d_misses"), number(&report, "stlb_misses")), (256, 4));
}

#[test]
fn lackey_and_cachegrind_see_the_same_accesses() {
    let folder = tempfile::tempdir().unwrap();
    let (true, Some(program)) = (has_valgrind(), strides(folder.path())) else { return };
    let program = program.display().to_string();
    let cache = ["sim", "cache", "--l1d", "32K,8,64", "--json", "--", &program];
    let output = bare(env!("CARGO_BIN_EXE_pagewise"), &cache);
    let text = String::from_utf8(output.stdout).unwrap();
    // The command prints a number first.
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let counts = folder.path().join("counts");
    let out = format!("--cachegrind-out-file={}", counts.display());
    bare("valgrind", &["--tool=cachegrind", "--cache-sim=yes", "--D1=32768,8,64", &out, &program]);
    let text = std::fs::read_to_string(counts).unwrap();
    let summary = text.lines().find_map(|line| line.strip_prefix("summary:")).unwrap();
    let sums: Vec<u64> = summary.split_whitespace().map(|sum| sum.parse().unwrap()).collect();
    let [reads, read_misses, writes, write_misses] = [3, 4, 6, 7].map(|column| sums[column]);
    assert_eq!((number(&report, "reads"), number(&report, "writes")), (reads, writes));
    assert_eq!(number(&report, "l1d_misses_by_reads"), read_misses);
    assert_eq!(number(&report, "l1d_misses_by_writes"), write_misses);
    assert_eq!(number(&report, "unknown_lines"), 0);
}

#[test]
fn the_exit_code_is_the_commands_and_a_child_that_stays_is_not_waited_for() {
    if !has_valgrind() {
        return;
    }
    let stays = StaysBehind::new();
    let leaves = stays.script("exit 3");
    assert_eq!(pagewise(&["sim", "tlb", "--", "sh", "-c", &leaves]).status.code(), Some(3));
    assert!(stays.is_there());
    let output = pagewise(&["sim", "tlb", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
}

#[test]
fn a_command_that_accesses_too_much_is_ended() {
    if !has_valgrind() {
        return;
    }
    let long = "i=0; while [ $i -lt 10000000 ]; do i=$((i+1)); done";
    let report = json(&["sim", "tlb", "--limit", "300000", "--json", "--", "sh", "-c", long]);
    assert_eq!((number(&report, "accesses"), &report["cut_off"]), (300_000, &Value::Bool(true)));
}

#[test]
fn an_impossible_request_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let noise = file(folder.path(), [0, 159, 146, 150, b'\n', 255]);
    let zero = ["sim", "pages", "--memory", "1K", "--trace", &noise];
    let odd = ["sim", "cache", "--l1d", "24K,7,64", "--trace", &noise];
    let cases: [(&[&str], i32, &str); 5] = [
        (&["sim", "tlb", "--trace", &noise], 1, "holds no trace"),
        (&["sim", "tlb", "--trace", "/no/such/file"], 1, "cannot read /no/such/file"),
        (&zero, 2, "memory must have 1"),
        (&odd, 2, "multiple of the ways"),
        (&["sim", "tlb", "--workload", "chase", "--", "true"], 2, "cannot be used with"),
    ];
    for (args, code, words) in cases {
        let output = pagewise(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
    let pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    let mut without = pagewise;
    let output =
        without.args(["sim", "tlb", "--", "true"]).env("PATH", "/nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("valgrind is not installed"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn this_machine_has_caches_or_another_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), page_by_page(2, 1));
    let report = json(&["sim", "tlb", "--trace", &trace, "--json"]);
    let name = report["model"]["cpu"].as_str().unwrap();
    assert!(name.starts_with("this machine") || name.contains("for want of"), "{name}");
    assert_eq!(number(&report, "l1d_misses"), 2);
}

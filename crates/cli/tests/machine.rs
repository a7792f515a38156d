//! `fragmentation` and `doctor` against the kernel's own files, on this machine and on copied
//! trees.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pagewise_skip::{Lack, skip};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{Fixture, json, number, pagewise};

const HUGE: &str = "sysfs/kernel/mm/transparent_hugepage";

/// Creates a tree with these files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = tree.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    tree
}

fn of_tree(command: &[&str], tree: &TempDir) -> Value {
    json(&[command, &["--json", "--root", tree.path().to_str().unwrap()]].concat())
}

/// A fragmented machine with two nodes: it has blocks of order 10, and blocks that are too small
/// for a huge page.
const TWO_NODES: &str = "\
Node 0, zone   Normal  90000  500  40  0  0  0  0  0  7  0  2565 \n\
Node 1, zone   Normal  12345    0   0  0  0  0  0  0  0  0  1199 \n";

#[test]
fn blocks_of_order_ten_hold_two_huge_pages_each() {
    let hpage = format!("{HUGE}/hpage_pmd_size");
    let tree =
        tree(&[("buddyinfo", TWO_NODES), (&hpage, "2097152\n"), ("sysfs/page_size", "4096\n")]);
    let report = of_tree(&["fragmentation"], &tree);
    // (2565 + 1199) x 4 MiB = 14.7 GiB.
    assert_eq!(number(&report, "allocatable_huge"), (2565 + 1199) * (4 << 20));
    let zone = |node: usize| &report["nodes"][node]["zones"][0];
    assert_eq!(zone(0)["free_by_order"][0], 90000);
    assert_eq!(number(zone(1), "allocatable_huge"), 1199 * (4 << 20));
    assert_eq!(
        number(&report["orders"][8], "allocatable"),
        (2565 + 1199) * (4 << 20) + 7 * (1 << 20)
    );
    let text = pagewise(&["fragmentation", "--root", tree.path().to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Allocatable as 2.0M pages without compaction: 14.7G"), "{text}");
}

#[test]
fn larger_base_pages_make_larger_blocks() {
    let hpage = format!("{HUGE}/hpage_pmd_size");
    let buddyinfo = "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 0 0 0 3 \n";
    let tree =
        tree(&[("buddyinfo", buddyinfo), (&hpage, "536870912\n"), ("sysfs/page_size", "65536\n")]);
    let report = of_tree(&["fragmentation"], &tree);
    assert_eq!(number(&report, "huge_order"), 13);
    assert_eq!(number(&report, "allocatable_huge"), 3 * (512 << 20));
}

#[test]
fn a_machine_without_huge_pages_has_none_allocatable_and_says_why() {
    let tree = tree(&[("buddyinfo", TWO_NODES)]);
    let report = of_tree(&["fragmentation"], &tree);
    assert!(report["allocatable_huge"]["absent"].is_string(), "{report}");
    assert!(number(&report, "free") > 0);
}

#[test]
fn a_tree_that_is_not_there_is_an_error() {
    for command in ["fragmentation", "doctor"] {
        let out = pagewise(&[command, "--root", "/nowhere"]);
        assert_eq!(out.status.code(), Some(1), "{command}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere"), "{out:?}");
    }
}

/// Copies the files of this machine that `fragmentation` reads.
fn copy_of_this_machine() -> TempDir {
    let copied = tempfile::tempdir().unwrap();
    for name in ["buddyinfo", "pagetypeinfo", "vmstat", "uptime"] {
        if let Ok(text) = fs::read(Path::new("/proc").join(name)) {
            fs::write(copied.path().join(name), text).unwrap();
        }
    }
    let folder = copied.path().join(HUGE);
    fs::create_dir_all(&folder).unwrap();
    let hpage = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    if let Ok(text) = fs::read(hpage) {
        fs::write(folder.join("hpage_pmd_size"), text).unwrap();
    }
    copied
}

#[test]
fn every_zone_equals_buddyinfo_and_every_counter_vmstat() {
    let copied = copy_of_this_machine();
    let report = of_tree(&["fragmentation"], &copied);
    let zones = report["nodes"].as_array().unwrap().iter().flat_map(|node| {
        let zones = node["zones"].as_array().unwrap().iter();
        zones.map(move |zone| (node["node"].to_string(), zone))
    });
    let ours: Vec<Vec<String>> = zones
        .map(|(node, zone)| {
            let counts = zone["free_by_order"].as_array().unwrap().iter().map(Value::to_string);
            [node, zone["name"].as_str().unwrap().to_owned()].into_iter().chain(counts).collect()
        })
        .collect();
    let text = fs::read_to_string(copied.path().join("buddyinfo")).unwrap();
    let kernels: Vec<Vec<String>> = text
        .lines()
        .map(|line| {
            let words = line.replace(',', " ");
            let words = words.split_whitespace().filter(|word| !["Node", "zone"].contains(word));
            words.map(str::to_owned).collect()
        })
        .collect();
    assert_eq!(ours, kernels);

    let text = fs::read_to_string(copied.path().join("vmstat")).unwrap();
    let vmstat: BTreeMap<&str, u64> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, count)| (name, count.parse().unwrap()))
        .collect();
    let counters = report["counters"].as_object().unwrap();
    assert!(counters.len() > 5, "{counters:?}");
    for (name, counter) in counters {
        assert_eq!(number(counter, "count"), vmstat[name.as_str()], "{name}");
    }
}

#[test]
fn the_migrate_types_of_a_zone_add_up_to_what_is_free_in_it() {
    let live = json(&["fragmentation", "--json"]);
    if live["types"]["absent"].is_string() {
        assert!(live["types"]["absent"].as_str().unwrap().contains("root"), "{live}");
        return skip(&Lack::KernelFile("/proc/pagetypeinfo"));
    }
    let types = live["types"].as_array().unwrap();
    assert!(types.iter().any(|row| row["type"] == "Movable" && number(row, "pageblocks") > 0));
    // The two files are read one after the other, while memory is allocated and freed, so their
    // sums may differ.
    if types.iter().all(|row| row["at_least"] == false) {
        let sum = types.iter().map(|row| number(row, "free")).sum::<u64>();
        let free = number(&live, "free");
        assert!(sum.abs_diff(free) < free / 4 + (256 << 20), "{sum} is not {free}");
    }
}

#[test]
fn the_intervals_of_a_series_add_up() {
    let out = pagewise(&["fragmentation", "--every", "50ms", "--for", "1s", "--json"]);
    assert!(out.status.success());
    let reports = serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>();
    let reports: Vec<Value> = reports.map(|report| report.unwrap()).collect();
    assert!((2..=20).contains(&reports.len()), "{}", reports.len());
    for (before, after) in reports.iter().zip(&reports[1..]) {
        assert!(number(before, "elapsed_ns") + 50_000_000 <= number(after, "elapsed_ns"));
        for (name, counter) in after["counters"].as_object().unwrap() {
            let earlier = number(&before["counters"][name], "count");
            assert_eq!(number(counter, "count") - earlier, number(counter, "change"), "{name}");
            assert!(counter["per_second"].is_number(), "{counter}");
        }
    }
}

/// Returns the value in a settings file: the word in brackets, or the whole text.
fn setting(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    let bracketed = text.split(' ').find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    Some(bracketed.unwrap_or(text).to_owned())
}

/// Returns the path that a command writes to, and the text that it writes.
fn written(command: &str) -> (PathBuf, String) {
    if let Some(assignment) = command.strip_prefix("sysctl -w ") {
        let (name, value) = assignment.split_once('=').unwrap();
        return (Path::new("/proc/sys").join(name.replace('.', "/")), value.to_owned());
    }
    let (value, path) = command.strip_prefix("echo ").unwrap().split_once(" > ").unwrap();
    (path.into(), value.to_owned())
}

/// Returns the checks whose setting is in a file of its own: those with an `undo` that writes a
/// file.
fn in_files(report: &Value) -> Vec<(&Value, PathBuf, String)> {
    let checks = report["checks"].as_array().unwrap().iter();
    let writes = |check: &&Value| {
        let undo = check["undo"].as_str();
        undo.is_some_and(|u| u.starts_with("sysctl -w ") || u.starts_with("echo "))
            && check["id"] != "cgroup_used"
    };
    checks
        .filter(writes)
        .map(|check| {
            let (path, value) = written(check["undo"].as_str().unwrap());
            (check, path, value)
        })
        .collect()
}

#[test]
fn every_setting_is_what_its_file_says_and_undo_writes_just_that() {
    for profile in [&[][..], &["--profile", "latency"], &["--profile", "density"]] {
        let report = json(&[&["doctor", "self", "--json"], profile].concat());
        let checks = in_files(&report);
        assert!(checks.len() >= 10, "{}", checks.len());
        for (check, path, undo) in checks {
            let kernels = setting(&path).unwrap_or_else(|| panic!("{} is no file", path.display()));
            assert_eq!(check["value"], kernels, "{check}");
            assert_eq!(undo, kernels, "{check}");
            assert_eq!(written(check["change"].as_str().unwrap()).0, path, "{check}");
        }
    }
}

#[test]
fn a_reported_lack_is_confirmed_by_the_machine() {
    let report = json(&["doctor", "--json"]);
    let missing = [
        ("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
        ("lockdown", "/sys/kernel/security/lockdown"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        ("ksm_run", "/sys/kernel/mm/ksm/run"),
    ];
    for (id, path) in missing {
        let check = check(&report, id);
        let absent = check["value"]["absent"].is_string();
        assert_eq!(absent, fs::read(path).is_err(), "{check}");
        assert_eq!(absent, check["verdict"] == "unknown", "{check}");
    }
}

fn check<'a>(report: &'a Value, id: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no check is {id}"))
}

#[test]
fn a_report_changes_no_setting() {
    let report = json(&["doctor", "--json"]);
    let paths: Vec<PathBuf> = in_files(&report).into_iter().map(|(_, path, _)| path).collect();
    let state = || -> Vec<Option<String>> {
        let files = paths.iter().map(|path| fs::read_to_string(path).ok());
        files
            .chain([fs::read_to_string("/proc/swaps").ok().map(|s| s.lines().count().to_string())])
            .collect()
    };
    let before = state();
    for profile in ["latency", "density"] {
        let _ = json(&["doctor", "self", "--json", "--profile", profile]);
    }
    assert_eq!(state(), before);
}

#[test]
fn limits_and_levels_equal_what_other_files_say() {
    let report = json(&["doctor", "self", "--json"]);
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    let soft = locked.split_whitespace().nth(3).unwrap();
    match soft {
        "unlimited" => assert_eq!(check(&report, "memlock_limit")["value"], "unlimited"),
        bytes => assert_eq!(number(check(&report, "memlock_limit"), "value").to_string(), bytes),
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
    if let Some(flags) = cpuinfo.lines().find(|line| line.starts_with("flags")) {
        let levels = if flags.split(' ').any(|flag| flag == "la57") { 5 } else { 4 };
        assert_eq!(number(check(&report, "page_table_levels"), "value"), levels);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let swap: u64 = swaps
        .lines()
        .skip(1)
        .map(|l| l.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap() << 10)
        .sum();
    assert_eq!(number(check(&report, "swap"), "value"), swap);
}

#[test]
fn malloc_variables_of_the_target_are_shown_and_no_others() {
    let pagewise = env!("CARGO_BIN_EXE_pagewise");
    let out = std::process::Command::new(pagewise)
        .args(["doctor", "self", "--json"])
        .env("MALLOC_ARENA_MAX", "3")
        .env("PAGEWISE_TEST_SECRET", "do not show")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let shown = check(&report, "malloc_environment")["value"].to_string();
    assert!(shown.contains("MALLOC_ARENA_MAX=3"), "{shown}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("do not show"));
}

#[test]
fn a_hostile_copied_tree_puts_no_command_together() {
    let tree = tree(&[
        ("sys/vm/swappiness", "60; rm -rf /\n"),
        ("sys/vm/zone_reclaim_mode", "$(reboot)\n"),
        ("sys/vm/max_map_count", "7\n"),
        ("swaps", "Filename Type Size Used Priority\n/swap;reboot file 1024 0 -2\n"),
    ]);
    let root = tree.path().to_str().unwrap();
    let report = json(&["doctor", "--json", "--profile", "latency", "--root", root]);
    for id in ["swappiness", "zone_reclaim_mode", "swap"] {
        let check = check(&report, id);
        assert!(check["undo"].is_null() && check["change"].is_null(), "{check}");
    }
    assert_eq!(check(&report, "max_map_count")["undo"], "sysctl -w vm.max_map_count=7");
    assert_eq!(check(&report, "cap_sys_admin")["verdict"], "unknown");
}

#[test]
fn a_fully_locked_program_is_distinguished_from_an_unlocked_one() {
    let (locked, plain) = (Fixture::start("locked", &[]), Fixture::start("quadrants", &["1024"]));
    if locked.fact("locked.mlockall") == 0 {
        return skip(&Lack::Machine("the program may not lock its memory"));
    }
    let doctor = |pid: u32| json(&["doctor", &pid.to_string(), "--json", "--profile", "latency"]);
    let (with, without) = (doctor(locked.pid), doctor(plain.pid));
    let status = fs::read_to_string(format!("/proc/{}/status", locked.pid)).unwrap();
    let kernels = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let kib: u64 = kernels.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert_eq!(number(check(&with, "locked"), "value"), kib << 10);
    assert_eq!(check(&with, "mlockall")["value"], true);
    assert_eq!(check(&without, "mlockall")["value"], false);
    assert_eq!(check(&without, "locked")["verdict"], "note");
}

#[test]
fn every_column_has_a_meaning() {
    let report = json(&["fragmentation", "--json"]);
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let mut names = [
        keys(&report["nodes"][0]["zones"][0]),
        keys(&report["orders"][0]),
        keys(&json(&["doctor", "--json"])["checks"][0]),
    ]
    .concat();
    names.retain(|name| name != "name");
    for name in names {
        assert!(pagewise(&["define", &name]).status.success(), "{name}");
    }
}

/// Names of the statistics that Linux 6.18 has for each size of huge pages.
const STATISTICS: [&str; 17] = [
    "anon_fault_alloc",
    "anon_fault_fallback",
    "anon_fault_fallback_charge",
    "nr_anon",
    "nr_anon_partially_mapped",
    "shmem_alloc",
    "shmem_fallback",
    "shmem_fallback_charge",
    "split",
    "split_deferred",
    "split_failed",
    "swpin",
    "swpin_fallback",
    "swpin_fallback_charge",
    "swpout",
    "swpout_fallback",
    "zswpout",
];

#[test]
fn every_statistic_of_a_kernel_that_was_captured_has_a_meaning() {
    for name in STATISTICS {
        assert!(pagewise(&["define", name]).status.success(), "{name}");
    }
}

#[test]
fn an_unknown_counter_is_shown_with_the_kernels_name() {
    let stats = format!("{HUGE}/hugepages-2048kB/stats");
    let (known, unknown) = (format!("{stats}/nr_anon"), format!("{stats}/anon_fault_invented"));
    let vmstat = "nr_free_pages 1\nthp_fault_alloc 3\nthp_invented 41\ncompact_invented 0\n";
    let files = [("buddyinfo", TWO_NODES), ("vmstat", vmstat), (&known, "5\n"), (&unknown, "7\n")];
    let tree = tree(&files);
    let report = of_tree(&["fragmentation"], &tree);
    let counters = &report["counters"];
    assert_eq!(number(&counters["thp_invented"], "count"), 41);
    assert!(counters["thp_invented"]["meaning"]["absent"].is_string(), "{counters}");
    assert!(counters["thp_fault_alloc"]["meaning"].is_string(), "{counters}");
    assert!(counters["nr_free_pages"].is_null(), "it counts nothing of huge pages");
    let stats = &report["sizes"][0]["stats"];
    assert_eq!([number(stats, "nr_anon"), number(stats, "anon_fault_invented")], [5, 7]);
    let text = pagewise(&["fragmentation", "--root", tree.path().to_str().unwrap()]);
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).unwrap();
    for shown in ["thp_invented", "41", "compact_invented", "anon_fault_invented", "7"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

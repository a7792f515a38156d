//! pagewise on live processes, against the kernel, procps and programs whose right answers are
//! known.
//!
//! Every program is stopped while it is examined. If figures depend on the processes that map a
//! page, the program is linked statically: otherwise pagewise itself would change the figures.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;

use fixture::{
    Fixture, FixtureLink, READINGS, SmapsEntry, copy_program, disk, explain, json, number,
    pagewise, sum, tool,
};

const QUADRANTS: [&str; 4] =
    ["private_anonymous", "shared_anonymous", "private_file", "shared_file"];
const MIB: u64 = 1 << 20;

/// The programs that every general comparison runs on.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("quadrants", &["51200"]),
    ("reserve", &["16384"]),
    ("threads", &["8"]),
    ("forked", &["10240"]),
    ("names", &[]),
    ("many", &["2000"]),
];

/// Runs `check` on each program with each method of reading.
fn everywhere(link: FixtureLink, check: impl Fn(&Fixture, &Value, &str)) {
    for (program, args) in PROGRAMS {
        let Some(fixture) = Fixture::linked(link, program, args) else { return };
        for reading in READINGS {
            check(&fixture, &explain(fixture.pid, reading), &format!("{program} {reading}"));
        }
    }
}

/// Returns the row of a table in which `key` has this value.
fn row<'a>(rows: &'a Value, key: &str, value: u64) -> &'a Value {
    let rows = rows.as_array().expect("a table is a list");
    rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {key} is {value:#x}"))
}

/// Returns the mapping that contains an address.
fn mapping_at(report: &Value, address: u64) -> &Value {
    let rows = report["mappings"].as_array().expect("mappings is a list");
    rows.iter()
        .find(|row| number(row, "start") <= address && address < number(row, "end"))
        .unwrap_or_else(|| panic!("no mapping holds {address:#x}"))
}

/// Returns true if a report has the finding with this ID.
fn finds(report: &Value, id: &str) -> bool {
    let findings = report["findings"].as_array().expect("findings is a list");
    findings.iter().any(|finding| finding["id"] == id)
}

#[test]
fn the_columns_equal_statm_and_the_rollup() {
    everywhere(FixtureLink::Dynamic, |fixture, report, context| {
        let (statm, rollup) = (fixture.statm(), fixture.rollup());
        for (column, figure) in [("virt", 0), ("res", 1), ("shr", 2), ("code", 3), ("data", 5)] {
            let path = format!("totals.{column}");
            assert_eq!(number(report, &path), statm[figure], "{context}: {column}");
        }
        assert_eq!(number(report, "totals.res"), rollup["Rss"], "{context}: Rss");
        assert_eq!(number(report, "totals.swap"), rollup["Swap"], "{context}: Swap");
        assert_eq!(number(report, "process.pid"), u64::from(fixture.pid), "{context}");
    });
}

#[test]
fn the_cells_of_both_quadrant_tables_add_up_to_virt_and_res() {
    everywhere(FixtureLink::Dynamic, |_, report, context| {
        for table in ["declared", "effective"] {
            let total = |column: &str| -> u64 {
                let cell =
                    |quadrant| number(report, &format!("quadrants.{table}.{quadrant}.{column}"));
                QUADRANTS.into_iter().map(cell).sum()
            };
            assert_eq!(total("reserved"), number(report, "totals.virt"), "{context}: {table}");
            assert_eq!(total("resident"), number(report, "totals.res"), "{context}: {table}");
            assert_eq!(total("swapped"), number(report, "totals.swap"), "{context}: {table}");
        }
    });
}

#[test]
fn the_pools_and_the_mappings_add_up_to_virt_and_res() {
    everywhere(FixtureLink::Dynamic, |_, report, context| {
        let (virt, res) = (number(report, "totals.virt"), number(report, "totals.res"));
        assert_eq!(sum(&report["pools"], "reserved"), virt, "{context}");
        assert_eq!(sum(&report["pools"], "resident"), res, "{context}");
        assert_eq!(sum(&report["mappings"], "rss"), res, "{context}");
    });
}

#[test]
fn every_mapping_equals_smaps() {
    if !is_root() {
        return; // PSS without smaps takes page counts, which only root may read.
    }
    everywhere(FixtureLink::Static, |fixture, report, context| {
        let smaps = fixture.smaps();
        let rows = report["mappings"].as_array().expect("mappings is a list");
        assert_eq!(rows.len(), smaps.len(), "{context}");
        for (row, entry) in rows.iter().zip(&smaps).filter(|(_, entry)| !entry.is_kernels()) {
            let figures =
                ["start", "end", "rss", "pss", "swap", "anon_huge"].map(|key| number(row, key));
            let kernels = ["Rss", "Pss", "Swap", "AnonHugePages"].map(|name| entry.counter(name));
            let expected = [&[entry.start, entry.end], &kernels[..]].concat();
            assert_eq!(figures[..], expected[..], "{context}: {entry:?}");
        }
    });
}

#[test]
fn pss_and_uss_equal_the_rollup() {
    if !is_root() {
        return;
    }
    everywhere(FixtureLink::Static, |fixture, report, context| {
        let rollup = fixture.rollup();
        let exclusive = rollup["Private_Clean"] + rollup["Private_Dirty"];
        assert_eq!(number(report, "totals.uss"), exclusive, "{context}");
        // Every process maps the vdso's pages. Processes start and end, so the PSS of these pages
        // changes.
        let vdso: u64 =
            fixture.smaps().iter().filter(|e| e.is_kernels()).map(|e| e.counter("Rss")).sum();
        let pss = number(report, "totals.pss");
        assert!(pss.abs_diff(rollup["Pss"]) <= vdso, "{context}: {pss} is not {}", rollup["Pss"]);
    });
}

#[test]
fn every_row_equals_pmaps() {
    let fixture = Fixture::start("quadrants", &["51200"]);
    let pid = fixture.pid.to_string();
    let Some(text) = tool("pmap", &["-X", &pid]) else { return };
    let mut lines = text.lines().skip(1);
    let head: Vec<&str> = lines.next().expect("pmap prints a head").split_whitespace().collect();
    let pmap: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().take(head.len() - 1).collect::<Vec<_>>())
        .take_while(|row| !row[0].starts_with('='))
        .collect();
    let ours = json(&["maps", &pid, "--json", "--columns", "all"]);
    let ours = ours["mappings"].as_array().expect("mappings is a list");
    assert_eq!(ours.len(), pmap.len());

    // Sharing of pages changes when pagewise starts and ends, and reclaim clears referenced bits.
    let steady = ["Size", "Rss", "Anonymous", "LazyFree", "AnonHugePages", "Swap", "Locked"];
    for (ours, pmap) in ours.iter().zip(&pmap) {
        assert_eq!(Some(number(ours, "start")), u64::from_str_radix(pmap[0], 16).ok());
        for (name, value) in head.iter().zip(pmap).filter(|(name, _)| steady.contains(name)) {
            let kib: u64 = value.parse().expect("pmap prints numbers");
            assert_eq!(number(ours, name), kib << 10, "{name} of {pmap:?}");
        }
    }
}

#[test]
fn rss_equals_what_ps_and_smem_print() {
    let Some(fixture) = Fixture::linked(FixtureLink::Static, "quadrants", &["51200"]) else {
        return;
    };
    let pid = fixture.pid.to_string();
    let report = explain(fixture.pid, "--full");
    if let Some(ps) = tool("ps", &["-o", "rss=", "-p", &pid]) {
        assert_eq!(number(&report, "totals.res"), ps.trim().parse::<u64>().unwrap() << 10);
    }
    let Some(smem) = tool("smem", &["-H", "-c", "pid rss uss pss"]) else { return };
    let row = smem
        .lines()
        .map(|line| line.split_whitespace().map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>())
        .find(|row| row[0] == u64::from(fixture.pid))
        .expect("smem lists every process");
    assert_eq!(number(&report, "totals.res"), row[1] << 10);
    assert_eq!(number(&report, "totals.uss"), row[2] << 10);
    // smem adds up figures that the kernel rounded down for each mapping.
    let rounding = fixture.smaps().len() as u64 * 1024;
    assert!(number(&report, "totals.pss").abs_diff(row[3] << 10) <= rounding);
}

#[test]
fn a_process_is_listed_with_the_figures_of_its_rollup() {
    let Some(fixture) = Fixture::linked(FixtureLink::Static, "quadrants", &["2048"]) else {
        return;
    };
    for reading in READINGS {
        let listing = json(&["ps", "--json", reading]);
        let row = row(&listing["processes"], "pid", fixture.pid.into());
        let rollup = fixture.rollup();
        assert_eq!(number(row, "rss"), rollup["Rss"], "{reading}");
        assert_eq!(number(row, "swap"), rollup["Swap"], "{reading}");
        assert_eq!(
            number(row, "uss"),
            rollup["Private_Clean"] + rollup["Private_Dirty"],
            "{reading}"
        );
    }
}

/// Returns the quadrant of each region of `quadrants.c`.
fn quadrant_of_region(name: &str) -> &'static str {
    match name {
        "shared_anon" | "memfd" | "sysv" | "posix" => "shared_anonymous",
        "file_private" => "private_file",
        "file_shared" => "shared_file",
        _ => "private_anonymous",
    }
}

#[test]
fn each_kind_of_mapping_is_in_its_quadrant_with_the_rss_its_program_says() {
    let fixture = Fixture::start("quadrants", &["51200"]);
    for reading in READINGS {
        let report = explain(fixture.pid, reading);
        for region in fixture.regions() {
            let start = fixture.fact(&format!("{region}.start"));
            let mapping = mapping_at(&report, start);
            let context = format!("{reading}: {region}: {mapping}");
            assert_eq!(mapping["quadrant"], quadrant_of_region(&region), "{context}");
            assert_eq!(number(mapping, "start"), start, "{context}");
            assert_eq!(
                number(mapping, "end") - start,
                fixture.fact(&format!("{region}.size")),
                "{context}"
            );
            assert_eq!(number(mapping, "rss"), fixture.fact(&format!("{region}.rss")), "{context}");
        }
    }
}

#[test]
fn each_kind_of_shared_memory_is_recognized_by_its_name() {
    let fixture = Fixture::start("quadrants", &["1024"]);
    let report = explain(fixture.pid, "--polite");
    for (region, pool) in [
        ("shared_anon", "shared_anonymous"),
        ("memfd", "memfd"),
        ("sysv", "shared_sysv"),
        ("posix", "shared_posix"),
        ("file_private", "file"),
        ("file_shared", "file"),
    ] {
        let mapping = mapping_at(&report, fixture.fact(&format!("{region}.start")));
        assert_eq!(mapping["pool"], pool, "{mapping}");
    }
}

/// Returns the four quadrants by page state, from the kernel's counters. Valid for a process whose
/// anonymous pages no other process maps.
fn effective_by_smaps(
    smaps: &[SmapsEntry],
    shmem: impl Fn(&SmapsEntry) -> bool,
) -> BTreeMap<&'static str, u64> {
    let mut cells = BTreeMap::from(QUADRANTS.map(|quadrant| (quadrant, 0)));
    let mut add = |quadrant, bytes| *cells.get_mut(quadrant).expect("all four are there") += bytes;
    for entry in smaps {
        let anonymous = entry.counter("Anonymous");
        let file = entry.counter("Rss") - anonymous;
        let co_mapped = entry.counter("Shared_Clean") + entry.counter("Shared_Dirty");
        add("private_anonymous", anonymous);
        if shmem(entry) {
            add("shared_anonymous", file);
        } else if entry.mode.ends_with('s') {
            add("shared_file", file);
        } else {
            add("shared_file", co_mapped);
            add("private_file", file - co_mapped);
        }
    }
    cells
}

#[test]
fn a_page_is_in_the_quadrant_that_the_kernel_counts_it_in() {
    let Some(fixture) = Fixture::linked(FixtureLink::Static, "quadrants", &["51200"]) else {
        return;
    };
    let shared = ["shared_anon", "memfd", "sysv", "posix"];
    let shared = shared.map(|region| fixture.fact(&format!("{region}.start")));
    for reading in READINGS {
        let report = explain(fixture.pid, reading);
        for (quadrant, bytes) in effective_by_smaps(&fixture.smaps(), |e| shared.contains(&e.start))
        {
            let path = format!("quadrants.effective.{quadrant}.resident");
            assert_eq!(number(&report, &path), bytes, "{reading}: {path}");
        }
    }
}

#[test]
fn writing_half_of_a_private_file_moves_that_half_to_private_anonymous() {
    let Some(fixture) = Fixture::linked(FixtureLink::Static, "quadrants", &["51200"]) else {
        return;
    };
    let half = fixture.fact("file_private.anonymous");
    assert_eq!(half, 25 * MIB);
    let report = explain(fixture.pid, "--polite");
    let resident =
        |table: &str| number(&report, &format!("quadrants.{table}.private_anonymous.resident"));
    // The private file has no other pages in this quadrant. The program's own data adds its written
    // pages, which are fewer than 1 MiB.
    let moved = resident("effective") - resident("declared");
    assert!((half..half + MIB).contains(&moved), "{moved}");
}

#[test]
fn sixteen_tebibytes_of_reserve_are_virt_and_one_page_of_it_is_res() {
    let fixture = Fixture::start("reserve", &["16384"]);
    for reading in READINGS {
        let report = explain(fixture.pid, reading);
        assert!(number(&report, "totals.virt") >= 16 << 40, "{reading}");
        assert!(number(&report, "totals.data") >= 16 << 40, "{reading}");
        assert!(number(&report, "totals.res") < 16 * MIB, "{reading}");
        let mapping = mapping_at(&report, fixture.fact("reserve.start"));
        assert_eq!(number(mapping, "rss"), fixture.fact("reserve.rss"), "{reading}");
        let mode = mapping["mode"].as_str().expect("a mode is text");
        assert!(reading != "--full" || mode.contains('R'), "{mode}");
        assert!(finds(&report, "reserved-only"), "{reading}: {}", report["findings"]);
    }
}

#[test]
fn each_threads_stack_has_its_name_and_its_arena_is_mallocs() {
    let fixture = Fixture::start("threads", &["4", "64", "1000"]);
    for reading in READINGS {
        let report = explain(fixture.pid, reading);
        let pools = report["pools"].as_array().expect("pools is a list");
        for worker in 0..4 {
            let fact = |key: &str| fixture.fact(&format!("worker-{worker}.{key}"));
            let stack = mapping_at(&report, fact("stack_address"));
            assert_eq!(stack["pool"], "thread_stack", "{reading}: {stack}");
            let arena = mapping_at(&report, fact("malloc_address"));
            assert_eq!(arena["pool"], "malloc_arena", "{reading}: {arena}");

            let named = format!("worker-{worker}");
            let of_thread = |pool: &&Value| {
                pool["pool"] == "thread_stack"
                    && pool["name"].as_str().is_some_and(|n| n.contains(&named))
            };
            let pool =
                pools.iter().find(of_thread).unwrap_or_else(|| panic!("{reading}: no {named}"));
            let used = fact("stack_used");
            assert!(
                (used..used + 64 * 1024).contains(&number(pool, "resident")),
                "{reading}: {pool}"
            );
        }
        let chunk = mapping_at(&report, fixture.fact("big_malloc.address"));
        assert_eq!(chunk["pool"], "malloc_chunk", "{reading}: {chunk}");
    }
}

#[test]
fn after_fork_the_rewritten_half_is_private_in_fact_and_the_rest_is_shared() {
    let Some(fixture) = Fixture::linked(FixtureLink::Static, "forked", &["102400"]) else { return };
    for reading in READINGS {
        let report = explain(fixture.pid, reading);
        let mapping = mapping_at(&report, fixture.fact("forked.start"));
        // A machine that is short of memory may have swapped out a part of the mapping.
        let swapped = number(mapping, "swap");
        assert_eq!(number(mapping, "rss") + swapped, 100 * MIB, "{reading}");
        assert_eq!(mapping["quadrant"], "private_anonymous", "{reading}");
        let cell = |quadrant| number(&report, &format!("quadrants.effective.{quadrant}.resident"));
        for quadrant in ["private_anonymous", "shared_anonymous"] {
            let resident = cell(quadrant);
            let expected = (50 * MIB - swapped)..52 * MIB;
            assert!(expected.contains(&resident), "{reading}: {quadrant} {resident}");
        }
        if is_root() && swapped == 0 {
            assert_eq!(number(mapping, "pss"), fixture.fact("forked.pss"), "{reading}");
        }
    }
}

#[test]
fn the_stack_reuses_what_the_heap_leaks() {
    let heap = Fixture::start("stackheap", &["heap", "1000000"]);
    let stack = Fixture::start("stackheap", &["stack", "1000000"]);
    let resident = |fixture: &Fixture, pool: &str| -> u64 {
        let report = explain(fixture.pid, "--full");
        let pools = report["pools"].as_array().expect("pools is a list");
        pools.iter().filter(|row| row["pool"] == pool).map(|row| number(row, "resident")).sum()
    };
    let (leaked, reused) = (heap.fact("heap.at_least"), stack.fact("stack.at_least"));
    assert_eq!(leaked, 2 * reused);
    let chunks = resident(&heap, "malloc_chunk");
    assert!((leaked..leaked + MIB).contains(&chunks), "{chunks}");
    let frames = resident(&stack, "main_stack");
    assert!((reused..reused + MIB).contains(&frames), "{frames}");
}

/// Asserts that a text has no control character except newlines, and no right-to-left override.
fn assert_harmless(bytes: &[u8], what: &str) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    let bad = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert_eq!(bad, None, "{what} holds a control character");
}

#[test]
fn no_name_reaches_the_terminal_raw() {
    let fixture = Fixture::start("names", &[]);
    let pid = fixture.pid.to_string();
    let commands: &[&[&str]] = &[
        &["explain", &pid, "--largest", "200"],
        &["explain", &pid, "--long"],
        &["maps", &pid],
        &["maps", &pid, "--columns", "all"],
        &["maps", &pid, "--group", "file"],
        &["ps"],
        &["explain", "--", "/no/such\x1b[31m"],
    ];
    for command in commands {
        let output = pagewise(command);
        assert_harmless(&output.stdout, &format!("{command:?}"));
        assert_harmless(&output.stderr, &format!("the errors of {command:?}"));
    }
    let output = pagewise(&["maps", &pid, "--width", "200"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for escaped in [r"escape\x1b[31mred", r"not-utf8-\xff\xfe\xc3", r"right-to-left-\u{202e}"] {
        assert!(text.contains(escaped), "{escaped} is not in {text}");
    }
    // If a name is ambiguous, the error lists the candidates. Their names must be escaped too.
    let output = pagewise(&["explain", "e"]);
    assert_harmless(&output.stderr, "an ambiguous name");
}

#[test]
fn the_json_of_hostile_names_parses_and_lists_each_of_them() {
    let fixture = Fixture::start("names", &[]);
    let report = explain(fixture.pid, "--full");
    let rows = report["mappings"].as_array().expect("mappings is a list");
    let is_file = |row: &&Value| row["mode"].as_str().is_some_and(|mode| mode.starts_with("r--s"));
    let files = rows.iter().filter(is_file).count();
    assert_eq!(files as u64, fixture.fact("names.files"));
    let live = mapping_at(&report, fixture.fact("file-3.start"));
    assert!(live["name"].as_str().unwrap().ends_with("live (deleted)"), "{live}");
    let long = mapping_at(&report, fixture.fact("long_path.start"));
    assert!(long["name"].as_str().unwrap().len() > 3500, "{long}");
}

#[test]
fn the_page_holds_no_markup_of_a_name() {
    let fixture = Fixture::start("names", &[]);
    let page = fixture.folder().join("report.html");
    let output = pagewise(&["explain", &fixture.pid.to_string(), "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = fs::read(&page).unwrap();
    assert_harmless(&html, "the page");
    let html = String::from_utf8(html).unwrap();
    for markup in ["<img src=x", "<script>alert(", "<b>&"] {
        assert!(!html.contains(markup), "{markup}");
    }
    for network in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!html.contains(network), "{network}");
    }
}

#[test]
fn writable_code_and_a_deleted_library_are_found() {
    let fixture = Fixture::start("names", &[]);
    let report = explain(fixture.pid, "--full");
    for id in ["writable-code", "stale-files"] {
        assert!(finds(&report, id), "{id}: {}", report["findings"]);
    }
}

#[test]
fn a_saved_snapshot_opens_to_the_same_report() {
    let fixture = Fixture::start("quadrants", &["1024"]);
    let saved = fixture.folder().join("snapshot.json");
    let saved = saved.to_str().unwrap();
    for reading in READINGS {
        let live = json(&["explain", &fixture.pid.to_string(), "--json", reading, "--save", saved]);
        assert_eq!(json(&["explain", "--from", saved, "--json"]), live, "{reading}");
    }
}

#[test]
fn a_process_that_ends_while_it_is_read_is_an_error_and_no_panic() {
    let mut vanished = 0;
    for round in 0..60 {
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep is everywhere");
        let reader = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args(["explain", &child.id().to_string(), "--json", READINGS[round % 3]])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pagewise was built for this test");
        // The delay grows with each attempt, so that the process ends at different points of the
        // reading.
        std::thread::sleep(std::time::Duration::from_micros(250 * round as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let output = reader.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}: {said}", output.status);
        assert!(!said.contains("panicked"), "{said}");
        if output.status.code() == Some(1) {
            assert!(said.starts_with("pagewise: "), "{said}");
            vanished += 1;
        }
    }
    assert!(vanished > 0, "no round caught the process going");
}

#[test]
fn a_zombie_has_no_memory_and_that_is_said() {
    let mut child = Command::new("true").spawn().expect("true is everywhere");
    let pid = child.id();
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let output = pagewise(&["explain", &pid.to_string()]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    assert!(said.to_lowercase().contains("zombie"), "{said}");
    child.wait().unwrap();
}

#[test]
fn a_kernel_thread_has_no_memory_and_that_is_said() {
    if !fs::read_to_string("/proc/2/status").is_ok_and(|status| status.contains("kthreadd")) {
        return skip(&Lack::Machine("this PID namespace has no kernel threads"));
    }
    let output = pagewise(&["explain", "2"]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    assert!(said.contains("kernel thread"), "{said}");
}

/// Returns a copy of pagewise that others may run too: the folder of the build may be closed to
/// them.
fn open_to_all() -> (tempfile::TempDir, PathBuf) {
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let binary = open.path().join("pagewise");
    copy_program(env!("CARGO_BIN_EXE_pagewise").as_ref(), &binary);
    (open, binary)
}

/// Runs pagewise with a `/proc` that a shell has prepared in a mount namespace of its own.
fn with_another_proc(options: &[&str], prepare: &str, pagewise: &str) -> Option<Output> {
    const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let (_open, binary) = open_to_all();
    let pagewise = pagewise.replace("NOBODY", NOBODY).replace("PAGEWISE", binary.to_str().unwrap());
    let script = format!("{prepare}; {pagewise}");
    let mut command = Command::new("unshare");
    let output = command.arg("--mount").args(options).args(["sh", "-c", &script]).output();
    output.map_err(|_| skip(&Lack::Tool("unshare"))).ok()
}

#[test]
fn processes_hidden_by_hidepid_are_counted_and_reported() {
    if !is_root() {
        return;
    }
    let hide = |level: &str| format!("mount -t proc -o hidepid={level} proc /proc");
    let ps = "NOBODY PAGEWISE ps --json";
    // In a PID namespace of its own, no process ends while pagewise lists the processes.
    let own = ["--pid", "--fork"];
    let Some(output) = with_another_proc(&own, &hide("1"), ps) else { return };
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&listing, "totals.hidden") > 0);
    assert_eq!(number(&listing, "totals.vanished"), 0);
    for (level, says) in [
        ("1", "cannot read PID 1 (owner root): run as root or grant CAP_SYS_PTRACE"),
        ("2", "process 1 does not exist"),
    ] {
        let output = with_another_proc(&own, &hide(level), "NOBODY PAGEWISE explain 1").unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn an_unmounted_proc_is_said_to_be_one() {
    if !is_root() {
        return;
    }
    for what in ["ps", "explain self", "explain bash"] {
        let pagewise = format!("PAGEWISE {what}");
        let Some(output) = with_another_proc(&[], "umount -l /proc", &pagewise) else { return };
        assert_eq!(output.status.code(), Some(1), "{what}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("/proc is not a proc file system"), "{what}: {said}");
    }
}

#[test]
fn pids_of_another_namespace_are_not_mistaken_for_our_own() {
    if !is_root() {
        return;
    }
    // Without a /proc of its own, a process in a new PID namespace sees the PIDs of the old one.
    let inside = ["--pid", "--fork"];
    let explain = "PAGEWISE explain self --json";
    let Some(output) = with_another_proc(&inside, "true", explain) else { return };
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let gaps = report["provenance"]["gaps"].to_string();
    assert!(gaps.contains("another pid namespace"), "{gaps}");
    assert_ne!(report["process"]["ns_pids"][0], report["process"]["ns_pids"][1]);
    let output = with_another_proc(&inside, "true", "PAGEWISE explain -- true").unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pid namespace"));
    // With a /proc of its own, pagewise works as usual.
    let mount = "mount -t proc proc /proc";
    let output = with_another_proc(&inside, mount, "PAGEWISE explain --json -- true").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn hidden_files_of_another_user_are_absent_with_the_needed_rights() {
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65534;
    let fixture = Fixture::start("quadrants", &["1024"]);
    let (_open, binary) = open_to_all();
    let run = |args: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
    };
    let pid = fixture.pid.to_string();
    let output = run(&["explain", &pid, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&report, "totals.res"), fixture.rollup()["Rss"], "anyone may read statm");
    for hidden in [&report["totals"]["pss"], &report["quadrants"], &report["mappings"]] {
        let why = hidden["absent"].as_str().unwrap_or_else(|| panic!("{hidden} is not absent"));
        assert!(why.contains("CAP_SYS_PTRACE"), "{why}");
    }

    let output = run(&["ps", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = row(&listing["processes"], "pid", fixture.pid.into());
    assert!(row["pss"]["absent"].is_string(), "a value that may not be read says why: {row}");

    let output = run(&["explain", "self", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut commands = vec![
        vec!["explain", &pid],
        vec!["explain", &pid, "--polite"],
        vec!["maps", &pid],
        vec!["maps", &pid, "--json"],
        vec!["pages", &pid],
        vec!["pools", &pid],
        vec!["thp", &pid],
        vec!["thp", &pid, "--json"],
        vec!["trim", &pid],
        vec!["diff", &pid, "--every", "10ms", "--for", "20ms"],
        vec!["syscalls", &pid, "--for", "10ms"],
        vec!["watch", &pid, "0x1000", "--for", "10ms"],
        vec!["heap", "attach", &pid, "--for", "10ms"],
        vec!["heap", "scan", &pid],
        vec!["faults", &pid, "--for", "10ms"],
    ];
    // Some kernels lack the tracepoint.
    if fixture::pagewise(&["shootdowns", &pid, "--for", "10ms"]).status.success() {
        commands.push(vec!["shootdowns", &pid, "--for", "10ms"]);
    }
    for words in commands {
        let output = run(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        let sentence =
            format!("pagewise: cannot read PID {pid} (owner root): run as root or grant CAP_");
        assert!(said.starts_with(&sentence), "{words:?}: {said}");
        assert_eq!(output.stdout.is_empty(), words[0] != "explain", "{words:?}");
    }
}

/// The process and pagewise map copies of libraries that no other process maps.
#[test]
fn the_pss_of_a_process_is_unchanged_by_the_observer() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut libraries: Vec<&str> =
        maps.lines().filter_map(|line| line.split_once('/')).map(|it| it.1).collect();
    libraries.retain(|path| {
        path.contains(".so") && !path.contains("/ld-") && !path.contains("(deleted)")
    });
    libraries.dedup();
    if libraries.is_empty() {
        return skip(&Lack::Machine("this test is linked statically"));
    }
    for path in libraries {
        let path = Path::new("/").join(path);
        copy_program(&path, &folder.path().join(path.file_name().unwrap()));
    }
    let mut sleep = Command::new("sleep");
    let mut child = sleep.arg("600").env("LD_LIBRARY_PATH", folder.path()).spawn().unwrap();
    let pid = child.id().to_string();
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    // The process sleeps once all its libraries are mapped.
    let until = Instant::now() + Duration::from_secs(60);
    while !file("wchan").contains("nanosleep")
        && !file("syscall").starts_with("230 ")
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pss = || {
        let rollup = file("smaps_rollup");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        line.unwrap().trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let before = pss();
    let mut seen = Vec::new();
    for reading in READINGS {
        let mut pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        pagewise.args(["explain", &pid, "--json", reading]).env("LD_LIBRARY_PATH", folder.path());
        let report: Value = serde_json::from_slice(&pagewise.output().unwrap().stdout).unwrap();
        let gaps = report["provenance"]["gaps"].to_string();
        if gaps.contains("could not copy") {
            skip(&Lack::Machine("the kernel does not let a process copy its code"));
        } else if let Some(pss) = report["totals"]["pss"].as_u64() {
            seen.push((reading, pss));
        }
    }
    let after = pss();
    child.kill().unwrap();
    child.wait().unwrap();
    // Other processes also map the program and the loader. When they start or end, the PSS changes.
    let (least, most) = (before.min(after), before.max(after));
    for (reading, pss) in seen {
        let near = (least.saturating_sub(8 << 10)..=most + (8 << 10)).contains(&pss);
        assert!(near, "{reading}: {pss}, but {before} before and {after} after");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let fixture = Fixture::start("many", &["20000"]);
    for command in ["explain", "maps"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagewise"))
            .args([command, &fixture.pid.to_string(), "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pagewise was built for this test");
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn pagewise_looks_at_itself_without_moving_what_it_sees() {
    for reading in READINGS {
        let report = json(&["explain", "self", "--json", reading]);
        let seen = &report["provenance"];
        assert_eq!((seen["drift_virt"].as_i64(), seen["drift_res"].as_i64()), (Some(0), Some(0)));
        if reading == "--full" {
            // Counters of shared pages change when other processes map or unmap the program and its
            // libraries. Dirty counters change with writeback: a program that was just linked is
            // dirty in the page cache.
            let own = ["Rss", "Anonymous", "Swap"];
            let torn = seen["torn_counters"].as_array().unwrap();
            assert!(!own.iter().any(|name| torn.iter().any(|t| t == name)), "{torn:?}");
        }
        assert_eq!(sum(&report["pools"], "resident"), number(&report, "totals.res"), "{reading}");
    }
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    let status = |args: &[&str]| pagewise(args).status.code();
    for wrong in [
        &["explain"][..],
        &["explain", "self", "--no-such-option"],
        &["explain", "self", "--full", "--fast"],
        &["maps", "self", "--filter", "rss >"],
        &["maps", "self", "--columns", "no_such_column"],
        &["no-such-command"],
    ] {
        assert_eq!(status(wrong), Some(2), "{wrong:?}");
    }
    for failing in [
        &["explain", "4194999"][..],
        &["explain", "no process is called this"],
        &["explain", "--from", "/no/such/file"],
    ] {
        assert_eq!(status(failing), Some(1), "{failing:?}");
    }
    assert_eq!(status(&["explain", "self"]), Some(0));
    // Every shell returns this exit code if a program does not exist.
    assert_eq!(status(&["explain", "--", "/no/such/program"]), Some(127));
}

#[test]
fn growth_between_two_snapshots_is_reported_by_quadrant() {
    let small = Fixture::start("quadrants", &["1024"]);
    let large = Fixture::start("quadrants", &["3072"]);
    let save = |fixture: &Fixture| {
        let path = fixture.folder().join("snapshot.json").to_str().unwrap().to_owned();
        json(&["explain", &fixture.pid.to_string(), "--json", "--full", "--save", &path]);
        path
    };
    let (before, after) = (save(&small), save(&large));
    let same = pagewise(&["diff", &before, &before]);
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stderr));
    let report = json(&["diff", &before, &after, "--json"]);
    // Each region has 2 MiB more: four regions of shared memory, one region of private memory, and
    // two regions of private memory of which a half was written.
    let grew = |quadrant: &str| number(&report, &format!("quadrants.{quadrant}.resident_change"));
    assert_eq!(grew("shared_anonymous"), 8 * MIB);
    // The start of the stack in its first page is random, so that the number of pages varies by
    // one.
    let private = grew("private_anonymous");
    assert!(private.abs_diff(4 * MIB) < 64 * 1024, "{private}");
}

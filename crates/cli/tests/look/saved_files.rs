//! pagewise opens files that an earlier version of it saved, and reports the saved numbers.
//!
//! `fixtures/saved` has one file of each kind, saved on Linux 6.18 by these commands. The files are
//! never saved again: after a change of a format, pagewise must still read them.
//!
//!     pagewise heap run -o heap.pwh -- ./heap_known    # fixtures/programs/heap_known.c
//!     pagewise faults --save faults.json -- /bin/true
//!     pagewise lab run first-touch --quick --runs 1 --save lab.json
//!
//! `fixtures/saved/early` has files of commits that had the formats first. `PRINTED.printed.json`
//! has the numbers of the JSON that the same commit printed of these files.
//!
//!     c954679    explain --save (three snapshots, one with --fast), faults --latency, lab run
//!     3a3df00    heap run

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Number, Value};

use fixture::{disk, json, number, pagewise, sum};

fn saved(name: &str) -> String {
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
    fixtures.join(name).to_str().unwrap().to_owned()
}

/// Reads the file itself as JSON, without pagewise.
fn raw(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Adds each number in a value, by its path: `pools[3].resident`.
fn add_figures(value: &Value, path: &str, figures: &mut BTreeMap<String, Number>) {
    match value {
        Value::Number(number) => _ = figures.insert(path.to_owned(), number.clone()),
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                add_figures(value, &format!("{path}[{index}]"), figures);
            }
        }
        Value::Object(values) => {
            for (key, value) in values {
                add_figures(value, &format!("{path}.{key}"), figures);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn figures(value: &Value) -> BTreeMap<String, Number> {
    let mut figures = BTreeMap::new();
    add_figures(value, "", &mut figures);
    figures
}

/// Runs a command on files of `fixtures/saved/early`. Asserts that each number that the early
/// commit printed still has its key and its value.
fn assert_as_printed(command: &[&str], files: &[&str], printed: &str) {
    let files: Vec<String> = files.iter().map(|it| saved(&format!("saved/early/{it}"))).collect();
    let files = files.iter().map(String::as_str);
    let words: Vec<&str> = command.iter().copied().chain(files).chain(["--json"]).collect();
    let now = figures(&json(&words));
    let before = figures(&raw(&saved(&format!("saved/early/{printed}.printed.json"))));
    assert!(before.len() >= 10, "{before:?}");
    let changed: Vec<_> = before
        .iter()
        .filter(|(path, number)| now.get(*path) != Some(*number))
        .map(|(path, number)| (path, number, now.get(path)))
        .collect();
    assert!(changed.is_empty(), "{words:?}: {changed:?}");
}

#[test]
fn a_snapshot_of_an_early_commit_has_the_figures_of_that_commit() {
    assert_as_printed(&["explain", "--from"], &["snapshot.json"], "snapshot");
}

#[test]
fn a_fast_snapshot_of_an_early_commit_has_the_figures_of_that_commit() {
    assert_as_printed(&["explain", "--from"], &["snapshot_fast.json"], "snapshot_fast");
}

#[test]
fn snapshots_of_an_early_commit_differ_as_they_did() {
    assert_as_printed(&["diff"], &["snapshot.json", "snapshot_later.json"], "diff");
}

#[test]
fn page_faults_of_an_early_commit_have_the_figures_of_that_commit() {
    assert_as_printed(&["faults", "--from"], &["faults.json"], "faults");
}

#[test]
fn results_of_the_lab_of_an_early_commit_have_the_figures_of_that_commit() {
    assert_as_printed(&["lab", "report"], &["lab.json"], "lab");
}

#[test]
fn a_heap_recording_of_an_early_commit_has_the_figures_of_that_commit() {
    assert_as_printed(&["heap", "report"], &["heap.pwh"], "heap");
    assert_as_printed(&["heap", "diff"], &["heap.pwh", "heap_later.pwh"], "heap_diff");
}

#[test]
fn a_file_of_a_version_to_come_is_refused_with_its_version_as_the_reason() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    for (command, file, key) in [
        (&["explain", "--from"][..], "snapshot.json", "pagewise_snapshot"),
        (&["faults", "--from"], "faults.json", "version"),
        (&["lab", "report"], "lab.json", "pagewise_notebook"),
    ] {
        let mut value = raw(&saved(&format!("saved/early/{file}")));
        assert_eq!(value[key], 1, "{file}");
        value[key] = 99.into();
        let path = folder.path().join(file);
        fs::write(&path, value.to_string()).unwrap();
        let output = pagewise(&[command, &[path.to_str().unwrap()]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(file) && message.contains("version"), "{message}");
    }
}

#[test]
fn a_snapshot_of_the_first_version_opens() {
    let path = saved("snapshots/threads.json");
    let file = raw(&path);
    let mappings = file["mappings"].as_array().unwrap();
    let rss = mappings.iter().map(|it| it["smaps"]["Rss"].as_u64().unwrap()).sum::<u64>();
    assert!(rss > 0);
    let report = json(&["maps", "--from", &path, "--columns", "all", "--json"]);
    let rows = report["mappings"].as_array().unwrap();
    assert_eq!(rows.len(), mappings.len());
    assert_eq!(sum(&report["mappings"], "Rss"), rss);
    let report = json(&["explain", "--from", &path, "--json"]);
    assert_eq!(report["process"]["pid"], file["process"]["pid"]);
    assert_eq!(report["process"]["threads"], 5);
}

#[test]
fn a_recording_of_the_heap_of_an_earlier_version_opens() {
    let report = json(&["heap", "report", &saved("saved/heap.pwh"), "--top", "all", "--json"]);
    assert_eq!(report["recording"]["ending"], "exit 3");
    let sites = report["sites"].as_array().unwrap();
    let allocated = |blocks: u64, bytes: u64| {
        let is_that = |site: &&Value| {
            number(site, "allocations") == blocks && number(site, "allocated_bytes") == bytes
        };
        sites.iter().filter(is_that).count()
    };
    // Counts in `heap_known.c`: once, zeros, grow, align, and in_thread of two threads.
    for (blocks, size) in [(1000, 48), (300, 30), (100, 4000), (50, 500), (400, 128)] {
        assert_eq!(allocated(blocks, blocks * size), 1, "{blocks} of {size}: {sites:?}");
    }
    let total = number(&report, "totals.allocated_bytes");
    assert_eq!(total, sum(&report["sites"], "allocated_bytes"));
}

#[test]
fn recorded_page_faults_of_an_earlier_version_open() {
    let path = saved("saved/faults.json");
    let file = raw(&path);
    let report = json(&["faults", "--from", &path, "--json"]);
    assert_eq!(report["recording"]["command"], file["command"]);
    assert_eq!(number(&report, "totals.faults"), sum(&file["rows"], "count"));
    assert_eq!(report["totals"]["user_faults_counted"], file["counted"]);
}

#[test]
fn results_of_the_lab_of_an_earlier_version_open() {
    let path = saved("saved/lab.json");
    let file = raw(&path);
    let report = json(&["lab", "report", &path, "--json"]);
    let (saved, shown) = (&file["experiments"][0], &report["experiments"][0]);
    assert_eq!(shown["name"], saved["name"]);
    assert_eq!(shown["question"], saved["question"]);
    assert_eq!(shown["verdict"], "agrees");
    let claims = |experiment: &Value| experiment["claims"].as_array().map(Vec::len);
    assert!(claims(saved) > Some(0));
    assert_eq!(claims(shown), claims(saved));
    assert_eq!(report["environment"]["kernel"], file["environment"]["kernel"]);
}

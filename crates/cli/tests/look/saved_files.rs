//! Files that an earlier pagewise saved open, with the numbers that they were saved with.
//!
//! `fixtures/saved` has one file of each kind, saved on Linux 6.18 by these commands. The files are
//! never saved again: a change of a format has to read them.
//!
//!     pagewise heap run -o heap.pwh -- ./heap_known    # fixtures/programs/heap_known.c
//!     pagewise faults --save faults.json -- /bin/true
//!     pagewise lab run first-touch --quick --runs 1 --save lab.json

use crate::fixture;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use fixture::{json, number, sum};

fn saved(name: &str) -> String {
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
    fixtures.join(name).to_str().unwrap().to_owned()
}

/// The file itself, read without pagewise.
fn raw(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
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
    // As `heap_known.c` says: once, zeros, grow, align, and in_thread of two threads.
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

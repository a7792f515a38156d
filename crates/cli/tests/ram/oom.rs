//! `pagewise oom` against the kernel's own scores, and logs of several kernels.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::fixture::{json, number, pagewise};

fn log(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/oom");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn our_scores_are_those_of_the_kernel() {
    let report = json(&["oom", "--json", "--for", "0s", "--limit", "all"]);
    let compared = number(&report, "check.compared");
    let differ = number(&report, "check.differ");
    assert!(compared > 0);
    // Processes that grow or shrink between both readings may differ.
    assert!(differ <= 2 + compared / 20, "{differ} of {compared}");
    let own = std::process::id();
    let rows = report["processes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["pid"] == own).expect("this test is a process");
    let score: u64 = fs::read_to_string("/proc/self/oom_score").unwrap().trim().parse().unwrap();
    assert!(row["oom_score"].as_u64().unwrap().abs_diff(score) <= 1, "{row}");
}

#[test]
fn the_next_victim_has_the_highest_score_of_the_kernel() {
    let report = json(&["oom", "--json", "--for", "0s", "--limit", "all"]);
    let rows = report["processes"].as_array().unwrap();
    let highest = rows.iter().filter_map(|row| row["oom_score"].as_u64()).max().unwrap();
    let next = rows.iter().find(|row| row["pid"] == report["next"]["pid"]).unwrap();
    assert!(highest - next["oom_score"].as_u64().unwrap() <= 1, "{next}");
    assert_eq!(report["next"], report["oom"]["next"]);
    for key in ["pid", "name", "badness", "frees"] {
        assert!(!report["next"][key].is_null(), "{key}");
    }
}

#[test]
fn growth_is_the_change_between_both_readings() {
    let report = json(&["oom", "--json", "--for", "300ms"]);
    let machine = &report["scopes"][0];
    assert_eq!(machine["scope"], "the machine");
    assert!(machine["growth"].is_number(), "{machine}");
}

/// Returns the last report of a log as JSON.
fn last(name: &str) -> Value {
    json(&["oom", "--json", "--log", &log(name)])["past"]["last"].clone()
}

#[test]
fn logs_of_all_kernels_are_explained() {
    let logs = fs::read_dir(log("")).unwrap().map(|it| it.unwrap().file_name());
    let mut count = 0;
    for name in logs {
        let name = name.to_str().unwrap().to_owned();
        if !name.ends_with(".log") {
            continue;
        }
        count += 1;
        let last = last(&name);
        assert!(last["victim_pid"].is_number() && last["asker_pid"].is_number(), "{name}: {last}");
        assert_eq!(last["truncated"], false, "{name}");
        assert_eq!(number(&last, "damaged_lines"), 0, "{name}");
        assert!(number(&last, "victim_memory") > 0, "{name}");
        let table =
            json(&["oom", "--json", "--limit", "all", "--log", &log(&name)])["past"]["table"]
                .clone();
        // The victim has the highest badness of the table.
        assert_eq!(table[0]["pid"], last["victim_pid"], "{name}: {table}");
        assert_eq!(table[0]["killed"], true, "{name}");
    }
    assert!(count >= 5, "{count} logs");
}

#[test]
fn a_log_without_a_report_and_one_that_is_no_log_are_answers() {
    for text in ["", "no log\n", "\0\u{1b}[31m\n"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, text).unwrap();
        let report = json(&["oom", "--json", "--log", path.to_str().unwrap()]);
        assert_eq!(number(&report, "past.reports"), 0);
    }
    let out = pagewise(&["oom", "--log", "/no/such/log"]);
    assert_eq!(out.status.code(), Some(1));
}

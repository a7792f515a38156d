//! Every line that the running kernel prints has a row in `model::fields`.

use std::fs;

use pagewise_model::fields::FIELDS;

fn has_row(source: &str, name: &str) -> bool {
    FIELDS.iter().any(|field| field.source == source && field.name == name)
}

/// Returns the names in a file of `Name: value` lines that have no row. Lines that start a mapping
/// are ignored.
fn without_row(path: &str, source: &str) -> Vec<String> {
    let text = fs::read_to_string(path).expect("the kernel has the file");
    let names = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    let mut names: Vec<_> = names.filter(|name| !name.contains(' ')).map(str::to_owned).collect();
    assert!(!names.is_empty(), "{path} has no lines");
    names.retain(|name| !has_row(source, name));
    names.dedup();
    names
}

#[test]
fn every_line_of_smaps_is_explained() {
    assert_eq!(without_row("/proc/self/smaps", "smaps"), [""; 0]);
}

#[test]
fn every_line_of_smaps_rollup_is_explained() {
    assert_eq!(without_row("/proc/self/smaps_rollup", "smaps"), [""; 0]);
}

#[test]
fn every_line_of_status_is_explained() {
    assert_eq!(without_row("/proc/self/status", "status"), [""; 0]);
}

#[test]
fn every_line_of_meminfo_is_explained() {
    assert_eq!(without_row("/proc/meminfo", "meminfo"), [""; 0]);
}

#[test]
fn every_number_of_statm_is_explained() {
    let text = fs::read_to_string("/proc/self/statm").expect("the kernel has the file");
    let rows = FIELDS.iter().filter(|field| field.source == "statm").count();
    assert_eq!(text.split_whitespace().count(), rows);
}

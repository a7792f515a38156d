//! `pagewise heap run --mmap`: mappings that a program makes itself. They are known from its
//! source.

use crate::fixture;

use std::collections::BTreeMap;

use fixture::number;
use fixture::recorder::{heap, report};

const MIB: f64 = 1048576.0;

/// Number of mappings, and the MiB of them that were not unmapped, by function.
fn mapped(more: &[&str]) -> BTreeMap<String, (u64, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("maps.pwh");
    let program = fixture::program("heap_maps");
    let words = ["run", "-o", file.to_str().unwrap()];
    let output = heap(&[&words, more, &["--", program.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let mut functions: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    for site in report(&file)["sites"].as_array().unwrap() {
        if site["kind"] == "mapping" {
            // The first frame names the kind of memory.
            let name = site["stack"][1].as_str().unwrap().split(' ').next().unwrap().to_owned();
            let entry = functions.entry(name).or_default();
            entry.0 += number(site, "allocations");
            entry.1 += number(site, "leaked_bytes") as f64 / MIB;
        }
    }
    functions
}

#[test]
fn mappings_are_counted_by_function() {
    let functions = mapped(&["--mmap"]);
    assert_eq!(functions["whole"], (10, 0.0), "a page is unmapped whole");
    assert_eq!(functions["middle"], (1, 6.0));
    assert_eq!(functions["over"], (1, 2.0));
    assert_eq!(functions["other"], (1, 2.0));
    assert_eq!(functions["moves"], (2, 3.0));
    assert_eq!(functions["end"], (1, 0.5));
    assert_eq!(functions.len(), 6, "the C library's own are not the program's: {functions:?}");
}

#[test]
fn mappings_are_not_counted_without_the_option() {
    assert!(mapped(&[]).is_empty());
}

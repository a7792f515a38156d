//! `pagewise heap run` of programs with another C library than the one of this machine: older and
//! newer versions of glibc, and musl. Their allocations are known from the source.
//!
//! `PAGEWISE_GLIBC` names a folder with other versions of glibc.

use crate::fixture::recorder::{by_function, heap, report};
use crate::fixture::{self, FixtureLink, OtherGlibc};
use crate::static_programs::counts_by_function;

use serde_json::Value;

/// Asserts that the call stacks of the program's own functions contain `main`.
fn leads_to_main(report: &Value) {
    for site in report["sites"].as_array().unwrap() {
        let stack: Vec<&str> =
            site["stack"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap()).collect();
        let is_own = ["once", "zeros", "grow", "align"].iter().any(|it| stack[0].starts_with(it));
        assert!(!is_own || stack.iter().any(|frame| frame.starts_with("main")), "{stack:?}");
    }
}

#[test]
fn a_program_with_another_version_of_glibc_is_counted_by_function() {
    for library in OtherGlibc::all() {
        eprintln!("glibc {}", library.version);
        leads_to_main(&counts_by_function(&library.program("heap_known")));
    }
}

#[test]
fn a_program_with_musl_is_recorded() {
    let Some(program) = fixture::musl_program(FixtureLink::Musl, "heap_known") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("musl.pwh");
    let output = heap(&["run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let functions = by_function(&report(&file));
    // musl's `calloc` and `posix_memalign` call functions that are recorded, too.
    assert_eq!(functions["grow"], [100, 400_000, 100]);
    assert_eq!(functions["in_thread"], [400, 51_200, 400]);
}

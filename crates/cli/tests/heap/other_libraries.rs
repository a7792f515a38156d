//! `pagewise heap run` of programs with another C library than the one of this machine: older and
//! newer versions of glibc, and musl. Their allocations are known from the source.
//!
//! `PAGEWISE_GLIBC` names a folder with other versions of glibc.

use crate::fixture::{self, FixtureLink, OtherGlibc};
use crate::static_programs::{counts_by_function, is_counted_by_function};

#[test]
fn a_program_with_another_version_of_glibc_is_counted_by_function() {
    for library in OtherGlibc::all() {
        eprintln!("glibc {}", library.version);
        is_counted_by_function(&library.program("heap_known"));
    }
}

#[test]
fn a_program_with_musl_is_counted_by_function() {
    let Some(program) = fixture::musl_program(FixtureLink::Musl, "heap_known") else { return };
    let report = counts_by_function(&program);
    // musl itself has no unwind tables, so no call stack leads beyond `main`.
    for site in report["sites"].as_array().unwrap() {
        let stack = site["stack"].as_array().unwrap();
        let in_main = stack.iter().any(|frame| frame.as_str().unwrap().contains("main"));
        let functions = ["once", "zeros", "grow", "align"];
        let is_first = |name: &&str| stack[0].as_str().unwrap().starts_with(*name);
        assert!(in_main || !functions.iter().any(|name| is_first(&name)), "{stack:?}");
    }
}

//! `pagewise heap run` of programs that load no library. What they allocate is known by how they are written.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may do both")]

mod fixture;

use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::number;
use fixture::recorder::{by_function, heap, report};

fn has_probes() -> bool {
    let has = Path::new("/sys/bus/event_source/devices/uprobe").exists();
    if !has {
        fixture::lacks("this kernel has no uprobes");
    }
    has && fixture::is_root()
}

fn is_counted_by_function(program: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("static.pwh");
    let output = heap(&["run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report = report(&file);
    let functions = by_function(&report);
    assert_eq!(functions["once"], [1000, 48_000, 1000]);
    assert_eq!(functions["zeros"], [300, 9000, 290], "ten are never freed");
    assert_eq!(functions["grow"], [100, 400_000, 100]);
    assert_eq!(functions["align"], [50, 25_000, 50]);
    assert_eq!(functions["in_thread"], [400, 51_200, 400]);
    // All of `once`, `zeros` and `grow` are live then; the C library has a few blocks of its own.
    let peak = number(&report, "totals.peak_bytes") - (48 * 900 + 9000 + 400_000);
    assert!(peak < 6000, "{peak} bytes more than the program's own");
    // The program's own are followed to where threads begin.
    for site in report["sites"].as_array().unwrap() {
        let stack = site["stack"].as_array().unwrap();
        let (first, last) = (stack[0].as_str().unwrap(), stack[stack.len() - 1].as_str().unwrap());
        assert!(
            !first.contains("heap_known.c") || last.contains("start") || last.contains("clone"),
            "{stack:?}"
        );
    }
}

#[test]
fn a_program_that_is_linked_statically_is_counted_by_function() {
    let Some(program) = fixture::static_program("heap_known").filter(|_| has_probes()) else {
        return;
    };
    is_counted_by_function(&program);
}

#[test]
fn so_is_one_with_another_c_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("known");
    let source =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/heap_known.c");
    let built = Command::new("musl-gcc")
        .args(["-O1", "-g", "-static", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    match built {
        Ok(status) => assert!(status.success()),
        Err(_) => return fixture::skip("musl-gcc is not installed"),
    }
    if has_probes() {
        is_counted_by_function(&program);
    }
}

#[test]
fn what_cannot_be_watched_is_refused_with_words() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |program: &Path, expected: &str| {
        let output = heap(&["run", "--", program.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    if let Some(program) = fixture::static_program("heap_known") {
        let stripped = folder.path().join("stripped");
        let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status();
        assert!(status.unwrap().success());
        refused(&stripped, "no symbols of malloc and free");
    }
    let source = folder.path().join("main.go");
    std::fs::write(&source, "package main\nfunc main() { println(1) }\n").unwrap();
    let program = folder.path().join("go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0");
    build.env("GOCACHE", folder.path().join("cache")).current_dir(folder.path());
    match build.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => return fixture::skip("go is not installed"),
    }
    refused(&program, "a program of Go's");
}

//! `pagewise heap run` of programs with a `malloc` of their own, which a preloaded library does not
//! interpose. Their allocations are known from the source.

use crate::fixture;

use std::process::Command;

use pagewise_skip::{Lack, skip};

use fixture::number;
use fixture::recorder::{
    WaitingProgram, attach_shortly, attached, begins_with_a_jump, by_function, heap, report,
};
use rustix::process::Signal;

#[test]
fn every_call_is_counted_by_function() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.pwh");
    let program = fixture::program("own_malloc");
    let words = ["run", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap(), "10"];
    let output = heap(&words);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let report = report(&file);
    let functions = by_function(&report);
    assert_eq!(functions["once"], [1000, 48_000, 990], "ten are kept");
    assert_eq!(
        functions["thrice"],
        [3000, 96_000, 3000],
        "calloc's own malloc is no call of the program's"
    );
    assert_eq!(functions["grows"], [200, 406_400, 200], "neither is realloc's");
    assert_eq!(functions["in_thread"], [2000, 256_000, 2000]);
    let malloc = report["recording"]["allocator"].as_str().unwrap();
    assert!(malloc.ends_with("own_malloc"), "{malloc}");
}

#[test]
fn samples_of_an_own_malloc_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.pwh");
    let program = fixture::program("own_malloc");
    let words =
        ["run", "--sample", "1k", "-o", file.to_str().unwrap(), "--", program.to_str().unwrap()];
    let output = heap(&words);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let report = report(&file);
    let allocated = number(&report, "totals.allocated_bytes");
    assert!((600_000..1_010_000).contains(&allocated), "of 806,400 bytes, {allocated}");
}

#[test]
fn the_compiler_of_this_test_is_recorded_and_does_its_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rustc.pwh");
    let Ok(sysroot) = Command::new("rustc").args(["--print", "sysroot"]).output() else {
        return skip(&Lack::Tool("rustc"));
    };
    let sysroot = String::from_utf8(sysroot.stdout).unwrap();
    let rustc = format!("{}/bin/rustc", sysroot.trim());
    let source = folder.path().join("source.rs");
    std::fs::write(&source, "pub fn f() -> Vec<u8> { vec![1, 2, 3] }").unwrap();
    let output = heap(&[
        "run",
        "-o",
        file.to_str().unwrap(),
        "--",
        &rustc,
        "--crate-type=lib",
        "--emit=metadata",
        "--out-dir",
        folder.path().to_str().unwrap(),
        source.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    assert!(folder.path().join("libsource.rmeta").exists());
    // The compiler makes some 15,000 allocations for this; constructors of its libraries make 400
    // before `main`.
    let report = report(&file);
    assert!(number(&report, "totals.allocations") > 5000, "{}", report["totals"]);
    assert!(number(&report, "totals.unknown_frees") < 100, "{}", report["totals"]);
}

#[test]
fn a_running_program_is_attached_to_while_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.pwh");
    let mut command = Command::new(fixture::program("own_malloc"));
    let mut program = WaitingProgram::start(command.args(["10", "waits"]));
    let pid = program.pid();
    let is_hooked = || begins_with_a_jump(pid, "own_malloc", "malloc");
    attached(pid, &file, is_hooked, || {
        // The C library is farther from the program than a jump reaches.
        let has_threads = begins_with_a_jump(pid, "libc.so.6", "pthread_create");
        assert!(has_threads, "whether there are several threads is not known");
        program.work();
    });
    assert!(!is_hooked() && !begins_with_a_jump(pid, "libc.so.6", "pthread_create"));
    assert_eq!(program.end().code(), Some(5));
    let functions = by_function(&report(&file));
    assert_eq!(functions["once"], [1000, 48_000, 990], "ten are kept");
    assert_eq!(functions["thrice"], [3000, 96_000, 3000]);
    assert_eq!(functions["grows"], [200, 406_400, 200]);
    assert_eq!(functions["in_thread"], [2000, 256_000, 2000]);
}

#[test]
fn a_running_program_that_never_waits_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(fixture::program("own_malloc"));
    let program = WaitingProgram::start(command.args(["0", "works"]));
    let output = attach_shortly(program.pid(), &folder.path().join("own.pwh"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("own_malloc has a malloc of its own"), "{said}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
    assert!(!maps.contains("libpagewise_preload"), "{maps}");
    assert_eq!(program.end_by(Signal::TERM).code(), Some(5));
}

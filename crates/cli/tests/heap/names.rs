//! `pagewise heap` of programs whose allocators have names of their own, or an `operator new`.
//! Their allocations are known from the source (`fixtures/programs/allocators`).

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fixture::number;
use fixture::recorder::{
    WaitingProgram, attach_shortly, attached, begins_with_a_jump, by_function, heap, report,
};
use pagewise_skip::{Lack, skip};
use serde_json::Value;
use tempfile::TempDir;

/// Folder of libraries on this machine's distribution.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

fn source(name: &str) -> String {
    format!("{}/../../fixtures/programs/allocators/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Compiles a program; the compiler is there, since all fixtures need it.
fn compile(folder: &TempDir, compiler: &str, words: &[&str]) -> PathBuf {
    let program = folder.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-fno-builtin", "-pthread", "-o"]).arg(&program).args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A library of an allocator; `None`, after recording a skip, if it is not installed.
fn library(name: &str) -> Option<String> {
    let path = format!("{LIBRARIES}/{name}");
    if !Path::new(&path).exists() {
        skip(&Lack::Tool(&path));
        return None;
    }
    Some(path)
}

/// A library of jemalloc in which its functions have a prefix, as in Rust's programs.
fn prefixed(folder: &TempDir) -> Option<String> {
    const NAMES: &[&str] = &[
        "malloc",
        "calloc",
        "realloc",
        "free",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "mallocx",
        "rallocx",
        "xallocx",
        "sallocx",
        "nallocx",
        "dallocx",
        "sdallocx",
        "malloc_usable_size",
    ];
    let library = library("libjemalloc_pic.a")?;
    let names = folder.path().join("names");
    let lines: String = NAMES.iter().map(|name| format!("{name} _rjem_{name}\n")).collect();
    fs::write(&names, lines).unwrap();
    let made = folder.path().join("librjem.a");
    let redefine = format!("--redefine-syms={}", names.display());
    fixture::tool("objcopy", &[&redefine, &library, made.to_str().unwrap()])?;
    Some(made.to_str().unwrap().to_owned())
}

/// The program with jemalloc under names with a prefix.
fn with_jemalloc(folder: &TempDir) -> Option<PathBuf> {
    let library = prefixed(folder)?;
    let words = [&source("jemalloc.c"), &library, "-lstdc++", "-lm"];
    Some(compile(folder, "cc", &words))
}

/// Records a program, which must end as without a recorder.
fn run(
    folder: &TempDir,
    words: &[&str],
    program: &Path,
    preload: &str,
    ends: i32,
) -> (Value, String) {
    let file = folder.path().join("heap.pwh");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["heap", "run", "-o"]).arg(&file).args(words).arg("--").arg(program);
    if ends == 9 || preload.contains("mimalloc") {
        command.arg("nothing-thrown");
    }
    if !preload.is_empty() {
        command.env("LD_PRELOAD", preload);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(ends), "{said}");
    (report(&file), said)
}

fn expect(functions: &BTreeMap<String, [u64; 3]>, expected: &[(&str, [u64; 3])]) {
    for (name, sums) in expected {
        assert_eq!(functions.get(*name), Some(sums), "{name} of {functions:?}");
    }
}

/// Blocks, bytes and frees of each function of `jemalloc.c`.
const OF_JEMALLOC: &[(&str, [u64; 3])] = &[
    ("usual", [300, 7300, 200]),
    ("small", [300, 2400, 300]),
    ("none", [100, 0, 100]),
    ("aligned", [400, 100_000, 300]),
    ("resized", [400, 1_011_700, 400]),
    ("in_place", [400, 310_700, 398]),
    ("impossible", [100, 5000, 100]),
    ("both", [200, 100_000, 198]),
    ("in_thread", [800, 102_400, 800]),
];

/// Counts of each function of `new.cpp`.
const OF_NEW: &[(&str, [u64; 3])] = &[
    ("plain", [200, 11_200, 100]),
    ("small", [300, 2400, 300]),
    ("sized", [300, 7100, 300]),
    ("aligned", [200, 76_800, 200]),
    ("silent", [300, 10_700, 300]),
    ("mixed", [300, 10_000, 299]),
    ("in_thread", [400, 19_200, 400]),
];

/// Bytes that a function allocated and did not free.
fn leaked(report: &Value, function: &str) -> u64 {
    let leaks = report["leaks"].as_array().unwrap().iter();
    let is_its = |leak: &&Value| leak["stack"][0].as_str().unwrap().starts_with(function);
    leaks.filter(is_its).map(|leak| number(leak, "bytes")).sum()
}

#[test]
fn jemalloc_under_a_prefix_is_counted_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_jemalloc(&folder) else { return };
    let (report, said) = run(&folder, &[], &program, "", 7);
    expect(&by_function(&report), OF_JEMALLOC);
    for (function, bytes) in
        [("usual", 2400), ("aligned", 20_000), ("in_place", 1097), ("both", 1000)]
    {
        assert_eq!(leaked(&report, function), bytes, "{function}");
    }
    assert_eq!(number(&report, "totals.unknown_frees"), 0);
    let allocator = report["recording"]["allocator"].as_str().unwrap();
    assert!(allocator.contains("libc.so.6, _rjem_malloc of "), "{allocator}");
    // The footprint is more than that of the C library, and is therefore absent.
    let moments = report["timeline"].as_array().unwrap();
    let mut used = moments.iter().filter(|moment| number(moment, "allocations") > 0);
    assert!(used.all(|moment| moment["held"].as_u64().is_none()), "{moments:?}");
    assert!(!said.contains("not recorded"), "{said}");
}

#[test]
fn a_child_has_a_recording_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_jemalloc(&folder) else { return };
    let file = folder.path().join("heap.pwh");
    let program = program.to_str().unwrap();
    let output = heap(&["run", "--follow", "-o", file.to_str().unwrap(), "--", program, "fork"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let both = [("small", [300, 2400, 300]), ("resized", [400, 1_011_700, 400])];
    let parent = by_function(&report(&file));
    expect(&parent, &both);
    expect(&parent, &[("usual", [300, 7300, 200])]);
    let is_child = |path: &PathBuf| path.to_string_lossy().contains("heap.pwh.");
    let mut files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let child = by_function(&report(&files.find(is_child).expect("the child has a file")));
    expect(&child, &both);
    assert!(!child.contains_key("usual"), "{child:?}");
}

#[test]
fn samples_of_jemalloc_are_right_on_average() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_jemalloc(&folder) else { return };
    let all: u64 = OF_JEMALLOC.iter().map(|(_, sums)| sums[1]).sum();
    let (report, _) = run(&folder, &["--sample", "1k"], &program, "", 7);
    let estimated = number(&report, "totals.allocated_bytes");
    let within = number(&report, "totals.allocated_within");
    assert!(all.abs_diff(estimated) < 6 * within, "{estimated} of {all}, within {within}");
    assert!(within < all / 5, "{within}");
}

#[test]
fn stripped_symbols_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_jemalloc(&folder) else { return };
    if fixture::tool("strip", &[program.to_str().unwrap()]).is_none() {
        return;
    }
    let (_, said) = run(&folder, &[], &program, "", 7);
    let words = "program has jemalloc in it, but no symbols of its functions (they were stripped)";
    assert!(said.contains(words), "{said}");
}

#[test]
fn usual_names_that_no_other_file_sees_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library("libjemalloc_pic.a") else { return };
    let source = source("new.cpp");
    let words = ["-std=c++17", "-Wl,--exclude-libs,ALL", &source, &library, "-lm"];
    let program = compile(&folder, "c++", &words);
    let exported = fixture::tool("nm", &["-D", "--defined-only", program.to_str().unwrap()]);
    assert!(exported.is_some_and(|names| !names.contains(" malloc")));
    let (report, _) = run(&folder, &[], &program, "", 8);
    expect(&by_function(&report), OF_NEW);
}

#[test]
fn mimalloc_by_its_own_names_is_counted_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    if library("libmimalloc.so").is_none() {
        return;
    }
    let program = compile(&folder, "cc", &[&source("mimalloc.c"), "-lmimalloc"]);
    let (report, _) = run(&folder, &[], &program, "", 9);
    let expected = [
        ("usual", [500, 20_300, 400]),
        ("small", [300, 2400, 300]),
        ("aligned", [500, 150_000, 500]),
        ("resized", [600, 1_634_900, 600]),
        ("texts", [300, 6000, 300]),
        ("in_heap", [300, 24_000, 299]),
        ("impossible", [100, 5000, 100]),
    ];
    expect(&by_function(&report), &expected);
    assert_eq!((leaked(&report, "usual"), leaked(&report, "in_heap")), (2400, 90));
    assert_eq!(number(&report, "totals.unknown_frees"), 0);
}

/// A C++ program under an allocator that is loaded before all others.
fn preloaded(library: Option<String>) {
    let Some(library) = library else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, "c++", &["-std=c++17", &source("new.cpp")]);
    let (report, said) = run(&folder, &[], &program, &library, 8);
    expect(&by_function(&report), OF_NEW);
    assert_eq!((leaked(&report, "plain"), leaked(&report, "mixed")), (4000, 10));
    assert_eq!(number(&report, "totals.unknown_frees"), 0);
    assert!(!said.contains("operator new"), "{said}");
}

#[test]
fn an_operator_new_of_jemallocs_is_recorded() {
    preloaded(library("libjemalloc.so.2"));
}

#[test]
fn an_operator_new_of_mimallocs_is_recorded() {
    preloaded(library("libmimalloc.so"));
}

#[test]
fn an_operator_new_of_tcmallocs_is_recorded() {
    preloaded(library("libtcmalloc_minimal.so.4"));
}

#[test]
fn a_programs_own_operator_new_may_throw() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = prefixed(&folder) else { return };
    let program = compile(&folder, "c++", &[&source("own_new.cpp"), &library, "-lm"]);
    let (report, _) = run(&folder, &[], &program, "", 4);
    let functions = by_function(&report);
    expect(&functions, &[("operator", [100, 4000, 100])]);
    assert_eq!(number(&report, "totals.unknown_frees"), 0);
}

#[test]
fn tcmalloc_in_the_program_itself_is_recorded() {
    let Some(library) = library("libtcmalloc_minimal.a") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, "c++", &["-std=c++17", &source("new.cpp"), &library]);
    let (report, _) = run(&folder, &[], &program, "", 8);
    expect(&by_function(&report), OF_NEW);
}

/// The number of anonymous executable mappings of a process.
fn pieces_of_code(pid: u32) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    text.lines().filter(|line| line.contains(" r-xp 00000000 00:00 0 ")).count()
}

/// Attaches to a running program, and once more while it works. Returns the recorded functions.
fn attached_twice(
    folder: &TempDir,
    command: &mut Command,
    (file, function): (&str, &str),
    ends: i32,
) -> Value {
    let mut program = WaitingProgram::start(command);
    let pid = program.pid();
    let code = pieces_of_code(pid);
    // The program does nothing during this attach. Afterwards its functions are not hooked.
    let output = attach_shortly(pid, &folder.path().join("first.pwh"));
    assert!(output.status.success(), "{output:?}");
    assert!(!begins_with_a_jump(pid, file, function));
    assert_eq!(pieces_of_code(pid), code, "moved instructions stay mapped");
    let second = folder.path().join("second.pwh");
    let is_hooked = || begins_with_a_jump(pid, file, function);
    let said = attached(pid, &second, is_hooked, || program.work());
    assert!(!is_hooked(), "functions are as they were");
    assert!(!said.contains("operator new"), "{said}");
    assert_eq!(program.end().code(), Some(ends));
    report(&second)
}

#[test]
fn a_running_program_is_attached_to_twice() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_jemalloc(&folder) else { return };
    let mut command = Command::new(program);
    let report = attached_twice(&folder, command.arg("wait"), ("program", "_rjem_malloc"), 7);
    expect(&by_function(&report), OF_JEMALLOC);
}

/// A running C++ program under an allocator that was loaded before all others.
fn attached_under(library: Option<String>) {
    let Some(library) = library else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, "c++", &["-std=c++17", &source("new.cpp")]);
    let file = fs::canonicalize(&library).unwrap();
    let file = file.file_name().unwrap().to_str().unwrap();
    let mut command = Command::new(program);
    command.arg("wait").env("LD_PRELOAD", &library);
    let report = attached_twice(&folder, &mut command, (file, "malloc"), 8);
    expect(&by_function(&report), OF_NEW);
    assert_eq!((leaked(&report, "plain"), leaked(&report, "mixed")), (4000, 10));
    let allocator = report["recording"]["allocator"].as_str().unwrap();
    assert!(allocator.contains(library.split('/').next_back().unwrap()), "{allocator}");
}

#[test]
fn a_program_under_jemalloc_is_attached_to() {
    attached_under(library("libjemalloc.so.2"));
}

#[test]
fn a_program_under_mimalloc_is_attached_to() {
    attached_under(library("libmimalloc.so"));
}

#[test]
fn a_program_under_tcmalloc_is_attached_to() {
    attached_under(library("libtcmalloc_minimal.so.4"));
}

#[test]
fn functions_of_jemallocs_own_are_recorded_in_a_running_program() {
    let Some(library) = library("libjemalloc.so.2") else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = "malloc calloc realloc free posix_memalign aligned_alloc memalign valloc mallocx rallocx xallocx sallocx nallocx \
                 dallocx sdallocx";
    let names: Vec<String> =
        names.split_whitespace().map(|name| format!("-D_rjem_{name}={name}")).collect();
    let (source, mut words) = (source("jemalloc.c"), Vec::new());
    words.extend(names.iter().map(String::as_str));
    words.extend([source.as_str(), &library]);
    let program = compile(&folder, "cc", &words);
    let file = fs::canonicalize(&library).unwrap();
    let file = file.file_name().unwrap().to_str().unwrap();
    let mut command = Command::new(program);
    let report = attached_twice(&folder, command.arg("wait"), (file, "mallocx"), 7);
    expect(&by_function(&report), OF_JEMALLOC);
}

#[test]
fn a_running_program_with_tcmalloc_in_it_is_attached_to() {
    let Some(library) = library("libtcmalloc_minimal.a") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, "c++", &["-std=c++17", &source("new.cpp"), &library]);
    let mut command = Command::new(program);
    let report = attached_twice(&folder, command.arg("wait"), ("program", "malloc"), 8);
    expect(&by_function(&report), OF_NEW);
}

#[test]
fn a_program_under_a_sanitizer_is_not_attached_to() {
    let at = fixture::tool("c++", &["-print-file-name=libasan.so"]).unwrap();
    if !at.contains('/') {
        return skip(&Lack::Ability { of: "c++", what: "it has no AddressSanitizer" });
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["-std=c++17", "-fsanitize=address", &source("new.cpp")];
    let mut command = Command::new(compile(&folder, "c++", &words));
    command.arg("wait").env("ASAN_OPTIONS", "detect_leaks=0:alloc_dealloc_mismatch=0");
    let mut program = WaitingProgram::start(&mut command);
    let output = attach_shortly(program.pid(), &folder.path().join("heap.pwh"));
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("sanitizer"), "{said}");
    program.work();
    assert_eq!(program.end().code(), Some(8));
}

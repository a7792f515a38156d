//! The libraries as C and C++ programs use them: installed, found by pkg-config, linked both ways.
//!
//! Every program of `ctests` and `examples` is compiled and run: plain, under valgrind, and with
//! sanitizers. Under a checker, its argument is `watched`.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

mod build;
mod installed;
mod loaded;
mod mistakes;
mod persistent;
mod same;
mod same_queues;
mod same_tlsf;

use std::fs;

use build::{C, CLinkage, CPP, SANITIZED, api, compile, has, programs, run, text, under_valgrind};

/// Folders of programs that exit with 0 on success.
const FOLDERS: [&str; 2] = ["ctests", "examples"];

#[test]
fn every_c_program_runs_with_the_shared_library_and_with_the_static_one() {
    for source in FOLDERS.iter().flat_map(|folder| programs(folder, "c")) {
        for (linked, level) in [(CLinkage::Shared, "-O2"), (CLinkage::Static, "-O0")] {
            let program = compile("cc", &[C, &[level]].concat(), &source, linked);
            program.map(|mut program| run(&mut program));
        }
    }
}

#[test]
fn every_cpp_program_runs_with_the_shared_library_and_with_the_static_one() {
    for source in programs("ctests", "cpp") {
        for linked in [CLinkage::Shared, CLinkage::Static] {
            let program = compile("c++", CPP, &source, linked);
            program.map(|mut program| run(&mut program));
        }
    }
}

#[test]
fn every_c_program_compiles_with_clang_too() {
    for source in FOLDERS.iter().flat_map(|folder| programs(folder, "c")) {
        let program = compile("clang", &[C, &["-O2"]].concat(), &source, CLinkage::Shared);
        program.map(|mut program| run(&mut program));
    }
}

#[test]
fn every_header_compiles_alone_as_cpp() {
    for header in programs("include/pagewise", "h") {
        let name = header.file_name().unwrap().to_string_lossy().into_owned();
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("alone.cpp");
        let twice = format!("#include <pagewise/{name}>\n").repeat(2);
        fs::write(&source, twice + "int main() { return 0; }\n").unwrap();
        compile("c++", CPP, &source, CLinkage::Shared).map(|mut program| run(&mut program));
    }
}

#[test]
fn valgrind_finds_no_leak_and_no_wrong_access() {
    for source in FOLDERS.iter().flat_map(|folder| programs(folder, "c")) {
        let program = compile("cc", C, &source, CLinkage::Shared).filter(|_| has("valgrind"));
        program.map(|program| run(&mut under_valgrind(&program, &["watched"])));
    }
}

#[test]
fn sanitizers_find_nothing() {
    for source in FOLDERS.iter().flat_map(|folder| programs(folder, "c")) {
        let program = compile("cc", &[C, SANITIZED].concat(), &source, CLinkage::Shared);
        program.map(|mut program| run(program.arg("watched")));
    }
}

#[test]
fn the_example_of_the_readme_is_one_of_ours_and_prints_what_it_says() {
    let readme = fs::read_to_string(api().join("../../README.md")).unwrap();
    let source = api().join("examples/measure.c");
    let example = format!("```c\n{}```", fs::read_to_string(&source).unwrap());
    assert!(readme.contains(&example), "{example}");
    if let Some(mut program) = compile("cc", C, &source, CLinkage::Shared) {
        let said = text(&run(&mut program).stdout);
        let count = said.strip_suffix(" page faults\n").and_then(|count| count.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "{said}");
    }
}

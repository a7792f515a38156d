//! Cost of recording memory calls: against strace with and without its filter, and against the
//! command alone.
//!
//! `cargo bench -p pagewise --bench calls`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "targets that wait are other benchmarks'")]
mod race;

use race::{RaceCommand, compile, goal, race};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");

/// The calls that dynamic C programs make; strace traces only these, so that it does no more work.
const TRACE: &str =
    "-f -c -o /dev/null -e trace=brk,mmap,munmap,mremap,mprotect,madvise,arch_prctl";

fn main() {
    let program = compile("calls").display().to_string();
    for (title, act, rounds) in [
        ("A start-up and nothing else", "nothing", 21),
        ("50,000 madvise", "advise", 11),
        ("200,000 getppid", "others", 7),
    ] {
        // The exit status of the program is not 0.
        let run = |before: &str| format!("{before} {program} {act}; true");
        let runners = [
            RaceCommand::shell(
                "strace --seccomp-bpf",
                &run(&format!("strace --seccomp-bpf {TRACE}")),
            ),
            RaceCommand::shell("strace", &run(&format!("strace {TRACE}"))),
            RaceCommand::shell(
                "pagewise syscalls",
                &run(&format!("{PAGEWISE} syscalls --calls 0 --")),
            ),
            RaceCommand::shell("no observer", &run("")),
        ];
        let results = race(title, rounds, &runners);
        if act != "nothing" {
            goal(&results, "pagewise syscalls", 1.25, None);
        }
    }
}

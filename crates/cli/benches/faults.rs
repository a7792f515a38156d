//! Cost of recording page faults, and size of the recording: against perf, and against the command
//! alone; and the cost of `--heap`, which finds the call stacks that allocated the memory.
//!
//! `cargo bench -p pagewise --bench faults`, as root

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "targets that wait are other benchmarks'")]
mod race;

use race::{RaceCommand, compile, goal, race};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
const EVENT: &str = "exceptions:page_fault_user";

fn main() {
    let program = compile("faults").display().to_string();
    let folder = std::env::temp_dir().join(format!("pagewise-bench-faults.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder of temporary files takes one");
    let [theirs, ours] = ["perf.data", "faults.json"].map(|name| folder.join(name));
    for (title, act, rounds) in
        [("A start-up and 4 faults", "ratio 1", 21), ("400,000 faults", "ratio 100000", 11)]
    {
        // The program exits with a status other than 0, which `true` hides.
        let run = |before: &str| format!("{before} {program} {act}; true");
        let perf = format!("perf record -q -g -e {EVENT} -o {} --", theirs.display());
        let pagewise = format!("{PAGEWISE} faults --save {} -o /dev/null --", ours.display());
        let runners = [
            RaceCommand::shell("perf record -g", &run(&perf)),
            RaceCommand::shell("pagewise faults", &run(&pagewise)),
            RaceCommand::shell("no observer", &run("")),
        ];
        let results = race(title, rounds, &runners);
        goal(&results, "pagewise faults", 1.0, None);
        let size = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |file| file.len());
        println!("perf.data: {} bytes; saved: {} bytes", size(&theirs), size(&ours));
    }
    let program = compile("heapfaults").display().to_string();
    for (title, act, rounds) in [
        ("A start-up and 90 faults", "pairs 1", 21),
        ("360,000 faults in blocks", "pairs 4000", 11),
    ] {
        let run = |before: &str| format!("{before} {program} {act} >/dev/null; true");
        let faults = |more: &str| format!("{PAGEWISE} faults {more} -o /dev/null --");
        let runners = [
            RaceCommand::shell("pagewise faults", &run(&faults(""))),
            RaceCommand::shell("pagewise faults --heap", &run(&faults("--heap"))),
            RaceCommand::shell("pagewise faults --heap=1", &run(&faults("--heap=1"))),
            RaceCommand::shell("no observer", &run("")),
        ];
        race(title, rounds, &runners);
    }
    // If this fails, the files stay in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
}

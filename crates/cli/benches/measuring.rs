//! Cost of measuring a command: `pagewise stat` against `perf stat`, and against the command alone.
//!
//! `cargo bench -p pagewise --bench measuring`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "targets are other benchmarks'")]
mod race;

use race::{RaceCommand, goal, race};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");

fn main() {
    let results = race(
        "one run of true",
        100,
        &[
            RaceCommand::new("perf stat", "perf stat true"),
            RaceCommand::new("pagewise stat", &format!("{PAGEWISE} stat true")),
            RaceCommand::new("true", "true"),
        ],
    );
    goal(&results, "pagewise stat", 1.3, None);
    let results = race(
        "100 runs of true",
        10,
        &[
            RaceCommand::new("perf stat -r 100", "perf stat -r 100 true"),
            RaceCommand::new(
                "pagewise stat -n 100",
                &format!("{PAGEWISE} stat -n 100 --events software true"),
            ),
            RaceCommand::new(
                "pagewise stat -n 100, usual events",
                &format!("{PAGEWISE} stat -n 100 true"),
            ),
        ],
    );
    goal(&results, "pagewise stat -n 100", 1.3, None);
}

//! Cost of a watched write, and of a watch without writes: against the program alone, and against
//! gdb.
//!
//! `cargo bench -p pagewise --bench watch`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "targets that wait and races are other benchmarks'")]
mod race;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use race::{compile, median};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
/// Number of writes to `sequence`; `FEWER` under gdb, which is slow.
const WRITES: u32 = 20_000;
const FEWER: u32 = 500;
const ROUNDS: usize = 9;
/// Maximum cost of a hit in microseconds.
const GOAL: f64 = 40.0;

/// The wall time of a line for the shell in milliseconds. The line must succeed.
fn wall(line: &str) -> f64 {
    let begin = Instant::now();
    let status = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "failed: {line}");
    begin.elapsed().as_secs_f64() * 1e3
}

fn main() {
    let program = compile("writers").display().to_string();
    let folder = std::env::temp_dir().join(format!("pagewise-bench-watch.{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder of temporary files takes one");
    let [script, report] = ["script", "report.json"].map(|name| folder.join(name));
    let go_on = "watch *(unsigned *)&sequence\ncommands\nsilent\ncontinue\nend\nrun\n";
    fs::write(&script, go_on).expect("the folder takes a file");
    let watch = |variable: &str| {
        format!(
            "echo | {PAGEWISE} watch --json -o {} --symbol {variable} -- {program} {WRITES} 1",
            report.display()
        )
    };
    let gdb = |writes: u32| {
        let input = folder.join("input");
        fs::write(&input, "\n").expect("the folder takes a file");
        let script = script.display();
        format!(
            "gdb -nx -batch -ex 'set args {writes} 1 < {}' -x {script} {program}",
            input.display()
        )
    };
    let mut rows = vec![
        ("no observer", format!("echo | {program} {WRITES} 1")),
        ("pagewise watch, never written", watch("of_nobody")),
        ("pagewise watch, each write a hit", watch("sequence")),
    ];
    let has_gdb = Command::new("gdb").arg("--version").output().is_ok();
    if has_gdb {
        rows.push(("gdb, no write", gdb(0)));
        rows.push(("gdb, each write a hit", gdb(FEWER)));
    }
    let mut walls = vec![Vec::new(); rows.len()];
    for round in 0..=ROUNDS {
        for ((_, line), walls) in rows.iter().zip(&mut walls) {
            let wall = wall(line);
            if round > 0 {
                walls.push(wall);
            }
        }
    }
    println!(
        "\n{WRITES} writes, of gdb {FEWER} ({ROUNDS} interleaved rounds): median of the whole command"
    );
    for ((name, _), walls) in rows.iter().zip(&walls) {
        println!("{name:<36}{:>10.1} ms", median(walls));
    }
    let hit = |more: usize, less: usize, writes: u32| {
        let each = walls[more].iter().zip(&walls[less]).map(|(more, less)| more - less);
        median(&each.collect::<Vec<_>>()) * 1e3 / f64::from(writes)
    };
    let ours = hit(2, 1, WRITES);
    let met = if ours <= GOAL { "met" } else { "MISSED" };
    println!("goal {met}: a hit <= {GOAL} µs: {ours:.1} µs");
    if has_gdb {
        println!("a hit under gdb: {:.1} µs", hit(4, 3, FEWER));
    }
    // Leftovers are in the folder of temporary files.
    let _ = fs::remove_dir_all(&folder);
}

//! A heap of a million live blocks in 1 GiB: time of a whole `heap scan` with leaks and retained
//! bytes, memory of pagewise for each block, and the pause of the process with and without
//! `--fork`.
//!
//! `cargo bench -p pagewise --bench heap_scan`: needs 4 GiB of available memory, and GNU time.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "races of whole commands are another benchmark's")]
mod race;

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use race::{RaceTarget, median};

const ROUNDS: usize = 7;
const BLOCKS: u64 = 1_000_000;
/// Usable bytes of each block, so that all of them and their headers take 1 GiB.
const BYTES: u64 = 1064;

/// One scan.
struct MeasuredScan {
    seconds: f64,
    /// Time of the scan without the copy, from the report.
    search_ms: f64,
    pause_ms: f64,
    copied: f64,
    snapshot_ms: f64,
    peak: f64,
}

fn main() {
    let target = RaceTarget::start("million", &[&BLOCKS.to_string(), &BYTES.to_string()]);
    let pid = target.pid().to_string();
    // Memory of the program itself, its code included.
    let (_, base) = timed(&["heap", "scan", "--help"]);
    for options in [&[][..], &["--fork"]] {
        let scans: Vec<MeasuredScan> = (0..=ROUNDS).map(|_| scan(&pid, options)).skip(1).collect();
        report(options.first().copied().unwrap_or("default"), &scans, base);
    }
}

/// Runs pagewise. Returns its output and its peak RES in bytes.
fn timed(words: &[&str]) -> (Vec<u8>, f64) {
    let mut command = Command::new("/usr/bin/time");
    command.args(["-f", "%M", env!("CARGO_BIN_EXE_pagewise")]).args(words);
    let output = command.output().expect("GNU time is installed");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let peak = said.lines().last().and_then(|line| line.trim().parse::<f64>().ok());
    (output.stdout, peak.expect("GNU time prints the peak") * 1024.0)
}

fn scan(pid: &str, options: &[&str]) -> MeasuredScan {
    let words = ["heap", "scan", pid, "--leaks", "--retained", "--json", "--max-pause", "10s"];
    let began = Instant::now();
    let (json, peak) = timed(&[&words[..], options].concat());
    let seconds = began.elapsed().as_secs_f64();
    let report: Value = serde_json::from_slice(&json).expect("it is JSON");
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    assert!(number("/live/blocks") >= BLOCKS as f64, "all blocks are found");
    assert_eq!(number("/leaked/blocks"), BLOCKS as f64 / 1e3, "all leaks are found");
    MeasuredScan {
        seconds,
        search_ms: number("/reachable/took_ns") / 1e6,
        pause_ms: number("/pause_us") / 1e3,
        copied: number("/scan/copied"),
        snapshot_ms: number("/scan/snapshot_ns") / 1e6,
        peak,
    }
}

fn report(name: &str, scans: &[MeasuredScan], base: f64) {
    let of = |value: fn(&MeasuredScan) -> f64| median(&scans.iter().map(value).collect::<Vec<_>>());
    let gibibytes = of(|scan| scan.copied) / f64::from(1 << 30);
    let (whole, pause) = (of(|scan| scan.seconds), of(|scan| scan.pause_ms) / gibibytes);
    let block = (of(|scan| scan.peak - scan.copied) - base) / BLOCKS as f64;
    println!("\n{BLOCKS} blocks in {gibibytes:.2} GiB, {name} (medians of {ROUNDS} scans)");
    println!("whole command          {whole:>8.2} s");
    println!("search of pointers     {:>8.1} ms", of(|scan| scan.search_ms));
    println!("pause for each GiB     {pause:>8.1} ms");
    println!("memory for each block  {block:>8.1} bytes beside the copy");
    if name != "default" {
        println!("life of the snapshot   {:>8.1} ms", of(|scan| scan.snapshot_ms));
    }
    let goal = |met: bool, what: &str| {
        println!("goal {}: {what}", if met { "met" } else { "MISSED" });
    };
    let most = if name == "default" { 120.0 } else { 40.0 };
    goal(whole <= 1.0, "leaks and dominators of 1 M blocks in 1 s");
    goal(block <= 64.0, "at most 64 bytes for each block");
    goal(pause <= most, &format!("a pause of at most {most} ms for each GiB"));
}

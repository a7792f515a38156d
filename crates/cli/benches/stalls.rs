//! What watching costs the watched: `mmap`, touch and `munmap` in a large process while an observer loops.
//!
//! `cargo bench -p pagewise --bench stalls`: the program `churn` says how long a round took at the median and
//! in the tail, and the share of time that it spent in rounds of more than 1 ms.
#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![expect(dead_code, reason = "the other benchmark uses the rest of `race`")]

mod race;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
/// How long each observer watches.
const SECONDS: &str = "10";
/// The tail of a polite observer is at most a millisecond...
const MOST_NS: f64 = 1e6;
/// ... and so small a share of the time is spent in longer rounds.
const MOST_STALLED: f64 = 0.02;

fn main() {
    let gib = std::env::var("PAGEWISE_BENCH_GIB").map_or(8, |n| n.parse().expect("a number"));
    println!("mmap, touch, munmap in a process of {gib} GiB of 4 KiB pages, watched in a loop");
    println!(
        "{:<26}{:>9}{:>9}{:>11}{:>12}{:>10}",
        "observer", "p50 us", "p99 us", "p99.99 us", "longest us", "stalled"
    );
    let churn = race::compile("churn");
    let observers = [
        ("nobody", String::new()),
        ("cat smaps_rollup", "cat /proc/PID/smaps_rollup".into()),
        ("cat smaps", "cat /proc/PID/smaps".into()),
        ("pagewise explain --full", format!("{PAGEWISE} explain --full PID")),
        ("pagewise explain --fast", format!("{PAGEWISE} explain --fast PID")),
        ("pagewise ps", format!("{PAGEWISE} ps")),
        ("pagewise explain", format!("{PAGEWISE} explain PID")),
        ("pagewise pages", format!("{PAGEWISE} pages PID")),
        ("pagewise thp", format!("{PAGEWISE} thp PID")),
    ];
    for (name, observer) in observers {
        let said = watched(&churn, gib, &observer);
        let figure = |key: &str| said.iter().find(|(k, _)| k == key).map_or(f64::NAN, |(_, v)| *v);
        let us = |key: &str| figure(key) / 1e3;
        let stalled = figure("churn.stalled_share");
        println!(
            "{name:<26}{:>9.1}{:>9.1}{:>11.1}{:>12.1}{:>9.2}%",
            us("churn.p50_ns"),
            us("churn.p99_ns"),
            us("churn.p9999_ns"),
            us("churn.longest_ns"),
            stalled * 100.0
        );
        if ["pagewise explain", "pagewise pages", "pagewise thp"].contains(&name) {
            let met = figure("churn.p9999_ns") <= MOST_NS && stalled <= MOST_STALLED;
            let met = if met { "met" } else { "MISSED" };
            println!(
                "goal {met}: {name}: p99.99 <= 1 ms, <= 2 % of time in stalls of more than 1 ms"
            );
        }
    }
}

/// The figures that the target prints after it was watched all the while.
fn watched(churn: &Path, gib: u64, observer: &str) -> Vec<(String, f64)> {
    let mut target = start(churn, gib);
    let lines = BufReader::new(target.stdout.take().expect("stdout is a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("the target prints text"));
    assert!(lines.any(|line| line == "ready"), "the target ended early");
    let line = observer.replace("PID", &target.id().to_string());
    let said = while_watching(&line, || lines.filter_map(|line| figure(&line)).collect());
    target.wait().expect("the target ends by itself");
    said
}

fn figure(line: &str) -> Option<(String, f64)> {
    let (key, value) = line.split_once(" = ")?;
    Some((key.to_owned(), value.parse().ok()?))
}

fn start(churn: &Path, gib: u64) -> Child {
    let mib = (gib * 1024).to_string();
    Command::new(churn)
        .args([SECONDS, &mib])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("churn starts")
}

/// Runs `observer` again and again until `measured` returns; nothing where it is empty.
fn while_watching<T>(observer: &str, measured: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(observer.is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words: Vec<&str> = observer.split(' ').collect();
            while !over.load(Ordering::Relaxed) {
                let mut command = Command::new(words[0]);
                let _ =
                    command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        });
        let value = measured();
        over.store(true, Ordering::Relaxed);
        value
    })
}

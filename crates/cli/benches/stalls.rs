//! Overhead of observers on their target: `mmap`, touch and `munmap` in a large process while an
//! observer loops.
//!
//! `cargo bench -p pagewise --bench stalls`: the program `churn` prints how long a round took at
//! the median and in the tail, the share of time in rounds of more than 1 ms, and the share in
//! which the thread was blocked by the mmap lock. First on CPUs that are idle otherwise, then with
//! four busy threads for each CPU, where a round also waits for its turn: there only the lock
//! counts.
#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![expect(dead_code, reason = "the other benchmark uses the rest of `race`")]

mod race;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
/// Time for which each observer runs.
const SECONDS: &str = "10";
/// The goals on idle CPUs: the longest rounds, and the share of time in those of more than a
/// millisecond.
const MAX_P9999_NS: f64 = 1e6;
const MAX_STALLED: f64 = 0.02;
/// The goal on busy CPUs: the share of time in which the target waits for the lock.
const MAX_BLOCKED: f64 = 0.02;
/// Busy threads for each CPU.
const BUSY: usize = 4;

fn main() {
    let gib = std::env::var("PAGEWISE_BENCH_GIB").map_or(8, |n| n.parse().expect("a number"));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let churn = race::compile("churn");
    println!("mmap, touch, munmap in a process of {gib} GiB of 4 KiB pages, observed in a loop");
    for busy in [0, BUSY * cpus] {
        println!("\n{busy} busy threads on {cpus} CPUs");
        let _threads = BusyThreads::start(busy);
        observe(&churn, gib, busy == 0);
    }
}

fn observe(churn: &Path, gib: u64, is_idle: bool) {
    println!(
        "{:<26}{:>9}{:>9}{:>11}{:>12}{:>10}{:>10}{:>10}",
        "observer", "p50 us", "p99 us", "p99.99 us", "longest us", "stalled", "running", "blocked"
    );
    let observers = [
        ("none", String::new()),
        ("cat smaps_rollup", "cat /proc/PID/smaps_rollup".into()),
        ("cat smaps", "cat /proc/PID/smaps".into()),
        ("pagewise explain --full", format!("{PAGEWISE} explain --full PID")),
        ("pagewise explain --fast", format!("{PAGEWISE} explain --fast PID")),
        ("pagewise ps", format!("{PAGEWISE} ps")),
        ("pagewise explain", format!("{PAGEWISE} explain PID")),
        ("pagewise maps", format!("{PAGEWISE} maps PID")),
        ("pagewise pages", format!("{PAGEWISE} pages PID")),
        ("pagewise thp", format!("{PAGEWISE} thp PID")),
        ("pagewise record", format!("{PAGEWISE} record --every 1s --no-triggers --dir FOLDER")),
        ("pagewise export", format!("{PAGEWISE} export --every 1s --listen 127.0.0.1:0")),
    ];
    let judged = [
        "pagewise explain",
        "pagewise maps",
        "pagewise pages",
        "pagewise thp",
        "pagewise record",
        "pagewise export",
    ];
    for (name, observer) in observers {
        let printed = observed(churn, gib, &observer);
        let figure =
            |key: &str| printed.iter().find(|(k, _)| k == key).map_or(f64::NAN, |(_, v)| *v);
        let us = |key: &str| figure(key) / 1e3;
        let percent = |key: &str| figure(key) * 100.0;
        println!(
            "{name:<26}{:>9.1}{:>9.1}{:>11.1}{:>12.1}{:>9.2}%{:>9.1}%{:>9.2}%",
            us("churn.p50_ns"),
            us("churn.p99_ns"),
            us("churn.p9999_ns"),
            us("churn.longest_ns"),
            percent("churn.stalled_share"),
            percent("churn.ran_share"),
            percent("churn.blocked_share"),
        );
        if !judged.contains(&name) {
            continue;
        }
        let met = |met: bool| if met { "met" } else { "MISSED" };
        if is_idle {
            let met = met(figure("churn.p9999_ns") <= MAX_P9999_NS
                && figure("churn.stalled_share") <= MAX_STALLED);
            println!(
                "goal {met}: {name}: p99.99 <= 1 ms, <= 2 % of time in rounds of more than 1 ms"
            );
        } else {
            let met = met(figure("churn.blocked_share") <= MAX_BLOCKED);
            println!("goal {met}: {name}: <= 2 % of time blocked by the lock");
        }
    }
}

/// Threads that compute for as long as it lives.
struct BusyThreads(Vec<Child>);

impl BusyThreads {
    /// Each is a process: a thread of this one would share its scheduling group where these are
    /// made by session.
    fn start(count: usize) -> BusyThreads {
        let busy = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        BusyThreads((0..count).map(busy).map(|child| child.expect("a shell")).collect())
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The figures that the target prints after it was observed all the while.
fn observed(churn: &Path, gib: u64, observer: &str) -> Vec<(String, f64)> {
    let mut target = start(churn, gib);
    let lines = BufReader::new(target.stdout.take().expect("stdout is a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("the target prints text"));
    assert!(lines.any(|line| line == "ready"), "the target ended early");
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let line = observer.replace("PID", &target.id().to_string());
    let line = line.replace("FOLDER", &folder.path().display().to_string());
    let printed = while_observing(&line, || lines.filter_map(|line| figure(&line)).collect());
    target.wait().expect("the target ends by itself");
    printed
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

/// Runs `observer` again and again until `measured` returns; nothing if it is empty. An observer
/// that does not end by itself is killed.
fn while_observing<T>(observer: &str, measured: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(observer.is_empty());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words: Vec<&str> = observer.split(' ').collect();
            while !over.load(Ordering::Relaxed) {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
                let Ok(mut child) = command.spawn() else { continue };
                if !observer.contains("--every") {
                    let _ = child.wait();
                    continue;
                }
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        let value = measured();
        over.store(true, Ordering::Relaxed);
        value
    })
}

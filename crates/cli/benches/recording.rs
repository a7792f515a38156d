//! Cost of `pagewise record`: its CPU time, its memory and the size of its files.
//!
//! `cargo bench -p pagewise --bench recording`: records 300 sleeping processes, and the other
//! processes of the machine, every 5 s for a minute (`PAGEWISE_BENCH_SECONDS` sets another time).
//! The size of a day is the size of the closed file: while a recorder runs, the write-ahead log
//! beside the file has each changed page several times. The benchmark `week` of `pagewise-store`
//! measures whole days of given processes.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

mod children;

use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use children::Children;
use rustix::process::{Pid, Signal, kill_process};

fn main() {
    record(300);
}

fn status(pid: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = text.lines().find_map(|it| it.strip_prefix(line));
    value.and_then(|it| it.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Returns the CPU time of a process in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / pagewise_sys::system::ticks_per_second() as f64
}

fn record(count: usize) {
    let _crowd = Children::sleeping(count);
    let start = |folder: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        command.args(["record", "--every", "5s", "--dir"]).arg(folder);
        command.spawn().expect("pagewise was built")
    };
    // A first recording measures the size of the tables and of the first sweep, whose rows are
    // complete.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = start(folder.path());
    sleep(Duration::from_secs(2));
    end(first);
    let bytes = size(folder.path());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recorder = start(folder.path());
    sleep(Duration::from_secs(7));
    let pid = recorder.id();
    let (began, cpu) = (Instant::now(), cpu_seconds(pid));
    let seconds =
        std::env::var("PAGEWISE_BENCH_SECONDS").map_or(60, |it| it.parse().expect("a number"));
    sleep(Duration::from_secs(seconds));
    let passed = began.elapsed().as_secs_f64();
    let used = cpu_seconds(pid) - cpu;
    let peak = status(&pid.to_string(), "VmHWM:");
    end(recorder);
    let grown = size(folder.path()).saturating_sub(bytes) as f64 / (passed + 7.0) * 86_400.0;
    println!(
        "record --every 5s, {count} processes more: {:.2} % of a core over {passed:.0} s, peak RSS {:.1} MiB, {:.1} MB a day",
        used / passed * 100.0,
        peak as f64 / 1024.0,
        grown / 1e6,
    );
}

/// Ends a recorder, which closes its file.
fn end(mut recorder: Child) {
    let pid = Pid::from_raw(recorder.id().cast_signed()).expect("a process has a number");
    kill_process(pid, Signal::TERM).expect("it is a child");
    recorder.wait().expect("it is a child");
}

fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("the folder exists").flatten();
    files.filter_map(|it| it.metadata().ok()).map(|it| it.len()).sum()
}

//! Cost of `pagewise record`: its CPU time, its memory and the size of its files.
//!
//! `cargo bench -p pagewise --bench recording`: 300 sleeping processes more than those that run
//! anyway, recorded every 5 s for a minute (`PAGEWISE_BENCH_SECONDS` sets another time).

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Processes that sleep. They end with the value.
struct SleepingProcesses(Vec<Child>);

impl SleepingProcesses {
    fn start(count: usize) -> SleepingProcesses {
        let start = |_| {
            let mut command = Command::new("sleep");
            command.arg("100000").stdin(Stdio::null()).spawn().expect("sleep is on every machine")
        };
        SleepingProcesses((0..count).map(start).collect())
    }
}

impl Drop for SleepingProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn main() {
    record(300);
}

fn status(pid: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = text.lines().find_map(|it| it.strip_prefix(line));
    value.and_then(|it| it.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// CPU time of a process in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / pagewise_sys::system::ticks_per_second() as f64
}

fn record(count: usize) {
    let _crowd = SleepingProcesses::start(count);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args(["record", "--every", "5s", "--dir"])
        .arg(folder.path())
        .spawn()
        .expect("pagewise was built");
    sleep(Duration::from_secs(7));
    let pid = recorder.id();
    let (began, cpu, bytes) = (Instant::now(), cpu_seconds(pid), size(folder.path()));
    let seconds =
        std::env::var("PAGEWISE_BENCH_SECONDS").map_or(60, |it| it.parse().expect("a number"));
    sleep(Duration::from_secs(seconds));
    let passed = began.elapsed().as_secs_f64();
    let used = cpu_seconds(pid) - cpu;
    let peak = status(&pid.to_string(), "VmHWM:");
    let _ = recorder.kill();
    let _ = recorder.wait();
    let grown = size(folder.path()).saturating_sub(bytes) as f64 / passed * 86_400.0;
    println!(
        "record --every 5s, {count} processes more: {:.2} % of a core over {passed:.0} s, peak RSS {:.1} MiB, {:.1} MB a day",
        used / passed * 100.0,
        peak as f64 / 1024.0,
        grown / 1e6,
    );
}

fn size(folder: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("the folder exists").flatten();
    files.filter_map(|it| it.metadata().ok()).map(|it| it.len()).sum()
}

//! CPU time of `pagewise top` with 300 and with 3,000 sleeping processes, in addition to the other
//! processes of the machine.
//!
//! `cargo bench -p pagewise --bench top` (`PAGEWISE_BENCH_PROCESSES` sets another list of numbers
//! of processes, and `PAGEWISE_BENCH_SECONDS` another time of each measurement than 30 s). The
//! goals are 1 % of a core for 300 processes and 3 % for 3,000, at one reading each second:
//! `pagewise top` reads less often if it would use more CPU time, and the benchmark then prints
//! that it does so.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

mod children;
mod terminal;

use std::fs;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use children::{Children, cpu_ms, memory_mib};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
/// Time for the first sweep, which reads everything, and until the interval hardly changes.
const WARM_UP: Duration = Duration::from_secs(12);
/// Text in the title if the interval is longer than the requested one.
const READS_LESS_OFTEN: &str = "to use little CPU time";

fn main() {
    let counts = std::env::var("PAGEWISE_BENCH_PROCESSES").unwrap_or("300,3000".into());
    let seconds =
        std::env::var("PAGEWISE_BENCH_SECONDS").map_or(30, |it| it.parse().expect("a number"));
    for count in counts.split(',') {
        let count = count.parse().expect("a list of numbers");
        let _crowd = Children::sleeping(count);
        sleep(Duration::from_secs(1));
        watch(count, Duration::from_secs(seconds));
    }
}

fn watch(count: usize, during: Duration) {
    let mut script = terminal::start(&format!("{PAGEWISE} top"));
    let mut output = script.stdout.take().expect("a pipe");
    let script = Children(vec![script]);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&shown);
    spawn(move || {
        let mut buffer = [0; 1 << 16];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            sink.lock().expect("no thread panics").extend_from_slice(&buffer[..length]);
        }
    });
    sleep(WARM_UP);
    let pid = child_of(script.0[0].id()).expect("top runs");
    let drawn = shown.lock().expect("no thread panics").len();
    assert!(drawn > 0, "top has drawn nothing");
    let (began, cpu) = (Instant::now(), cpu_ms(pid));
    sleep(during);
    let share = (cpu_ms(pid) - cpu) / 1e3 / began.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&shown.lock().expect("no thread panics")).into_owned();
    let goal = if count <= 300 { 0.01 } else { 0.03 };
    let interval = if text.contains(READS_LESS_OFTEN) { "less often than" } else { "each" };
    let is_met = share <= goal && !text.contains(READS_LESS_OFTEN);
    println!(
        "top, {count} processes more, read {interval} second: {:.2} % of a core (goal {}: {:.0} %), \
         RSS {:.1} MiB",
        share * 100.0,
        if is_met { "met" } else { "MISSED" },
        goal * 100.0,
        memory_mib(pid, "VmRSS"),
    );
}

/// Returns the first child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split(' ').next()?.parse().ok()
}

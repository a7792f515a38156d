//! What watching costs the watched: `mmap`/`munmap` latency of an 8 GiB process while an observer loops.
//!
//! `cargo bench -p pagewise --bench stalls`: the program `churn` maps and unmaps a page for some seconds and prints
//! the percentiles of the time a pair takes and the share of time it spent in pairs of more than 1 ms.

mod race;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");

fn main() {
    let gib = std::env::var("PAGEWISE_BENCH_GIB").unwrap_or("8".into());
    println!("mmap + munmap in a process of {gib} GiB of 4 KiB pages, while it is watched in a loop");
    let churn = race::compile("churn");
    for (name, observer) in [
        ("nobody", None),
        ("cat smaps_rollup", Some("cat /proc/PID/smaps_rollup".to_owned())),
        ("cat smaps", Some("cat /proc/PID/smaps".to_owned())),
        ("pagewise explain", Some(format!("{PAGEWISE} explain PID"))),
        ("pagewise explain --fast", Some(format!("{PAGEWISE} explain --fast PID"))),
        ("pagewise ps", Some(format!("{PAGEWISE} ps"))),
    ] {
        let mut target = start(&churn, &gib);
        let lines = BufReader::new(target.stdout.take().expect("stdout is a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("the target prints text"));
        assert!(lines.any(|line| line == "ready"), "the target ended early");
        let said = while_watching(observer.map(|o| o.replace("PID", &target.id().to_string())), || {
            lines.by_ref().find(|line| line.starts_with("p50"))
        });
        println!("{name:<26}{}", said.unwrap_or("the target ended early".into()));
        let _ = target.kill();
        let _ = target.wait();
    }
}

fn start(churn: &std::path::Path, gib: &str) -> Child {
    let size = format!("{gib}G");
    Command::new(churn).args([&size, "5"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("churn starts")
}

/// Runs `observer` again and again until `measured` returns.
fn while_watching<T>(observer: Option<String>, measured: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(line) = &observer {
            scope.spawn(|| {
                let words: Vec<&str> = line.split(' ').collect();
                while !over.load(Ordering::Relaxed) {
                    let mut command = Command::new(words[0]);
                    let _ = command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
                }
            });
        }
        let value = measured();
        over.store(true, Ordering::Relaxed);
        value
    })
}

//! Overhead of observers on their target: `mmap`, touch and `munmap` in a large process while an
//! observer reads it.
//!
//! `cargo bench -p pagewise --bench stalls`: the program `churn` repeats rounds of these calls, and
//! prints
//! - the duration of a round at the median and in the tail,
//! - the share of time in rounds of more than 1 ms,
//! - the share of time in which the thread waited for the mmap lock,
//! - the share of time in waits for the mmap lock of more than 1 ms.
//!
//! A round also waits for other threads and for the hypervisor, so the goals count only waits for
//! the lock. If the hypervisor runs another machine on the CPU of an observer, the observer can
//! hold the lock for long. A missed goal is therefore only judged if the hypervisor took at most
//! 0.5 % of the CPU time (*steal*). The first half measures the target without an observer, with
//! each observer at its usual interval, and with readers of `smaps_rollup`. The second half runs
//! each command in a loop, once on CPUs that are otherwise idle, and once with four busy threads
//! for each CPU.
//!
//! `PAGEWISE_BENCH_PART=used` or `loops` runs one half. `PAGEWISE_BENCH_GIB` (8) is the size of the
//! target, `PAGEWISE_BENCH_SECONDS` (60) the time of each observer of the first half.
#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![expect(dead_code, reason = "the other benchmark uses the rest of `race`")]

mod race;
mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
/// Time for which each command runs in a loop.
const LOOP_SECONDS: u64 = 10;
/// Goal: maximum 99.99th percentile of the duration of a round, in nanoseconds.
const MAX_P9999_NS: f64 = 1e6;
/// Goal for observers at their usual intervals: maximum share of time in waits of more than 1 ms
/// for the lock.
const MAX_STALLED_USED: f64 = 0.002;
/// Goal for commands in a loop: maximum share of time in waits of more than 1 ms for the lock.
const MAX_STALLED: f64 = 0.02;
/// Share of CPU time taken by the hypervisor above which a missed goal is not judged.
const MAX_STEAL: f64 = 0.005;
/// Key of the figure for the share of CPU time taken by the hypervisor.
const STEAL: &str = "steal";
/// Number of busy threads for each CPU.
const BUSY: usize = 4;

fn main() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |it| it.parse().expect("a number"))
    };
    let gib = number("PAGEWISE_BENCH_GIB", 8);
    let part = std::env::var("PAGEWISE_BENCH_PART").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let churn = race::compile("churn");
    println!("mmap, touch, munmap in a process of {gib} GiB of 4 KiB pages");
    if part != "loops" {
        let target =
            BenchTarget { churn: &churn, gib, seconds: number("PAGEWISE_BENCH_SECONDS", 60) };
        as_used(target);
    }
    if part != "used" {
        for busy in [0, BUSY * cpus] {
            println!("\nin a loop, with {busy} busy threads on {cpus} CPUs");
            let _threads = BusyThreads::start(busy);
            let target = BenchTarget { churn: &churn, gib, seconds: LOOP_SECONDS };
            in_a_loop(target);
        }
    }
}

/// A method of observing the target. `PID` stands for the target, `FOLDER` for a temporary folder,
/// `ADDRESS` for a free address.
#[derive(Clone, Debug)]
enum BenchObserver {
    Unobserved,
    /// A command that runs again and again, with a sleep after each run.
    Again(String, Duration),
    /// A command that runs until it is killed.
    Service(String),
    /// A command that runs until it is killed, and whose page `/metrics` is read each second.
    Scraped(String),
    /// A command that runs in a terminal until it is killed.
    OnTerminal(String),
}

/// Keys and values that the target prints.
type ChurnFigures = Vec<(String, f64)>;

fn heading() {
    println!(
        "{:28}{:>36}{:>30}{:>29}",
        "", "rounds (us)", "share of time", "waits for the lock > 1 ms"
    );
    println!(
        "{:<28}{:>8}{:>8}{:>9}{:>11}{:>10}{:>10}{:>10}{:>9}{:>9}{:>8}{:>12}",
        "observer",
        "p50",
        "p99",
        "p99.99",
        "longest",
        "> 1 ms",
        "running",
        "steal",
        "blocked",
        "share",
        "count",
        "longest us",
    );
}

fn line(name: &str, figures: &ChurnFigures) {
    let us = |key: &str| figure(figures, key) / 1e3;
    let percent = |key: &str| figure(figures, key) * 100.0;
    println!(
        "{name:<28}{:>8.1}{:>8.1}{:>9.1}{:>11.1}{:>9.2}%{:>9.1}%{:>9.2}%{:>8.2}%{:>8.3}%{:>8}{:>12.1}",
        us("churn.p50_ns"),
        us("churn.p99_ns"),
        us("churn.p9999_ns"),
        us("churn.longest_ns"),
        percent("churn.stalled_share"),
        percent("churn.ran_share"),
        percent(STEAL),
        percent("churn.blocked_share"),
        percent("churn.blocked_stalls_share"),
        figure(figures, "churn.blocked_stalls"),
        us("churn.longest_blocked_ns"),
    );
}

fn figure(figures: &ChurnFigures, key: &str) -> f64 {
    figures.iter().find(|(k, _)| k == key).map_or(f64::NAN, |(_, value)| *value)
}

fn verdict(is_met: bool, figures: &ChurnFigures) -> &'static str {
    match is_met {
        true => "met",
        false if figure(figures, STEAL) > MAX_STEAL => "not judged (steal)",
        false => "MISSED",
    }
}

/// Returns the CPU time of the machine, and the part of it that the hypervisor took, in clock
/// ticks.
fn machine_ticks() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok()).collect();
    [ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0.0)]
}

/// Measures observers at the intervals at which they are used.
fn as_used(target: BenchTarget<'_>) {
    println!("\nas used, {} s each", target.seconds);
    heading();
    let second = Duration::from_secs(1);
    let rollup = || "cat /proc/PID/smaps_rollup".to_owned();
    line("none", &target.observed(&BenchObserver::Unobserved));
    for (name, observer) in [
        ("smaps_rollup each second", BenchObserver::Again(rollup(), second)),
        ("smaps_rollup every 5 s", BenchObserver::Again(rollup(), 5 * second)),
    ] {
        line(name, &target.observed(&observer));
    }
    let observers = [
        (
            "pagewise record, 5 s",
            BenchObserver::Service(format!(
                "{PAGEWISE} record --every 5s --no-triggers --dir FOLDER"
            )),
        ),
        (
            "pagewise export, scraped",
            BenchObserver::Scraped(format!("{PAGEWISE} export --every 1s --listen ADDRESS")),
        ),
        ("pagewise top", BenchObserver::OnTerminal(format!("{PAGEWISE} top"))),
    ];
    let seen: Vec<(&str, ChurnFigures)> = observers
        .into_iter()
        .map(|(name, observer)| {
            let figures = target.observed(&observer);
            line(name, &figures);
            (name, figures)
        })
        .collect();
    line("none", &target.observed(&BenchObserver::Unobserved));
    for (name, figures) in seen {
        let p9999 = figure(&figures, "churn.p9999_ns");
        println!(
            "goal {}: {name}: p99.99 {:.2} ms (<= 1 ms)",
            verdict(p9999 <= MAX_P9999_NS, &figures),
            p9999 / 1e6
        );
        let stalled = figure(&figures, "churn.blocked_stalls_share");
        println!(
            "goal {}: {name}: {:.3} % of time in waits of more than 1 ms for the lock (<= 0.2 %)",
            verdict(stalled <= MAX_STALLED_USED, &figures),
            stalled * 100.0
        );
    }
}

/// Runs each command in a loop, without sleeps.
fn in_a_loop(target: BenchTarget<'_>) {
    heading();
    let again = |line: &str| BenchObserver::Again(line.to_owned(), Duration::ZERO);
    let of = |command: &str| again(&format!("{PAGEWISE} {command}"));
    let service = |command: &str| BenchObserver::Service(format!("{PAGEWISE} {command}"));
    // The name, the observer, and true if it has a goal.
    let observers = [
        ("none", BenchObserver::Unobserved, false),
        ("cat smaps_rollup", again("cat /proc/PID/smaps_rollup"), false),
        ("cat smaps", again("cat /proc/PID/smaps"), false),
        ("pagewise explain --full", of("explain --full PID"), false),
        ("pagewise explain --fast", of("explain --fast PID"), false),
        ("pagewise ps", of("ps"), false),
        ("pagewise explain", of("explain PID"), true),
        ("pagewise maps", of("maps PID"), true),
        ("pagewise pages", of("pages PID"), true),
        ("pagewise thp", of("thp PID"), true),
        ("pagewise record", service("record --every 1s --no-triggers --dir FOLDER"), true),
        ("pagewise export", service("export --every 1s --listen ADDRESS"), true),
    ];
    for (name, observer, has_goal) in observers {
        let figures = target.observed(&observer);
        line(name, &figures);
        if !has_goal {
            continue;
        }
        let stalled = figure(&figures, "churn.blocked_stalls_share");
        println!(
            "goal {}: {name}: {:.3} % of time in waits of more than 1 ms for the lock (<= 2 %)",
            verdict(stalled <= MAX_STALLED, &figures),
            stalled * 100.0
        );
    }
}

/// Processes that keep CPUs busy until this value is dropped.
struct BusyThreads(Vec<Child>);

impl BusyThreads {
    /// Starts shells that compute in a loop.
    fn start(count: usize) -> BusyThreads {
        let busy = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        BusyThreads((0..count).map(busy).map(|child| child.expect("a shell")).collect())
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The program that is started as the target, and its settings.
#[derive(Clone, Copy)]
struct BenchTarget<'a> {
    churn: &'a Path,
    gib: u64,
    seconds: u64,
}

impl BenchTarget<'_> {
    /// Observes the target until it prints its figures, and returns these figures.
    fn observed(self, observer: &BenchObserver) -> ChurnFigures {
        let mut target = self.start();
        let lines = BufReader::new(target.stdout.take().expect("stdout is a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("the target prints text"));
        assert!(lines.any(|line| line == "ready"), "the target ended early");
        let [all, steal] = machine_ticks();
        let mut printed: ChurnFigures = observer
            .during(target.id(), || lines.filter_map(|line| key_and_value(&line)).collect());
        let [all_after, steal_after] = machine_ticks();
        printed.push((STEAL.to_owned(), (steal_after - steal) / (all_after - all)));
        target.wait().expect("the target ends by itself");
        printed
    }

    fn start(self) -> Child {
        let mib = (self.gib * 1024).to_string();
        Command::new(self.churn)
            .args([self.seconds.to_string(), mib])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("churn starts")
    }
}

fn key_and_value(line: &str) -> Option<(String, f64)> {
    let (key, value) = line.split_once(" = ")?;
    Some((key.to_owned(), value.parse().ok()?))
}

impl BenchObserver {
    /// Observes a process until `measured` returns.
    fn during<T>(&self, target: u32, measured: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.observe(target, &is_over));
            let value = measured();
            is_over.store(true, Ordering::Relaxed);
            value
        })
    }

    fn observe(&self, target: u32, is_over: &AtomicBool) {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let address = free_address();
        let filled = |line: &str| {
            line.replace("PID", &target.to_string())
                .replace("FOLDER", &folder.path().display().to_string())
                .replace("ADDRESS", &address.to_string())
        };
        let wait = |rest: Duration| {
            let mut left = rest;
            while !left.is_zero() && !is_over.load(Ordering::Relaxed) {
                let part = left.min(Duration::from_millis(50));
                std::thread::sleep(part);
                left -= part;
            }
        };
        match self {
            BenchObserver::Unobserved => {}
            BenchObserver::Again(line, rest) => {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = quiet(&filled(line)).status();
                    wait(*rest);
                }
            }
            BenchObserver::Service(line) => {
                let mut child = quiet(&filled(line)).spawn().expect("the command starts");
                wait(Duration::MAX);
                end(&mut child);
            }
            BenchObserver::Scraped(line) => {
                let mut child = quiet(&filled(line)).spawn().expect("the command starts");
                while !is_over.load(Ordering::Relaxed) {
                    let _ = scrape(address);
                    wait(Duration::from_secs(1));
                }
                end(&mut child);
            }
            BenchObserver::OnTerminal(line) => {
                let mut child = terminal::start(&filled(line));
                // A full pipe would stop the command.
                let output = child.stdout.take().expect("a pipe");
                std::thread::spawn(move || std::io::copy(&mut { output }, &mut std::io::sink()));
                wait(Duration::MAX);
                end(&mut child);
            }
        }
    }
}

fn quiet(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0");
    listener.and_then(|it| it.local_addr()).expect("a free port")
}

/// Reads the metrics. Fails if the exporter does not listen yet.
fn scrape(address: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new())
}

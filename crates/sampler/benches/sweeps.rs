//! Benchmark of the CPU time of sweeps over all processes: the first sweep, and the sweeps after
//! it.
//!
//! `cargo bench -p pagewise-sampler --bench sweeps`: 300, 3,000 and 10,000 sleeping processes in
//! addition to the running ones (`PAGEWISE_BENCH_PROCESSES` sets another list of numbers).

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use pagewise_model::sweep::SweepCost;
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};

/// Number of sweeps after the first one.
const NEXT: usize = 15;
/// Time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sleeping processes, which are killed when the value is dropped.
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
    let counts = std::env::var("PAGEWISE_BENCH_PROCESSES").unwrap_or("300,3000,10000".into());
    pagewise_sys::system::open_more_files();
    for count in counts.split(',') {
        let count = count.parse().expect("a list of numbers");
        let _crowd = SleepingProcesses::start(count);
        sleep(Duration::from_secs(1));
        sweeps(count);
    }
}

fn sweeps(count: usize) {
    let before = resident();
    let mut sampler =
        Sampler::new(&ProcRoot::live(), SamplerOptions::default()).expect("/proc is mounted");
    let first = sampler.sweep().expect("/proc is mounted").sweep;
    let (processes, first) = (first.processes.len(), first.cost);
    let ms = |cost: &SweepCost| cost.cpu_ns as f64 / 1e6;
    let mut next: Vec<SweepCost> = Vec::new();
    for _ in 0..NEXT {
        sleep(INTERVAL);
        next.push(sampler.sweep().expect("/proc is mounted").sweep.cost);
    }
    let mut costs: Vec<f64> = next.iter().map(ms).collect();
    costs.sort_by(f64::total_cmp);
    println!(
        "{count} processes more, {} in all: first sweep {:.1} ms CPU, next {:.1} ms (median of {NEXT}, {:.1} to {:.1}), \
         {} pages read, longest hold {:.2} ms, {} KiB of memory more",
        processes,
        ms(&first),
        costs[NEXT / 2],
        costs[0],
        costs[NEXT - 1],
        next.iter().map(|it| it.pages_read).sum::<u64>(),
        next.iter().chain([&first]).map(|it| it.longest_hold_ns).max().unwrap_or(0) as f64 / 1e6,
        resident().saturating_sub(before),
    );
}

fn resident() -> u64 {
    status("self", "VmRSS:")
}

fn status(pid: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = text.lines().find_map(|it| it.strip_prefix(line));
    value.and_then(|it| it.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

//! Cost of a measurement: compares an empty region of a probe with two `ioctl`s and one read of the
//! same counters without a probe.
//!
//! `cargo bench -p pagewise-measure --bench probe`: measures both methods in interleaved rounds on
//! one CPU.

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::hint::black_box;
use std::time::Instant;

use pagewise_measure::events::choose;
use pagewise_measure::pin::PinnedThread;
use pagewise_measure::probe::{CodeProbe, ProbeOptions};
use pagewise_stats::{Summary, ratio_of_medians};
use pagewise_sys::perf_event::{Mode, PerfCounter, PerfEvent, PerfScope, PerfType};

const ROUNDS: usize = 101;
const REGIONS: u32 = 2_000;

/// Measured events; [`CONFIGS`] has their `PERF_COUNT_SW_*` numbers in the same order.
const EVENTS: &str = "minor_faults,major_faults,context_switches";
const CONFIGS: [u64; 3] = [5, 6, 3];

fn main() {
    let _pinned = PinnedThread::here().expect("a thread may stay where it is");
    let counters = bare_group();
    let default = ProbeOptions::default();
    let same =
        ProbeOptions { events: choose(EVENTS).expect("events of the kernel"), ..default.clone() };
    let mut probes = [
        ("counters and wall time", ProbeOptions { usage: false, ..same.clone() }),
        ("and getrusage", same.clone()),
        ("as it is by default", default),
    ]
    .map(|(name, options)| (name, CodeProbe::open(&options).expect("software events")));
    let mut bare = Vec::new();
    let mut own = vec![Vec::new(); probes.len()];
    for round in 0..=ROUNDS {
        let floor = nanos(|| switch_and_read(&counters));
        let costs: Vec<f64> = probes.iter_mut().map(|(_, probe)| nanos(|| empty(probe))).collect();
        if round > 0 {
            bare.push(floor);
            own.iter_mut().zip(costs).for_each(|(own, cost)| own.push(cost));
        }
    }
    println!("\nan empty region ({ROUNDS} interleaved rounds of {REGIONS})");
    println!("{:<34}{:>8.0} ns", "two ioctls and a group reading", median(&bare));
    let mut last = 0.0;
    for ((name, _), own) in probes.iter().zip(&own) {
        last = ratio_of_medians(own, &bare).expect("times are above 0").median;
        println!("{name:<34}{:>8.0} ns{last:>8.2}x", median(own));
    }
    println!("goal {}: <= 2x as it is by default", if last <= 2.0 { "met" } else { "MISSED" });
}

/// Opens the counters of `CONFIGS` as one group, without a probe.
fn bare_group() -> Vec<PerfCounter> {
    let mut counters: Vec<PerfCounter> = Vec::new();
    for config in CONFIGS {
        let disabled = counters.is_empty();
        let mode = Mode { disabled, ..Mode::default() };
        let event = PerfEvent::new(PerfType::SOFTWARE, config);
        let counter =
            PerfCounter::open_in_group(event, PerfScope::ThisThread, mode, counters.first());
        counters.push(counter.expect("events of the kernel"));
    }
    counters
}

fn switch_and_read(counters: &[PerfCounter]) {
    let mut values = [0; CONFIGS.len()];
    counters[0].enable().expect("an open counter");
    counters[0].disable().expect("an open counter");
    counters[0].read_group(&mut values).expect("an open group");
    black_box(values);
}

fn empty(probe: &mut CodeProbe) {
    probe.start().expect("open counters");
    black_box(probe.stop().expect("open counters"));
}

/// Nanoseconds of one region, on average over a round.
fn nanos(mut region: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..REGIONS).for_each(|_| region());
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(REGIONS)
}

fn median(values: &[f64]) -> f64 {
    Summary::from_values(values).map_or(0.0, |summary| summary.median)
}

//! Accesses per second of the simulators: L1D, dTLB and STLB of an i7-6800K, on one CPU, compared
//! with their goals.
//!
//! `cargo bench -p pagewise-sim --bench rate`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::hint::black_box;

use pagewise_sim::geometry::{CacheShapes, I7_6800K, TlbPageSize};
use pagewise_sim::workload::{AccessSink, Order, Uniform, WindowWalk};
use pagewise_sim::{Levels, ReadWriteCounts, RecencyPolicy};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;
const ACCESSES: u64 = 1 << 25;

type PlayStream = fn(AccessSink<'_>);

/// Names of streams, functions that play them, and goals in million accesses per second with LRU.
const STREAMS: &[(&str, PlayStream, f64)] = &[
    ("mem-access, random", |sink| mem_access(Order::Random { seed: 1 }).play(sink), 400.0),
    ("mem-access, sequential", |sink| mem_access(Order::Sequential).play(sink), 400.0),
    ("uniform random", |sink| uniform().play(sink), 60.0),
];

fn main() {
    println!("\nL1D, dTLB and STLB ({ROUNDS} interleaved rounds), M accesses/s");
    print!("{:<24}", "");
    RecencyPolicy::ALL.iter().for_each(|policy| print!("{:>11}", policy.name()));
    println!("{:>8}  LRU alone", "goal");
    for (name, stream, goal) in STREAMS {
        let mut rates = RecencyPolicy::ALL.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (policy, rates) in RecencyPolicy::ALL.iter().zip(&mut rates) {
                rates.push(rate(*policy, *stream));
            }
        }
        let medians = rates.map(median);
        print!("{name:<24}");
        medians.iter().for_each(|median| print!("{median:>11.0}"));
        println!("{goal:>8.0}  {}", if medians[0] >= *goal { "met" } else { "MISSED" });
    }
}

const fn mem_access(order: Order) -> WindowWalk {
    WindowWalk { rounds: ACCESSES / (512 * 16), ..WindowWalk::original(order) }
}

const fn uniform() -> Uniform {
    Uniform { bytes: 1 << 30, accesses: ACCESSES, seed: 1 }
}

/// Rate of the simulators for a stream, in million accesses per second.
fn rate(policy: RecencyPolicy, stream: PlayStream) -> f64 {
    let first_only = CacheShapes { l2: None, ..I7_6800K.caches };
    let mut caches = Levels::caches(&first_only, policy).expect("a CPU that exists");
    let shape = I7_6800K.tlb(TlbPageSize::Base).expect("it has one");
    let mut tlb = Levels::tlb(&shape, policy).expect("a CPU that exists");
    if let Some(model) = I7_6800K.next_page {
        tlb = tlb.prefetching(model);
    }
    let begin = cpu_seconds();
    let mut accesses = ReadWriteCounts::default();
    stream(&mut |block| {
        accesses += ReadWriteCounts::count_block(block);
        caches.play(block);
        tlb.play(block);
    });
    let rate = accesses.total() as f64 / (cpu_seconds() - begin) / 1e6;
    black_box((caches.counts(), tlb.counts()));
    rate
}

/// CPU time of this thread in seconds, which does not include other programs on the machine.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

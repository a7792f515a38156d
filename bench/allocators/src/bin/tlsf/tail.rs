//! The tail: how long the slowest calls take.

use pagewise_bench_allocators::{median, verdict};

use crate::{ROUNDS, STEPS};

/// Calls, quantiles, and at most how many times the cycles of rlsf they may take: 450 and 1000
/// where `free` took 790 and 1512.
const GOALS: &[(&str, usize, usize, f64)] =
    &[("malloc", 0, 1, 1.0), ("malloc", 0, 2, 1.0), ("free", 1, 1, 0.57), ("free", 1, 2, 0.66)];

/// A round in which each call is timed: the cycles of every `malloc`, and of every `free`, sorted.
pub(crate) type TimedRound<'a> = Box<dyn FnMut() -> [Vec<u64>; 2] + 'a>;

/// The time-stamp counter, with all loads before it done and none after it begun.
pub(crate) fn cycles() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 has it; it touches no memory.
    unsafe { _mm_lfence() };
    // SAFETY: the instruction only reads a counter.
    let now = unsafe { _rdtsc() };
    // SAFETY: the instruction only orders loads.
    unsafe { _mm_lfence() };
    now
}

/// Quantiles of the calls of one pool, in cycles: of `malloc` and of `free`, each in every round.
struct Tail {
    name: &'static str,
    calls: [Vec<[f64; 3]>; 2],
}

const QUANTILES: [f64; 3] = [0.99, 0.999, 0.9999];

impl Tail {
    fn add(&mut self, times: [Vec<u64>; 2]) {
        for (rounds, times) in self.calls.iter_mut().zip(times) {
            rounds.push(QUANTILES.map(|part| times[(times.len() as f64 * part) as usize] as f64));
        }
    }

    fn median(&self, call: usize, quantile: usize) -> f64 {
        median(&self.calls[call].iter().map(|round| round[quantile]).collect::<Vec<_>>())
    }
}

/// Times every call, prints the quantiles and says which goals were met.
pub(crate) fn run(timed: Vec<(&'static str, TimedRound<'_>)>) {
    let new = |name| Tail { name, calls: [Vec::new(), Vec::new()] };
    let mut all: Vec<_> = timed.into_iter().map(|(name, timed)| (new(name), timed)).collect();
    for _ in 0..ROUNDS {
        all.iter_mut().for_each(|(tail, timed)| tail.add(timed()));
    }
    let tails: Vec<Tail> = all.into_iter().map(|(tail, _)| tail).collect();
    println!("\ncycles of the time-stamp counter, medians of {ROUNDS} rounds of {STEPS}");
    println!("{:<30}{:>24}{:>24}", "", "malloc 99% 99.9% 99.99%", "free 99% 99.9% 99.99%");
    for tail in &tails {
        let row: [String; 2] = [0, 1]
            .map(|call| [0, 1, 2].map(|at| format!("{:>8.0}", tail.median(call, at))).concat());
        println!("{:<30}{:>24}{:>24}", tail.name, row[0], row[1]);
    }
    let of = |name: &str| tails.iter().find(|tail| tail.name == name).expect("it took part");
    let (ours, rlsf) = (of("ours"), of("rlsf"));
    for (name, call, quantile, most) in GOALS {
        let ratio = ours.median(*call, *quantile) / rlsf.median(*call, *quantile);
        let part = QUANTILES[*quantile] * 100.0;
        verdict(ratio <= *most, &format!("{name} {part}% <= {most}x rlsf: {ratio:.2}x"));
    }
}

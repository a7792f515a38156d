//! Gain of each policy of rings: compared with the old policy, on the pattern that it is made for.

use pagewise_alloc::ring::RingPolicy as Policy;
use pagewise_alloc::{Os, Ring};
use pagewise_bench_allocators::{BenchRunner, race};

use crate::{AHEAD, alone, contended};

fn ring(policy: Policy) -> Ring<Os> {
    Ring::with_policy(Os, policy).expect("there is memory")
}

/// Messages of 3 nodes of 32 bytes, to another thread.
fn small_messages(ring: &mut Ring<Os>) -> f64 {
    contended::<4, _>(ring, 20_000, 3, AHEAD)
}

/// Messages of 8 nodes of 32 bytes, on one thread.
fn messages(ring: &mut Ring<Os>) -> f64 {
    alone::<4, _>(ring, 20_000, 8, 64)
}

/// A list of 4M nodes of 8 bytes, whose blocks are returned.
fn list(ring: &mut Ring<Os>) -> f64 {
    let time = alone::<1, _>(ring, 1, 4_000_000, 0);
    ring.trim();
    time
}

/// A policy, what was done before, and where it matters.
struct RingAblation {
    policy: &'static str,
    before: &'static str,
    pattern: &'static str,
    without: fn(&mut Policy),
    rounds: usize,
    run: fn(&mut Ring<Os>) -> f64,
}

const ROWS: &[RingAblation] = &[
    RingAblation {
        policy: "frames begin at lines of the cache",
        before: "one behind the other",
        pattern: "messages of 3 nodes of 32 bytes, released elsewhere",
        without: |policy| policy.apart = false,
        rounds: 101,
        run: small_messages,
    },
    RingAblation {
        policy: "frames are counted when a block is left",
        before: "one by one, atomically",
        pattern: "messages of 8 nodes of 32 bytes, released on the same thread",
        without: |policy| policy.late = false,
        rounds: 101,
        run: messages,
    },
    RingAblation {
        policy: "blocks grow to 1 MiB",
        before: "are of 64 KiB",
        pattern: "a list of 4M nodes of 8 bytes, in memory that is new",
        without: |policy| policy.grow = false,
        rounds: 7,
        run: list,
    },
];

/// Prints the time of each.
pub(crate) fn ablation() {
    for row in ROWS {
        let mut before = Policy::default();
        (row.without)(&mut before);
        let [mut now, mut then] = [Policy::default(), before].map(ring);
        let runners = vec![
            BenchRunner::timed(row.policy, || (row.run)(&mut now)),
            BenchRunner::timed(row.before, || (row.run)(&mut then)),
        ];
        race(row.pattern, row.rounds, runners);
    }
}

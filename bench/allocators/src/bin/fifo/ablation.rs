//! Gain of each policy of FIFO pools: compared with the old policy, on the pattern that it is made
//! for.

use pagewise_alloc::fifo::FifoPolicy as Policy;
use pagewise_alloc::{Fifo, Os};
use pagewise_bench_allocators::{BenchRunner, race};

use crate::LiveFifoBlocks;

const ROUNDS: usize = 7;
const MIB: f64 = (1 << 20) as f64;

/// A pool and its live blocks.
type Ours = LiveFifoBlocks<Fifo<Os>>;

fn live(policy: Policy, blocks: usize) -> Ours {
    LiveFifoBlocks::new(Fifo::with_policy(Os, policy).expect("memory for a pool"), blocks)
}

/// A queue that is empty after each 1000 blocks.
fn bursts(ours: &mut Ours) {
    for _ in 0..200 {
        ours.pop_all();
        (0..1000).for_each(|_| ours.push());
    }
}

/// A queue of 4096 blocks.
fn queue(ours: &mut Ours) {
    (0..50).for_each(|_| (0..ours.len()).for_each(|at| ours.replace_at(at)));
}

/// 20,000 blocks, replaced at random.
fn disorder(ours: &mut Ours) {
    (0..200_000).for_each(|_| ours.replace_one());
}

/// A policy, what was done before, and where it matters.
struct FifoAblation {
    policy: &'static str,
    before: &'static str,
    pattern: &'static str,
    without: fn(&mut Policy),
    blocks: usize,
    run: fn(&mut Ours),
}

const ROWS: &[FifoAblation] = &[
    FifoAblation {
        policy: "one empty page is kept",
        before: "is given back",
        pattern: "bursts of 1000 blocks, 200,000 in all",
        without: |policy| policy.spare = false,
        blocks: 1000,
        run: bursts,
    },
    FifoAblation {
        policy: "a page that empties replaces a full one",
        before: "becomes the spare",
        pattern: "a queue of 4096 blocks, 204,800 in all",
        without: |policy| policy.replace = false,
        blocks: 4096,
        run: queue,
    },
    FifoAblation {
        policy: "holes are filled",
        before: "wait until their page is empty",
        pattern: "20,000 live, 200,000 replaced at random",
        without: |policy| policy.holes = false,
        blocks: 20_000,
        run: disorder,
    },
    FifoAblation {
        policy: "freed blocks wait for their size",
        before: "become holes",
        pattern: "20,000 live, 200,000 replaced at random",
        without: |policy| policy.shelf = false,
        blocks: 20_000,
        run: disorder,
    },
];

/// Prints time and memory of each.
pub(crate) fn ablation() {
    for row in ROWS {
        let mut before = Policy::default();
        (row.without)(&mut before);
        let [mut now, mut then] =
            [Policy::default(), before].map(|policy| live(policy, row.blocks));
        let runners = vec![
            BenchRunner::new(row.policy, 200_000, || (row.run)(&mut now)),
            BenchRunner::new(row.before, 200_000, || (row.run)(&mut then)),
        ];
        race(row.pattern, ROUNDS, runners);
        let [now, then] = [&now, &then].map(|ours| ours.held() as f64 / MIB);
        println!("{:<36}{now:>12.2} MiB against {then:.2}", "held at the end");
    }
}

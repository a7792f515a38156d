//! Gain of each policy of stacks: compared with the old policy, on the pattern that it is made for.

use std::alloc::Layout;

use pagewise_alloc::Os;
use pagewise_alloc::stack::old::{Greedy, NoFollow, NotInPlace, Rounded, SmallBlocks};
use pagewise_alloc::stack::{Stack, StackPolicy as Policy, Usual};
use pagewise_bench_allocators::{BenchRunner, black_box, race, verdict};

const ROUNDS: usize = 11;
const MIB: f64 = (1 << 20) as f64;

fn stack<P: Policy>() -> Stack<Os, P> {
    Stack::with_policy(Os, false)
}

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).expect("a size below 2^63")
}

/// Inner frames fill many blocks, and the outer one asks for blocks that are larger, and larger
/// each time. Returns bytes that were taken of the system.
fn taken_in_rounds<P: Policy>() -> u64 {
    let mut stack = stack::<P>();
    stack.scope(|outer| {
        for round in 0..20 {
            outer
                .scope(|inner| (0..20_000).for_each(|_| _ = black_box(inner.allocate(bytes(100)))));
            black_box(outer.allocate(bytes(80_000 + 4096 * round)));
        }
    });
    stack.taken()
}

/// Many requests that are not small. Returns bytes that were taken of the system.
fn not_small<P: Policy>() -> u64 {
    let stack = stack::<P>();
    (0..10_000).for_each(|_| _ = black_box(stack.allocate(bytes(4000))));
    stack.taken()
}

/// A list of 1M nodes of 8 bytes. Returns bytes that were taken of the system.
fn list<P: Policy>() -> u64 {
    let stack = stack::<P>();
    (0..1_000_000).for_each(|_| _ = black_box(stack.allocate(bytes(8))));
    stack.taken()
}

/// A frame that begins just before the end of a block, and 10,000 inside it, each of which crosses
/// that.
fn at_the_end<P: Policy>() -> u64 {
    let mut stack = stack::<P>();
    stack.scope(|outer| {
        let mut used = 0;
        while used < (64 << 10) - 1000 {
            black_box(outer.allocate(bytes(8)));
            used += 8;
        }
        for _ in 0..10_000 {
            outer.scope(|inner| (0..4).for_each(|_| _ = black_box(inner.allocate(bytes(400)))));
        }
    });
    stack.taken()
}

/// A block that grows to 32 KB, 16 bytes at a time.
fn growing<P: Policy>() -> u64 {
    let stack = stack::<P>();
    let (mut block, mut size) = (stack.allocate(bytes(16)).expect("memory"), 16);
    while size < 32_000 {
        // SAFETY: it is the last block, and not used elsewhere.
        block = unsafe { stack.resize(block, bytes(size), bytes(size + 16)) }.expect("memory");
        size += 16;
        black_box(block);
    }
    stack.taken()
}

/// A policy, and what was done before.
struct StackAblation {
    policy: &'static str,
    before: &'static str,
    pattern: &'static str,
    now: fn() -> u64,
    then: fn() -> u64,
}

const ROWS: &[StackAblation] = &[
    StackAblation {
        policy: "the search stops at a block that fits",
        before: "gives back those on the way",
        pattern: "large requests among frames of small ones",
        now: taken_in_rounds::<Usual>,
        then: taken_in_rounds::<Greedy>,
    },
    StackAblation {
        policy: "blocks of 64 requests and more",
        before: "of 64 KiB",
        pattern: "10,000 requests of 4000 bytes",
        now: not_small::<Usual>,
        then: not_small::<SmallBlocks>,
    },
    StackAblation {
        policy: "frames follow into the next block",
        before: "go back to the last",
        pattern: "frames at the end of a block",
        now: at_the_end::<Usual>,
        then: at_the_end::<NoFollow>,
    },
    StackAblation {
        policy: "addresses aligned on demand",
        before: "sizes rounded to 16",
        pattern: "1M requests of 8 bytes",
        now: list::<Usual>,
        then: list::<Rounded>,
    },
    StackAblation {
        policy: "the last block grows in place",
        before: "moves",
        pattern: "a block that grows to 32 KB",
        now: growing::<Usual>,
        then: growing::<NotInPlace>,
    },
];

/// Prints time and memory of each.
pub fn ablation() {
    for row in ROWS {
        let runner = |name: &str, run: fn() -> u64| {
            BenchRunner::new(name, 1000, move || _ = black_box(run()))
        };
        let title = format!("{}: thousandths of a run", row.pattern);
        let runners = vec![runner(row.policy, row.now), runner(row.before, row.then)];
        race(&title, ROUNDS, runners);
        let [now, then] = [row.now, row.then].map(|run| run() as f64 / MIB);
        println!("{:<36}{now:>12.2} MiB against {then:.2}", "taken of the system");
    }
    let [now, greedy] =
        [taken_in_rounds::<Usual>(), taken_in_rounds::<Greedy>()].map(|taken| taken as f64 / MIB);
    verdict(
        now <= 7.5,
        &format!("taken_in_rounds(20) <= 7.5 MiB: {now:.1} MiB, {greedy:.1} greedy"),
    );
}

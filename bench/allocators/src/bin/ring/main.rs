//! Rings: lists that one thread builds and another walks and releases. Batches of a million nodes
//! of 8 bytes, and messages of 8 nodes of 32.

#[cfg(feature = "ablation")]
mod ablation;
mod makers;
mod queue;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagewise_alloc::{Os, Ring};
use pagewise_bench_allocators::{BenchRunner, for_each_malloc, nanoseconds, race, verdict};

use makers::{Bumps, Maker, RingFloor, RingMalloc};
use queue::SpscQueue;

const BATCH: usize = 1_000_000;
/// Maximum number of waiting messages.
const AHEAD: usize = 1024;

/// Nanoseconds for a unit, of lists of `nodes` that go to a thread, which has at most `ahead`
/// waiting.
fn contended<const WORDS: usize, M: Maker<WORDS>>(
    maker: &mut M,
    lists: usize,
    nodes: usize,
    ahead: usize,
) -> f64 {
    let (there, back) = (SpscQueue::new(ahead), SpscQueue::new(1 << 20));
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            ready.store(true, Ordering::Release);
            for _ in 0..lists {
                // SAFETY: the maker at the other end is of this type.
                unsafe { M::consume(there.pop(), &back) };
            }
        });
        while !ready.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let time = nanoseconds(|| {
            for _ in 0..lists {
                maker.take_back(&back);
                there.push(maker.make(nodes));
            }
            there.wait_empty();
        });
        time / lists as f64
    })
}

/// The same on one thread, which releases lists when `ahead` wait: what a message costs without
/// another core.
fn alone<const WORDS: usize, M: Maker<WORDS>>(
    maker: &mut M,
    lists: usize,
    nodes: usize,
    ahead: usize,
) -> f64 {
    let (there, back) = (SpscQueue::new(ahead + 1), SpscQueue::new(ahead + 1));
    let release = || {
        // SAFETY: the maker at the other end is of this type.
        unsafe { M::consume(there.pop(), &back) };
    };
    let time = nanoseconds(|| {
        for at in 0..lists {
            maker.take_back(&back);
            there.push(maker.make(nodes));
            if at >= ahead {
                release();
            }
        }
        (0..ahead.min(lists)).for_each(|_| release());
    });
    time / lists as f64
}

/// Ours, bumpalo, and every general allocator.
macro_rules! runners {
    ($way:ident, $words:literal, $lists:expr, $nodes:expr, $ahead:expr, $floor:expr) => {{
        let mut runners = Vec::new();
        macro_rules! runner {
            ($name:expr, $maker:expr) => {
                let mut maker = $maker;
                runners.push(BenchRunner::timed($name, move || {
                    $way::<$words, _>(&mut maker, $lists, $nodes, $ahead)
                }));
            };
        }
        macro_rules! general {
            ($name:literal, $malloc:expr) => {
                runner!($name, RingMalloc($malloc));
            };
        }
        runner!("pagewise", Ring::new(Os).expect("there is memory"));
        runner!("bumpalo, one a list, used again", Bumps::default());
        for_each_malloc!(general);
        runner!("floor: memory that is there", RingFloor::new($floor));
        runners
    }};
}

/// Runs the benchmarks with this name, or all without one.
fn main() {
    let only = std::env::args().nth(1);
    for (name, race) in [
        ("batches", batches as fn()),
        ("messages", messages),
        ("alone", messages_alone),
        ("memory", memory),
    ] {
        if only.as_ref().is_none_or(|only| only == name) {
            race();
        }
    }
    #[cfg(feature = "ablation")]
    if only.is_none_or(|only| only == "ablation") {
        ablation::ablation();
    }
}

fn batches() {
    let title = "batches of 1M nodes of 8 bytes, built here and released there (a unit: a batch)";
    let results = race(title, 11, runners!(contended, 1, 8, BATCH, 1, BATCH * 8 * 3));
    results.goal_of_best("pagewise", 1.0, &["floor"]);
    results.goal("pagewise", 1.0 / 3.5, "snmalloc");
}

fn messages() {
    let title = "messages of 8 nodes of 32 bytes (a unit: a message)";
    let results = race(title, 15, runners!(contended, 4, 400_000, 8, AHEAD, 2 * AHEAD * 256));
    results.goal_of_best("pagewise", 1.0, &["floor"]);
    // 120 ns where memory that is there took 74.
    results.goal("pagewise", 1.62, "floor: memory that is there");
}

fn messages_alone() {
    let title = "messages of 8 nodes of 32 bytes, released on the same thread (a unit: a message)";
    let results = race(title, 101, runners!(alone, 4, 20_000, 8, 64, 2 * AHEAD * 256));
    results.goal_of_best("pagewise", 1.0, &["floor"]);
}

fn memory() {
    let mut ring = Ring::new(Os).expect("there is memory");
    let frame = ring.open().expect("there is memory");
    for _ in 0..100_000_000 {
        frame.allocate(std::alloc::Layout::new::<u64>()).expect("there is memory");
    }
    let sealed = frame.seal();
    let held = ring.held() as f64 / f64::from(1 << 20);
    verdict(held <= 770.0, &format!("100M objects of 8 bytes in <= 770 MiB: {held:.1} MiB"));
    drop(sealed);
}

//! The workload `mem-access` at its full size on an i7-6800K, compared with page walks that were
//! counted on such a CPU with Linux 5.4.
//!
//! | page walks of | source | here | |
//! |---|---|---|---|
//! | random, reads | 3,390,719 | 3.47 M | fitted by the prefetcher's steps |
//! | random, writes | 1,486,451 | 1.54 M | predicted |
//! | sequential, both | 1,327,006 | 1.34 M | fitted by the prefetcher's share |
//! | sequential, reads | 517,335 | 0 | not explained: in the program's order the first use of each page is a write |

#![expect(clippy::print_stdout, reason = "the distance is worth reading")]

use pagewise_sim::geometry::{I7_6800K, TlbPageSize};
use pagewise_sim::workload::{Order, WindowWalk};
use pagewise_sim::{LevelCounts, Levels, RecencyPolicy};

const RANDOM: Order = Order::Random { seed: 1 };

fn tlb(work: WindowWalk, prefetches: bool) -> LevelCounts {
    let mut tlb =
        Levels::tlb(&I7_6800K.tlb(TlbPageSize::Base).unwrap(), RecencyPolicy::Lru).unwrap();
    if prefetches {
        tlb = tlb.prefetching(I7_6800K.next_page.unwrap());
    }
    work.play(&mut |block| tlb.play(block));
    tlb.counts()
}

/// The workload with one pass: a window has at most 9 pages, so later passes do not miss in the
/// TLB, which a test below checks.
fn one_pass(order: Order) -> WindowWalk {
    WindowWalk { passes: 1, ..WindowWalk::original(order) }
}

#[track_caller]
fn near(found: u64, source: u64, percent: f64) {
    let distance = (found as f64 / source as f64 - 1.0) * 100.0;
    println!("{found} for {source}: {distance:+.1} %");
    assert!(distance.abs() < percent, "{found} for {source}: {distance:+.1} %");
}

#[test]
fn page_walks_are_near_those_of_the_real_cpu() {
    let random = tlb(one_pass(RANDOM), true).last;
    near(random.reads, 3_390_719, 5.0);
    near(random.writes, 1_486_451, 5.0);
    let sequential = tlb(one_pass(Order::Sequential), true).last;
    near(sequential.total(), 517_335 + 809_671, 5.0);
    assert_eq!(sequential.reads, 0);
}

#[test]
fn without_a_prefetcher_there_are_twice_as_many_or_more() {
    let random = tlb(one_pass(RANDOM), false).last;
    near(random.reads, 7_300_000, 1.0);
    near(random.writes, 2_070_000, 1.0);
    near(tlb(one_pass(Order::Sequential), false).last.total(), 8 << 20, 1.0);
}

#[test]
fn only_the_first_pass_over_a_window_misses() {
    for order in [RANDOM, Order::Sequential] {
        let work = WindowWalk { rounds: 2_000, ..WindowWalk::original(order) };
        let once = WindowWalk { passes: 1, ..work };
        assert_eq!(tlb(work, true), tlb(once, true));
        let misses = |work: WindowWalk| {
            let mut caches = Levels::caches(&I7_6800K.caches, RecencyPolicy::Lru).unwrap();
            work.play(&mut |block| caches.play(block));
            caches.counts().first.total()
        };
        assert_eq!(misses(work), misses(once));
        // A random window of 32 KiB in 1 GiB sometimes overlaps the previous window, whose lines
        // are still cached.
        near(misses(work), 2_000 * 512, 0.1);
    }
}

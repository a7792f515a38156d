//! TLSF: blocks of 16 to 512 bytes replaced at random: the mean, the tail, and the most
//! instructions a call takes.

mod live;
mod pool;
mod tail;
mod worst;

use std::cell::RefCell;

use pagewise_alloc::Tlsf;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::{BenchRunner, for_each_malloc, race};

use live::LiveTlsfBlocks;
use pool::{NoTlsf, TlsfMalloc, TlsfPool, rlsf, talc};
use tail::TimedRound;

const LIVE: usize = 10_000;
const STEPS: usize = 500_000;
const ROUNDS: usize = 21;

/// Compared allocators, and the largest permitted ratio of our time to theirs: 20 ns where they
/// needed 26 and 38.
const GOALS: &[(&str, f64)] = &[("talc", 0.77), ("rlsf", 0.53)];

/// A name, and its rounds.
type Rounds = (&'static str, Box<dyn FnMut()>, TimedRound<'static>);

fn rounds(name: &'static str, pool: impl TlsfPool + 'static) -> Rounds {
    let live: &RefCell<_> = Box::leak(Box::new(RefCell::new(LiveTlsfBlocks::new(pool, LIVE))));
    let replace = || live.borrow_mut().replace(STEPS);
    (name, Box::new(replace), Box::new(|| live.borrow_mut().replace_timed(STEPS)))
}

fn all() -> Vec<Rounds> {
    let mut all = vec![
        rounds("ours", Tlsf::<Os>::new(Os)),
        rounds("ours, nothing at hand", Tlsf::<Os, 0>::new(Os)),
        rounds("ours, 8 of a size at hand", Tlsf::<Os, 8>::new(Os)),
        rounds("ours, 16 of a size at hand", Tlsf::<Os, 16>::new(Os)),
        rounds("rlsf", rlsf()),
        rounds("talc", talc()),
        rounds("not even a call", NoTlsf(0)),
    ];
    macro_rules! general {
        ($name:literal, $malloc:expr) => {
            all.push(rounds($name, TlsfMalloc($malloc)));
        };
    }
    for_each_malloc!(general);
    all
}

fn main() {
    if worst::is_asked_for() {
        return;
    }
    let (mut runners, mut timed) = (Vec::new(), Vec::new());
    for (name, replace, replace_timed) in all() {
        runners.push(BenchRunner::new(name, STEPS, replace));
        timed.push((name, replace_timed));
    }
    let title = format!("{LIVE} live blocks of 16 to 512 bytes: free one at random, allocate one");
    let results = race(&title, ROUNDS, runners);
    results.goal_of_best("ours", 1.0, &["ours, ", "not even"]);
    for (peer, most) in GOALS {
        results.goal("ours", *most, peer);
    }
    tail::run(timed);
    worst::run();
}

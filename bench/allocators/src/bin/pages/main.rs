//! Pages: runs of 4 KiB to 1 MiB replaced at random, untouched; and how much memory touched ones
//! need.

mod live;
mod memory;
mod pool;

use pagewise_alloc::Pages;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::{BenchRunner, for_each_malloc, race};

use live::{LivePageRuns, RunLengths};
use pool::{Buddy, CFunctions, Mmap, PagePool, PagesMalloc};

const STEPS: usize = 100_000;
const ROUNDS: usize = 11;

/// Compared allocators, and the largest permitted ratio of our time to theirs: 35 ns where they
/// needed as long, 43 and 62.
const GOALS: &[(&str, f64)] = &[("rpmalloc", 1.0), ("tcmalloc", 0.81), ("buddy", 0.56)];

/// Ours without one policy each.
#[cfg(feature = "ablation")]
fn ablated() -> [(&'static str, &'static dyn PagePool); 2] {
    use pagewise_alloc::pages::PagesPolicy as Policy;
    let with =
        |policy| -> &'static dyn PagePool { Box::leak(Box::new(Pages::with_policy(Os, policy))) };
    [
        ("ours, with nothing at hand", with(Policy { at_hand: false, ..Policy::ALL })),
        ("ours, without a look at what is resident", with(Policy { looks: false, ..Policy::ALL })),
    ]
}

/// All that take part, each of which lives as long as the program.
fn all() -> Vec<(&'static str, &'static dyn PagePool)> {
    let half: &Pages<Os> = Box::leak(Box::new(Pages::new(Os)));
    half.keep(50);
    let mut all: Vec<(&str, &dyn PagePool)> = vec![
        ("ours", Box::leak(Box::new(Pages::new(Os)))),
        ("ours, with half as much idle", half),
        ("rpmalloc", Box::leak(Box::new(CFunctions::rpmalloc()))),
        ("buddy", Box::leak(Box::new(Buddy::new()))),
    ];
    #[cfg(feature = "ablation")]
    all.extend(ablated());
    macro_rules! general {
        ($name:literal, $malloc:expr) => {
            all.push(($name, Box::leak(Box::new(PagesMalloc($malloc)))));
        };
    }
    for_each_malloc!(general);
    all.push(("mmap", &Mmap));
    all
}

fn main() {
    let all = all();
    if memory::is_asked_for(&all) {
        return;
    }
    for sizes in [RunLengths::Even, RunLengths::Powers] {
        let runners = all.iter().map(|(name, pool)| {
            let mut live = LivePageRuns::new(*pool, sizes);
            BenchRunner::new(name, STEPS, move || live.replace(STEPS))
        });
        let title = format!("256 live runs of {sizes}, untouched: free one at random, take one");
        let results = race(&title, ROUNDS, runners.collect());
        results.goal_of_best("ours", 1.0, &["ours, "]);
        // They were measured with these lengths, and tcmalloc may be missing.
        let known =
            |peer: &str| sizes == RunLengths::Even && all.iter().any(|(name, _)| *name == peer);
        for (peer, most) in GOALS.iter().filter(|(peer, _)| known(peer)) {
            results.goal("ours", *most, peer);
        }
    }
    two_threads(&all);
    memory::run(&all);
}

/// Two threads, each with runs of its own.
fn two_threads(all: &[(&'static str, &'static dyn PagePool)]) {
    let work = |pool: &'static dyn PagePool| {
        pool.enter();
        LivePageRuns::new(pool, RunLengths::Even).replace(STEPS);
    };
    let runners = all.iter().map(|(name, pool)| {
        BenchRunner::new(name, STEPS, move || {
            std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| work(*pool)))));
        })
    });
    let title = format!("two threads, 256 live runs of {} each, untouched", RunLengths::Even);
    race(&title, ROUNDS, runners.collect()).goal_of_best("ours", 1.0, &["ours, "]);
}

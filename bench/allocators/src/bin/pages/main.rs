//! Pages: runs of 4 KiB to 1 MiB replaced at random, untouched; and how much memory touched ones need.

mod live;
mod memory;
mod pool;

use pagewise_alloc::Pages;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::{Runner, for_each_malloc, race};

use live::{Live, Sizes};
use pool::{Buddy, CFunctions, Malloc, Mmap, Pool};

const STEPS: usize = 100_000;
const ROUNDS: usize = 11;

/// Peers, and at most how many times their time ours may take: 35 ns where they took as long, 43 and 62.
const GOALS: &[(&str, f64)] = &[("rpmalloc", 1.0), ("tcmalloc", 0.81), ("buddy", 0.56)];

/// Ours without one policy each.
#[cfg(feature = "ablation")]
fn ablated() -> [(&'static str, &'static dyn Pool); 2] {
    use pagewise_alloc::pages::Policy;
    let with =
        |policy| -> &'static dyn Pool { Box::leak(Box::new(Pages::with_policy(Os, policy))) };
    [
        ("ours, with nothing at hand", with(Policy { at_hand: false, ..Policy::ALL })),
        ("ours, without a look at what is resident", with(Policy { looks: false, ..Policy::ALL })),
    ]
}

/// All that take part, each of which lives as long as the program.
fn all() -> Vec<(&'static str, &'static dyn Pool)> {
    let half: &Pages<Os> = Box::leak(Box::new(Pages::new(Os)));
    half.keep(50);
    let mut all: Vec<(&str, &dyn Pool)> = vec![
        ("ours", Box::leak(Box::new(Pages::new(Os)))),
        ("ours, with half as much idle", half),
        ("rpmalloc", Box::leak(Box::new(CFunctions::rpmalloc()))),
        ("buddy", Box::leak(Box::new(Buddy::new()))),
    ];
    #[cfg(feature = "ablation")]
    all.extend(ablated());
    macro_rules! general {
        ($name:literal, $malloc:expr) => {
            all.push(($name, Box::leak(Box::new(Malloc($malloc)))));
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
    for sizes in [Sizes::Even, Sizes::Powers] {
        let runners = all.iter().map(|(name, pool)| {
            let mut live = Live::new(*pool, sizes);
            Runner::new(name, STEPS, move || live.replace(STEPS))
        });
        let title = format!("256 live runs of {sizes}, untouched: free one at random, take one");
        let results = race(&title, ROUNDS, runners.collect());
        results.goal_of_best("ours", 1.0, &["ours, "]);
        // They were measured with these lengths, and tcmalloc may be missing.
        let known = |peer: &str| sizes == Sizes::Even && all.iter().any(|(name, _)| *name == peer);
        for (peer, most) in GOALS.iter().filter(|(peer, _)| known(peer)) {
            results.goal("ours", *most, peer);
        }
    }
    two_threads(&all);
    memory::run(&all);
}

/// Two threads, each with runs of its own.
fn two_threads(all: &[(&'static str, &'static dyn Pool)]) {
    let work = |pool: &'static dyn Pool| {
        pool.enter();
        Live::new(pool, Sizes::Even).replace(STEPS);
    };
    let runners = all.iter().map(|(name, pool)| {
        Runner::new(name, STEPS, move || {
            std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| work(*pool)))));
        })
    });
    let title = format!("two threads, 256 live runs of {} each, untouched", Sizes::Even);
    race(&title, ROUNDS, runners.collect()).goal_of_best("ours", 1.0, &["ours, "]);
}

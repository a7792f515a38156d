//! Memory that touched runs need, and the cost of replacing them.

use std::fs;
use std::process::Command;
use std::time::Instant;

use pagewise_bench_allocators::verdict;

use crate::live::{LivePageRuns, RUNS, RunLengths};
use crate::pool::{PAGE, PagePool};

/// Runs replaced between two looks, and looks. The first few do not count.
const STEPS: usize = 64;
const LOOKS: usize = 40;
const WARM: usize = 8;

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number of statm") * PAGE
}

/// The most resident bytes for a byte that is live, at any look; and nanoseconds for a run.
fn most(pool: &dyn PagePool, sizes: RunLengths) -> (f64, f64) {
    let before = resident();
    let mut live = LivePageRuns::new(pool, sizes);
    // The pool has no reason to expect it.
    live.replace(10_000);
    live.touch();
    let mut most = 0.0_f64;
    let begin = Instant::now();
    for look in 0..LOOKS {
        live.replace_touched(STEPS);
        let ratio = resident().saturating_sub(before) as f64 / live.bytes() as f64;
        most = if look < WARM { 0.0 } else { most.max(ratio) };
    }
    (most, begin.elapsed().as_secs_f64() * 1e9 / (STEPS * LOOKS) as f64)
}

/// Argument that starts one program in a process of its own, before the pool's name.
const ASKED: &str = "--touched";
const ALL_SIZES: [RunLengths; 2] = [RunLengths::Even, RunLengths::Powers];

/// True if this is the process of one program, which has run then.
pub(crate) fn is_asked_for(all: &[(&'static str, &'static dyn PagePool)]) -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, asked, name, sizes] = arguments.as_slice() else { return false };
    let pool = all.iter().find(|(known, _)| asked == ASKED && known == name);
    let sizes = ALL_SIZES.into_iter().find(|known| known.to_string() == *sizes);
    let (Some((_, pool)), Some(sizes)) = (pool, sizes) else { return false };
    let (most, time) = most(*pool, sizes);
    println!("{most} {time}");
    true
}

/// Results of a separate process: the peak of resident memory per live memory, and nanoseconds.
fn ask(name: &str, sizes: RunLengths) -> Option<[f64; 2]> {
    let mut process = Command::new(std::env::current_exe().ok()?);
    let said = process.args([ASKED, name, &sizes.to_string()]).output().ok()?.stdout;
    let (most, time) = str::from_utf8(&said).ok()?.trim().split_once(' ')?;
    Some([most.parse().ok()?, time.parse().ok()?])
}

/// Prints a row for each, and whether ours keeps to its goal.
pub(crate) fn run(all: &[(&'static str, &'static dyn PagePool)]) {
    for sizes in ALL_SIZES {
        println!("\n{RUNS} live runs of {sizes}, every page touched, {} replaced", STEPS * LOOKS);
        println!("{:<36}{:>16}{:>16}", "", "resident / live", "ns a run");
        for (name, _) in all {
            let Some([most, time]) = ask(name, sizes) else { continue };
            println!("{name:<36}{most:>16.3}{time:>16.0}");
            if *name == "ours" {
                verdict(most <= 1.2, &format!("resident <= 1.2 x live: {most:.3}"));
            }
        }
    }
}

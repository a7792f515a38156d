//! The worst case: the most instructions that any of some thousand calls takes, while the heap
//! grows a thousandfold. callgrind counts them, in this program called once more: instructions
//! depend on no clock and no neighbor.

use std::fs;
use std::process::{Command, Stdio};

use pagewise_alloc::Tlsf;
use pagewise_alloc::source::Os;
use pagewise_bench_allocators::verdict;

use crate::live::LiveTlsfBlocks;
use crate::pool::{TlsfPool, rlsf, talc};

/// Live blocks.
const HEAPS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Calls of each kind that are counted.
const CALLS: usize = 5_000;
/// Argument that starts a program to be counted, before the pool's name and the number of live
/// blocks.
const ASKED: &str = "--replace-measured";
const NAMES: [&str; 4] = ["ours", "ours, nothing at hand", "rlsf", "talc"];

fn program(pool: impl TlsfPool, live: usize) {
    let mut program = LiveTlsfBlocks::new(pool, live);
    program.replace(live);
    program.replace_measured(CALLS);
}

/// True if this is the program that is to be counted, which has run then.
pub(crate) fn is_asked_for() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, asked, name, live] = arguments.as_slice() else { return false };
    let live = live.parse().expect("a number");
    match name.as_str() {
        _ if asked != ASKED => return false,
        "ours" => program(Tlsf::<Os>::new(Os), live),
        "rlsf" => program(rlsf(), live),
        "talc" => program(talc(), live),
        _ => program(Tlsf::<Os, 0>::new(Os), live),
    }
    true
}

/// Which functions are counted.
const CALLED: [&str; 2] = ["measured_allocate", "measured_free"];

/// Runs the program under callgrind; what it wrote.
fn count(name: &str, live: usize) -> Option<String> {
    let file = std::env::temp_dir().join(format!("tlsf-{}.callgrind", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--tool=callgrind", "--combine-dumps=yes"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg("--toggle-collect=measured_*");
    valgrind.args(CALLED.map(|call| format!("--dump-after={call}")));
    valgrind.arg(std::env::current_exe().ok()?).args([ASKED, name, &live.to_string()]);
    let status = valgrind.stderr(Stdio::null()).status().ok()?;
    let dumps = fs::read_to_string(&file).ok();
    _ = fs::remove_file(&file);
    dumps.filter(|_| status.success())
}

/// The most instructions of a call, of one dump for each.
fn most(dumps: &str, call: &str) -> u64 {
    let trigger = format!("desc: Trigger: --dump-after={call}\n");
    let after = |dump: &str| dump.split_once("summary: ")?.1.lines().next()?.trim().parse().ok();
    dumps.split(&trigger).skip(1).filter_map(after).max().unwrap_or(0)
}

/// Prints the most instructions of each pool and heap, and whether ours stay the same.
pub(crate) fn run() {
    println!("\nthe most instructions of {CALLS} calls (callgrind), by live blocks");
    let heads = HEAPS.map(|live| format!("{live:>9}")).concat();
    println!("{:<24}{:<10}{heads}", "", "");
    for name in NAMES {
        let counts = HEAPS.map(|live| count(name, live));
        let Some(counts) = counts.into_iter().collect::<Option<Vec<String>>>() else {
            return println!("left out: valgrind did not run");
        };
        for call in CALLED {
            let most: Vec<u64> = counts.iter().map(|dumps| most(dumps, call)).collect();
            let row = most.iter().map(|most| format!("{most:>9}")).collect::<String>();
            println!("{name:<24}{:<10}{row}", call.trim_start_matches("measured_"));
            if name.starts_with("ours") {
                judge(name, call, &most);
            }
        }
    }
}

/// If the maximum grows with the heap, it grows much more than by a path that some run did not
/// take. A small heap with cached blocks seldom takes the longest path.
fn judge(name: &str, call: &str, most: &[u64]) {
    let (smaller, largest) = most.split_at(most.len() - 1);
    let ratio = largest[0] as f64 / smaller.iter().copied().max().unwrap_or(1) as f64;
    let call = call.trim_start_matches("measured_");
    let claim = format!("{name}: {call} in the largest heap as in smaller ones: {ratio:.2}x");
    verdict(ratio <= 1.25, &claim);
}

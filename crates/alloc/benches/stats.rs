//! Cost of statistics: measures a pattern of calls on each pool, interleaved with and without the
//! feature `stats`.
//!
//! This bench calls cargo to build both variants of itself. Each round is a process of one variant.
//! With words (`cargo bench --bench stats -- persistent`), only the patterns whose names contain
//! one of the words run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints and stops at what it did not expect"
)]

use std::alloc::Layout;
use std::collections::VecDeque;
use std::hint::black_box;
use std::process::Command;
use std::ptr::NonNull;
use std::time::Instant;

use pagewise_alloc::persistent::{Persistent, PersistentOptions, Rel};
use pagewise_alloc::{Fifo, Os, Pages, Ring, Stack, Tlsf};

/// Number of rounds of each variant, and the largest permitted ratio of the time with `stats` to
/// the time without it.
const TURNS: usize = 31;
const GOAL: f64 = 1.02;

/// A pattern: its name, and a function that runs it and returns its number of requests.
type Pattern = (&'static str, fn() -> u64);

const PATTERNS: &[Pattern] = &[
    ("stack: 8-byte nodes", stack),
    ("stack: frames in frames", frames),
    ("FIFO: 4096 live, 16-512 B", fifo),
    ("ring: frames of 8 blocks", ring),
    ("TLSF: random replace, 16-512 B", tlsf),
    ("pages: random replace, 4 KiB-1 MiB", pages),
    ("persistent: random replace, 16-512 B", persistent),
];

/// Environment variable with the index of a pattern: a process with this variable runs only that
/// pattern, and prints nanoseconds per request.
const TURN: &str = "PAGEWISE_BENCH_TURN";

fn main() {
    if let Ok(turn) = std::env::var(TURN) {
        let (_, pattern) = PATTERNS[turn.parse::<usize>().unwrap()];
        pattern();
        let begin = Instant::now();
        let requests = pattern();
        println!("{}", begin.elapsed().as_secs_f64() * 1e9 / requests as f64);
        return;
    }
    let [without, with] = [false, true].map(built);
    println!("{:36} {:>8} {:>8}  {:>6}", "ns for a request, median", "without", "with", "ratio");
    let words: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted =
        |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    for (at, (name, _)) in PATTERNS.iter().enumerate().filter(|(_, (name, _))| wanted(name)) {
        let mut times = [Vec::new(), Vec::new()];
        for turn in 0..TURNS * 2 {
            let which = (turn + turn / 2) % 2;
            times[which].push(once([&without, &with][which], at));
        }
        let [without, with] = times.map(median);
        let ratio = with / without;
        let met = if ratio <= GOAL { "met" } else { "MISSED" };
        println!("{name:36} {without:8.2} {with:8.2}  {ratio:6.3}  goal {GOAL}: {met}");
    }
}

/// Builds this bench with the feature `stats` or without it, and returns the path of the program.
fn built(with: bool) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["bench", "-q", "--no-run", "--bench", "stats", "--message-format=json"]);
    if with {
        cargo.args(["--features", "stats"]);
    }
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let path = text.rsplit("\"executable\":\"").next().unwrap().split('"').next().unwrap();
    // Cargo may give both variants the same file name.
    let copy = format!("{path}-{}", if with { "with" } else { "without" });
    std::fs::copy(path, &copy).unwrap();
    copy
}

fn once(program: &str, pattern: usize) -> f64 {
    let output = Command::new(program).env(TURN, pattern.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Pseudo-random numbers: xorshift.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn stack() -> u64 {
    const NODES: u64 = 5_000_000;
    let mut stack = Stack::unguarded(Os);
    for _ in 0..4 {
        stack.scope(|scope| (0..NODES).for_each(|node| _ = black_box(scope.alloc(node))));
    }
    4 * NODES
}

fn frames() -> u64 {
    const ROUNDS: u64 = 400_000;
    fn nest<S: pagewise_alloc::Source>(stack: &Stack<S>, depth: usize) {
        let mark = stack.mark();
        for size in [8, 24, 64, 128] {
            black_box(stack.allocate(layout(size)));
        }
        if depth > 0 {
            nest(stack, depth - 1);
        }
        // SAFETY: the mark belongs to this frame, whose allocations are not used any more.
        unsafe { stack.rewind(mark) };
    }
    let stack = Stack::unguarded(Os);
    (0..ROUNDS).for_each(|_| nest(&stack, 31));
    ROUNDS * 32 * 4
}

fn fifo() -> u64 {
    const REQUESTS: u64 = 20_000_000;
    let pool = Fifo::new(Os).unwrap();
    let mut queue: VecDeque<(NonNull<u8>, Layout)> = VecDeque::with_capacity(4097);
    let mut chance = XorShift(1);
    for _ in 0..REQUESTS {
        let size = layout(16 + chance.below(497));
        queue.push_back((pool.allocate(size).unwrap(), size));
        if queue.len() > 4096 {
            let (block, size) = queue.pop_front().unwrap();
            // SAFETY: the block came from this pool with this layout, and is not used any more.
            unsafe { pool.free(block, size) };
        }
    }
    REQUESTS
}

fn ring() -> u64 {
    const FRAMES: u64 = 2_000_000;
    let mut ring = Ring::unguarded(Os).unwrap();
    for _ in 0..FRAMES {
        let frame = ring.open().unwrap();
        (0..8).for_each(|_| _ = black_box(frame.allocate(layout(64))));
        drop(frame.seal());
    }
    FRAMES * 8
}

fn tlsf() -> u64 {
    const REQUESTS: u64 = 20_000_000;
    let mut pool: Tlsf<Os> = Tlsf::new(Os);
    let mut chance = XorShift(1);
    let mut live: Vec<(NonNull<u8>, Layout)> = Vec::with_capacity(4096);
    for _ in 0..REQUESTS {
        let size = layout(16 + chance.below(497));
        let block = pool.allocate(size).unwrap();
        if live.len() < 4096 {
            live.push((block, size));
        } else {
            let (old, old_size) = std::mem::replace(&mut live[chance.below(4096)], (block, size));
            // SAFETY: the block came from this pool with this layout, and is not used any more.
            unsafe { pool.free(old, old_size) };
        }
    }
    REQUESTS
}

fn pages() -> u64 {
    const REQUESTS: u64 = 5_000_000;
    let pool = Pages::new(Os);
    let mut chance = XorShift(1);
    let mut live: Vec<(NonNull<u8>, Layout)> = Vec::with_capacity(256);
    for _ in 0..REQUESTS {
        let size = layout((4 << 10) << chance.below(9));
        let run = pool.allocate(size).unwrap();
        if live.len() < 256 {
            live.push((run, size));
        } else {
            let (old, old_size) = std::mem::replace(&mut live[chance.below(256)], (run, size));
            // SAFETY: the run came from this pool with this size, and is not used any more.
            unsafe { pool.free(old, old_size.size()) };
        }
    }
    REQUESTS
}

fn persistent() -> u64 {
    const REQUESTS: u64 = 10_000_000;
    let path = std::env::temp_dir().join(format!("pagewise-bench-{}.heap", std::process::id()));
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: no other code has the file open.
    let mut heap = unsafe { Persistent::open(&name, &PersistentOptions::DEFAULT) }.unwrap();
    std::fs::remove_file(path).unwrap();
    let mut chance = XorShift(1);
    let mut live = vec![Rel::<u8>::NULL; 4096];
    for _ in 0..REQUESTS {
        let old = &mut live[chance.below(4096)];
        let mut tx = heap.begin();
        let new = tx.alloc(layout(16 + chance.below(497))).unwrap();
        if !old.is_null() {
            tx.free(*old).unwrap();
        }
        tx.commit().unwrap();
        *old = new;
    }
    REQUESTS
}

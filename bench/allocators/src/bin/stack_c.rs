//! The same benchmarks of stacks in C: `cargo run --release --features c --bin stack_c`.

use pagewise as _;
use pagewise_bench_allocators::{BenchRunner, black_box, race};

const NODES: usize = 20_000_000;
const DEPTH: usize = 32;
const REQUESTS: usize = 4;
/// Number of pushed and popped frames in a round.
const TIMES: usize = 4000;

type CFrameSizes = [usize; REQUESTS];

// `c/stack.c`.
unsafe extern "C" {
    fn race_floor_list(memory: *mut u8, nodes: usize);
    fn race_floor_frames(memory: *mut u8, levels: *const CFrameSizes, depth: usize, times: usize);
    safe fn race_ours_list(nodes: usize);
    fn race_ours_frames(levels: *const CFrameSizes, depth: usize, times: usize);
    fn race_t_frames(levels: *const CFrameSizes, depth: usize, times: usize);
    safe fn race_obstack_list(nodes: usize);
    fn race_obstack_frames(levels: *const CFrameSizes, depth: usize, times: usize);
}

/// Sizes from 8 to 128 bytes that look random, in whole words.
fn levels() -> [CFrameSizes; DEPTH] {
    let mut seed = 1_u64;
    [[(); REQUESTS]; DEPTH].map(|level| {
        level.map(|()| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            8 + 8 * (seed >> 60) as usize
        })
    })
}

fn lists() {
    let mut memory = vec![1_u64; NODES];
    let memory = memory.as_mut_ptr().cast();
    let runners = vec![
        // SAFETY: the memory has room for all nodes.
        BenchRunner::new("floor: no check of free space", NODES, || unsafe {
            race_floor_list(memory, NODES)
        }),
        BenchRunner::new("pagewise", NODES, || race_ours_list(NODES)),
        BenchRunner::new("obstack", NODES, || race_obstack_list(NODES)),
    ];
    let results =
        race("list of 20M nodes of 8 bytes in C: allocating a node, and popping", 9, runners);
    results.goal("pagewise", 0.5, "obstack");
}

fn frames() {
    let levels = black_box(levels());
    let levels = levels.as_ptr();
    let mut memory = vec![1_u64; DEPTH * REQUESTS * 16];
    let memory = memory.as_mut_ptr().cast();
    let units = TIMES * DEPTH * REQUESTS;
    // SAFETY: there are as many levels, and the memory has room for what they ask for.
    let runners = vec![
        BenchRunner::new("floor: no check of free space", units, || unsafe {
            race_floor_frames(memory, levels, DEPTH, TIMES);
        }),
        BenchRunner::new("pagewise, pw_scope", units, || unsafe {
            race_ours_frames(levels, DEPTH, TIMES)
        }),
        BenchRunner::new("pagewise, t_scope", units, || unsafe {
            race_t_frames(levels, DEPTH, TIMES)
        }),
        BenchRunner::new("obstack", units, || unsafe { race_obstack_frames(levels, DEPTH, TIMES) }),
    ];
    let title = "frames in frames in C, 32 deep, 4 requests of 8 to 128 bytes each: a request";
    let results = race(title, 31, runners);
    for ours in ["pagewise, pw_scope", "pagewise, t_scope"] {
        results.goal(ours, 1.25, "floor: no check of free space");
        results.goal(ours, 0.5, "obstack");
    }
}

fn main() {
    lists();
    frames();
}

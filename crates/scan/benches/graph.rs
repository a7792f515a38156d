//! CPU time and memory of the pointer graph, for three heaps: a million blocks in 1 GiB with two
//! pointers in each block; ten million small blocks; and 1 GiB of pointers.
//!
//! `cargo bench -p pagewise-scan --bench graph -- [NAME]`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "its own numbers are small"
)]

use std::time::Duration;

use pagewise_model::{Absent, AddrRange, Device, Mapping, Name, Prot, Sharing};
use pagewise_scan::blocks::{BlockTable, LiveBlock};
use pagewise_scan::graph::{
    HeapLeaks, PointerGraph, RetainedSizes, RetentionTree, Traversal, dominators, heap_pointers,
    paths_to, reachable, root_spans,
};
use pagewise_scan::memory::{Memory, ScannedThread};
use rustix::time::{ClockId, clock_gettime};

const HEAP: u64 = 0x5555_0000_0000;
const DATA: u64 = 0x5554_0000_0000;
const DATA_WORDS: usize = 512;
/// Number of bytes between the end of a block and the start of the next block.
const HEADER: u64 = 16;
const ROUNDS: usize = 3;

/// A heap of blocks of equal size, and a data mapping with pointers to the blocks.
struct HeapImage {
    mappings: Vec<Mapping>,
    contents: [Vec<u8>; 2],
    blocks: BlockTable,
}

impl Memory for HeapImage {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn threads(&self) -> &[ScannedThread] {
        &[]
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        for (mapping, bytes) in self.mappings.iter().zip(&self.contents) {
            if let Some(part) = mapping.range.intersection(range) {
                let offset = |address: u64| (address - mapping.range.start) as usize;
                each(part.start, &bytes[offset(part.start)..offset(part.end)]);
            }
        }
    }

    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

/// Makes a heap of `count` blocks of `size` bytes. The blocks are the nodes of a binary tree, which
/// are scattered over the addresses. Every block also points to a random block, and 1 % of the
/// blocks are leaked. If `dense` is true, all remaining words are pointers too.
fn image(count: u64, size: u64, dense: bool) -> HeapImage {
    let stride = size + HEADER;
    let mapping = |start, len, name: &str| Mapping {
        range: AddrRange { start, end: start + len },
        prot: Prot { read: true, write: true, exec: false },
        sharing: Sharing::Private,
        offset: 0,
        device: Device::default(),
        inode: u64::from(!name.is_empty()),
        name: Name::from(name),
        on_tmpfs: false,
        smaps: Err(Absent::Vanished),
        pages: Err(Absent::Vanished),
    };
    // The factor is a prime number that does not divide `count`, so each node gets a different
    // block.
    let place = |number: u64| number.wrapping_mul(7_368_787) % count;
    let address = |number: u64| HEAP + HEADER + place(number) * stride;
    let mut heap = vec![0_u8; (count * stride) as usize];
    let mut data = vec![0_u8; DATA_WORDS * 8];
    let mut store = |at: u64, word: u64| {
        let at = (at - HEAP) as usize;
        heap[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..count {
        let at = address(number);
        for word in 0..size / 8 {
            let value = match word % 4 {
                _ if dense => address(random.u64(0..count)),
                0 => random.u64(0..1000),
                1 => f64::to_bits(random.f64()),
                2 => u64::from_le_bytes(*b"some tex"),
                _ => 0,
            };
            store(at + word * 8, value);
        }
        let is_lost = |number: u64| number > count / 2 && number.is_multiple_of(50);
        let tree = [number * 2 + 1, number * 2 + 2].map(|it| Some(it).filter(|&it| it < count));
        let other = Some(random.u64(0..count)).filter(|_| !is_lost(number));
        for (word, to) in (0..).zip([tree[0], tree[1], other]) {
            if let Some(to) = to.filter(|&to| !is_lost(to)) {
                store(at + word * 8, address(to));
            }
        }
    }
    for (word, bytes) in data.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&address(word as u64 % 64).to_le_bytes());
    }
    let mut blocks = BlockTable::default();
    for number in 0..count {
        assert!(blocks.push(LiveBlock { start: HEAP + HEADER + number * stride, size }));
    }
    let mappings = vec![
        mapping(DATA, data.len() as u64, "/bin/program"),
        mapping(HEAP, heap.len() as u64, ""),
    ];
    HeapImage { mappings, contents: [data, heap], blocks }
}

/// Names of the measured steps.
const STEPS: [&str; 6] = ["pointers", "mark alone", "dominators", "leaks", "retained", "tree"];

fn measure(image: &HeapImage) -> ([Duration; 6], String) {
    let mut steps = [Duration::ZERO; 6];
    let mut last = cpu_time();
    let mut done = |step: usize| {
        steps[step] = cpu_time().saturating_sub(last);
        last = cpu_time();
    };
    let spans = root_spans(image, &[image.mappings[1].range], 0);
    let pointers = heap_pointers(image, &image.blocks, &spans).expect("few blocks");
    let graph = PointerGraph::new(pointers, &spans, &[]);
    done(0);
    drop(Traversal::new(&graph));
    done(1);
    let (traversal, tree) = dominators(&graph);
    done(2);
    let leaks = HeapLeaks::new(&graph, &traversal, &image.blocks);
    done(3);
    let retained = RetainedSizes::new(&traversal, &tree, &image.blocks);
    done(4);
    let classes = RetentionTree::new(&graph, &traversal, &tree, &image.blocks);
    done(5);
    let reached = reachable(&retained).0;
    let entries = classes.entries.len();
    drop((traversal, tree, retained, classes));
    let begin = cpu_time();
    let paths = paths_to(&graph, (graph.blocks() / 2) as u32, 10);
    let counts = format!(
        "{} pointers, {} not recorded; {} reachable, {} lost in {} leaks; {} entries; {} paths in {:?}",
        graph.pointers(),
        graph.unrecorded(),
        reached,
        leaks.blocks,
        leaks.leaks.len(),
        entries,
        paths.len(),
        cpu_time().saturating_sub(begin)
    );
    (steps, counts)
}

/// CPU time of all threads of this process. Other programs on the machine change CPU time less than
/// elapsed time.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Maximum resident set in bytes since the last call, from `VmHWM`.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    kib.unwrap_or(0) * 1024
}

fn main() {
    for (name, count, size, dense) in [
        ("1 M blocks of 1 KiB", 1_000_000, 1024 - HEADER, false),
        ("10 M blocks of 48 bytes", 10_000_000, 48, false),
        ("1 M blocks of 1 KiB, full of pointers", 1_000_000, 1024 - HEADER, true),
    ] {
        let wanted = std::env::args().skip(1).find(|it| !it.starts_with("--"));
        if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
            continue;
        }
        let image = image(count, size, dense);
        println!("\n{name} (CPU time, best of {ROUNDS} rounds)");
        let mut best = [Duration::MAX; 6];
        let mut most = 0;
        for round in 0..ROUNDS {
            peak_resident();
            let before = peak_resident();
            let (steps, counts) = measure(&image);
            most = most.max(peak_resident().saturating_sub(before));
            best = std::array::from_fn(|step| best[step].min(steps[step]));
            if round == 0 {
                println!("{counts}");
            }
        }
        for (step, time) in STEPS.iter().zip(best) {
            println!("{step:<12}{:>8.1} ms", time.as_secs_f64() * 1e3);
        }
        let sum: Duration = best.iter().sum();
        let table = 8 * count;
        println!("{:<12}{:>8.1} ms", "sum", sum.as_secs_f64() * 1e3);
        println!(
            "{:<12}{:>8.1} bytes a block, the table included",
            "memory",
            (most + table) as f64 / count as f64
        );
    }
}

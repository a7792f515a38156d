//! Memory pools for a single pattern of use, each compared with `malloc` in this pattern.

use std::alloc::Layout;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Instant;

use pagewise_alloc::fifo::Boxed;
use pagewise_alloc::ring::Sealed;
use pagewise_alloc::{DisciplinedAllocator, Fifo, SystemMalloc, Os, Pages, Ring, TestShelf, ShelfSlot, Stack, Tlsf};
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter};
use pagewise_model::units::nanoseconds;

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Allocators;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "allocators",
    question: "How much faster is a pool that is made for one order of allocation and free?",
    expectation: "malloc must be ready for any order: it keeps a header for each block and looks for room. A stack or a ring only \
        moves a pointer, and gives everything back at once; a FIFO counts the live blocks of each page. A list of nodes of 8 \
        bytes then takes a half to a quarter of the memory and of the time. Where one thread frees what another allocates, malloc \
        must agree between threads on each block, a ring on each frame. TLSF takes blocks of any size in any order in the same \
        few steps, so that its slow calls are not much slower; whole pages are handed out without asking the kernel each time.",
    figures: "100 M nodes: malloc 66 M/s allocated, 79 M/s freed, 2.9 GiB; stack 120 M/s, freed in 0 ms, 1.5 GiB; FIFO 90 and 156 \
        M/s, 1.5 GiB; ring 116 M/s, 0 ms, 764 MiB; with a second thread that frees, malloc 6.2 M/s, ring 116 M/s",
    needs: &[],
    parameters: &[
        ParameterAbout { name: "nodes", meaning: "nodes of the list", values: [1_000_000, 10_000_000, 100_000_000] },
        ParameterAbout { name: "rounds", meaning: "number of times it is built and freed", values: [3, 3, 3] },
        ParameterAbout { name: "live", meaning: "blocks that are live where they are replaced at random", values: [10_000, 50_000, 100_000] },
    ],
    quantities: &[
        QuantityAbout { name: "alloc", unit: AxisUnit::Number, meaning: "nanoseconds for an allocation" },
        QuantityAbout { name: "free", unit: AxisUnit::Number, meaning: "nanoseconds for walking to a node and freeing it" },
        QuantityAbout { name: "node", unit: AxisUnit::Bytes, meaning: "resident memory for each node" },
        QuantityAbout { name: "slowest", unit: AxisUnit::Nanos, meaning: "99.9th percentile of the time of a replacement, clock included" },
    ],
    arms: &[
        "list: malloc",
        "list: stack",
        "list: FIFO",
        "list: ring",
        "two threads: malloc",
        "two threads: ring",
        "any order: malloc",
        "any order: TLSF",
        "pages: malloc",
        "pages: pages",
    ],
    runs: [5, 7, 7],
    timed: true,
    // A node of malloc takes 32 bytes; two lists exist if one list is freed while the other grows.
    memory: |parameters| Bytes((32 * 2 * parameters.get("nodes")).max(parameters.get("live") * (8 << 10))),
};

/// A claim that a quantity is at least `least` times as large in one condition as in another
/// condition.
struct Faster {
    text: &'static str,
    source: &'static str,
    least: f64,
    quantity: &'static str,
    slow: &'static str,
    fast: &'static str,
    /// Reason why the claim may fail.
    why: &'static str,
    /// Nanoseconds of the slow condition in the measurement of `source`. The reason is reported
    /// only if the slow condition takes less time here.
    slow_then: Option<f64>,
}

const OLDER: &str = "malloc has become faster since: it keeps freed blocks for each thread";

const FASTER: &[Faster] = &[
    Faster {
        text: "A stack allocates faster than malloc",
        source: "120 M/s against 66",
        least: 1.3,
        quantity: "alloc",
        slow: "list: malloc",
        fast: "list: stack",
        why: OLDER,
        slow_then: Some(1000.0 / 66.0),
    },
    Faster {
        text: "and frees faster, though it walks the list, too",
        source: "0 ms against 79 M/s",
        least: 1.3,
        quantity: "free",
        slow: "list: malloc",
        fast: "list: stack",
        why: OLDER,
        slow_then: Some(1000.0 / 79.0),
    },
    Faster {
        text: "A ring allocates faster than malloc",
        source: "116 M/s against 66",
        least: 1.3,
        quantity: "alloc",
        slow: "list: malloc",
        fast: "list: ring",
        why: OLDER,
        slow_then: Some(1000.0 / 66.0),
    },
    Faster {
        text: "A FIFO allocates faster than malloc",
        source: "90 M/s against 66",
        least: 1.0,
        quantity: "alloc",
        slow: "list: malloc",
        fast: "list: FIFO",
        why: OLDER,
        slow_then: Some(1000.0 / 66.0),
    },
    Faster {
        text: "and frees faster",
        source: "156 M/s against 79",
        least: 1.0,
        quantity: "free",
        slow: "list: malloc",
        fast: "list: FIFO",
        why: OLDER,
        slow_then: Some(1000.0 / 79.0),
    },
    Faster {
        text: "malloc allocates more slowly while another thread frees",
        source: "6.2 M/s against 66",
        least: 1.3,
        quantity: "alloc",
        slow: "two threads: malloc",
        fast: "list: malloc",
        why: "in this version of glibc, threads that allocate and free the same blocks wait for each other less than in the version measured",
        slow_then: None,
    },
    Faster {
        text: "There a ring is faster still",
        source: "116 M/s against 6.2",
        least: 2.0,
        quantity: "alloc",
        slow: "two threads: malloc",
        fast: "two threads: ring",
        why: OLDER,
        slow_then: Some(1000.0 / 6.2),
    },
    Faster {
        text: "The slow calls of TLSF take less than twice those of malloc",
        source: "constant time",
        least: 0.5,
        quantity: "slowest",
        slow: "any order: malloc",
        fast: "any order: TLSF",
        why: "one call in a thousand waits for memory or for another process, whoever allocates",
        slow_then: None,
    },
    Faster {
        text: "A pool of pages hands out pages faster than malloc",
        source: "without asking the kernel",
        least: 1.0,
        quantity: "alloc",
        slow: "pages: malloc",
        fast: "pages: pages",
        why: "",
        slow_then: None,
    },
];

/// Times of a round in nanoseconds: to build the list, and to walk and free it.
#[derive(Default)]
struct Took {
    build: f64,
    free: f64,
}

/// Declares a list whose nodes are boxes of a given type, the oldest first, and a function that
/// runs a round with the list.
macro_rules! list_of_boxes {
    ($Node:ident, $Box:ident, $build:ident) => {
        struct $Node(Option<$Box<$Node>>);

        /// Appends nodes, each created by `new`.
        #[inline(always)]
        fn $build(nodes: usize, mut new: impl FnMut($Node) -> $Box<$Node>) -> Option<$Box<$Node>> {
            let mut first = None;
            let mut end = &mut first;
            for _ in 0..nodes {
                end = &mut end.insert(new($Node(None))).0;
            }
            first
        }

        impl Drop for $Node {
            /// Frees node after node in a loop: a recursive drop would overflow the stack.
            fn drop(&mut self) {
                let mut next = self.0.take();
                while let Some(mut node) = next {
                    next = node.0.take();
                }
            }
        }
    };
}

list_of_boxes!(HeapNode, Box, heap_list);
list_of_boxes!(FifoNode, Boxed, fifo_list);

/// A node in a frame, with a link to the previous node. The frame frees all of its nodes at once.
struct FrameNode<'f>(Option<&'f FrameNode<'f>>);

fn walk(mut node: Option<&FrameNode<'_>>) -> usize {
    let mut nodes = 0;
    while let Some(FrameNode(before)) = node {
        nodes += 1;
        node = *before;
    }
    nodes
}

/// Measures the time of a piece of work.
fn timed<T>(time: &mut f64, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = black_box(work());
    *time += nanos(begin);
    done
}

/// Builds lists and frees them, `rounds` times; `full` is called with each complete list.
fn lists(how: &str, nodes: usize, rounds: u64, mut full: impl FnMut()) -> Took {
    let mut took = Took::default();
    let Took { build, free } = &mut took;
    let (mut stack, mut ring, fifo) = (Stack::unguarded(Os), Ring::unguarded(Os), Fifo::unguarded(Os));
    for _ in 0..rounds {
        match (how, &mut ring, &fifo) {
            ("stack", ..) => stack.scope(|frame| {
                let last = timed(build, || {
                    (0..nodes).fold(None, |last, _| Some(&*frame.alloc(FrameNode(last))))
                });
                full();
                timed(free, || walk(last));
            }),
            ("ring", Some(ring), _) => {
                let Some(frame) = ring.open() else { return took };
                let last = timed(build, || {
                    (0..nodes).fold(None, |last, _| Some(&*frame.alloc(FrameNode(last))))
                });
                full();
                timed(free, || walk(last));
                timed(free, || drop(frame.seal()));
            }
            ("FIFO", _, Some(fifo)) => {
                let new = |node| fifo.boxed(node).unwrap_or_else(|_| panic!("no memory"));
                let list = timed(build, || fifo_list(nodes, new));
                full();
                timed(free, || drop(list));
            }
            _ => {
                let list = timed(build, || heap_list(nodes, Box::new));
                full();
                timed(free, || drop(list));
            }
        }
    }
    took
}

/// Builds lists while another thread frees the previous list. Returns the nanoseconds of the
/// building.
fn two_threads(how: &str, nodes: usize, rounds: u64) -> f64 {
    /// Message to the other thread, which frees the list by dropping the message.
    enum SentList {
        Heap(#[expect(dead_code, reason = "it is dropped")] Option<Box<HeapNode>>),
        Frame(#[expect(dead_code, reason = "it is dropped")] Sealed),
    }
    let mut took = 0.0;
    // A list is sent only after the previous list is freed, so at most two lists exist.
    let (give, take) = sync_channel(0);
    thread::scope(|scope| {
        scope.spawn(move || take_all(&take));
        let mut ring = Ring::unguarded(Os);
        // The first list is not measured, because no list is freed during its building.
        for round in 0..=rounds {
            let mut build = 0.0;
            let list = match (how, &mut ring) {
                ("ring", Some(ring)) => {
                    let Some(frame) = ring.open() else { return };
                    timed(&mut build, || {
                        (0..nodes).fold(None, |last, _| Some(&*frame.alloc(FrameNode(last)))).is_some()
                    });
                    SentList::Frame(frame.seal())
                }
                _ => SentList::Heap(timed(&mut build, || heap_list(nodes, Box::new))),
            };
            took += if round > 0 { build } else { 0.0 };
            // If the send fails, the other thread has ended.
            let _ = give.send(list);
        }
        drop(give);
    });
    took
}

/// Frees the received lists.
fn take_all<T>(lists: &Receiver<T>) {
    lists.iter().for_each(drop);
}

/// Replaces random blocks. Returns the mean nanoseconds for one replacement, and the times of
/// further replacements.
fn replace<A: DisciplinedAllocator>(
    pool: A,
    live: usize,
    steps: usize,
    size: impl Fn(&mut fastrand::Rng) -> usize,
) -> (f64, TimeHistogram) {
    let mut slots: Vec<ShelfSlot> = (0..live).map(|_| ShelfSlot::EMPTY).collect();
    let mut shelf = TestShelf::new(pool, &mut slots);
    let mut random = fastrand::Rng::with_seed(5);
    let mut put = |slot: usize, random: &mut fastrand::Rng| {
        let layout = Layout::from_size_align(size(random), ALIGN).unwrap_or(Layout::new::<u64>());
        assert!(shelf.put(slot, layout), "no memory");
    };
    // Warm-up, which is not measured: the pool gets the memory for its first blocks from the
    // system.
    (0..live).for_each(|slot| put(slot, &mut random));
    (0..live).for_each(|_| put(random.usize(..live), &mut random));
    let mut took = 0.0;
    timed(&mut took, || (0..steps).for_each(|_| put(random.usize(..live), &mut random)));
    let mut times = TimeHistogram::ready();
    for _ in 0..steps {
        let slot = random.usize(..live);
        let begin = Instant::now();
        put(slot, &mut random);
        times.note(nanoseconds(begin.elapsed()));
    }
    (took / count(steps as u64), times)
}

const ALIGN: usize = 16;

/// A random size from 16 bytes to 2 KiB; small sizes are more frequent.
fn any_size(random: &mut fastrand::Rng) -> usize {
    ALIGN << random.u8(..8) | random.usize(..ALIGN)
}

impl RunExperiment for Allocators {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (nodes, rounds, live) = (bench.size("nodes"), bench.parameter("rounds").max(1), bench.size("live").max(1));
        let (pattern, how) = arm.split_once(": ").unwrap_or(("list", arm));
        let all = count(nodes as u64 * rounds);
        let page = bench.page();
        // The size of a run of one to eight pages.
        let runs = move |random: &mut fastrand::Rng| page * random.usize(1..=8);
        let replaced = match (pattern, how) {
            ("list", _) => {
                let before = bench.memory(SmapsCounter::Anonymous)?;
                let mut full = None;
                let took = lists(how, nodes, rounds, || {
                    full.get_or_insert_with(|| bench.memory(SmapsCounter::Anonymous));
                });
                bench.record("alloc", took.build / all);
                bench.record("free", took.free / all);
                if let Some(full) = full {
                    bench.record("node", (full? - before) / count(nodes as u64));
                }
                return Ok(());
            }
            ("two threads", _) => {
                bench.record("alloc", two_threads(how, nodes, rounds) / all);
                return Ok(());
            }
            ("any order", "TLSF") => replace(Tlsf::<Os>::new(Os), live, nodes, any_size),
            ("any order", _) => replace(SystemMalloc, live, nodes, any_size),
            (_, "pages") => replace(Pages::new(Os), live / RUNS, nodes / RUNS, runs),
            _ => replace(SystemMalloc, live / RUNS, nodes / RUNS, runs),
        };
        bench.record("alloc", replaced.0);
        let time = replaced.1.percentile(0.999);
        time.into_iter().for_each(|time| bench.record("slowest", count(time)));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let node = |arm| results.value("node", arm);
        let memory = [
            results
                .claim("malloc uses 32 bytes for a node of 8 bytes", "2.9 GiB for 100 M")
                .near(32.0, 0.1, node("list: malloc"))
                .because("other C libraries have other headers"),
            results
                .claim("A FIFO uses at most half of that", "1.5 GiB for 100 M: 8 bytes of header")
                .at_most(17.0, node("list: FIFO")),
            results
                .claim("and so does a stack", "1.5 GiB for 100 M: blocks of 16 bytes at least")
                .at_most(17.0, node("list: stack")),
            results
                .claim("A ring uses the node's 8 bytes", "764 MiB for 100 M")
                .near(8.0, 0.1, node("list: ring")),
        ];
        let faster = FASTER.iter().map(|claim| {
            let Faster { text, source, least, quantity, slow, fast, why, slow_then } = *claim;
            let ratio = results.ratio(quantity, slow, fast);
            let judged = results.claim(text, source).more_than(least, ratio);
            let now = results.value(quantity, slow).map(|estimate| estimate.value);
            match slow_then.zip(now) {
                Some((then, now)) if now >= then => judged,
                _ => judged.because(why),
            }
        });
        memory.into_iter().chain(faster).collect()
    }

    fn plots(&self) -> Vec<Plot> {
        let bars = |quantity: &'static str, scale| Plot::Bars { quantity: quantity.into(), scale };
        vec![bars("alloc", Scale::Log), bars("free", Scale::Linear), bars("node", Scale::Linear), bars("slowest", Scale::Log)]
    }
}

/// Divisor of the numbers of live blocks and of steps for runs of pages, which are larger than
/// blocks.
const RUNS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_built_and_freed_as_often_as_asked() {
        for how in ["malloc", "stack", "FIFO", "ring"] {
            let mut built = 0;
            // A recursive drop of such a long list would overflow the stack of a test.
            let took = lists(how, 200_000, 2, || built += 1);
            assert_eq!(built, 2, "{how}");
            assert!(took.build > 0.0 && took.free > 0.0, "{how}");
        }
    }

    #[test]
    fn a_walk_meets_every_node() {
        let first = FrameNode(None);
        let second = FrameNode(Some(&first));
        assert_eq!((walk(None), walk(Some(&second))), (0, 2));
    }

    #[test]
    fn lists_are_handed_to_a_thread_that_frees_them() {
        for how in ["malloc", "ring"] {
            assert!(two_threads(how, 1000, 2) > 0.0);
        }
    }

    #[test]
    fn every_claim_is_of_conditions_that_there_are() {
        for claim in FASTER {
            assert!(ABOUT.arms.contains(&claim.slow) && ABOUT.arms.contains(&claim.fast), "{}", claim.text);
            assert!(ABOUT.quantities.iter().any(|row| row.name == claim.quantity), "{}", claim.text);
        }
    }
}

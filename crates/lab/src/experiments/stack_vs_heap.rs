//! Two calls one after the other, each with a large array: the stack gives the second the frames of the first, the heap does
//! not know that the first is done with its memory unless it is told.

use std::hint::black_box;
use std::thread;

use pagewise_model::lab::{Claim, Plot};
use pagewise_model::report::{Scale, Unit};
use pagewise_model::{Bytes, Counter};

use super::Experiment;
use crate::{About, Bench, LabError, Parameter, Quantity, Results};

/// See [`ABOUT`].
pub(super) struct StackVsHeap;

static ABOUT: About = About {
    name: "stack-vs-heap",
    question: "What does it cost to have an array on the stack, and what on the heap, in two calls one after the other?",
    expectation: "On the heap, never freed, both arrays stay: twice the memory. On the stack the second call has the frame \
        that the first had, whose pages are resident already: the memory of one, and half of the page faults.",
    figures: "2 × 100 M ints: heap 781,256 KiB, stack 390,632 KiB",
    needs: &[],
    parameters: &[Parameter {
        name: "ints",
        meaning: "how many 4-byte numbers each call has",
        values: [2_000_000, 25_000_000, 100_000_000],
    }],
    quantities: &[
        Quantity { name: "grown", unit: Unit::Bytes, meaning: "by how much resident anonymous memory grew" },
        Quantity { name: "minflt", unit: Unit::Count, meaning: "page faults of both calls" },
    ],
    arms: &["heap", "stack"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes(2 * 4 * parameters.get("ints")),
};

/// An array on the heap that nobody frees.
#[inline(never)]
fn on_the_heap(ints: usize) {
    black_box(Vec::leak(vec![1_i32; ints]));
}

/// An array in a frame: `LEVELS` calls deep, since the compiler must know the size of each frame.
#[inline(never)]
fn on_the_stack(ints: usize) {
    const LEVEL: usize = 1 << 14;
    let mut frame = [1_i32; LEVEL];
    black_box(&mut frame);
    if let Some(rest) = ints.checked_sub(LEVEL) {
        on_the_stack(rest);
    }
    // Not a tail call: the frame lives until the calls below it are done.
    black_box(&frame);
}

impl Experiment for StackVsHeap {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let ints = bench.size("ints");
        let call: fn(usize) = if arm == "stack" { on_the_stack } else { on_the_heap };
        // A thread, since its stack can be as large as wanted.
        let stack = ints * 4 + ints / 100 + (16 << 20);
        let (before, after, faults) = thread::scope(|scope| {
            let both = || {
                let before = bench.memory(Counter::Anonymous);
                let faults = bench.usage().minor_faults;
                call(ints);
                call(ints);
                let faults = bench.usage().minor_faults - faults;
                (before, bench.memory(Counter::Anonymous), faults)
            };
            let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, both);
            thread.expect("memory for a stack").join().expect("it does not panic")
        });
        bench.record("grown", after? - before?);
        bench.record("minflt", crate::bench::count(faults));
        Ok(())
    }

    fn judge(&self, results: &Results<'_>) -> Vec<Claim> {
        let array = 4.0 * results.parameter("ints");
        let source = "781,256 KiB for the heap against 390,632 KiB for the stack";
        vec![
            results
                .claim("The heap holds the arrays of both calls", source)
                .near(2.0 * array, 0.05, results.value("grown", "heap")),
            results
                .claim("The stack holds the array of one", source)
                .near(array, 0.05, results.value("grown", "stack")),
            results
                .claim("So the heap has twice the memory", "2.00 ×")
                .near(2.0, 0.05, results.ratio("grown", "heap", "stack")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![Plot::Bars { quantity: "grown".into(), scale: Scale::Linear }]
    }
}

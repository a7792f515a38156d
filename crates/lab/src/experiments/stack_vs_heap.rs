//! Two consecutive calls, each with a large array: on the stack, the second call reuses the frames
//! of the first. The heap keeps the memory of the first call until it is freed.

use std::hint::black_box;
use std::thread;

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter};

use super::RunExperiment;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct StackVsHeap;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "stack-vs-heap",
    question: "What does an array on the stack cost, and what on the heap, in two consecutive calls?",
    expectation: "On the heap, never freed, both arrays stay: twice the memory. On the stack the second call has the frame \
        that the first had, whose pages are resident already: the memory of one, and half of the page faults.",
    figures: "2 × 100 M ints: heap 781,256 KiB, stack 390,632 KiB",
    needs: &[],
    parameters: &[ParameterAbout {
        name: "ints",
        meaning: "number of 4-byte integers of each call",
        values: [2_000_000, 25_000_000, 100_000_000],
    }],
    quantities: &[
        QuantityAbout { name: "grown", unit: AxisUnit::Bytes, meaning: "by how much resident anonymous memory grew" },
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults of both calls" },
    ],
    arms: &["heap", "stack"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes(2 * 4 * parameters.get("ints")),
};

/// An array on the heap that is not freed.
#[inline(never)]
fn on_the_heap(ints: usize) {
    black_box(Vec::leak(vec![1_i32; ints]));
}

/// An array in nested frames of `LEVEL` integers each, since the compiler must know the size of
/// each frame.
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

impl RunExperiment for StackVsHeap {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let ints = bench.size("ints");
        let call: fn(usize) = if arm == "stack" { on_the_stack } else { on_the_heap };
        // A thread, since its stack can be as large as wanted.
        let stack = ints * 4 + ints / 100 + (16 << 20);
        let (before, after, faults) = thread::scope(|scope| {
            let both = || {
                let before = bench.memory(SmapsCounter::Anonymous);
                let faults = bench.usage().minor_faults;
                call(ints);
                call(ints);
                let faults = bench.usage().minor_faults - faults;
                (before, bench.memory(SmapsCounter::Anonymous), faults)
            };
            let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, both);
            thread.expect("memory for a stack").join().expect("it does not panic")
        });
        bench.record("grown", after? - before?);
        bench.record("minflt", crate::bench::count(faults));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
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

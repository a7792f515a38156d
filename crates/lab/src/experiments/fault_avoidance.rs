//! Cost of the first write to memory in time-critical code, and methods to avoid this cost.

use std::hint::black_box;
use std::time::Instant;

use pagewise_alloc::{Os, Stack};
use pagewise_model::Bytes;
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::units::nanoseconds;
use pagewise_labmem::libc_malloc::{HeapBlock, Tuning, tune};
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};
use pagewise_sys::region::AlignedRegion;
use pagewise_sys::thp::{AllowedHugePages, allow};
use rustix::mm::{MlockAllFlags, mlockall};

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct FaultAvoidance;

const HUGE: usize = 2 << 20;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "fault-avoidance",
    question: "How are page faults kept out of a path where latency counts?",
    expectation: "malloc and mmap promise memory; a page of it comes with the first write, by a page fault. Whatever writes \
        before the path begins takes the faults out of it: populating, locking, touching, values instead of zeros. What only \
        reserves does not: Vec::with_capacity, and vec![0; n], which is calloc. Memory that was freed faults again, unless \
        the heap was told to keep it (M_TRIM_THRESHOLD -1, M_MMAP_MAX 0). A huge page is one fault for 512 pages. Locked \
        pages (mlockall) also stay when memory is short; the others can be swapped out again, unless there is no swap. What \
        remains are misses of the TLB, which huge pages make rarer, and 4 levels of page tables cheaper than 5.",
    figures: "here, for each page of 4 KiB: touch 1.5 µs, MADV_POPULATE_WRITE 1.2 µs, huge pages 0.6 µs",
    needs: &[],
    parameters: &[ParameterAbout {
        name: "mib",
        // glibc maps a block separately if it is larger than 32 MiB, regardless of blocks that were
        // freed before.
        meaning: "memory that the path touches first, in MiB; more than 32",
        values: [40, 64, 512],
    }],
    quantities: &[
        QuantityAbout { name: "p50", unit: AxisUnit::Nanos, meaning: "the median time to fill a page for the first time" },
        QuantityAbout { name: "p99.9", unit: AxisUnit::Nanos, meaning: "99.9th percentile of the time of a page" },
        QuantityAbout { name: "longest", unit: AxisUnit::Nanos, meaning: "the slowest page" },
        QuantityAbout { name: "faults", unit: AxisUnit::Number, meaning: "page faults in the path, for each page" },
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults in the path" },
        QuantityAbout { name: "before", unit: AxisUnit::Nanos, meaning: "time spent before the path, for each page" },
    ],
    arms: &[
        "malloc",
        "Vec::with_capacity",
        "vec![0; n]",
        "malloc, freed before",
        "vec![1; n]",
        "calloc and touch",
        "MAP_POPULATE",
        "MADV_POPULATE_WRITE",
        "mlockall",
        "pool",
        "mallopt, freed before",
        "huge pages",
    ],
    runs: [5, 7, 7],
    timed: true,
    memory: |parameters| Bytes::mib(2 * parameters.get("mib")),
};

/// Conditions that reserve memory but do not populate it.
const PROMISES: &[&str] = &["malloc", "Vec::with_capacity", "vec![0; n]", "malloc, freed before"];

/// Conditions that populate memory before the time-critical path.
const REMEDIES: &[&str] = &[
    "vec![1; n]",
    "calloc and touch",
    "MAP_POPULATE",
    "MADV_POPULATE_WRITE",
    "mlockall",
    "pool",
    "mallopt, freed before",
];

/// Conditions whose curves are plotted; each other condition is similar to one of these.
const DRAWN: &[&str] = &["malloc", "vec![1; n]", "MADV_POPULATE_WRITE", "pool", "mallopt, freed before", "huge pages"];

/// Memory of a condition, which the time-critical path fills page by page.
enum FilledMemory {
    Heap(HeapBlock),
    Mapped(OwnedMapping),
    Huge(AlignedRegion),
    /// A vector that grows into its reserved capacity.
    Growing(Vec<u8>),
    Values(Vec<u8>),
    Pool(Stack<Os>),
}

/// Allocates memory as a condition requires, including all work that the condition does before the
/// time-critical path.
fn get(arm: &str, length: usize, page: usize) -> Result<FilledMemory, LabError> {
    let malloc = || HeapBlock::malloc(length).while_("malloc");
    let map = |populate| {
        let wanted = MapRequest { length, populate, ..MapRequest::default() };
        OwnedMapping::map(&wanted).while_("cannot map memory")
    };
    let used_before = |mut block: HeapBlock| block.touch(page);
    Ok(match arm {
        "Vec::with_capacity" => FilledMemory::Growing(Vec::with_capacity(length)),
        "vec![0; n]" => FilledMemory::Values(vec![0; length]),
        "vec![1; n]" => FilledMemory::Values(vec![1; length]),
        "calloc and touch" => {
            let mut block = HeapBlock::calloc(length).while_("calloc")?;
            block.touch(page);
            FilledMemory::Heap(block)
        }
        "MAP_POPULATE" => FilledMemory::Mapped(map(true)?),
        "MADV_POPULATE_WRITE" => {
            let mapping = map(false)?;
            mapping.advise(0..length, Advice::PopulateWrite).while_("MADV_POPULATE_WRITE")?;
            FilledMemory::Mapped(mapping)
        }
        "mlockall" => {
            // From now on the kernel populates and locks each new mapping.
            mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).while_("mlockall")?;
            FilledMemory::Mapped(map(false)?)
        }
        "pool" => {
            // The stack keeps the memory of frames that were popped.
            let mut stack = Stack::unguarded(Os);
            stack.scope(|scope| scope.alloc_slice_with(length, |_| 1_u8).len());
            FilledMemory::Pool(stack)
        }
        "mallopt, freed before" => {
            tune(Tuning::TrimThreshold, -1).while_("M_TRIM_THRESHOLD")?;
            tune(Tuning::MmapMax, 0).while_("M_MMAP_MAX")?;
            used_before(malloc()?);
            FilledMemory::Heap(malloc()?)
        }
        "malloc, freed before" => {
            used_before(malloc()?);
            FilledMemory::Heap(malloc()?)
        }
        "huge pages" => {
            let mut region = AlignedRegion::map(length, HUGE).while_("cannot map memory")?;
            region.advise(Advice::HugePage).while_("MADV_HUGEPAGE")?;
            FilledMemory::Huge(region)
        }
        _ => FilledMemory::Heap(malloc()?),
    })
}

/// Runs the time-critical path: fills all memory page by page, and records the time of each page.
fn fill(memory: &mut FilledMemory, length: usize, page: usize, times: &mut TimeHistogram) {
    let mut each = |fill: &mut dyn FnMut(usize)| {
        for at in (0..length).step_by(page) {
            let begin = Instant::now();
            fill(at);
            times.note(nanoseconds(begin.elapsed()));
        }
    };
    match memory {
        FilledMemory::Heap(block) => each(&mut |at| block.fill(at..at + page, 2)),
        FilledMemory::Mapped(mapping) => each(&mut |at| mapping.fill_part(at..at + page, 2)),
        FilledMemory::Huge(region) => {
            let bytes = region.bytes();
            each(&mut |at| bytes[at..at + page].fill(2));
        }
        FilledMemory::Growing(bytes) => each(&mut |at| bytes.resize(at + page, 2)),
        FilledMemory::Values(bytes) => each(&mut |at| bytes[at..at + page].fill(2)),
        FilledMemory::Pool(stack) => stack.scope(|scope| {
            each(&mut |_| _ = black_box(scope.alloc_slice_with(page, |_| 2_u8)));
        }),
    }
}

impl RunExperiment for FaultAvoidance {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (length, page) = (bench.size("mib") << 20, bench.page());
        let pages = count((length / page) as u64);
        // If the system uses huge pages for all programs, the other conditions would not fault for
        // each page.
        let allowed = if arm == "huge pages" { AllowedHugePages::All } else { AllowedHugePages::None };
        allow(allowed).while_("PR_SET_THP_DISABLE")?;
        let mut times = TimeHistogram::ready();
        let begin = Instant::now();
        let mut memory = get(arm, length, page)?;
        bench.record("before", nanos(begin) / pages);
        let faults = bench.usage().minor_faults;
        bench.measure(|| fill(&mut memory, length, page, &mut times))?;
        let faults = bench.usage().minor_faults - faults;
        bench.record("faults", count(faults) / pages);
        let time = times.percentile(0.5);
        time.into_iter().for_each(|time| bench.record("p50", count(time)));
        let time = times.percentile(0.999);
        time.into_iter().for_each(|time| bench.record("p99.9", count(time)));
        bench.record("longest", count(times.longest()));
        if DRAWN.contains(&arm) {
            for (one_in, time) in times.tail() {
                bench.point("one page in n", one_in, count(time));
            }
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let faults = |arm| results.value("faults", arm);
        let promises = PROMISES.iter().map(|arm| {
            let text = format!("{arm} only promises: each page is a fault in the path");
            results.claim(text, "").near(1.0, 0.05, faults(arm))
        });
        let remedies = REMEDIES.iter().map(|arm| {
            let text = format!("{arm} removes the page faults from the path");
            results
                .claim(text, "no fault")
                .at_most(0.01, faults(arm))
                .because("locking needs RLIMIT_MEMLOCK, and mallopt needs glibc")
        });
        let faster = |quantity, of| {
            let text = format!("Without faults {of} is faster (MADV_POPULATE_WRITE)");
            results
                .claim(text, "1.5 µs for a page that is touched")
                .more_than(1.5, results.ratio(quantity, "malloc", "MADV_POPULATE_WRITE"))
        };
        let times = [
            faster("p50", "the median page"),
            faster("p99.9", "the slowest page in a thousand")
                .because("a timer or another process interrupts both; with few pages that is one in a thousand"),
        ];
        let huge = results
            .claim("With huge pages one page in 512 is a fault", "0.6 µs for a page, the zeroing shared")
            .at_most(0.01, faults("huge pages"))
            .because("huge pages are switched off, or memory is too fragmented for them");
        promises.chain(remedies).chain(times).chain([huge]).collect()
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "p50".into(), scale: Scale::Log },
            Plot::Bars { quantity: "p99.9".into(), scale: Scale::Log },
            Plot::Curves {
                curve: "one page in n".into(),
                x: ("n".into(), AxisUnit::Count, Scale::Log),
                y: ("takes longer than".into(), AxisUnit::Nanos, Scale::Log),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_filled_page_by_page_however_it_was_got() {
        // Locking and tuning would affect all tests of this process.
        let of_all_tests = ["mlockall", "mallopt, freed before"];
        let page = 4096;
        for arm in ABOUT.arms.iter().filter(|arm| !of_all_tests.contains(arm)) {
            let mut memory = get(arm, 10 * page, page).unwrap();
            let mut times = TimeHistogram::ready();
            fill(&mut memory, 10 * page, page, &mut times);
            // `tail` returns one quantile for each power of ten up to the number of pages: 1 and 10
            // for ten pages, but only 1 for nine pages.
            assert_eq!(times.tail().len(), 2, "{arm}");
        }
    }

    #[test]
    fn every_remedy_and_every_promise_is_a_condition() {
        let named = PROMISES.iter().chain(REMEDIES).chain(DRAWN);
        assert!(named.clone().all(|arm| ABOUT.arms.contains(arm)));
        assert_eq!(PROMISES.len() + REMEDIES.len() + 1, ABOUT.arms.len(), "and huge pages");
    }
}

//! Blocks of memory are mapped and filled, with advice for huge pages and without: one page fault
//! brings 512 pages, and one entry of the TLB reaches as far.

use std::time::Instant;

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter};
use pagewise_sim::geometry::TlbPageSize;
use pagewise_sim::workload;
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults, simulated};

/// See [`ABOUT`].
pub(super) struct ThpAdvise;

/// Size of one mapping.
const BLOCK: usize = 4 << 20;

/// The huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE: usize = 2 << 20;

const BASE_PAGES: &str = "base pages";
const HUGE_PAGES: &str = "huge pages";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "thp-advise",
    question: "What does a program that fills its memory gain by asking for huge pages?",
    expectation: "With MADV_HUGEPAGE a page fault brings 2 MiB at once, so there is one fault where there were 512, and one \
        entry of the TLB translates as much. The bytes must be cleared and filled all the same: time falls less than faults.",
    figures: "2000 blocks of 4 MiB: dTLB load misses 26,798 with advice, 1,563,275 without; 2.14 s against 3.51 s",
    needs: &[Need::Thp],
    parameters: &[ParameterAbout {
        name: "blocks",
        meaning: "number of 4 MiB blocks that are mapped and filled",
        values: [64, 250, 2000],
    }],
    quantities: &[
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults" },
        QuantityAbout { name: "wall", unit: AxisUnit::Nanos, meaning: "time to map and fill all blocks" },
        QuantityAbout { name: "first", unit: AxisUnit::Nanos, meaning: "time of the same before, in memory that the host may have cold" },
        QuantityAbout { name: "sys", unit: AxisUnit::Nanos, meaning: "CPU time in the kernel" },
        QuantityAbout { name: "huge", unit: AxisUnit::Bytes, meaning: "memory mapped by huge pages afterwards" },
        QuantityAbout { name: "dtlb_reads", unit: AxisUnit::Count, meaning: "loads that the TLB translated" },
        QuantityAbout { name: "dtlb_read_misses", unit: AxisUnit::Count, meaning: "loads that missed all TLB levels" },
        QuantityAbout { name: "simulated_misses", unit: AxisUnit::Count, meaning: "simulated: stores that miss all TLB levels of an i7-6800K" },
        QuantityAbout { name: "cycles", unit: AxisUnit::Count, meaning: "cycles of the CPU" },
    ],
    arms: &[BASE_PAGES, HUGE_PAGES],
    runs: [5, 7, 5],
    timed: true,
    memory: |parameters| Bytes(parameters.get("blocks") * BLOCK as u64),
};

/// Maps a block, gives the advice on it, and fills it.
fn block(advice: Advice) -> std::io::Result<OwnedMapping> {
    let mut block = OwnedMapping::map(&MapRequest { length: BLOCK, ..MapRequest::default() })?;
    block.advise(0..BLOCK, advice)?;
    block.fill(1);
    Ok(block)
}

impl RunExperiment for ThpAdvise {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        // If the system uses huge pages for all programs, the other condition must refuse them.
        let advice = if arm == HUGE_PAGES { Advice::HugePage } else { Advice::NoHugePage };
        let blocks = bench.size("blocks");
        let fill = || (0..blocks).map(|_| block(advice)).collect::<std::io::Result<Vec<_>>>();
        // A host that has reclaimed unused guest memory, mostly in huge pages, backs it again at
        // the first touch. So the memory is filled once before.
        let begin = Instant::now();
        drop(fill().while_("cannot map and advise memory")?);
        bench.each("first", begin, 1);
        let _mapped = bench.measure(fill)?.while_("cannot map and advise memory")?;
        bench.record("huge", bench.memory(SmapsCounter::AnonHugePages)?);
        let page = if arm == HUGE_PAGES { TlbPageSize::Huge } else { TlbPageSize::Base };
        let fill = workload::SequentialFill { bytes: (blocks * BLOCK) as u64 };
        bench.record("simulated_misses", count(simulated::walks(page, |sink| fill.play(sink))?.writes));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let filled = results.parameter("blocks") * count(BLOCK as u64);
        let per_huge_page = count(HUGE as u64) / count(pagewise_sys::system::page_size());
        let faults = "512,000 faults for 2000 MiB in base pages, 1,000 in huge ones";
        vec![
            results
                .claim("With advice all of it is in huge pages", "")
                .near(filled, 0.05, results.value("huge", HUGE_PAGES))
                .because("fragmented memory has too few of them"),
            results
                .claim("A fault brings a huge page", faults)
                .near(filled / count(HUGE as u64), 0.1, results.value("minflt", HUGE_PAGES)),
            results
                .claim("where base pages need 512", faults)
                .near(per_huge_page, 0.1, results.ratio("minflt", BASE_PAGES, HUGE_PAGES))
                .because("base pages come several at a time here"),
            results
                .claim("Base pages are slower", "3.51 s against 2.14 s")
                .more_than(1.0, results.ratio("wall", BASE_PAGES, HUGE_PAGES))
                .because("if memory is slow, clearing and filling dominates the time"),
            results
                .claim("and miss the TLB more often", "1,563,275 against 26,798 misses")
                .more_than(10.0, results.ratio("dtlb_read_misses", BASE_PAGES, HUGE_PAGES))
                .because("the CPU's counters are not to be had here: a virtual machine without a PMU"),
            results
                .claim("Simulated: and miss the TLB more often", "1,563,275 against 26,798 misses")
                .counted()
                .more_than(10.0, results.ratio("simulated_misses", BASE_PAGES, HUGE_PAGES)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "minflt".into(), scale: Scale::Log },
            Plot::Bars { quantity: "wall".into(), scale: Scale::Linear },
        ]
    }
}

//! Blocks of memory are mapped and filled, with advice for huge pages and without: one page fault brings 512 pages, and one
//! entry of the TLB reaches as far.

use std::time::Instant;

use pagewise_model::lab::{Claim, Plot};
use pagewise_model::report::{Scale, Unit};
use pagewise_model::{Bytes, Counter};
use pagewise_sim::geometry::PageSize;
use pagewise_sim::workload;
use pagewise_sys::madvise::Advice;
use pagewise_sys::mapping::{Mapping, Wanted};

use super::Experiment;
use crate::bench::count;
use crate::error::While;
use crate::results::Explained;
use crate::{About, Bench, LabError, Need, Parameter, Quantity, Results, simulated};

/// See [`ABOUT`].
pub(super) struct ThpAdvise;

/// What is mapped at a time.
const BLOCK: usize = 4 << 20;

/// The huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE: usize = 2 << 20;

const BASE_PAGES: &str = "base pages";
const HUGE_PAGES: &str = "huge pages";

static ABOUT: About = About {
    name: "thp-advise",
    question: "What does a program that fills its memory gain by asking for huge pages?",
    expectation: "With MADV_HUGEPAGE a page fault brings 2 MiB at once, so there is one fault where there were 512, and one \
        entry of the TLB translates as much. The bytes must be cleared and filled all the same: time falls less than faults.",
    figures: "2000 blocks of 4 MiB: dTLB load misses 26,798 with advice, 1,563,275 without; 2.14 s against 3.51 s",
    needs: &[Need::Thp],
    parameters: &[Parameter {
        name: "blocks",
        meaning: "how many blocks of 4 MiB are mapped and filled",
        values: [64, 250, 2000],
    }],
    quantities: &[
        Quantity { name: "minflt", unit: Unit::Count, meaning: "page faults" },
        Quantity { name: "wall", unit: Unit::Nanos, meaning: "time to map and fill all blocks" },
        Quantity { name: "first", unit: Unit::Nanos, meaning: "time of the same before, in memory that the host may have cold" },
        Quantity { name: "sys", unit: Unit::Nanos, meaning: "of that, CPU time in the kernel" },
        Quantity { name: "huge", unit: Unit::Bytes, meaning: "what is mapped by huge pages afterwards" },
        Quantity { name: "dtlb_reads", unit: Unit::Count, meaning: "loads that the TLB translated" },
        Quantity { name: "dtlb_read_misses", unit: Unit::Count, meaning: "loads whose page no TLB had" },
        Quantity { name: "simulated_misses", unit: Unit::Count, meaning: "simulated: stores whose page no TLB of an i7-6800K has" },
        Quantity { name: "cycles", unit: Unit::Count, meaning: "cycles of the CPU" },
    ],
    arms: &[BASE_PAGES, HUGE_PAGES],
    runs: [5, 7, 5],
    timed: true,
    memory: |parameters| Bytes(parameters.get("blocks") * BLOCK as u64),
};

/// Maps a block, says how it is to be mapped, and fills it.
fn block(advice: Advice) -> std::io::Result<Mapping> {
    let mut block = Mapping::map(&Wanted { length: BLOCK, ..Wanted::default() })?;
    block.advise(0..BLOCK, advice)?;
    block.fill(1);
    Ok(block)
}

impl Experiment for ThpAdvise {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        // Where huge pages are for everyone, those who do not want them must say so.
        let advice = if arm == HUGE_PAGES { Advice::HugePage } else { Advice::NoHugePage };
        let blocks = bench.size("blocks");
        let fill = || (0..blocks).map(|_| block(advice)).collect::<std::io::Result<Vec<_>>>();
        // A host that took back what nobody used gives it again at the first touch, and huge pages are what it takes back.
        let begin = Instant::now();
        drop(fill().while_("cannot map and advise memory")?);
        bench.each("first", begin, 1);
        let _mapped = bench.measure(fill)?.while_("cannot map and advise memory")?;
        bench.record("huge", bench.memory(Counter::AnonHugePages)?);
        let page = if arm == HUGE_PAGES { PageSize::Huge } else { PageSize::Base };
        let fill = workload::Fill { bytes: (blocks * BLOCK) as u64 };
        bench.record("simulated_misses", count(simulated::walks(page, |sink| fill.play(sink))?.writes));
        Ok(())
    }

    fn judge(&self, results: &Results<'_>) -> Vec<Claim> {
        let filled = results.parameter("blocks") * count(BLOCK as u64);
        let per_huge_page = count(HUGE as u64) / count(pagewise_sys::system::page_size());
        let faults = "512,000 faults for 2000 MiB in base pages, 1,000 in huge ones";
        vec![
            results
                .claim("With advice all of it is in huge pages", "")
                .near(filled, 0.05, results.value("huge", HUGE_PAGES))
                .because("where memory is fragmented there are not enough of them"),
            results
                .claim("A fault brings a huge page", faults)
                .near(filled / count(HUGE as u64), 0.1, results.value("minflt", HUGE_PAGES)),
            results
                .claim("where base pages take 512", faults)
                .near(per_huge_page, 0.1, results.ratio("minflt", BASE_PAGES, HUGE_PAGES))
                .because("base pages come several at a time here"),
            results
                .claim("Base pages take longer", "3.51 s against 2.14 s")
                .more_than(1.0, results.ratio("wall", BASE_PAGES, HUGE_PAGES))
                .because("clearing and filling takes most of the time where memory is slow"),
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

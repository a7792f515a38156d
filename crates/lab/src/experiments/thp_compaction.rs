//! Huge pages in fragmented memory: in a small virtual machine, whose memory is fragmented on
//! purpose.

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_proc::vmstat;

use super::RunExperiment;
use crate::bench::count;
use crate::guest::host_memory;
use crate::machine::CountingMachine;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct ThpCompaction;

/// Program in the machine.
const PROGRAM: &str = include_str!("thp_compaction.c");

const FRESH: &str = "fresh";
const NOT_COMPACTED: &str = "not compacted";
const COMPACTED: &str = "compacted";
const BASE_PAGES: &str = "base pages";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "thp-compaction",
    question: "What do huge pages cost where free memory is in pieces, and does /proc/buddyinfo say so before?",
    expectation: "Free blocks of the order of a huge page become huge pages at once. When they are used up, a page fault that \
        was advised compacts memory: pages are moved together until a block is free. Where that fails it falls back to a base \
        page, and all the work was for nothing. buddyinfo counts the blocks: so many huge pages are had without compaction. \
        Memory is fragmented in all conditions but the first.",
    figures: "20 GiB of blocks on a fragmented machine: 22.9 s with advice, 8.5 s without; buddyinfo showed 14.7 GiB in blocks",
    needs: &[Need::Emulator, Need::StaticC],
    parameters: &[
        ParameterAbout { name: "mib", meaning: "memory of the machine in MiB", values: [320, 640, 2048] },
        ParameterAbout { name: "wanted", meaning: "memory mapped and filled there, in MiB", values: [96, 192, 640] },
    ],
    quantities: &[
        QuantityAbout { name: "predicted", unit: AxisUnit::Count, meaning: "huge pages that fit into free blocks, by buddyinfo before" },
        QuantityAbout { name: "thp_fault_alloc", unit: AxisUnit::Count, meaning: "page faults that got a huge page" },
        QuantityAbout { name: "thp_fault_fallback", unit: AxisUnit::Count, meaning: "page faults that got a base page for want of one" },
        QuantityAbout { name: "compact_stall", unit: AxisUnit::Count, meaning: "times that one compacted memory first" },
        QuantityAbout { name: "compact_success", unit: AxisUnit::Count, meaning: "times that this made a block" },
        QuantityAbout { name: "pgmigrate_success", unit: AxisUnit::Count, meaning: "pages that were moved for it" },
        QuantityAbout { name: "work", unit: AxisUnit::Count, meaning: "instructions of the machine for filling the memory" },
    ],
    arms: &[FRESH, BASE_PAGES, NOT_COMPACTED, COMPACTED],
    runs: [1, 2, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib"))),
};

impl RunExperiment for ThpCompaction {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let is = |yes: bool| u64::from(yes);
        let machine = CountingMachine {
            memory: Bytes::mib(bench.parameter("mib")),
            program: PROGRAM,
            settings: &[
                ("wanted", bench.parameter("wanted")),
                ("fragmented", is(arm != FRESH)),
                ("huge", is(arm != BASE_PAGES)),
                ("compact", is(arm == FRESH || arm == COMPACTED)),
            ],
        };
        let said = machine.run(bench.folder())?;
        for line in vmstat::parse(&said) {
            let quantity = ABOUT.quantities.iter().find(|row| line.name.as_bytes() == row.name.as_bytes());
            if let Some(quantity) = quantity {
                bench.record(quantity.name, count(line.count));
            }
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let wanted = results.parameter("wanted") / 2.0;
        let predicted = results.median("predicted", NOT_COMPACTED).unwrap_or(f64::NAN);
        let had = |arm| results.value("thp_fault_alloc", arm);
        vec![
            results.claim("In fresh memory every huge page is had", "").near(wanted, 0.02, had(FRESH)),
            results.claim("without compaction", "").at_most(0.0, results.value("compact_stall", FRESH)),
            results
                .claim("In fragmented memory there are as many as buddyinfo has blocks for", "14.7 GiB of 20")
                .near(predicted, 0.15, had(NOT_COMPACTED)),
            results
                .claim("The rest falls back to base pages", "")
                .at_least(1.0, results.value("thp_fault_fallback", NOT_COMPACTED)),
            results
                .claim("Allowed to, page faults compact memory", "51 % of the time in isolate_migratepages_range")
                .at_least(1.0, results.value("compact_stall", COMPACTED)),
            results
                .claim("so that there are more huge pages", "")
                .more_than(1.0, results.ratio("thp_fault_alloc", COMPACTED, NOT_COMPACTED)),
            results
                .claim("for more work than falling back at once", "")
                .more_than(1.0, results.ratio("work", COMPACTED, NOT_COMPACTED)),
            results
                .claim("and more than that of base pages", "22.9 s against 8.5 s")
                .more_than(1.0, results.ratio("work", COMPACTED, BASE_PAGES))
                .because("if compaction aborts early, the cost is small"),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        ["thp_fault_alloc", "compact_stall", "work"]
            .map(|quantity| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear })
            .into()
    }
}

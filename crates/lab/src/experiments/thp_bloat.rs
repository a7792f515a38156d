//! One base page is touched in each range of the size of a huge page: with huge pages each touch
//! makes 2 MiB resident, without them 4 KiB.

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter};
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::error::While;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct ThpBloat;

/// The huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE: usize = 2 << 20;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "thp-bloat",
    question: "What do huge pages cost a program that touches its memory here and there?",
    expectation: "A page fault in room for a huge page brings a whole one. A program that touches one base page in each 2 MiB \
        then has all of its address space in memory, hundreds of times what it uses; without huge pages it has what it touched.",
    figures: "800 MiB mapped, 4 KiB touched in each 2 MiB: RES 798 MiB with huge pages, 3,676 KiB without",
    needs: &[Need::Thp],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "mapped memory, in MiB",
        values: [100, 400, 800],
    }],
    quantities: &[
        QuantityAbout { name: "grown", unit: AxisUnit::Bytes, meaning: "by how much resident anonymous memory grew" },
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults" },
        QuantityAbout { name: "touched", unit: AxisUnit::Bytes, meaning: "touched memory, in base pages" },
    ],
    arms: &["no huge pages", "huge pages"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes::mib(parameters.get("mib")),
};

impl RunExperiment for ThpBloat {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let length = bench.size("mib") << 20;
        // Room to begin at a huge page's boundary.
        let mapping = OwnedMapping::map(&MapRequest { length: length + HUGE, ..MapRequest::default() });
        let mapping = mapping.while_("cannot map memory")?;
        let advice = if arm == "huge pages" { Advice::HugePage } else { Advice::NoHugePage };
        mapping.advise(0..mapping.len(), advice).while_("madvise")?;
        let first = usize::try_from(mapping.start().wrapping_neg()).unwrap_or(0) % HUGE;
        let before = bench.memory(SmapsCounter::Anonymous)?;
        bench.measure(|| mapping.touch(first..first + length, HUGE))?;
        bench.record("grown", bench.memory(SmapsCounter::Anonymous)? - before);
        bench.record("touched", crate::bench::count((length / HUGE * bench.page()) as u64));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let mapped = results.parameter("mib") * f64::from(1 << 20);
        let touched = results.median("touched", "huge pages").unwrap_or(f64::NAN);
        let source = "798 MiB of 800 with huge pages, 3,676 KiB without";
        vec![
            results
                .claim("With huge pages all that is mapped becomes resident", source)
                .near(mapped, 0.05, results.value("grown", "huge pages")),
            results
                .claim("Without, what is touched becomes resident, page tables and the like aside", source)
                .at_most(2.0 * touched, results.value("grown", "no huge pages")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![Plot::Bars { quantity: "grown".into(), scale: Scale::Log }]
    }
}

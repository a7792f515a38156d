//! A little memory is touched in each huge page's room: with huge pages each touch brings 2 MiB, without them 4 KiB.

use pagewise_model::lab::{Claim, Plot};
use pagewise_model::report::{Scale, Unit};
use pagewise_model::{Bytes, Counter};
use pagewise_sys::madvise::Advice;
use pagewise_sys::mapping::{Mapping, Wanted};

use super::Experiment;
use crate::error::While;
use crate::{About, Bench, LabError, Need, Parameter, Quantity, Results};

/// See [`ABOUT`].
pub(super) struct ThpBloat;

/// The huge page of x86-64 and of arm64 with 4 KiB pages.
const HUGE: usize = 2 << 20;

static ABOUT: About = About {
    name: "thp-bloat",
    question: "What do huge pages cost a program that touches its memory here and there?",
    expectation: "A page fault in room for a huge page brings a whole one. A program that touches one base page in each 2 MiB \
        then has all of its address space in memory, hundreds of times what it uses; without huge pages it has what it touched.",
    figures: "800 MiB mapped, 4 KiB touched in each 2 MiB: RES 798 MiB with huge pages, 3,676 KiB without",
    needs: &[Need::Thp],
    parameters: &[Parameter {
        name: "mib",
        meaning: "how much is mapped, in MiB",
        values: [100, 400, 800],
    }],
    quantities: &[
        Quantity { name: "grown", unit: Unit::Bytes, meaning: "by how much resident anonymous memory grew" },
        Quantity { name: "minflt", unit: Unit::Count, meaning: "page faults" },
        Quantity { name: "touched", unit: Unit::Bytes, meaning: "what was touched, in base pages" },
    ],
    arms: &["no huge pages", "huge pages"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes::mib(parameters.get("mib")),
};

impl Experiment for ThpBloat {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let length = bench.size("mib") << 20;
        // Room to begin at a huge page's boundary.
        let mapping = Mapping::map(&Wanted { length: length + HUGE, ..Wanted::default() });
        let mapping = mapping.while_("cannot map memory")?;
        let advice = if arm == "huge pages" { Advice::HugePage } else { Advice::NoHugePage };
        mapping.advise(0..mapping.len(), advice).while_("madvise")?;
        let first = usize::try_from(mapping.start().wrapping_neg()).unwrap_or(0) % HUGE;
        let before = bench.memory(Counter::Anonymous)?;
        bench.measure(|| mapping.touch(first..first + length, HUGE))?;
        bench.record("grown", bench.memory(Counter::Anonymous)? - before);
        bench.record("touched", crate::bench::count((length / HUGE * bench.page()) as u64));
        Ok(())
    }

    fn judge(&self, results: &Results<'_>) -> Vec<Claim> {
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

//! Limit of committed memory: the kernel grants address space, not memory, and the mode
//! (`vm.overcommit_memory` 0, 1 or 2) sets the limit.

use std::fs;
use std::path::{Path, PathBuf};

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Absent, Bytes};
use pagewise_proc::meminfo;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Overcommit;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "overcommit",
    question: "How much memory may a program ask for, and what does MAP_NORESERVE change?",
    expectation: "Memory is not there before it is touched, so that more can be given away than there is. Mode 0 refuses what is \
        obviously too much, one mapping larger than memory and swap; several that are too much together it grants, and with \
        MAP_NORESERVE any. Mode 1 refuses nothing but what has no addresses. Mode 2 adds up what was promised to all programs \
        (Committed_AS) and stops at CommitLimit: a program then hears of it when it asks, not when it touches; MAP_NORESERVE \
        changes nothing.",
    figures: "",
    needs: &[Need::Root, Need::ChangeSystem, Need::File("/proc/sys/vm/overcommit_memory")],
    parameters: &[ParameterAbout {
        name: "room",
        meaning: "memory that all programs may still commit in mode 2, at least, in MiB: other programs run at the same time",
        values: [4000, 4000, 4000],
    }],
    quantities: &[
        QuantityAbout { name: "largest", unit: AxisUnit::Bytes, meaning: "the largest mapping that is granted" },
        QuantityAbout { name: "noreserve", unit: AxisUnit::Bytes, meaning: "the largest with MAP_NORESERVE" },
        QuantityAbout { name: "two", unit: AxisUnit::Count, meaning: "number of mappings that succeed of two, each 3/4 of the largest" },
        QuantityAbout { name: "machine", unit: AxisUnit::Bytes, meaning: "memory and swap of the machine" },
        QuantityAbout { name: "promised", unit: AxisUnit::Share, meaning: "the largest, of what CommitLimit leaves" },
    ],
    arms: &["mode 0", "mode 1", "mode 2"],
    runs: [3, 5, 5],
    timed: false,
    // The experiment touches no mapping.
    memory: |_| Bytes::mib(1),
};

/// Size of a mapping, in multiples of the machine's memory, that is limited only by the address
/// space.
const NO_LIMIT: f64 = 16.0;

impl RunExperiment for Overcommit {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let page = bench.page();
        let mode = arm.trim_start_matches("mode ");
        if mode == "2" {
            leave_room(bench, Bytes::mib(bench.parameter("room")))?;
        }
        bench.journal().set(&setting("memory"), mode)?;
        let left = memory("CommitLimit")?.saturating_sub(memory("Committed_AS")?);
        let granted = largest(page, false);
        bench.record("largest", count(granted));
        bench.record("noreserve", count(largest(page, true)));
        bench.record("two", count(granted_of_two(granted / 4 * 3, page)));
        bench.record("machine", count(memory("MemTotal")? + memory("SwapTotal")?));
        match mode {
            "2" => bench.record("promised", count(granted) / count(left.max(1))),
            _ => bench.missing("promised", Absent::NotCollected("this mode adds nothing up".into())),
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let machine = results.median("machine", "mode 0").unwrap_or(f64::NAN);
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            results
                .claim("Mode 0 grants one mapping up to memory and swap", "")
                .near(machine, 0.01, value("largest", "mode 0")),
            results
                .claim("and two that are too much together", "")
                .at_least(2.0, value("two", "mode 0")),
            results
                .claim("and any with MAP_NORESERVE", "touching it may kill the process when memory is short")
                .at_least(NO_LIMIT * machine, value("noreserve", "mode 0")),
            results
                .claim("Mode 1 grants what there are addresses for", "")
                .at_least(NO_LIMIT * machine, value("largest", "mode 1")),
            results
                .claim("Mode 2 grants what is left of CommitLimit", "")
                .near(1.0, 0.05, value("promised", "mode 2")),
            results
                .claim("and no two that are too much together", "")
                .at_most(1.0, value("two", "mode 2")),
            results
                .claim("MAP_NORESERVE changes nothing in mode 2", "")
                .the_same(0.05, results.times("noreserve", "largest", "mode 2")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars = |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Log };
        vec![bars("largest"), bars("noreserve")]
    }
}

/// Path of an overcommit setting.
fn setting(name: &str) -> PathBuf {
    Path::new("/proc/sys/vm").join(format!("overcommit_{name}"))
}

/// Value of a line of `/proc/meminfo`, in bytes.
fn memory(line: &str) -> Result<u64, LabError> {
    let text = fs::read("/proc/meminfo").while_("cannot read /proc/meminfo")?;
    let value = meminfo::parse(&text, line).map_err(|why| LabError::Failed(why.to_string()))?;
    Ok(value.0)
}

/// Raises the limit of mode 2 if it leaves too little memory to other programs. The limit is set as
/// a share of memory or as a size. A write to one setting sets the other setting to 0, so only the
/// active setting is written and restored.
fn leave_room(bench: &Bench, room: Bytes) -> Result<(), LabError> {
    let needed = memory("Committed_AS")? + room.0;
    if memory("CommitLimit")? >= needed {
        return Ok(());
    }
    if fs::read_to_string(setting("kbytes")).is_ok_and(|text| text.trim() != "0") {
        return bench.journal().set(&setting("kbytes"), &(needed >> 10).to_string());
    }
    let percent = (needed * 100).div_ceil(memory("MemTotal")?);
    bench.journal().set(&setting("ratio"), &percent.to_string())
}

/// Size of the largest mapping that succeeds, exact to the page. Each mapping is unmapped at once,
/// since in mode 2 it reduces the limit of other programs.
fn largest(page: usize, no_reserve: bool) -> u64 {
    let (mut granted, mut refused) = (0, (1 << 47) / page);
    while refused - granted > 1 {
        let pages = granted.midpoint(refused);
        match map(pages * page, no_reserve) {
            Some(_) => granted = pages,
            None => refused = pages,
        }
    }
    (granted * page) as u64
}

/// Tries two mappings of a size. Returns the number of mappings that succeeded.
fn granted_of_two(length: u64, page: usize) -> u64 {
    let length = usize::try_from(length).unwrap_or(usize::MAX) / page * page;
    let both = [map(length, false), map(length, false)];
    both.iter().flatten().count() as u64
}

fn map(length: usize, no_reserve: bool) -> Option<OwnedMapping> {
    OwnedMapping::map(&MapRequest { length, no_reserve, ..MapRequest::default() }).ok()
}

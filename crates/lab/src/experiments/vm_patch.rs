//! Programs that compete for memory, on a kernel and on the same kernel with a patch of its
//! reclaim.

use std::path::PathBuf;

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};

use super::RunExperiment;
use super::compete::CompeteMemory;
use super::vm_compete::{HOT, MIB, ROOM, SHARE, touch_beside_scan};
use crate::bench::count;
use crate::guest::host_memory;
use crate::guest_system::{GuestProcess, ScarceMemory, VmCounters};
use crate::{
    Bench, ComparedKernels, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need,
    ParameterAbout, Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmPatch;

const PLAIN: &str = "plain kernel";
const PATCHED: &str = "patched kernel";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-patch",
    question: "What does a patch of the kernel's reclaim change for programs that compete for memory?",
    expectation: "Both kernels have the same version and configuration, and boot one after the other in turns. Without the patch of \
        `lab vm compare --patch`, the compared patch is the lab's own: an accessed page at the end of the inactive list is reclaimed, and no longer moved to the active list. \
        A program that touches random pages accesses all of them equally often, so that the patch changes the number of its major faults by some percent only. \
        A program that touches a few hot pages and goes through other memory in a loop loses hot pages. \
        The claims are of differences: if none is measured, the verdict is undecided.",
    figures: "do_mem_access beside a competitor, five interleaved boots each: 378 ± 8 major faults without the patch, 357 ± 12 with it",
    needs: &[Need::VirtualMachine, Need::BuiltKernels],
    parameters: &[
        MIB,
        ROOM,
        SHARE,
        HOT,
        ParameterAbout {
            name: "touches",
            meaning: "number of touches of a random page",
            values: [2_000, 4_000, 100_000],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "private",
            unit: AxisUnit::Count,
            meaning: "major page faults of a program with private memory, beside a competitor",
        },
        QuantityAbout {
            name: "shared",
            unit: AxisUnit::Count,
            meaning: "the same of a program with shared memory",
        },
        QuantityAbout {
            name: "kept",
            unit: AxisUnit::Share,
            meaning: "touches of hot pages, beside a scan, that found the page in memory",
        },
        QuantityAbout {
            name: "pswpout",
            unit: AxisUnit::Count,
            meaning: "pages written to swap by the kernel, in all three",
        },
    ],
    arms: &[PLAIN, PATCHED],
    runs: [1, 5, 5],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") * 2)),
};

impl RunExperiment for VmPatch {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        // Without kernels the experiment is skipped, but a path that does not exist is an error.
        let kernels = ComparedKernels::find();
        let kernel = kernels.map(|it| if arm == PATCHED { it.patched } else { it.plain });
        let kernel = Some(kernel.unwrap_or_else(|| PathBuf::from("/nonexistent")));
        Some(GuestSetup { memory, disks: vec![memory], kernel, ..GuestSetup::default() })
    }

    fn run(&self, _arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let page = bench.page();
        let touches = bench.size("touches");
        let scarce = ScarceMemory::make(bench)?;
        let length = scarce.length;
        let before = VmCounters::read()?;
        let private = || CompeteMemory::map(length, page, None);
        let shared = || CompeteMemory::map_shared(length, page);
        let faults = beside_competitor(bench, &private()?, touches, private)?;
        bench.record("private", count(faults));
        let faults = beside_competitor(bench, &shared()?, touches, private)?;
        bench.record("shared", count(faults));
        let hot = bench.size("hot");
        let (memory, scanned) = (private()?, CompeteMemory::map(2 * length, page, None)?);
        memory.fill();
        // The kernel learns which pages are in use.
        touch_beside_scan(&memory, &scanned, hot, touches / 2);
        let missed = touch_beside_scan(&memory, &scanned, hot, touches);
        bench.record("kept", 1.0 - count(missed) / count(touches as u64));
        let written = before.growth("pswpout")?.map(count);
        bench.record_or_missing("pswpout", written, "pswpout");
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let differs = |text: &'static str, source: &'static str, quantity: &str| {
            let ratio = results.ratio(quantity, PATCHED, PLAIN);
            results.claim(text, source).counted().differs(ratio)
        };
        let source = "378 ± 8 major faults without the patch, 357 ± 12 with it, of shared memory";
        vec![
            differs("The patch changes the major faults of private memory", "", "private"),
            differs("The patch changes the major faults of shared memory", source, "shared"),
            differs("The patch changes the share of touches that find a hot page", "", "kept"),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("private"), bars("shared"), bars("kept")]
    }
}

/// Major faults of random touches, beside a process that touches as much memory.
fn beside_competitor(
    bench: &Bench,
    memory: &CompeteMemory,
    touches: usize,
    other: impl Fn() -> Result<CompeteMemory, LabError>,
) -> Result<u64, LabError> {
    memory.fill();
    let prepare = || {
        let memory = other()?;
        memory.fill();
        Ok(memory)
    };
    let _other = GuestProcess::start(prepare, |memory| memory.touch_at_random(1000))?;
    // The kernel learns which pages are in use.
    memory.touch_at_random(touches / 2);
    let before = bench.usage().major_faults;
    memory.touch_at_random(touches);
    Ok(bench.usage().major_faults - before)
}

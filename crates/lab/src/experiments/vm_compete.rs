//! Two programs on a machine that is too small for both: pages written to swap and read back, by
//! the lists of active and inactive pages (LRU) and by generations (MGLRU).

use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_model::{Absent, Bytes};
use pagewise_sys::launch::KernelUsage;

use super::RunExperiment;
use super::compete::CompeteMemory;
use crate::bench::count;
use crate::guest::host_memory;
use crate::guest_system::{GuestProcess, ScarceMemory, VmCounters, set, stalled_us};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmCompete;

const ALONE: &str = "alone";
const LRU: &str = "two programs, LRU";
const MGLRU: &str = "two programs, MGLRU";
const SCAN_LRU: &str = "hot pages beside a scan, LRU";
const SCAN_MGLRU: &str = "hot pages beside a scan, MGLRU";

/// The machine, and the memory of the programs.
pub(super) const MIB: ParameterAbout = ParameterAbout {
    name: "mib",
    meaning: "memory of the machine in MiB",
    values: [256, 256, 512],
};
pub(super) const ROOM: ParameterAbout = ParameterAbout {
    name: "room",
    meaning: "memory that is left for programs, in MiB; the rest is locked",
    values: [40, 40, 256],
};
pub(super) const SHARE: ParameterAbout = ParameterAbout {
    name: "share",
    meaning: "memory of each program as a share of that, in percent",
    values: [60, 60, 60],
};
pub(super) const HOT: ParameterAbout = ParameterAbout {
    name: "hot",
    meaning: "number of hot pages, beside a scan",
    values: [128, 128, 512],
};

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-compete",
    question: "What happens to the pages of two programs that together do not fit into a machine, and does MGLRU keep the right pages?",
    expectation: "A program with 60 % of the free memory causes no major faults alone. Beside another one as large, a sixth of the memory of both is \
        in swap at any time: of random touches at least one of about six is a major fault, on average over both programs. The kernel does not \
        divide this evenly: while a program waits for a page, the other one uses its own, so the waiting program loses more and more of its pages. \
        LRU and MGLRU are alike in this. A few hot pages that are touched again and again stay in memory, while the program also goes through more memory \
        than there is in a loop: then hardly any touch of a hot page is a major fault. \
        Counts of faults are the same on a fast and on a slow machine; times of an emulated machine mean nothing, so none are judged.",
    figures: "do_mem_access beside a competitor, 2 GiB of RAM: run time and major faults explode",
    needs: &[Need::VirtualMachine],
    parameters: &[
        MIB,
        ROOM,
        SHARE,
        HOT,
        ParameterAbout {
            name: "touches",
            meaning: "number of touches of a random page",
            values: [2_000, 3_000, 100_000],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "majflt",
            unit: AxisUnit::Count,
            meaning: "major page faults of the program",
        },
        QuantityAbout {
            name: "missed",
            unit: AxisUnit::Share,
            meaning: "touches that caused a major page fault",
        },
        QuantityAbout {
            name: "pswpout",
            unit: AxisUnit::Count,
            meaning: "pages written to swap by the kernel, for both programs",
        },
        QuantityAbout { name: "pswpin", unit: AxisUnit::Count, meaning: "pages read from swap" },
        QuantityAbout {
            name: "refaults",
            unit: AxisUnit::Count,
            meaning: "pages read back that the kernel had reclaimed (`workingset_refault_anon`)",
        },
        QuantityAbout {
            name: "stalled",
            unit: AxisUnit::Count,
            meaning: "microseconds in which a thread waited for memory (PSI `some`); more than 0 is a sign, its size is not comparable",
        },
    ],
    arms: &[ALONE, LRU, MGLRU, SCAN_LRU, SCAN_MGLRU],
    runs: [1, 1, 5],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") * 2)),
};

/// Switch of MGLRU: a set of bits.
const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";

impl RunExperiment for VmCompete {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        Some(GuestSetup { memory, disks: vec![memory], ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        if std::path::Path::new(SWITCH).exists() {
            set(SWITCH, if arm.ends_with("MGLRU") { "y" } else { "n" })?;
        } else if arm.ends_with("MGLRU") {
            let why = "this kernel has no MGLRU (since 6.1, CONFIG_LRU_GEN)";
            ABOUT
                .quantities
                .iter()
                .for_each(|row| bench.missing(row.name, Absent::NotSupported(why.into())));
            return Ok(());
        }
        let page = bench.page();
        let touches = bench.size("touches");
        let scarce = ScarceMemory::make(bench)?;
        let length = scarce.length;
        let memory = CompeteMemory::map(length, page, None)?;
        let is_scan = arm.starts_with("hot");
        let prepare = || {
            let memory = CompeteMemory::map(length, page, None)?;
            memory.fill();
            Ok(memory)
        };
        let two = !is_scan && arm != ALONE;
        memory.fill();
        let _other = two
            .then(|| GuestProcess::start(prepare, |memory| memory.touch_at_random(1000)))
            .transpose()?;
        let scanned =
            if is_scan { Some(CompeteMemory::map(2 * length, page, None)?) } else { None };
        let work = |touches: usize| match &scanned {
            Some(scanned) => touch_beside_scan(&memory, scanned, bench.size("hot"), touches),
            None => {
                let before = bench.usage().major_faults;
                memory.touch_at_random(touches);
                bench.usage().major_faults - before
            }
        };
        // These touches are not counted: during them, the kernel learns which pages are in use.
        work(touches / 2);
        let before = VmCounters::read()?;
        let stalled = stalled_us()?;
        let faults = work(touches);
        bench.record("majflt", count(faults));
        bench.record("missed", count(faults) / count(touches as u64));
        bench.record("stalled", count(stalled_us()? - stalled));
        for (quantity, counter) in
            [("pswpout", "pswpout"), ("pswpin", "pswpin"), ("refaults", "workingset_refault_anon")]
        {
            let growth = before.growth(counter)?.map(count);
            bench.record_or_missing(quantity, growth, counter);
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let value = |quantity, arm| results.value(quantity, arm);
        // Two programs need this share of the memory each; `outside` is the part of their pages
        // that does not fit.
        let share = results.parameter("share") / 100.0;
        let outside = 1.0 - 0.5 / share;
        let beside = "beside a competitor majflt rises";
        vec![
            results.claim("Alone, the program reads no page from swap", "").at_most(0.001, value("missed", ALONE)),
            results
                .claim("Beside another as large, at least the share of touches that does not fit is a major fault", beside)
                .at_least(outside, value("missed", LRU)),
            results
                .claim("and no page is read from swap that was not reclaimed before", "")
                .at_least(0.9, results.times("refaults", "pswpin", LRU)),
            results.claim("Threads wait for memory: PSI is above 0", "").at_least(1.0, value("stalled", LRU)),
            results.claim("but not alone", "").at_most(0.0, value("stalled", ALONE)),
            results
                .claim("Random accesses miss about as often under MGLRU as under LRU: within 50 %", "")
                .counted()
                .the_same(0.5, results.ratio("missed", MGLRU, LRU)),
            results
                .claim("LRU keeps most hot pages beside a scan", "")
                .at_most(outside * 0.5, value("missed", SCAN_LRU)),
            results
                .claim("and so does MGLRU", "")
                .at_most(outside * 0.5, value("missed", SCAN_MGLRU)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("missed"), bars("pswpout")]
    }
}

/// Number of scanned pages between two touches of a hot page.
const SCANNED: usize = 4;

/// Touches the first pages at random, and reads the other memory in a loop meanwhile. Returns the
/// major faults of the random touches alone.
pub(super) fn touch_beside_scan(
    memory: &CompeteMemory,
    scanned: &CompeteMemory,
    hot: usize,
    touches: usize,
) -> u64 {
    let faults = || KernelUsage::of_this_thread().major_faults;
    let mut random = fastrand::Rng::with_seed(1);
    let mut missed = 0;
    let mut at = 0;
    for _ in 0..touches {
        let before = faults();
        memory.touch_page(random.usize(0..hot));
        missed += faults() - before;
        for _ in 0..SCANNED {
            scanned.touch_page(at);
            at = (at + 1) % scanned.pages();
        }
    }
    missed
}

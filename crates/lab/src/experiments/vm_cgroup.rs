//! The limits of cgroup v2: memory.high slows a program down, memory.max kills it, memory.low
//! protects it, memory.reclaim takes memory from it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};

use super::RunExperiment;
use crate::bench::{count, join};
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{
    GuestProcess, available, make_cgroup, number, number_of, set, swap_on, wait_until,
};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmCgroup;

const HIGH: &str = "memory.high";
const MAX: &str = "memory.max";
const UNPROTECTED: &str = "no memory.low";
const LOW: &str = "memory.low";
const RECLAIM: &str = "memory.reclaim";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-cgroup",
    question: "What do memory.high, memory.max, memory.low and memory.reclaim of cgroup v2 do to a program?",
    expectation: "Above memory.high the kernel reclaims from the cgroup and slows its processes down, but kills none: with swap, a program \
        gets all of its memory, and the pages above the limit are in swap. At memory.max, without swap, the kernel kills. \
        Reclaim for other cgroups takes no page of a cgroup below its memory.low, as long as it finds pages elsewhere. A number that \
        is written to memory.reclaim is the memory that the kernel takes from the cgroup at once.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine in MiB",
            values: [320, 384, 1024],
        },
        ParameterAbout {
            name: "set",
            meaning: "memory that the program uses, in MiB",
            values: [48, 64, 192],
        },
        ParameterAbout {
            name: "limit",
            meaning: "memory.high and memory.max, in MiB",
            values: [24, 32, 96],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "current",
            unit: AxisUnit::Bytes,
            meaning: "memory.current of the cgroup when the program has used its memory",
        },
        QuantityAbout {
            name: "swapped",
            unit: AxisUnit::Bytes,
            meaning: "memory.swap.current at the same time",
        },
        QuantityAbout {
            name: "high_events",
            unit: AxisUnit::Count,
            meaning: "times that the kernel slowed the cgroup down (`high` in memory.events)",
        },
        QuantityAbout {
            name: "kills",
            unit: AxisUnit::Count,
            meaning: "killed processes of the cgroup (`oom_kill` in memory.events)",
        },
        QuantityAbout {
            name: "alive",
            unit: AxisUnit::Count,
            meaning: "1 if the program has used all of its memory and is alive",
        },
        QuantityAbout {
            name: "reclaimed",
            unit: AxisUnit::Bytes,
            meaning: "decrease of memory.current by the write to memory.reclaim",
        },
    ],
    arms: &[HIGH, MAX, UNPROTECTED, LOW, RECLAIM],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") * 2)),
};

impl RunExperiment for VmCgroup {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        Some(GuestSetup { memory, disks: vec![memory], ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let [size, limit] = ["set", "limit"].map(|name| Bytes::mib(bench.parameter(name)));
        swap_on("/dev/vda")?;
        let cgroup = make_cgroup("program")?;
        match arm {
            HIGH => set(cgroup.join("memory.high"), limit.0)?,
            MAX => {
                set(cgroup.join("memory.max"), limit.0)?;
                set(cgroup.join("memory.swap.max"), 0)?;
            }
            LOW => set(cgroup.join("memory.low"), size.0 * 2)?,
            _ => {}
        }
        let program = user(&cgroup, size, bench.page())?;
        if arm == LOW || arm == UNPROTECTED {
            // The other process uses all available memory, and the size of the program in addition.
            let others = make_cgroup("others")?;
            user(&others, available()? + size, bench.page())?;
        }
        if arm == RECLAIM {
            let before = number(cgroup.join("memory.current"))?;
            set(cgroup.join("memory.reclaim"), size.0 / 2)?;
            let after = number(cgroup.join("memory.current"))?;
            bench.record("reclaimed", count(before) - count(after));
        }
        record(&cgroup, &program, bench)
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let [size, limit] =
            ["set", "limit"].map(|name| results.parameter(name) * count(Bytes::mib(1).0));
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            results
                .claim("With memory.high and swap, the program gets all of its memory", "")
                .at_least(1.0, value("alive", HIGH)),
            results
                .claim("its memory in RAM stays near memory.high", "")
                .at_most(limit * 1.25, value("current", HIGH)),
            results
                .claim("pages above memory.high are in swap", "")
                .at_least((size - limit) * 0.75, value("swapped", HIGH)),
            results
                .claim("and memory.events counts the throttling", "")
                .at_least(1.0, value("high_events", HIGH)),
            results
                .claim("The kernel kills no process there", "")
                .at_most(0.0, value("kills", HIGH)),
            results
                .claim("At memory.max without swap the kernel kills the program", "")
                .at_least(1.0, value("kills", MAX)),
            results
                .claim("Other programs push pages of an unprotected cgroup to swap", "")
                .at_least(size * 0.1, value("swapped", UNPROTECTED)),
            results
                .claim("but next to none of a cgroup below its memory.low", "")
                .at_most(size * 0.02, value("swapped", LOW)),
            results.claim("memory.reclaim takes the written size", "").near(
                size / 2.0,
                0.25,
                value("reclaimed", RECLAIM),
            ),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("current"), bars("swapped")]
    }
}

/// A process in a cgroup that writes to `size` bytes of memory once, and then sleeps.
fn user(cgroup: &Path, size: Bytes, page: usize) -> Result<GuestProcess, LabError> {
    let length = usize::try_from(size.0).unwrap_or(usize::MAX).next_multiple_of(page);
    let prepare = || {
        join(cgroup, std::process::id())?;
        let wanted = MapRequest { length, no_reserve: true, ..MapRequest::default() };
        let mapping = OwnedMapping::map(&wanted).while_("cannot map memory")?;
        mapping.touch(0..length, page);
        Ok(mapping)
    };
    GuestProcess::start(prepare, |_| thread::sleep(Duration::from_secs(1)))
}

/// Records the state of the cgroup after its program has touched its memory or was killed.
fn record(cgroup: &Path, program: &GuestProcess, bench: &mut Bench) -> Result<(), LabError> {
    let events = cgroup.join("memory.events");
    wait_until("the program uses its memory or is killed", || {
        Ok(program.is_alive() || number_of(&events, "oom_kill")? > 0)
    })?;
    bench.record("alive", count(program.is_alive().into()));
    bench.record("current", count(number(cgroup.join("memory.current"))?));
    bench.record("swapped", count(number(cgroup.join("memory.swap.current"))?));
    bench.record("high_events", count(number_of(&events, "high")?));
    bench.record("kills", count(number_of(&events, "oom_kill")?));
    Ok(())
}

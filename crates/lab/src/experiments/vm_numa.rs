//! Memory of a machine with two NUMA nodes: the node that the kernel chooses for a page, and the
//! migration of pages.

use std::fs;
use std::time::{Duration, Instant};

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_labmem::numa::{NodePolicy, migrate, set_policy};
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_model::{Bytes, PageSize};
use pagewise_proc::numa;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{VmCounters, set};
use crate::results::Explained;
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmNuma;

const LOCAL: &str = "local";
const REMOTE: &str = "bound to the other node";
const INTERLEAVE: &str = "interleave";
const FULL: &str = "more than the node has";
const MIGRATE: &str = "migrate_pages";
const BALANCING: &str = "NUMA balancing";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-numa",
    question: "On which NUMA node are the pages of a program, and what moves them?",
    expectation: "A new page comes from the node of the CPU that touches it first, from a node that set_mempolicy names, or from the nodes in turns. \
        If the local node is full, the kernel takes the next one, and counts a miss. Pages stay on their node when the thread moves to \
        another one, until migrate_pages moves them, or until NUMA balancing does: it unmaps pages now and then, and moves a page that \
        a thread of another node touches. The nodes of an emulated machine are equally fast, so only pages are counted here.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine in MiB, half of it on each node",
            values: [512, 640, 2048],
        },
        ParameterAbout {
            name: "set",
            meaning: "memory that the program touches, in MiB",
            values: [24, 48, 256],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "node0",
            unit: AxisUnit::Bytes,
            meaning: "memory of the program on node 0, whose CPU touched it first",
        },
        QuantityAbout {
            name: "node1",
            unit: AxisUnit::Bytes,
            meaning: "memory of the program on node 1",
        },
        QuantityAbout {
            name: "missed",
            unit: AxisUnit::Count,
            meaning: "pages that node 1 gave because node 0 was full (`numa_miss`)",
        },
        QuantityAbout {
            name: "migrated",
            unit: AxisUnit::Count,
            meaning: "pages that were moved (`pgmigrate_success`)",
        },
        QuantityAbout {
            name: "hints",
            unit: AxisUnit::Count,
            meaning: "page faults that NUMA balancing caused to see who uses a page (`numa_hint_faults`)",
        },
    ],
    arms: &[LOCAL, REMOTE, INTERLEAVE, FULL, MIGRATE, BALANCING],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib"))),
};

/// Time limit for NUMA balancing to move the pages.
const PATIENCE: Duration = Duration::from_secs(40);

impl RunExperiment for VmNuma {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        Some(GuestSetup { memory, cpus: 2, nodes: 2, ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        set("/proc/sys/kernel/numa_balancing", u8::from(arm == BALANCING))?;
        set("/sys/kernel/mm/transparent_hugepage/enabled", "never")?;
        run_on(0)?;
        let policy = match arm {
            REMOTE => NodePolicy::Bind(1 << 1),
            INTERLEAVE => NodePolicy::Interleave(0b11),
            _ => NodePolicy::Local,
        };
        set_policy(policy).while_("cannot set the NUMA policy")?;
        let size = match arm {
            FULL => free_of(0)? + Bytes::mib(bench.parameter("set")),
            _ => Bytes::mib(bench.parameter("set")),
        };
        let (page, length) = (bench.page(), usize::try_from(size.0).unwrap_or(usize::MAX));
        let length = length.next_multiple_of(page);
        let wanted = MapRequest { length, ..MapRequest::default() };
        let memory = OwnedMapping::map(&wanted).while_("cannot map memory")?;
        let before = VmCounters::read()?;
        memory.touch(0..length, page);
        let growth = |counter: &str| Ok::<_, LabError>(before.growth(counter)?.map(count));
        let missed = growth("numa_miss")?;
        match arm {
            MIGRATE => {
                run_on(1)?;
                migrate(1 << 0, 1 << 1).while_("migrate_pages")?;
            }
            BALANCING => {
                run_on(1)?;
                let begin = Instant::now();
                while nodes_of(&memory)?[1].0 < size.0 / 2 && begin.elapsed() < PATIENCE {
                    memory.touch(0..length, page);
                }
            }
            _ => {}
        }
        let [node0, node1] = nodes_of(&memory)?;
        bench.record("node0", count(node0.0));
        bench.record("node1", count(node1.0));
        for (quantity, value) in [
            ("missed", missed),
            ("migrated", growth("pgmigrate_success")?),
            ("hints", growth("numa_hint_faults")?),
        ] {
            bench.record_or_missing(quantity, value, "this counter in /proc/vmstat");
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let mib = count(Bytes::mib(1).0);
        let size = results.parameter("set") * mib;
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            results
                .claim("Pages come from the node of the CPU that touches them first", "")
                .near(size, 0.02, value("node0", LOCAL)),
            results
                .claim("A policy takes them from another node", "set_mempolicy(MPOL_BIND)")
                .near(size, 0.02, value("node1", REMOTE)),
            results
                .claim("or from both nodes in turns", "set_mempolicy(MPOL_INTERLEAVE)")
                .near(size / 2.0, 0.05, value("node1", INTERLEAVE)),
            results
                .claim("If the local node is full, the other node gives pages", "")
                .at_least(mib, value("node1", FULL)),
            results
                .claim("and the kernel counts a miss for each", "numa_miss")
                .at_least(1.0, value("missed", FULL)),
            results
                .claim("Pages stay where they are until migrate_pages moves them", "")
                .near(size, 0.02, value("node1", MIGRATE)),
            results
                .claim("or NUMA balancing does, after hinting faults", "")
                .at_least(size / 4.0, value("node1", BALANCING))
                .because("it scans memory by the CPU time that the program has used, which may have been too short"),
            results
                .claim("Without a thread that moves, no page is migrated", "")
                .at_most(0.0, value("migrated", LOCAL)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("node0"), bars("node1")]
    }
}

/// Lets this thread run on one CPU only; each node has one.
fn run_on(cpu: usize) -> Result<(), LabError> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).while_("cannot choose the CPU")
}

/// Free memory of a node.
fn free_of(node: u32) -> Result<Bytes, LabError> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(&path).while_(format!("cannot read {path}"))?;
    // Each line begins with `Node 0 `.
    let line = text.lines().find_map(|line| line.split_once("MemFree:"));
    let kib = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    kib.map(Bytes::kib).ok_or_else(|| LabError::Failed(format!("{path} has no MemFree")))
}

/// Memory of a mapping on both nodes.
fn nodes_of(memory: &OwnedMapping) -> Result<[Bytes; 2], LabError> {
    let path = "/proc/self/numa_maps";
    let text = fs::read_to_string(path).while_(format!("cannot read {path}"))?;
    let start = format!("{:08x} ", memory.start());
    let line = text.lines().find(|line| line.starts_with(&start));
    let line = line.ok_or_else(|| LabError::Failed(format!("{path} has no line of the memory")))?;
    let page = PageSize::new(pagewise_sys::system::page_size());
    let page = page.ok_or_else(|| LabError::Failed("the page size is unknown".to_owned()))?;
    let shares = numa::parse(line.as_bytes(), page);
    let on = |node: u32| {
        shares.iter().find(|share| share.node == node).map_or(Bytes::ZERO, |share| share.resident)
    };
    Ok([on(0), on(1)])
}

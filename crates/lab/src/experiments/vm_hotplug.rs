//! Memory that comes and goes while a machine runs: a balloon, and memory modules that are plugged
//! in and taken offline.

use std::fs;
use std::path::PathBuf;

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_vm::GuestRequest;

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{VmCounters, fill_pipes, memory, set, wait_until};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmHotplug;

const BALLOON: &str = "balloon";
const PLUG: &str = "memory plugged in";
const MOVABLE: &str = "offline again, movable";
const KERNEL: &str = "offline again, kernel";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-hotplug",
    question: "How does a running machine get more or less memory, and when can memory be taken away again?",
    expectation: "A balloon driver takes pages from the kernel's allocator and gives them to the host: MemTotal falls by their size, and rises again when \
        the balloon is deflated. Plugged-in memory appears as memory blocks that are offline; MemTotal rises when they are set online. Blocks \
        that were set online as movable hold only pages that can be moved, so the kernel migrates the pages of programs and takes \
        the blocks offline. Blocks that the kernel itself uses hold pages that cannot be moved, so they stay.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine at boot, in MiB",
            values: [320, 384, 1024],
        },
        ParameterAbout {
            name: "module",
            meaning: "memory that the balloon takes, or that is plugged in, in MiB; a multiple of 128",
            values: [128, 128, 512],
        },
        ParameterAbout {
            name: "used",
            meaning: "memory of the blocks that a program uses, in MiB",
            values: [32, 48, 192],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "taken",
            unit: AxisUnit::Bytes,
            meaning: "decrease of MemTotal by the balloon",
        },
        QuantityAbout {
            name: "added",
            unit: AxisUnit::Bytes,
            meaning: "increase of MemTotal by the new blocks",
        },
        QuantityAbout {
            name: "left",
            unit: AxisUnit::Bytes,
            meaning: "part of that decrease or increase that is left after the reverse operation",
        },
        QuantityAbout {
            name: "offline",
            unit: AxisUnit::Count,
            meaning: "1 if all new blocks could be taken offline",
        },
        QuantityAbout {
            name: "migrated",
            unit: AxisUnit::Count,
            meaning: "pages that were moved meanwhile (`pgmigrate_success`)",
        },
    ],
    arms: &[BALLOON, PLUG, MOVABLE, KERNEL],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") + parameters.get("module"))),
};

/// Number of pipes whose buffers are pages of the kernel that cannot be moved.
const PIPES: usize = 400;
/// Capacity of a pipe.
const PIPE: usize = 64 << 10;

impl RunExperiment for VmHotplug {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let [memory, growth] = ["mib", "module"].map(|name| Bytes::mib(parameters.get(name)));
        Some(GuestSetup { memory, growth, ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let [boot, module] = ["mib", "module"].map(|name| Bytes::mib(bench.parameter(name)));
        let total = memory("MemTotal")?;
        let change = || Ok::<_, LabError>(count(memory("MemTotal")?.0) - count(total.0));
        if arm == BALLOON {
            let half = count(module.0) / 2.0;
            GuestRequest::Balloon(boot.saturating_sub(module))
                .send()
                .while_("cannot inflate the balloon")?;
            wait_until("the balloon takes its memory", || Ok(change()? <= -count(module.0)))
                .or_else(|error| if change()? < -half { Ok(()) } else { Err(error) })?;
            bench.record("taken", -change()?);
            GuestRequest::Balloon(boot).send().while_("cannot deflate the balloon")?;
            wait_until("the balloon gives the memory back", || Ok(change()? >= 0.0))?;
            bench.record("left", -change()?);
            return Ok(());
        }
        let blocks = plug(module)?;
        let zone = if arm == MOVABLE { "online_movable" } else { "online_kernel" };
        for block in &blocks {
            set(block.join("state"), zone)?;
        }
        bench.record("added", change()?);
        let before = VmCounters::read()?;
        let is_offline = match arm {
            MOVABLE => {
                let memory = used(bench)?;
                let done = take_offline(&blocks);
                memory.touch(0..memory.len(), bench.page());
                done
            }
            KERNEL => {
                let _pipes = fill_pipes(PIPES, PIPE)?;
                take_offline(&blocks)
            }
            _ => return Ok(()),
        };
        bench.record("offline", count(is_offline.into()));
        bench.record("left", change()?);
        let migrated = before.growth("pgmigrate_success")?.map(count);
        bench.record_or_missing("migrated", migrated, "pgmigrate_success");
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let mib = count(Bytes::mib(1).0);
        let [module, used] = ["module", "used"].map(|name| results.parameter(name) * mib);
        let page = count(pagewise_sys::system::page_size());
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            results
                .claim("The balloon lowers MemTotal by its size", "drivers/virtio/virtio_balloon.c")
                .near(module, 0.05, value("taken", BALLOON)),
            results.claim("and all of it comes back", "").at_most(mib, value("left", BALLOON)),
            results
                .claim("Blocks of plugged-in memory raise MemTotal when they are set online", "")
                .near(module, 0.05, value("added", PLUG)),
            results
                .claim(
                    "Movable blocks can be taken offline while a program uses them",
                    "Documentation/admin-guide/mm/memory-hotplug.rst",
                )
                .at_least(1.0, value("offline", MOVABLE)),
            results
                .claim("since the kernel migrates the pages of the program", "")
                .at_least(used / page * 0.8, value("migrated", MOVABLE)),
            results
                .claim("Blocks with pages of the kernel stay online", "")
                .at_most(0.0, value("offline", KERNEL)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("taken"), bars("added"), bars("left")]
    }
}

/// Plugs in memory, and returns the folders of its blocks, which are offline.
fn plug(module: Bytes) -> Result<Vec<PathBuf>, LabError> {
    set("/sys/devices/system/memory/auto_online_blocks", "offline")?;
    let before = blocks()?;
    let size = fs::read_to_string("/sys/devices/system/memory/block_size_bytes");
    let size = size.while_("this kernel has no memory hotplug")?;
    let size = u64::from_str_radix(size.trim(), 16);
    let size = size.map_err(|error| LabError::Failed(format!("block_size_bytes: {error}")))?;
    GuestRequest::Plug(module).send().while_("cannot plug in memory")?;
    let wanted = usize::try_from(module.0 / size).unwrap_or(usize::MAX);
    let mut new = Vec::new();
    wait_until("the plugged-in memory appears", || {
        new = blocks()?.into_iter().filter(|block| !before.contains(block)).collect();
        Ok(new.len() >= wanted)
    })?;
    Ok(new)
}

/// The folders of all memory blocks.
fn blocks() -> Result<Vec<PathBuf>, LabError> {
    let folder = "/sys/devices/system/memory";
    let entries = fs::read_dir(folder).while_(format!("cannot read {folder}"))?.flatten();
    let is_block = |path: &PathBuf| path.join("state").exists();
    Ok(entries.map(|entry| entry.path()).filter(is_block).collect())
}

/// True if the kernel takes all blocks offline.
fn take_offline(blocks: &[PathBuf]) -> bool {
    blocks.iter().all(|block| fs::write(block.join("state"), "offline").is_ok())
}

/// Memory of a program, which the kernel takes from the movable blocks first.
fn used(bench: &Bench) -> Result<OwnedMapping, LabError> {
    let length = bench.size("used") << 20;
    let wanted = MapRequest { length, ..MapRequest::default() };
    let mapping = OwnedMapping::map(&wanted).while_("cannot map memory")?;
    mapping.touch(0..length, bench.page());
    Ok(mapping)
}

//! Huge pages on a machine whose free memory is in pieces: compaction moves pages of programs, but
//! not pages of the kernel.

use std::io::{PipeReader, PipeWriter};

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_sys::madvise::Advice;

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{VmCounters, fill_pipes, memory, number, set, shorten_cpu_lists};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmThpAge;

const FRESH: &str = "fresh";
const PROGRAMS: &str = "pages of programs";
const COMPACTED: &str = "pages of programs, compacted";
const KERNEL: &str = "pages of the kernel, compacted";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-thp-age",
    question: "Why do huge pages become rare on a machine that has run for long?",
    expectation: "A huge page needs a free block of its size (2 MiB on x86-64). One page in a block is enough to prevent it. A page fault \
        compacts memory: it moves pages of programs out of the way. It gives up early, and after failures the kernel tries less often. So the share of page faults \
        with a huge page differs from run to run, and is not judged. After a compaction of all memory (/proc/sys/vm/compact_memory), a machine on \
        which only programs fragment memory has huge pages again. \
        Pages of the kernel (pipe buffers, page tables, inodes) cannot be moved. They collect over time, and each block that has \
        one is lost for huge pages. So fewer page faults get a huge page, although much memory is free.",
    figures: "20 GiB of huge pages on a machine in use: 51 % of the time in isolate_migratepages_range",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine in MiB",
            values: [320, 384, 1024],
        },
        ParameterAbout {
            name: "wanted",
            meaning: "huge pages that a program wants, as a share of the free memory, in percent",
            values: [70, 70, 70],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "huge",
            unit: AxisUnit::Share,
            meaning: "page faults that got a huge page, of those that wanted one",
        },
        QuantityAbout {
            name: "free",
            unit: AxisUnit::Share,
            meaning: "free memory before, as a share of RAM",
        },
        QuantityAbout {
            name: "compact_stall",
            unit: AxisUnit::Count,
            meaning: "page faults that compacted memory first",
        },
        QuantityAbout {
            name: "compact_success",
            unit: AxisUnit::Count,
            meaning: "compactions that made a free block",
        },
        QuantityAbout {
            name: "compact_fail",
            unit: AxisUnit::Count,
            meaning: "compactions that made none",
        },
        QuantityAbout {
            name: "moved",
            unit: AxisUnit::Count,
            meaning: "pages that were moved (`pgmigrate_success`)",
        },
    ],
    arms: &[FRESH, PROGRAMS, COMPACTED, KERNEL],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib"))),
};

/// Amount of memory that stays unused while memory is fragmented, for the kernel and this program.
const SPARED: Bytes = Bytes::mib(12);
/// Amount of memory that the kernel keeps free.
const MIN_FREE: Bytes = Bytes::mib(1);
/// Number of pages in each block that this program releases for pages of the kernel. The kernel
/// fills the holes of one block after the other. So the holes that stay empty ([`LEFT`]) are in few
/// blocks.
const HOLES: usize = 128;
/// Capacity of a pipe in pages.
const PIPE: usize = 16;
/// Number of pipes that are filled before the free memory is read again.
const BATCH: usize = 4;
/// Amount of free memory at which no further pages of the kernel are allocated.
const LEFT: Bytes = Bytes::mib(8);
/// Number of compactions of all memory. A compaction stops when the scanner of movable pages meets
/// the scanner of free pages, so it frees about half of the remaining blocks.
const COMPACTIONS: usize = 4;

impl RunExperiment for VmThpAge {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        Some(GuestSetup { memory: Bytes::mib(parameters.get("mib")), ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let folder = "/sys/kernel/mm/transparent_hugepage";
        set(format!("{folder}/enabled"), "madvise")?;
        set(format!("{folder}/defrag"), "madvise")?;
        // Stop khugepaged and proactive compaction, so that only page faults of this program create
        // huge pages and compact memory.
        set(format!("{folder}/khugepaged/scan_sleep_millisecs"), 3_600_000)?;
        set("/proc/sys/vm/compaction_proactiveness", 0)?;
        // If huge pages are enabled, the kernel by default keeps up to 5 % of RAM free, and would
        // use this memory for its own pages first.
        set("/proc/sys/vm/min_free_kbytes", MIN_FREE.0 >> 10)?;
        shorten_cpu_lists()?;
        let huge =
            usize::try_from(number(format!("{folder}/hpage_pmd_size"))?).unwrap_or(usize::MAX);
        let _age = match arm {
            FRESH => None,
            _ => Some(fragment(bench.page(), huge, arm == KERNEL)?),
        };
        let free = memory("MemFree")?;
        bench.record("free", count(free.0) / count(memory("MemTotal")?.0));
        let wanted = usize::try_from(free.0).unwrap_or(usize::MAX) / 100 * bench.size("wanted");
        let pieces = wanted / huge;
        let mapping = map(pieces * huge + huge)?;
        // The range begins at the first boundary of a huge page.
        let start = usize::try_from(mapping.start()).unwrap_or(0).wrapping_neg() % huge;
        let range = start..start + pieces * huge;
        mapping.advise(range.clone(), Advice::HugePage).while_("madvise")?;
        let before = VmCounters::read()?;
        if arm == COMPACTED || arm == KERNEL {
            for _ in 0..COMPACTIONS {
                set("/proc/sys/vm/compact_memory", 1)?;
            }
        }
        mapping.touch(range, huge);
        let growth = |counter: &str| Ok::<_, LabError>(before.growth(counter)?.map(count));
        let got = growth("thp_fault_alloc")?.map(|got| got / count(pieces as u64));
        bench.record_or_missing("huge", got, "thp_fault_alloc");
        for counter in ["compact_stall", "compact_success", "compact_fail"] {
            bench.record_or_missing(counter, growth(counter)?, counter);
        }
        bench.record_or_missing("moved", growth("pgmigrate_success")?, "pgmigrate_success");
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let value = |quantity, arm| results.value(quantity, arm);
        vec![
            results
                .claim("On a fresh machine every page fault gets a huge page", "")
                .at_least(0.98, value("huge", FRESH)),
            results.claim("without compaction", "").at_most(0.0, value("compact_stall", FRESH)),
            results
                .claim("Beside pages of programs, page faults move those pages first", "")
                .at_least(1.0, value("moved", PROGRAMS)),
            results
                .claim("and after a compaction nearly every page fault gets a huge page", "")
                .at_least(0.9, value("huge", COMPACTED)),
            results
                .claim("Beside pages of the kernel many get none, even after a compaction", "")
                // 14 % to 63 % in five runs: some blocks contain no page of the kernel.
                .at_most(0.8, value("huge", KERNEL)),
            results.claim("though much memory is free", "").at_least(0.4, value("free", KERNEL)),
            results
                .claim("Compaction fails there", "")
                .at_least(1.0, value("compact_fail", KERNEL)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("huge"), bars("moved")]
    }
}

/// Pages that keep the free memory fragmented.
struct Fragments {
    _memory: OwnedMapping,
    _pipes: Vec<(PipeReader, PipeWriter)>,
}

/// Leaves one page of this program, or some pages of the kernel, in each block of free memory.
fn fragment(page: usize, huge: usize, by_kernel: bool) -> Result<Fragments, LabError> {
    let free = memory("MemFree")?.saturating_sub(SPARED);
    let blocks = usize::try_from(free.0).unwrap_or(usize::MAX) / huge;
    let mapping = map(blocks * huge)?;
    mapping.advise(0..mapping.len(), Advice::NoHugePage).while_("madvise")?;
    mapping.touch(0..mapping.len(), page);
    let release = |range| mapping.advise(range, Advice::DontNeed).while_("madvise");
    let mut pipes = Vec::new();
    if by_kernel {
        for block in 0..blocks {
            for hole in 0..HOLES {
                let at = block * huge + hole * huge / HOLES / page * page;
                release(at..at + page)?;
            }
        }
        pipes = fill_holes(page)?;
    }
    for block in 0..blocks {
        let kept = if by_kernel { 0 } else { page };
        release(block * huge + kept..(block + 1) * huge)?;
    }
    Ok(Fragments { _memory: mapping, _pipes: pipes })
}

/// Fills holes with pages of the kernel. If the kernel has no block of unmovable pages left, it
/// takes pages from the largest free blocks first, so nearly all free memory must be filled.
fn fill_holes(page: usize) -> Result<Vec<(PipeReader, PipeWriter)>, LabError> {
    let mut pipes = Vec::new();
    // The kernel needs memory for the pipes too.
    while memory("MemFree")? > LEFT {
        pipes.extend(fill_pipes(BATCH, PIPE * page)?);
    }
    Ok(pipes)
}

fn map(length: usize) -> Result<OwnedMapping, LabError> {
    let wanted = MapRequest { length, no_reserve: true, ..MapRequest::default() };
    OwnedMapping::map(&wanted).while_("cannot map memory")
}

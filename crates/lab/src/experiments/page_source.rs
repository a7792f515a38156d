//! Pages of a pool: from the kernel by `mmap`, or from the C library by `calloc`, which gets them
//! from `mmap` too.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_labmem::libc_malloc::HeapBlock;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct PageSource;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "page-source",
    question: "Should a pool that needs zeroed pages get them from mmap, or from calloc?",
    expectation: "Each mmap is a system call, and each page of it a fault, every time. The C library takes large pieces of the \
        kernel, keeps what is freed, and clears it by memset, which costs less than a fault; memory that the kernel just gave \
        it is known to be zero. From some size on it maps each block as the pool would, and nothing is gained: 128 KiB at \
        first, and what was freed raises that, up to 32 MiB.",
    figures: "calloc beat mmap for every page size but 1 MiB; with 64 KiB pages a FIFO pool was 10 % faster",
    needs: &[],
    parameters: &[
        ParameterAbout { name: "live", meaning: "number of live blocks", values: [16, 16, 16] },
        ParameterAbout {
            name: "mib",
            meaning: "memory allocated in total for each block size, in MiB",
            values: [32, 256, 1024],
        },
    ],
    quantities: &[
        QuantityAbout { name: "64KiB", unit: AxisUnit::Nanos, meaning: "taking, touching and giving back 64 KiB of zeros" },
        QuantityAbout { name: "1MiB", unit: AxisUnit::Nanos, meaning: "the same for 1 MiB" },
        QuantityAbout { name: "40MiB", unit: AxisUnit::Nanos, meaning: "the same for 40 MiB" },
        QuantityAbout { name: "faults64KiB", unit: AxisUnit::Number, meaning: "page faults for each block of 64 KiB" },
        QuantityAbout { name: "faults1MiB", unit: AxisUnit::Number, meaning: "page faults for each block of 1 MiB" },
        QuantityAbout { name: "faults40MiB", unit: AxisUnit::Number, meaning: "page faults for each block of 40 MiB" },
    ],
    arms: &["mmap", "calloc", "malloc and memset"],
    runs: [5, 7, 7],
    timed: true,
    memory: |_| Bytes((ALIVE + 2 * KEPT) as u64),
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Number of bytes of live blocks of every size, and of the memory that the C library may keep in
/// addition.
const ALIVE: usize = 64 * MIB;
const KEPT: usize = 32 * MIB;

/// The sizes of blocks that are tried, and the quantities of some of them.
const SIZES: &[(usize, Option<[&str; 2]>)] = &[
    (4 * KIB, None),
    (16 * KIB, None),
    (64 * KIB, Some(["64KiB", "faults64KiB"])),
    (256 * KIB, None),
    (MIB, Some(["1MiB", "faults1MiB"])),
    (4 * MIB, None),
    // Larger than any block that glibc keeps: DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB.
    (40 * MIB, Some(["40MiB", "faults40MiB"])),
];

/// A block of zeros.
enum ZeroBlock {
    Heap(HeapBlock),
    Mapped(OwnedMapping),
}

fn allocate_block(how: &str, length: usize) -> io::Result<ZeroBlock> {
    Ok(match how {
        "mmap" => ZeroBlock::Mapped(OwnedMapping::map(&MapRequest { length, ..MapRequest::default() })?),
        "calloc" => ZeroBlock::Heap(HeapBlock::calloc(length)?),
        _ => {
            let mut block = HeapBlock::malloc(length)?;
            block.fill(0..length, 0);
            ZeroBlock::Heap(block)
        }
    })
}

/// Allocates blocks and touches each page of each block; frees the oldest block if more than `live`
/// blocks are live.
fn churn(how: &str, length: usize, blocks: usize, live: usize, page: usize) -> io::Result<()> {
    let mut alive = VecDeque::with_capacity(live);
    for _ in 0..blocks {
        if alive.len() == live {
            drop(alive.pop_front());
        }
        let mut block = allocate_block(how, length)?;
        match &mut block {
            ZeroBlock::Heap(block) => block.touch(page),
            ZeroBlock::Mapped(mapping) => mapping.touch(0..length, page),
        }
        alive.push_back(block);
    }
    Ok(())
}

impl RunExperiment for PageSource {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (page, live) = (bench.page(), bench.size("live"));
        for (length, quantities) in SIZES {
            let length = (*length).max(page);
            let live = live.min(ALIVE / length).max(1);
            let blocks = ((bench.size("mib") << 20) / length).max(live);
            // The first blocks are warm-up: the C library learns which sizes it should keep.
            churn(arm, length, 2 * live, live, page).while_("cannot allocate memory")?;
            let faults = bench.usage().minor_faults;
            let begin = Instant::now();
            churn(arm, length, blocks, live, page).while_("cannot allocate memory")?;
            let each = nanos(begin) / count(blocks as u64);
            let faults = count(bench.usage().minor_faults - faults) / count(blocks as u64);
            bench.point("a page of a block", count(length as u64), each / count((length / page) as u64));
            bench.point("page faults for a page", count(length as u64), faults / count((length / page) as u64));
            if let Some([time, faulted]) = quantities {
                bench.record(time, each);
                bench.record(faulted, faults);
            }
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let faults = |size, over, under| results.ratio(size, over, under);
        vec![
            results
                .claim("Blocks of 64 KiB by mmap fault for each page, those by calloc seldom", "")
                .counted()
                .more_than(4.0, faults("faults64KiB", "mmap", "calloc")),
            results
                .claim("so that calloc is faster for 64 KiB", "10 % of a whole FIFO pool")
                .more_than(1.0, results.ratio("64KiB", "mmap", "calloc")),
            results
                .claim("For 1 MiB calloc is not faster", "mmap beat calloc for 1 MiB only")
                .more_than(0.95, results.ratio("1MiB", "calloc", "mmap"))
                .because(
                    "glibc maps such blocks only until the first is freed, and keeps them from then on: calloc takes fewer \
                     faults. The source's C library was another, or its pool gave pages back less often",
                ),
            results
                .claim("Blocks that the C library does not keep either fault as often", "")
                .counted()
                .the_same(0.05, faults("faults40MiB", "calloc", "mmap"))
                .because("another C library than glibc keeps blocks of 40 MiB, too"),
            results
                .claim("Reused memory must be cleared: calloc does the same as malloc and memset", "")
                .the_same(0.25, results.ratio("64KiB", "malloc and memset", "calloc")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let x = || ("block".into(), AxisUnit::Bytes, Scale::Log);
        vec![
            Plot::Curves {
                curve: "a page of a block".into(),
                x: x(),
                y: ("time".into(), AxisUnit::Nanos, Scale::Log),
            },
            Plot::Curves {
                curve: "page faults for a page".into(),
                x: x(),
                y: ("faults".into(), AxisUnit::Number, Scale::Linear),
            },
        ]
    }
}

//! Swap on a disk, in compressed RAM (zram), and with a compressed cache before the disk (zswap).

use std::path::Path;

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_model::{Absent, Bytes};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{VmCounters, available, number, sectors_written, set, swap_on};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmSwap;

const DISK: &str = "disk";
const ZRAM: &str = "zram";
const ZSWAP: &str = "zswap";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-swap",
    question: "What do zram and zswap save, compared with swap on a disk?",
    expectation: "On a disk each page that is swapped out is written. zram is swap in RAM: pages are compressed, so a page takes a part of its size, and \
        nothing is written. zswap keeps compressed pages in RAM too, and writes them to the disk when its pool is full. \
        A quarter of each page here is random, so a page compresses to about a quarter.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine in MiB",
            values: [256, 320, 1024],
        },
        ParameterAbout {
            name: "share",
            meaning: "memory that the program fills as a share of the available memory, in percent",
            values: [125, 125, 125],
        },
    ],
    quantities: &[
        QuantityAbout { name: "pswpout", unit: AxisUnit::Count, meaning: "pages written to swap" },
        QuantityAbout {
            name: "written",
            unit: AxisUnit::Bytes,
            meaning: "bytes written to the disk",
        },
        QuantityAbout {
            name: "stored",
            unit: AxisUnit::Bytes,
            meaning: "size of the swapped pages",
        },
        QuantityAbout {
            name: "compressed",
            unit: AxisUnit::Bytes,
            meaning: "RAM that their compressed form takes",
        },
        QuantityAbout {
            name: "ratio",
            unit: AxisUnit::Share,
            meaning: "compressed size as a share of the size",
        },
    ],
    arms: &[DISK, ZRAM, ZSWAP],
    runs: [1, 1, 3],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") * 2)),
};

/// Number of parts of a page; one part has random contents.
const PARTS: usize = 4;
/// The compressor of zram, and the modules that it needs.
const MODULES: &[&str] = &["lzo", "lzo_rle", "zram"];
/// Counters of the first zram device: size of the pages, compressed size, RAM in use.
const ZRAM_COUNTERS: &str = "/sys/block/zram0/mm_stat";
const ZSWAP_SWITCH: &str = "/sys/module/zswap/parameters/enabled";
const ZSWAP_POOL: &str = "/sys/kernel/debug/zswap";

impl RunExperiment for VmSwap {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        let modules = if arm == ZRAM { MODULES } else { &[] };
        Some(GuestSetup { memory, disks: vec![memory], modules, ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let lacks = match arm {
            ZRAM if !Path::new(ZRAM_COUNTERS).exists() => {
                Some("this kernel has no zram (CONFIG_ZRAM)")
            }
            ZSWAP if !Path::new(ZSWAP_SWITCH).exists() => {
                Some("this kernel has no zswap (CONFIG_ZSWAP)")
            }
            _ => None,
        };
        if let Some(why) = lacks {
            ABOUT
                .quantities
                .iter()
                .for_each(|row| bench.missing(row.name, Absent::NotSupported(why.into())));
            return Ok(());
        }
        let free = available()?;
        match arm {
            ZRAM => {
                set("/sys/block/zram0/disksize", free.0)?;
                swap_on("/dev/zram0")?;
            }
            ZSWAP => {
                set(ZSWAP_SWITCH, "Y")?;
                swap_on("/dev/vda")?;
            }
            _ => swap_on("/dev/vda")?,
        }
        let page = bench.page();
        let before = VmCounters::read()?;
        let written = sectors_written("vda")?;
        let length = usize::try_from(free.0).unwrap_or(usize::MAX) / 100 * bench.size("share");
        let _memory = filled(length.next_multiple_of(page), page)?;
        bench.record("written", count((sectors_written("vda")? - written) * 512));
        let swapped = before.growth("pswpout")?.map(count);
        bench.record_or_missing("pswpout", swapped, "pswpout");
        let sizes = match arm {
            ZRAM => Some(zram_sizes()?),
            ZSWAP => {
                let pages = number(format!("{ZSWAP_POOL}/stored_pages"))?;
                let pool = number(format!("{ZSWAP_POOL}/pool_total_size"))?;
                Some([count(pages) * count(page as u64), count(pool)])
            }
            _ => None,
        };
        if let Some([stored, compressed]) = sizes {
            bench.record("stored", stored);
            bench.record("compressed", compressed);
            bench.record("ratio", compressed / stored.max(1.0));
        }
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let mib = count(Bytes::mib(1).0);
        let value = |quantity, arm| results.value(quantity, arm);
        let share = results.parameter("share") / 100.0 - 1.0;
        let least = results.parameter("mib") * mib * share * 0.5;
        vec![
            results
                .claim("Swap on a disk writes the pages that do not fit", "")
                .at_least(least, value("written", DISK)),
            results.claim("zram writes nothing to a disk", "").at_most(0.0, value("written", ZRAM)),
            results.claim("and stores pages compressed", "").at_most(0.5, value("ratio", ZRAM)),
            results
                .claim("zswap stores pages compressed too", "")
                .at_most(0.6, value("ratio", ZSWAP)),
            results
                .claim("and writes less than plain swap", "")
                .more_than(1.0, results.ratio("written", DISK, ZSWAP)),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let bars =
            |quantity: &'static str| Plot::Bars { quantity: quantity.into(), scale: Scale::Linear };
        vec![bars("written"), bars("compressed")]
    }
}

/// Memory whose pages compress to about a quarter.
fn filled(length: usize, page: usize) -> Result<OwnedMapping, LabError> {
    let wanted = MapRequest { length, no_reserve: true, ..MapRequest::default() };
    let mapping = OwnedMapping::map(&wanted).while_("cannot map memory")?;
    let mut random = fastrand::Rng::with_seed(1);
    let words = page / size_of::<u64>();
    for page in mapping.as_words().chunks(words) {
        for word in &page[..words / PARTS] {
            word.store(random.u64(..), std::sync::atomic::Ordering::Relaxed);
        }
    }
    Ok(mapping)
}

/// Uncompressed size of the pages in zram, and the RAM that zram uses for them.
fn zram_sizes() -> Result<[f64; 2], LabError> {
    let text = std::fs::read_to_string(ZRAM_COUNTERS).while_("cannot read the counters of zram")?;
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    let sizes = (numbers.next(), numbers.nth(1));
    match sizes {
        (Some(stored), Some(used)) => Ok([count(stored), count(used)]),
        _ => Err(LabError::Failed(format!("{ZRAM_COUNTERS} is too short"))),
    }
}

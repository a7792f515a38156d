//! Swappiness: the choice of the kernel between anonymous pages and file pages at reclaim, for
//! equal use of both.

use std::fs::File;

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{AxisUnit, Scale};
use pagewise_sys::madvise::Advice;

use super::RunExperiment;
use super::compete::CompeteMemory;
use crate::bench::count;
use crate::error::While;
use crate::guest::host_memory;
use crate::guest_system::{ScarceMemory, VmCounters, disk, set};
use crate::{
    Bench, ExperimentAbout, ExperimentResults, GuestSetup, LabError, Need, ParameterAbout,
    Parameters, QuantityAbout,
};

/// See [`ABOUT`].
pub(super) struct VmSwappiness;

const NEVER: &str = "swappiness 0";
const USUAL: &str = "swappiness 60";
const EQUAL: &str = "swappiness 100";
const FIRST: &str = "swappiness 200";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "vm-swappiness",
    question: "Which pages does the kernel reclaim at swappiness 0, 60, 100 and 200, if a program uses anonymous pages and file pages equally?",
    expectation: "Swappiness is the assumed cost of reading a file page, from 200 in all; the rest is that of swap. At 0 the kernel reclaims \
        anonymous pages only when there are hardly any file pages left. At 200 it reclaims anonymous pages and nearly no file pages. \
        In between it reclaims both. Memory that is used at random \
        and does not fit is read back either way: swappiness moves the reads between swap and files, and no value avoids them.",
    figures: "",
    needs: &[Need::VirtualMachine],
    parameters: &[
        ParameterAbout {
            name: "mib",
            meaning: "memory of the machine in MiB",
            values: [256, 256, 512],
        },
        ParameterAbout {
            name: "room",
            meaning: "memory that is left for programs, in MiB; the rest is locked",
            values: [32, 32, 256],
        },
        ParameterAbout {
            name: "share",
            meaning: "anonymous memory, and memory of the file, as a share of that, in percent",
            values: [65, 65, 65],
        },
        ParameterAbout {
            name: "touches",
            meaning: "number of touches of a random page in each",
            values: [3_000, 5_000, 200_000],
        },
    ],
    quantities: &[
        QuantityAbout {
            name: "anon",
            unit: AxisUnit::Count,
            meaning: "anonymous pages that were reclaimed (`pgsteal_anon`)",
        },
        QuantityAbout {
            name: "file",
            unit: AxisUnit::Count,
            meaning: "file pages that were reclaimed (`pgsteal_file`)",
        },
        QuantityAbout {
            name: "share_anon",
            unit: AxisUnit::Share,
            meaning: "anonymous pages among the reclaimed pages",
        },
        QuantityAbout {
            name: "majflt",
            unit: AxisUnit::Count,
            meaning: "major page faults of the program",
        },
    ],
    arms: &[NEVER, USUAL, EQUAL, FIRST],
    runs: [1, 1, 5],
    timed: false,
    memory: |parameters| host_memory(Bytes::mib(parameters.get("mib") * 3)),
};

impl RunExperiment for VmSwappiness {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn guest(&self, _arm: &str, parameters: &Parameters) -> Option<GuestSetup> {
        let memory = Bytes::mib(parameters.get("mib"));
        Some(GuestSetup { memory, disks: vec![memory, memory], ..GuestSetup::default() })
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let swappiness = arm.rsplit(' ').next().unwrap_or_default();
        set("/proc/sys/vm/swappiness", swappiness)?;
        let page = bench.page();
        let scarce = ScarceMemory::make(bench)?;
        let length = scarce.length;
        let anon = CompeteMemory::map(length, page, None)?;
        anon.fill();
        // The kernel treats cached pages of a block device as file pages, so no file system is
        // needed.
        let file = File::open(disk("vdb")?).while_("cannot open the disk")?;
        let wanted = MapRequest { length, file: Some(&file), ..MapRequest::default() };
        let file = OwnedMapping::map(&wanted).while_("cannot map the disk")?;
        file.advise(0..length, Advice::Random).while_("madvise")?;
        let touch = |times: usize| {
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..times {
                anon.touch_page(random.usize(0..length / page));
                file.read(random.usize(0..length / page) * page);
            }
        };
        // Pages of the file become active pages by their second touch.
        touch(bench.size("touches"));
        let before = VmCounters::read()?;
        let faults = bench.usage().major_faults;
        touch(bench.size("touches"));
        bench.record("majflt", count(bench.usage().major_faults - faults));
        let growth = |counter: &str| -> Result<f64, LabError> {
            let missing = || LabError::Failed(format!("/proc/vmstat has no {counter}"));
            before.growth(counter)?.map(count).ok_or_else(missing)
        };
        let [anon, file] = [growth("pgsteal_anon")?, growth("pgsteal_file")?];
        bench.record("anon", anon);
        bench.record("file", file);
        bench.record("share_anon", anon / (anon + file).max(1.0));
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let value = |quantity, arm| results.value(quantity, arm);
        let shares: Option<Vec<f64>> =
            ABOUT.arms.iter().map(|arm| results.median("share_anon", arm)).collect();
        // One run cannot distinguish swappiness 60 from 100.
        let between = shares.map(|shares| {
            let words: Vec<String> =
                shares.iter().map(|share| format!("{:.0} %", share * 100.0)).collect();
            let is_between = matches!(shares[..], [never, usual, equal, first]
                if never < usual.min(equal) && usual.max(equal) < first);
            (is_between, words.join(", ").into())
        });
        let fewest = ABOUT
            .arms
            .iter()
            .filter_map(|arm| value("majflt", arm))
            .min_by(|one, other| one.value.total_cmp(&other.value));
        // The part of the anonymous memory and the mapped disk that does not fit, if each page is
        // touched equally often.
        let outside = 1.0 - 50.0 / results.parameter("share");
        let touches = results.parameter("touches") * 2.0;
        vec![
            results
                .claim("At 0 the kernel reclaims file pages, and hardly any anonymous page", "mm/vmscan.c, get_scan_count")
                .at_most(0.05, value("share_anon", NEVER)),
            results
                .claim("At 200 most reclaimed pages are anonymous", "")
                .at_least(0.8, value("share_anon", FIRST)),
            results
                .claim("At 60 and at 100 the share of anonymous pages lies between those", "")
                .holds("more than at 0, less than at 200", between),
            results
                .claim("No value avoids the major faults: at least half of the touches of memory that does not fit remain", "")
                .at_least(touches * outside * 0.5, fewest),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![Plot::Bars { quantity: "share_anon".into(), scale: Scale::Linear }]
    }
}

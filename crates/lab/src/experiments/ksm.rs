//! Pages with the same bytes, offered to the kernel for merging: the kernel keeps one page for all
//! processes, and copies this page for a process that writes.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_measure::pin::PinnedThread;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_model::{Bytes, SmapsCounter, Pid};
use pagewise_proc::ProcRoot;
use pagewise_sys::madvise::Advice;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};

use super::RunExperiment;
use crate::bench::count;
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct KsmExperiment;

const SETTINGS: &str = "/sys/kernel/mm/ksm";

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "ksm",
    question: "How much memory does merging equal pages save, and what does a write to a merged page cost?",
    expectation: "A kernel thread reads the pages that were offered, and maps those alike to one page, read only. RES does not \
        show it, PSS does. A page must be seen unchanged in one round to be merged in the next. Writing a merged page is a \
        page fault that copies it, as after fork. Pages of which there is one each are read for nothing.",
    figures: "",
    needs: &[Need::Root, Need::ChangeSystem, Need::File("/sys/kernel/mm/ksm/run")],
    parameters: &[ParameterAbout {
        name: "mib",
        meaning: "memory that may be merged, in MiB",
        values: [16, 128, 512],
    }],
    quantities: &[
        QuantityAbout { name: "merged", unit: AxisUnit::Bytes, meaning: "pages of the process that are merged" },
        QuantityAbout { name: "rss", unit: AxisUnit::Bytes, meaning: "its resident memory" },
        QuantityAbout { name: "pss", unit: AxisUnit::Bytes, meaning: "its PSS" },
        QuantityAbout { name: "rewritten", unit: AxisUnit::Bytes, meaning: "its PSS, after every page was written again" },
        QuantityAbout { name: "minflt", unit: AxisUnit::Count, meaning: "page faults of writing every page again" },
        QuantityAbout { name: "wall", unit: AxisUnit::Nanos, meaning: "time to write every page again" },
        QuantityAbout { name: "merging", unit: AxisUnit::Nanos, meaning: "time that the kernel had to merge" },
    ],
    arms: &["not offered", "all different", "all alike"],
    runs: [3, 5, 5],
    timed: false,
    memory: |parameters| Bytes::mib(parameters.get("mib")),
};

/// Number of full scans of all offered pages until all equal pages are merged. The first scan
/// stores checksums, and the second scan merges pages whose checksum is unchanged. Another scan may
/// already be running at the start.
const ROUNDS: u64 = 4;

/// Time limit of these scans: each takes longer if more memory is offered.
const MAX_SCAN_TIME: Duration = Duration::from_secs(40);

impl RunExperiment for KsmExperiment {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let (length, page) = (bench.size("mib") << 20, bench.page());
        let mapping = OwnedMapping::map(&MapRequest { length, ..MapRequest::default() }).while_("cannot map memory")?;
        // The kernel would have to split a huge page before merging.
        mapping.advise(0..length, Advice::NoHugePage).while_("madvise")?;
        fill(&mapping, page, arm == "all different");
        let begin = Instant::now();
        if arm != "not offered" {
            mapping.advise(0..length, Advice::Mergeable).while_("MADV_MERGEABLE")?;
            merge(bench)?;
        }
        bench.each("merging", begin, 1);
        bench.record("merged", count(merged()?) * count(page as u64));
        bench.record("rss", bench.memory_at(mapping.start(), SmapsCounter::Rss)?);
        bench.record("pss", bench.memory_at(mapping.start(), SmapsCounter::Pss)?);
        stop(bench)?;
        let _pinned = PinnedThread::here()?;
        bench.measure(|| mapping.touch(page - 1..length, page))?;
        bench.record("rewritten", bench.memory_at(mapping.start(), SmapsCounter::Pss)?);
        Ok(())
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let all = results.parameter("mib") * f64::from(1 << 20);
        let faults = |arm| results.value("minflt", arm);
        let late = "the kernel's thread had too little CPU time to read all pages";
        let merged = results.median("merged", "all alike").unwrap_or(f64::NAN);
        let pages = merged / count(pagewise_sys::system::page_size());
        vec![
            results.claim("Pages alike are merged", "").near(all, 0.02, results.value("merged", "all alike")).because(late),
            results
                .claim("Pages of which there is one each are not", "")
                .at_most(0.02 * all, results.value("merged", "all different")),
            results.claim("RES does not show it", "").near(all, 0.05, results.value("rss", "all alike")),
            results.claim("PSS does", "").at_most(0.1 * all, results.value("pss", "all alike")).because(late),
            results.claim("Writing a merged page is a fault", "").near(pages, 0.02, faults("all alike")),
            results.claim("writing one of one's own is none", "").at_most(0.02 * pages, faults("not offered")),
            results.claim("and takes many times less", "").more_than(3.0, results.ratio("wall", "all alike", "not offered")),
            results
                .claim("Afterwards every page is one's own again", "")
                .near(all, 0.05, results.value("rewritten", "all alike")),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::Bars { quantity: "pss".into(), scale: Scale::Linear },
            Plot::Bars { quantity: "wall".into(), scale: Scale::Log },
        ]
    }
}

/// Writes each page: its index if `different`, else the same value.
fn fill(mapping: &OwnedMapping, page: usize, different: bool) {
    for (number, at) in (0..mapping.len()).step_by(page).enumerate() {
        let number = if different { number + 1 } else { 1 };
        for (place, byte) in number.to_ne_bytes().into_iter().enumerate() {
            mapping.write(at + place, byte);
        }
    }
}

/// Makes `ksmd` complete [`ROUNDS`] full scans at full speed.
fn merge(bench: &Bench) -> Result<(), LabError> {
    for (setting, value) in [("sleep_millisecs", "1"), ("pages_to_scan", "5000"), ("run", "1")] {
        bench.journal().set(&Path::new(SETTINGS).join(setting), value)?;
    }
    let begin = Instant::now();
    let last = rounds()? + ROUNDS;
    while rounds()? < last && begin.elapsed() < MAX_SCAN_TIME {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Ends the merging, so that written pages stay unmerged. Merged pages stay merged.
fn stop(bench: &Bench) -> Result<(), LabError> {
    bench.journal().set(&Path::new(SETTINGS).join("run"), "0")
}

fn rounds() -> Result<u64, LabError> {
    let text = fs::read_to_string(Path::new(SETTINGS).join("full_scans")).while_("cannot read full_scans")?;
    text.trim().parse().map_err(|_| LabError::Failed("full_scans is no number".to_owned()))
}

/// Number of merged pages of this process.
fn merged() -> Result<u64, LabError> {
    let text = ProcRoot::live().read(Pid(std::process::id()), "ksm_stat");
    let text = text.map_err(|error| LabError::Failed(error.to_string()))?;
    let read = pagewise_proc::ksm::parse(&text);
    let read = read.ok_or_else(|| LabError::Failed("ksm_stat does not read as it should".to_owned()))?;
    Ok(read.merging_pages)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pages_are_all_alike_or_all_different() {
        let page = 1 << 16;
        for (different, kinds) in [(false, 1), (true, 8)] {
            let mapping = OwnedMapping::map(&MapRequest { length: 8 * page, ..MapRequest::default() }).unwrap();
            fill(&mapping, page, different);
            let content = |first| (first..first + page).map(|at| mapping.read(at)).collect::<Vec<_>>();
            let seen: BTreeSet<_> = (0..mapping.len()).step_by(page).map(content).collect();
            assert_eq!(seen.len(), kinds);
        }
    }
}

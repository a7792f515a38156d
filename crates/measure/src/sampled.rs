//! Memory of a running command and its children, sampled at intervals.

use std::time::{Duration, Instant};

use pagewise_model::machine::ProcessMoment;
use pagewise_model::measured::{Count, MeasuredMetric, MetricOrigin, MetricScope, MetricUnit};
use pagewise_model::{Absent, Bytes, Pid, Reading, Smaps, SmapsCounter, Snapshot};
use pagewise_proc::capture::{CaptureRequest, capture};
use pagewise_proc::{ProcRoot, smaps, tree};
use rustix::time::{ClockId, clock_gettime};

/// Metrics and their counters of `smaps_rollup`. All values are sums at the sample with the highest
/// PSS.
const KEPT: &[(&str, SmapsCounter)] = &[
    ("peak_pss", SmapsCounter::Pss),
    ("peak_pss_anon", SmapsCounter::PssAnon),
    ("peak_pss_file", SmapsCounter::PssFile),
    ("peak_pss_shmem", SmapsCounter::PssShmem),
];

/// A detailed sample (a snapshot of the largest process) is due when the total PSS has grown by
/// more than 1/`STEP` since the last detailed sample.
const STEP: u64 = 16;
/// Time to the next detailed sample, as a multiple of the CPU time of the last detailed sample.
/// Time for which other programs used the CPU does not count.
const REST: u32 = 10;
/// If the total PSS has grown by this factor, the next detailed sample is taken without a delay.
/// Such growth is rare, and earlier samples of the smaller process do not predict the cost of the
/// next one.
const LEAP: u64 = 4;

pub(crate) fn metrics() -> impl Iterator<Item = MeasuredMetric> {
    KEPT.iter().map(|(name, _)| MeasuredMetric {
        name: (*name).into(),
        unit: MetricUnit::Bytes,
        scope: MetricScope::Process,
        origin: MetricOrigin::Sampled,
    })
}

/// Sums of the sample with the highest PSS of one run, and the last detailed sample.
#[derive(Debug)]
pub(crate) struct Sampler {
    root: ProcRoot,
    interval: Duration,
    highest: Reading<Vec<Reading<Bytes>>>,
    snapshot: Option<Box<Snapshot>>,
    snapshot_pss: Bytes,
    rest_until: Instant,
}

impl Sampler {
    pub(crate) fn new(interval: Duration) -> Sampler {
        let ended = "the command ended before the first sample: choose a shorter --sample";
        Sampler {
            root: ProcRoot::live(),
            interval,
            highest: Err(Absent::NotCollected(ended.into())),
            snapshot: None,
            snapshot_pss: Bytes::ZERO,
            rest_until: Instant::now(),
        }
    }

    /// Time of the next sample.
    pub(crate) fn next(&self) -> Instant {
        Instant::now() + self.interval
    }

    /// Samples a process and all its descendants. A process that ended meanwhile, or cannot be
    /// read, is skipped.
    pub(crate) fn look(&mut self, pid: u32) {
        let processes = tree::with_descendants(&self.root, Pid(pid));
        let rollups: Vec<(Pid, Smaps)> =
            processes.iter().filter_map(|pid| Some((*pid, self.rollup(*pid)?))).collect();
        let pss = |rollup: &Smaps| rollup.bytes(SmapsCounter::Pss).unwrap_or_default();
        let Some((largest, _)) = rollups.iter().max_by_key(|(_, rollup)| pss(rollup)) else {
            return;
        };
        let sum = |counter| {
            rollups
                .iter()
                .try_fold(Bytes::ZERO, |sum, (_, rollup)| Ok(sum + rollup.bytes(counter)?))
        };
        let sums: Vec<Reading<Bytes>> = KEPT.iter().map(|(_, counter)| sum(*counter)).collect();
        let Ok(pss) = sums[0].clone() else { return };
        let highest = self.highest.as_ref().ok().and_then(|sums| sums[0].clone().ok());
        if highest.is_none_or(|highest| pss > highest) {
            self.highest = Ok(sums);
        }
        self.look_closely(*largest, pss);
    }

    fn rollup(&self, pid: Pid) -> Option<Smaps> {
        smaps::parse_rollup(&self.root.read(pid, "smaps_rollup").ok()?)
    }

    /// Takes a snapshot of the largest process if the total PSS has grown enough since the last
    /// snapshot.
    fn look_closely(&mut self, largest: Pid, pss: Bytes) {
        let grown = pss.saturating_sub(self.snapshot_pss);
        let is_due = grown.0 > self.snapshot_pss.0 / STEP && Instant::now() >= self.rest_until;
        if !is_due && pss.0 / LEAP <= self.snapshot_pss.0 {
            return;
        }
        let begin = cpu_time();
        let request =
            CaptureRequest { moment: ProcessMoment::AtPeak(pss), ..CaptureRequest::default() };
        if let Ok(snapshot) = capture(&self.root, largest, &request) {
            self.snapshot = Some(Box::new(snapshot));
            self.snapshot_pss = pss;
        }
        self.rest_until = Instant::now() + cpu_time().saturating_sub(begin) * REST;
    }

    /// The values of [`metrics`], and the last snapshot.
    pub(crate) fn finish(self) -> (Vec<Reading<Count>>, Option<Box<Snapshot>>) {
        let values = match self.highest {
            Ok(sums) => sums.into_iter().map(|sum| Ok(Count::exact(sum?.0))).collect(),
            Err(absent) => KEPT.iter().map(|_| Err(absent.clone())).collect(),
        };
        (values, self.snapshot)
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

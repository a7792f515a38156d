//! The last sweeps (readings of all processes), reduced to the values that a table of growth needs:
//! some bytes for each process and sweep.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pagewise_model::sweep::{
    PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepDelta, SweepEvent, SweepProcess,
    SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Reading};

use crate::program_name::{ProgramName, program_name};
use crate::sweeps::is_notable;

/// Maximum number of sweeps in the history: a minute at one sweep per second.
pub const MAX_SAMPLES: usize = 60;
/// Time in nanoseconds over which growth is computed; longer if the sweeps are farther apart.
const GROWTH_NS: u64 = 60_000_000_000;
/// Minimum time in nanoseconds over which growth is computed. A program allocates most in its first
/// second, and a rate per minute from that second would be a false alarm.
const MIN_GROWTH_NS: u64 = 5_000_000_000;
/// Maximum number of events in the history.
const MAX_EVENTS: usize = 8;

/// Value of a sweep in which the object did not exist, or its memory could not be read.
const GONE: u64 = u64::MAX;

/// Memory of a process or of a group of processes at the last sweeps, the oldest first. The last
/// value is of the last sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct MemorySeries {
    values: VecDeque<u64>,
}

impl MemorySeries {
    fn push(&mut self, value: u64) {
        if self.values.len() == MAX_SAMPLES {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    fn is_empty(&self) -> bool {
        self.values.iter().all(|&value| value == GONE)
    }

    /// Returns the last `count` values, the oldest first.
    pub(super) fn last(&self, count: usize) -> Vec<Option<u64>> {
        let skipped = self.values.len().saturating_sub(count);
        self.values.iter().skip(skipped).map(|&it| Some(it).filter(|&it| it != GONE)).collect()
    }

    /// Adds the values of another series. The last values of both series are of the same sweep.
    pub(super) fn add(&mut self, other: &MemorySeries) {
        while self.values.len() < other.values.len() {
            self.values.push_front(GONE);
        }
        for (sum, &more) in self.values.iter_mut().rev().zip(other.values.iter().rev()) {
            *sum = match (*sum, more) {
                (sum, GONE) => sum,
                (GONE, more) => more,
                (sum, more) => sum.saturating_add(more).min(GONE - 1),
            };
        }
    }
}

/// Memory of a process at the last sweeps.
#[derive(Debug)]
pub(super) struct ProcessSeries {
    pub(super) identity: Arc<ProcessIdentity>,
    pub(super) shown: ProgramName,
    pub(super) memory: MemorySeries,
    /// True if the values are PSS, false if they are RSS.
    is_pss: bool,
    /// RSS at the time when PSS was last read.
    rss_at_reading: Option<Bytes>,
}

/// The last sweeps, reduced to the values of a live table.
#[derive(Debug, Default)]
pub struct TopHistory {
    times: VecDeque<SweepTime>,
    processes: HashMap<ProcessKey, ProcessSeries>,
    cgroups: HashMap<Name, MemorySeries>,
    current: Option<Arc<Sweep>>,
    delta: Option<SweepDelta>,
    events: VecDeque<SweepEvent>,
}

impl TopHistory {
    /// Adds a sweep, and the events that the sweep found. Requires that the sweep is later than all
    /// earlier sweeps.
    pub fn push(&mut self, sweep: Arc<Sweep>, events: &[SweepEvent]) {
        if self.times.len() == MAX_SAMPLES {
            self.times.pop_front();
        }
        self.times.push_back(sweep.time);
        self.add_processes(&sweep);
        self.add_cgroups(&sweep);
        self.delta = self.current.as_ref().map(|before| SweepDelta::between(before, &sweep));
        self.current = Some(sweep);
        for event in events.iter().filter(|it| is_notable(&it.event)) {
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(event.clone());
        }
    }

    fn add_processes(&mut self, sweep: &Sweep) {
        for process in &sweep.processes {
            let (_, is_pss) = memory_of(process, None);
            let series = self.processes.entry(process.key).or_insert_with(|| ProcessSeries {
                identity: process.identity.clone(),
                shown: program_name(&process.identity),
                memory: MemorySeries::default(),
                is_pss,
                rss_at_reading: None,
            });
            if series.is_pss != is_pss {
                // A series with both PSS and RSS would appear to grow or shrink.
                series.memory = MemorySeries::default();
                series.is_pss = is_pss;
            }
            if !Arc::ptr_eq(&series.identity, &process.identity) {
                series.shown = program_name(&process.identity);
                series.identity = process.identity.clone();
            }
            if matches!(process.pages, PagesReading::Now | PagesReading::Unchanged(_)) {
                series.rss_at_reading = Some(process.rss);
            }
            series.memory.push(memory_of(process, series.rss_at_reading).0);
        }
        self.processes.retain(|key, series| {
            if sweep.process(*key).is_none() {
                series.memory.push(GONE);
            }
            !series.memory.is_empty()
        });
    }

    fn add_cgroups(&mut self, sweep: &Sweep) {
        for cgroup in sweep.cgroups.iter().flatten() {
            let value = cgroup.current.as_ref().map_or(GONE, |bytes| bytes.0);
            self.cgroups.entry(cgroup.path.clone()).or_default().push(value);
        }
        self.cgroups.retain(|path, series| {
            if sweep.cgroup(path).is_none() {
                series.push(GONE);
            }
            !series.is_empty()
        });
    }

    /// Returns the last sweep.
    pub fn current(&self) -> Option<&Sweep> {
        self.current.as_deref()
    }

    /// Returns the change from the second-to-last sweep to the last sweep.
    pub fn delta(&self) -> Option<&SweepDelta> {
        self.delta.as_ref()
    }

    /// Returns the last events, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = &SweepEvent> {
        self.events.iter()
    }

    pub(super) fn process(&self, key: ProcessKey) -> Option<&ProcessSeries> {
        self.processes.get(&key)
    }

    /// Returns all processes of the last sweeps, including processes that have ended.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ProcessSeries> {
        self.processes.values()
    }

    pub(super) fn cgroup(&self, path: &Name) -> Option<&MemorySeries> {
        self.cgroups.get(path)
    }

    /// Growth in bytes per minute, from the oldest sample of the last minute to the last sample.
    pub(super) fn growth(&self, series: &MemorySeries) -> Reading<i64> {
        let missing = || Absent::NotCollected("growth needs two samples".into());
        let offset = self.times.len().saturating_sub(series.values.len());
        let now = self.times.back().ok_or_else(missing)?.boot_ns;
        let last = *series.values.back().filter(|&&value| value != GONE).ok_or_else(missing)?;
        let samples = self.times.iter().skip(offset).zip(&series.values);
        let mut earlier = samples
            .filter(|(time, value)| **value != GONE && time.boot_ns < now)
            .map(|(time, value)| (now - time.boot_ns, *value));
        let first = earlier.next().ok_or_else(missing)?;
        let (elapsed, value) = match first.0 <= GROWTH_NS {
            true => first,
            // If all earlier samples are older than [`GROWTH_NS`], the latest of them counts.
            false => earlier.fold(first, |best, sample| match best.0 <= GROWTH_NS {
                true => best,
                false => sample,
            }),
        };
        if elapsed < MIN_GROWTH_NS {
            return Err(Absent::NotCollected("growth needs samples of at least 5 s".into()));
        }
        let change = i128::from(last) - i128::from(value);
        let per_minute = change * i128::from(GROWTH_NS) / i128::from(elapsed.max(1));
        Ok(i64::try_from(per_minute).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX }))
    }
}

/// Returns PSS and true, or RSS and false if PSS is unknown.
///
/// If PSS is outdated, the result includes the change of RSS since PSS was read. The PSS of a large
/// process is seldom read. Without this change, a large process that grows would appear not to
/// grow.
fn memory_of(process: &SweepProcess, rss_at_reading: Option<Bytes>) -> (u64, bool) {
    let Ok(pss) = process.pss_total() else { return (process.rss.0, false) };
    let moved = match (process.pages, rss_at_reading) {
        (PagesReading::Postponed(_), Some(before)) => pss + process.rss - before,
        _ => pss,
    };
    (moved.0, true)
}

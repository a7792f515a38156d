//! Memory categories of recorded processes, which are read after the recorder's sweeps (a sweep is
//! one reading of all processes).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::thread::{JoinHandle, spawn};

use pagewise_analysis::sweeps;
use pagewise_model::Bytes;
use pagewise_model::sweep::{CategorySample, ProcessKey, Sweep, SweepProcess};
use pagewise_proc::ProcRoot;
use pagewise_proc::capture::{CaptureRequest, Wish, capture};

/// Number of the largest processes whose categories are read.
const LARGEST: usize = 20;
/// Number of the fastest growing processes whose categories are read.
const GROWING: usize = 10;
/// Minimum growth of a fast growing process since the last sample of the process.
const MIN_GROWTH: Bytes = Bytes::mib(1);
/// Time, in nanoseconds, in which the categories of all chosen processes are read once.
const ROUND_NS: u64 = 60_000_000_000;
/// A process with more resident memory than this is read in a thread of its own, and less often.
const LARGE: Bytes = Bytes::gib(1);
/// Time between two readings of a large process, in nanoseconds per GiB of its memory: reading a
/// GiB takes about 10 ms of CPU time.
const LARGE_GIB_EVERY_NS: u64 = 120_000_000_000;

/// Reads the categories of processes, a few processes after each sweep.
#[derive(Debug, Default)]
pub(super) struct CategoryRound {
    large_reader: LargeReader,
    /// Processes that are still to be read, the next one last.
    queue: Vec<ProcessKey>,
    per_sweep: usize,
    begun_ns: Option<u64>,
    /// Counters of each process at its last reading: a process whose counters are unchanged is not
    /// read again.
    read: HashMap<ProcessKey, CategoryMark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CategoryMark {
    rss: Bytes,
    faults: u64,
}

impl CategoryMark {
    const fn of(process: &SweepProcess) -> CategoryMark {
        CategoryMark {
            rss: process.rss,
            faults: process.minor_faults.saturating_add(process.major_faults),
        }
    }
}

/// Reads one large process at a time, in a thread of its own: the sleeps between two pieces of its
/// memory would delay the next sweep.
#[derive(Debug, Default)]
struct LargeReader {
    reading: Option<JoinHandle<Option<CategorySample>>>,
    /// Time at which the last reading of each process began, and the counters of the process at
    /// that time.
    begun: HashMap<ProcessKey, (u64, CategoryMark)>,
}

impl LargeReader {
    /// Takes the result of a reading that has ended, and begins the next one.
    fn step(
        &mut self,
        root: &ProcRoot,
        sweep: &Sweep,
        processes: &[&SweepProcess],
    ) -> Option<CategorySample> {
        if self.reading.as_ref().is_some_and(|it| !it.is_finished()) {
            return None;
        }
        let sample = self.reading.take().and_then(|it| it.join().ok()).flatten();
        self.begun.retain(|key, _| sweep.process(*key).is_some());
        let now = sweep.time.boot_ns;
        let next = processes.iter().find(|it| self.is_due(it, now));
        if let Some(process) = next {
            let (root, time, key) = (root.clone(), sweep.time, process.key);
            self.begun.insert(key, (now, CategoryMark::of(process)));
            self.reading = Some(spawn(move || {
                let categories = read_process(&root, key)?;
                Some(CategorySample { time, process: key, categories })
            }));
        }
        sample
    }

    fn is_due(&self, process: &SweepProcess, now_ns: u64) -> bool {
        let Some((at, mark)) = self.begun.get(&process.key) else { return true };
        let gib = process.rss.0 >> 30;
        let passed = now_ns.saturating_sub(*at);
        *mark != CategoryMark::of(process) && passed >= gib.saturating_mul(LARGE_GIB_EVERY_NS)
    }
}

impl CategoryRound {
    /// Reads the next processes of the queue.
    pub(super) fn read(
        &mut self,
        root: &ProcRoot,
        sweep: &Sweep,
        interval_ns: u64,
    ) -> Vec<CategorySample> {
        let now = sweep.time.boot_ns;
        if self.begun_ns.is_none_or(|at| now.saturating_sub(at) >= ROUND_NS) {
            self.begun_ns = Some(now);
            self.queue = self.chosen(sweep);
            self.queue.reverse();
            let sweeps = (ROUND_NS / interval_ns.max(1)).max(1);
            let sweeps = usize::try_from(sweeps).unwrap_or(usize::MAX);
            self.per_sweep = self.queue.len().div_ceil(sweeps);
            self.read.retain(|key, _| sweep.process(*key).is_some());
        }
        let mut samples = Vec::new();
        for _ in 0..self.per_sweep {
            let Some(key) = self.queue.pop() else { break };
            let Some(process) = sweep.process(key) else { continue };
            if let Some(categories) = read_process(root, key) {
                self.read.insert(key, CategoryMark::of(process));
                samples.push(CategorySample { time: sweep.time, process: key, categories });
            }
        }
        samples.extend(self.large_reader.step(root, sweep, &large_ones(sweep)));
        samples
    }

    /// Returns the largest processes, and the processes that grew most since their last reading.
    fn chosen(&self, sweep: &Sweep) -> Vec<ProcessKey> {
        let mut all: Vec<&SweepProcess> =
            sweep.processes.iter().filter(|it| !it.is_zombie()).collect();
        all.sort_by_key(|it| Reverse(it.pss_total().unwrap_or(it.rss)));
        let growth = |it: &SweepProcess| {
            let before = self.read.get(&it.key).map_or(it.rss, |mark| mark.rss);
            it.rss - before
        };
        let mut others: Vec<&SweepProcess> = all.split_off(all.len().min(LARGEST));
        others.retain(|it| growth(it) >= MIN_GROWTH);
        others.sort_by_key(|it| Reverse(growth(it)));
        others.truncate(GROWING);
        let all = all.into_iter().chain(others);
        let is_changed = |it: &&SweepProcess| {
            it.rss <= LARGE && self.read.get(&it.key) != Some(&CategoryMark::of(it))
        };
        all.filter(is_changed).map(|it| it.key).collect()
    }
}

pub(super) fn read_process(
    root: &ProcRoot,
    key: ProcessKey,
) -> Option<Vec<pagewise_model::sweep::CategoryBytes>> {
    let held = root.holding(key.pid).ok()?;
    let request = CaptureRequest { wish: Wish::Auto, sums: false, ..CaptureRequest::default() };
    let snapshot = capture(&held, key.pid, &request).ok()?;
    let is_same = snapshot.process.start_ticks == key.start_ticks;
    is_same.then(|| sweeps::categories(&snapshot).ok()).flatten()
}

/// Returns the processes above [`LARGE`], at most [`LARGEST`], in descending order of memory.
fn large_ones(sweep: &Sweep) -> Vec<&SweepProcess> {
    let is_large = |it: &&SweepProcess| it.rss > LARGE && !it.is_zombie();
    let mut large: Vec<&SweepProcess> = sweep.processes.iter().filter(is_large).collect();
    large.sort_by_key(|it| Reverse(it.rss));
    large.truncate(LARGEST);
    large
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use pagewise_sampler::{Sampler, SamplerOptions};

    use super::*;

    #[test]
    fn large_processes_are_read_beside_the_sweeps() {
        let root = ProcRoot::live();
        let sweep = Sampler::new(&root, SamplerOptions::default()).unwrap().sweep().unwrap().sweep;
        let ourselves = |it: &&SweepProcess| it.key.pid.0 == std::process::id();
        let key = sweep.processes.iter().find(ourselves).unwrap().key;
        let large = sweep.processes.iter().filter(ourselves).collect::<Vec<_>>();
        let mut reader = LargeReader::default();
        assert!(reader.step(&root, &sweep, &large).is_none(), "it has only begun");
        let sample = loop {
            if let Some(sample) = reader.step(&root, &sweep, &large) {
                break sample;
            }
            sleep(Duration::from_millis(5));
        };
        assert_eq!((sample.process, sample.time), (key, sweep.time));
        assert!(!sample.categories.is_empty());
        assert!(reader.reading.is_none(), "it has not changed since");
    }

    #[test]
    fn a_large_process_is_due_by_its_size() {
        let root = ProcRoot::live();
        let sweep = Sampler::new(&root, SamplerOptions::default()).unwrap().sweep().unwrap().sweep;
        let mut process = sweep.processes[0].clone();
        process.rss = Bytes::gib(4);
        let mut reader = LargeReader::default();
        assert!(reader.is_due(&process, 0), "it was never read");
        reader.begun.insert(process.key, (0, CategoryMark::of(&process)));
        assert!(!reader.is_due(&process, u64::MAX), "it has not changed");
        process.minor_faults += 1;
        assert!(!reader.is_due(&process, 4 * LARGE_GIB_EVERY_NS - 1));
        assert!(reader.is_due(&process, 4 * LARGE_GIB_EVERY_NS));
    }
}

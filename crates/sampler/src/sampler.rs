//! The sampler: sweeps, and the events between two sweeps.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewise_model::sweep::{
    GapReason, Sweep, SweepCgroup, SweepCost, SweepEvent, SweepEventKind, SweepMachine,
    SweepProcess, SweepTime,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, PageSize, Pid, Reading};
use pagewise_proc::page_sums::PageSumReader;
use pagewise_proc::quick_reader::QuickReader;
use pagewise_proc::stat::{self, PidStat};
use pagewise_proc::users::Users;
use pagewise_proc::{ProcError, ProcRoot, counters};
use pagewise_sys::system;

use crate::budget::PageBudget;
use crate::cgroups::TrackedCgroups;
use crate::process::{ProcessReader, SharedNames, TrackedProcess, TrackedTask};

/// CPU time that the first sweep may spend on the pages of large processes.
const FIRST_LARGE: Duration = Duration::from_millis(200);
/// Time over which CPU time for small processes accumulates. CPU time above that amount is moved to
/// the budget for large processes.
const SMALL_RESERVE: Duration = Duration::from_secs(30);
/// Maximum time between two complete readings of the cgroups. Cgroups are few, and a limit can
/// change without a change of the charged memory.
const MAX_CGROUP_REFRESH: Duration = Duration::from_secs(60);
/// Maximum difference in nanoseconds between the elapsed times of the wall clock and of the boot
/// clock that counts as adjustment. A larger difference means that the wall clock was set.
const CLOCK_TOLERANCE_NS: u64 = 1_000_000_000;
/// Number of intervals between two sweeps above which a gap is reported.
const GAP_INTERVALS: u32 = 3;

/// Limits of a sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Interval between two sweeps. A much longer time between two sweeps is reported as a gap
    /// event.
    pub interval: Duration,
    /// Fraction of one core's CPU time that may be spent on reading pages of processes.
    pub page_share: f64,
    /// Time after which an unchanged process or cgroup is read again.
    pub refresh: Duration,
    /// Maximum number of processes whose `stat` stays open, which makes the next reading cheaper.
    /// Each open file takes a page of kernel memory.
    pub held_files: usize,
}

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions {
            interval: Duration::from_secs(5),
            page_share: 0.003,
            refresh: Duration::from_secs(60),
            held_files: 512,
        }
    }
}

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepOutcome {
    /// The sweep.
    pub sweep: Sweep,
    /// Events since the previous sweep; empty in the first sweep.
    pub events: Vec<SweepEvent>,
}

/// Reads all processes and cgroups repeatedly.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    reader: ProcessReader,
    tasks: BTreeMap<Pid, TrackedTask>,
    held: usize,
    cgroups: TrackedCgroups,
    small: PageBudget,
    large: PageBudget,
    last: Option<LastSweep>,
    /// CPU time that the last sweep spent on reading pages.
    pages_cpu: Duration,
}

/// Values of the last sweep, with which the next sweep is compared to find events.
#[derive(Debug)]
struct LastSweep {
    time: SweepTime,
    machine: SweepMachine,
    cgroups: Reading<Vec<SweepCgroup>>,
}

/// Counts of the sweep in progress.
#[derive(Debug, Default)]
struct SweepTally {
    kernel_threads: u64,
    vanished: u64,
    hidden: u64,
    cost: SweepCost,
    started: u64,
    events: Vec<SweepEventKind>,
}

impl Sampler {
    /// Creates a sampler of a `/proc` tree. The first sweep reads everything.
    ///
    /// # Errors
    /// [`ProcError::Io`] if the tree does not exist.
    pub fn new(root: &ProcRoot, options: SamplerOptions) -> Result<Sampler, ProcError> {
        let page_bytes = system::page_size();
        let page_size = PageSize::new(page_bytes).expect("the kernel's page size is one");
        Ok(Sampler {
            reader: ProcessReader {
                root: root.clone(),
                files: QuickReader::new(root)?,
                pages: PageSumReader::new(page_size),
                users: Users::read(),
                names: SharedNames::default(),
                page_bytes,
                tick_ns: 1_000_000_000 / system::ticks_per_second().max(1),
                refresh_ns: nanoseconds(options.refresh),
                now_ns: 0,
                unix_ns: 0,
            },
            tasks: BTreeMap::new(),
            held: 0,
            cgroups: TrackedCgroups::new(root),
            small: PageBudget::new(options.page_share * 0.7, Duration::ZERO),
            large: PageBudget::new(options.page_share * 0.3, FIRST_LARGE),
            last: None,
            pages_cpu: Duration::ZERO,
            options,
        })
    }

    /// CPU time that the last sweep spent on reading pages of processes. On average over time it is
    /// at most [`SamplerOptions::page_share`]; one sweep may spend the CPU time that earlier sweeps
    /// did not spend.
    pub fn pages_cpu(&self) -> Duration {
        self.pages_cpu
    }

    /// Reads all processes and cgroups once.
    ///
    /// # Errors
    /// [`ProcError`] if the processes cannot be listed.
    pub fn sweep(&mut self) -> Result<SweepOutcome, ProcError> {
        let time = now();
        let cpu = system::thread_cpu_time();
        (self.reader.now_ns, self.reader.unix_ns) = (time.boot_ns, time.unix_ns);
        let passed = self.last.as_ref().map_or(0, |it| time.boot_ns - it.time.boot_ns);
        self.small.earn(Duration::from_nanos(passed));
        self.large.earn(Duration::from_nanos(passed));
        self.small.share_surplus(SMALL_RESERVE, &mut self.large);
        let mut tally = SweepTally::default();
        let is_first = self.last.is_none();
        // The counters are read before the processes are listed. A process that starts during the
        // sweep is then counted in the next sweep, which also lists it.
        let machine = counters::read(&mut self.reader.files);
        self.read_tasks(&mut tally)?;
        self.pages_cpu = Duration::ZERO;
        self.read_pages(is_first, &mut tally);
        let processes = self.processes();
        let has_unknown = processes
            .iter()
            .filter_map(|it| it.identity.cgroup.as_ref().ok())
            .any(|path| !self.cgroups.knows(path));
        let refresh_ns = nanoseconds(self.options.refresh.min(MAX_CGROUP_REFRESH));
        let cgroups = self.cgroups.read(time.boot_ns, refresh_ns, has_unknown);
        let events = self.events(time, &machine, &cgroups, &mut tally);
        self.last = Some(LastSweep { time, machine: machine.clone(), cgroups: cgroups.clone() });
        tally.cost.cpu_ns = nanoseconds(system::thread_cpu_time().saturating_sub(cpu));
        tally.cost.took_ns = now().boot_ns.saturating_sub(time.boot_ns);
        let sweep = Sweep {
            time,
            cost: tally.cost,
            processes,
            kernel_threads: tally.kernel_threads,
            vanished: tally.vanished,
            hidden: tally.hidden,
            cgroups,
            machine,
        };
        Ok(SweepOutcome { sweep, events })
    }

    fn processes(&self) -> Vec<SweepProcess> {
        let processes = self.tasks.values().filter_map(|task| match task {
            TrackedTask::Process(process) => Some(process.values.clone()),
            TrackedTask::KernelThread | TrackedTask::Hidden => None,
        });
        processes.collect()
    }

    /// Reads `stat` of all processes, and removes processes that have ended.
    fn read_tasks(&mut self, tally: &mut SweepTally) -> Result<(), ProcError> {
        let pids = self.reader.root.pids()?;
        let ended: Vec<Pid> =
            self.tasks.keys().filter(|pid| pids.binary_search(pid).is_err()).copied().collect();
        for pid in ended {
            self.forget(pid, tally);
        }
        for pid in pids {
            self.read_task(pid, tally);
        }
        Ok(())
    }

    fn read_task(&mut self, pid: Pid, tally: &mut SweepTally) {
        let mut task = self.tasks.remove(&pid);
        if let Some(TrackedTask::Process(process)) = &mut task {
            let read = match &process.stat {
                Some(file) => self.reader.files.again(file),
                None => self.reader.files.read(pid, "stat"),
            };
            match read.map(stat::parse) {
                Ok(Ok(stat)) if stat.start_ticks == process.values.key.start_ticks => {
                    process.update(&mut self.reader, &stat);
                    process.refresh(&mut self.reader, &stat);
                    self.tasks.extend(task.map(|task| (pid, task)));
                    return;
                }
                _ => self.note_end(process, tally),
            }
        }
        match self.first_reading(pid) {
            Some(task) => {
                match &task {
                    TrackedTask::Process(process) => self.note_start(process, tally),
                    TrackedTask::KernelThread => tally.kernel_threads += 1,
                    TrackedTask::Hidden => tally.hidden += 1,
                }
                self.tasks.insert(pid, task);
            }
            None => tally.vanished += 1,
        }
    }

    /// Reads a process or kernel thread for the first time; `None` if it has ended meanwhile.
    fn first_reading(&mut self, pid: Pid) -> Option<TrackedTask> {
        let file = match self.reader.files.open(pid, "stat") {
            Ok(file) => file,
            Err(Absent::NotPermitted(_)) => return Some(TrackedTask::Hidden),
            Err(_) => return None,
        };
        let stat: PidStat = stat::parse(self.reader.files.again(&file).ok()?).ok()?;
        if stat.is_kernel_thread() {
            return Some(TrackedTask::KernelThread);
        }
        let is_held = self.held < self.options.held_files;
        self.held += usize::from(is_held);
        let file = is_held.then_some(file);
        Some(TrackedTask::Process(Box::new(TrackedProcess::new(
            &mut self.reader,
            pid,
            &stat,
            file,
        ))))
    }

    fn forget(&mut self, pid: Pid, tally: &mut SweepTally) {
        if let Some(TrackedTask::Process(process)) = self.tasks.remove(&pid) {
            self.note_end(&process, tally);
        }
    }

    fn note_start(&self, process: &TrackedProcess, tally: &mut SweepTally) {
        tally.started += 1;
        if self.last.is_some() {
            tally.events.push(SweepEventKind::Started {
                process: process.values.key,
                name: process.values.identity.name.clone(),
            });
        }
    }

    fn note_end(&mut self, process: &TrackedProcess, tally: &mut SweepTally) {
        self.held -= usize::from(process.stat.is_some());
        let values = &process.values;
        let last_ns = self.last.as_ref().map_or(self.reader.now_ns, |it| it.time.boot_ns);
        let started_ns = values.key.start_ticks.saturating_mul(self.reader.tick_ns);
        tally.events.push(SweepEventKind::Exited {
            process: values.key,
            name: values.identity.name.clone(),
            peak_rss: values.peak_rss.clone().map(|peak| peak.max(values.rss)),
            last_rss: values.rss,
            lived_ns: last_ns.saturating_sub(started_ns),
        });
    }

    /// Reads pages within the budget: first the pages of changed processes, in order of the age of
    /// their last reading (oldest first), then the pages of processes that are due.
    fn read_pages(&mut self, is_first: bool, tally: &mut SweepTally) {
        let mut queue: Vec<(bool, Option<u64>, bool, Pid)> = Vec::new();
        for (pid, task) in &self.tasks {
            if let TrackedTask::Process(process) = task
                && (process.is_stale || process.is_due)
            {
                queue.push((!process.is_stale, process.pages_ns, process.is_large(), *pid));
            }
        }
        queue.sort_unstable();
        for (is_unchanged, _, is_large, pid) in queue {
            let Some(TrackedTask::Process(process)) = self.tasks.get_mut(&pid) else { continue };
            let expected = process.expected_cost(self.reader.page_bytes);
            let budget = if is_large { &mut self.large } else { &mut self.small };
            let may = match is_large {
                true => budget.allows(expected),
                false => is_first || budget.has_left(),
            };
            if !may {
                process.postpone();
                tally.cost.postponed += u64::from(!is_unchanged);
                continue;
            }
            let reader = &mut self.reader;
            let (hold, cost) = budget.meter(|| process.read_pages(reader));
            process.note_cost(cost);
            self.pages_cpu += cost;
            tally.cost.pages_read += 1;
            tally.cost.longest_hold_ns = tally.cost.longest_hold_ns.max(hold);
        }
        if is_first {
            // The CPU time of the first sweep does not reduce the budget of the next sweeps.
            self.small = PageBudget::new(
                self.options.page_share * 0.7,
                self.options.interval.mul_f64(self.options.page_share),
            );
            self.large.forget_excess();
        }
    }

    fn events(
        &self,
        time: SweepTime,
        machine: &SweepMachine,
        cgroups: &Reading<Vec<SweepCgroup>>,
        tally: &mut SweepTally,
    ) -> Vec<SweepEvent> {
        let Some(last) = &self.last else { return Vec::new() };
        let mut events = std::mem::take(&mut tally.events);
        if let (Ok(before), Ok(after)) = (&last.machine.forks, &machine.forks) {
            let created = after.saturating_sub(*before);
            let count = created.saturating_sub(tally.started);
            if count > 0 {
                events.push(SweepEventKind::ShortLived { count });
            }
        }
        let kills = limit_events(&last.cgroups, cgroups, &mut events);
        let all = |machine: &SweepMachine| machine.counter("oom_kill").unwrap_or(0);
        let of_machine = all(machine).saturating_sub(all(&last.machine));
        if of_machine > kills {
            events.push(SweepEventKind::OomKill { cgroup: None, kills: of_machine - kills });
        }
        events.extend(clock_events(last.time, time, self.options.interval));
        events.into_iter().map(|event| SweepEvent { time, event }).collect()
    }
}

/// Reports limit hits and OOM kills of cgroups that are in both sweeps. Returns the number of OOM
/// kills.
fn limit_events(
    before: &Reading<Vec<SweepCgroup>>,
    after: &Reading<Vec<SweepCgroup>>,
    events: &mut Vec<SweepEventKind>,
) -> u64 {
    let (Ok(before), Ok(after)) = (before, after) else { return 0 };
    let mut all = 0;
    for new in after {
        let Ok(at) = before.binary_search_by(|it| it.path.cmp(&new.path)) else { continue };
        let old = &before[at];
        let grown = |before: &Reading<u64>, after: &Reading<u64>| match (before, after) {
            (Ok(before), Ok(after)) => after.saturating_sub(*before),
            _ => 0,
        };
        let kills = grown(&old.oom_kills, &new.oom_kills);
        let hits = grown(&old.limit_hits, &new.limit_hits);
        if hits > 0 {
            let (cgroup, limit) = (new.path.clone(), new.limit.clone());
            events.push(SweepEventKind::LimitHit { cgroup, hits, limit });
        }
        if kills > 0 {
            all += kills;
            events.push(SweepEventKind::OomKill { cgroup: Some(new.path.clone()), kills });
        }
    }
    all
}

/// Reports a clock that was set, and a time without sweeps.
fn clock_events(before: SweepTime, after: SweepTime, interval: Duration) -> Vec<SweepEventKind> {
    let mut events = Vec::new();
    let passed = after.boot_ns.saturating_sub(before.boot_ns);
    let expected = before.unix_ns.saturating_add(passed);
    if after.unix_ns.abs_diff(expected) > CLOCK_TOLERANCE_NS {
        let by_ns = i128::from(after.unix_ns) - i128::from(expected);
        let by_ns = i64::try_from(by_ns).unwrap_or(if by_ns < 0 { i64::MIN } else { i64::MAX });
        events.push(SweepEventKind::ClockSet { by_ns });
    }
    if passed > nanoseconds(interval.saturating_mul(GAP_INTERVALS)) {
        events.push(SweepEventKind::Gap { from: before, reason: GapReason::Delayed });
    }
    events
}

fn now() -> SweepTime {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    SweepTime { unix_ns: nanoseconds(unix), boot_ns: nanoseconds(system::since_boot()) }
}

#[cfg(test)]
mod tests {
    use pagewise_model::Bytes;

    use super::*;

    #[test]
    fn a_clock_that_was_set_is_an_event_and_an_adjusted_one_is_not() {
        let second = 1_000_000_000;
        let at =
            |unix: u64, boot: u64| SweepTime { unix_ns: unix * second, boot_ns: boot * second };
        let interval = Duration::from_secs(5);
        assert!(clock_events(at(100, 10), at(105, 15), interval).is_empty());
        let back = clock_events(at(100, 10), at(45, 15), interval);
        assert_eq!(back, [SweepEventKind::ClockSet { by_ns: -60_000_000_000 }]);
        let late = clock_events(at(100, 10), at(200, 110), interval);
        assert!(matches!(late[..], [SweepEventKind::Gap { .. }]), "{late:?}");
    }

    #[test]
    fn limit_hits_are_those_since_the_last_sweep() {
        let group = |hits, kills| SweepCgroup {
            path: "/a".into(),
            current: Ok(Bytes(1)),
            peak: Err(Absent::Vanished),
            limit: Ok(Some(Bytes(9))),
            swap: Err(Absent::Vanished),
            usage: Err(Absent::Vanished),
            limit_hits: Ok(hits),
            oom_kills: kills,
            pressure: Err(Absent::Vanished),
        };
        let mut events = Vec::new();
        let before = Ok(vec![group(3, Ok(1))]);
        assert_eq!(limit_events(&before, &Ok(vec![group(5, Ok(2))]), &mut events), 1);
        let hit =
            SweepEventKind::LimitHit { cgroup: "/a".into(), hits: 2, limit: Ok(Some(Bytes(9))) };
        let kill = SweepEventKind::OomKill { cgroup: Some("/a".into()), kills: 1 };
        assert_eq!(events, [hit, kill]);
        events.clear();
        limit_events(&before, &Ok(vec![group(3, Err(Absent::Vanished))]), &mut events);
        assert!(events.is_empty());
    }
}

//! The order of the instruments, and the conditions that make each instrument worth its cost.

use std::mem;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_model::evidence::{
    ActivityPoint, AllocationProfile, AllocationSizes, CpuWaits, DiagnosisCost, EVIDENCE_VERSION,
    Evidence, Gathered, Instrument, MachinePoint, MemoryRecheck, ZeroSample,
};
use pagewise_model::heap_sample::{HeapSample, MemoryExcerpt};
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::thp::{HugePageLook, HugePages};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, PageSize, Pid, Reading, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture, ksm_stat, resident};
use pagewise_proc::cgroup::WatchedCgroup;
use pagewise_proc::memory_files::MemoryFiles;
use pagewise_proc::others::ProcessSizes;
use pagewise_proc::pages::Pace;
use pagewise_proc::run_queue::RunQueueTimes;
use pagewise_proc::{
    ProcError, ProcRoot, activity, huge, huge_flags, machine_activity, status, zero_pages,
};
use pagewise_scan::{recheck, sample};

use crate::budget::CostMeter;
use crate::collector::CollectorWatch;
use crate::recordings::{CallsRunning, FaultsRunning, RecordingSlot, ShootdownsRunning};
use crate::stacks;
use crate::{DiagnosisRequest, RecorderConsent, recordings, scan};

/// Interval of the readings of the counters.
const INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the ring buffers of recordings are read.
const TURN: Duration = Duration::from_millis(20);
/// Maximum sleep if no recording is in progress.
const IDLE_TURN: Duration = Duration::from_millis(100);
/// Minimum time from the first snapshot to the end of the observation, as a share of the requested
/// duration.
const MIN_WATCHED: f64 = 0.75;
/// Time before the first decision on recordings, and between later decisions. The later decisions
/// can begin a recording of a problem that occurs only now and then.
const TRIAGE: Duration = Duration::from_millis(1000);
/// Minimum time from the beginning of a recording to the end of the observation: a shorter
/// recording has too few events.
const MIN_RECORDING: Duration = Duration::from_millis(1500);
/// Maximum duration of each recording of page faults or of shootdowns.
const MAX_RECORDING: Duration = Duration::from_secs(4);
/// Minimum number of page faults per second that makes a recording worth its cost.
const MANY_FAULTS: f64 = 50.0;
/// Minimum number of TLB shootdowns per second that makes a recording worth its cost.
const MANY_SHOOTDOWNS: f64 = 300.0;
/// Minimum share of a CPU that the process spends in the kernel, for its system calls to be worth a
/// recording.
const MUCH_SYSTEM_TIME: f64 = 0.02;
/// CPU time in nanoseconds that the recording of one page fault takes.
const FAULT_COST_NS: f64 = 2000.0;
/// Maximum share of a CPU that the recording of page faults may take.
const RECORDING_SHARE: f64 = 0.005;
/// Minimum number of unreachable bytes for a search of the functions that allocate such blocks.
const MANY_LEAKED: u64 = 512 << 10;
/// Minimum free memory of the heap at the beginning for later samples: the program may use this
/// memory again and again.
const MUCH_FREE: Bytes = Bytes::mib(16);
/// Times of these samples as shares of the duration. The intervals are unequal, so that the samples
/// do not follow the period of the program's work.
const TIMES_OF_SAMPLES: [f64; 6] = [0.13, 0.29, 0.41, 0.58, 0.71, 0.87];
/// Duration of the recording of allocations, which begins after the observation.
const RECORDING_OF_ALLOCATIONS: Duration = Duration::from_secs(3);
/// Minimum and maximum duration of the recording of the sizes of allocations. Its duration is a
/// quarter of the observation within these bounds, and prolongs the diagnosis.
const RECORDING_OF_SIZES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// Minimum growth of the private memory for which the user is asked for permission to load the
/// recorder of allocations.
const WANTED_GROWTH: Bytes = Bytes::mib(1);
/// Minimum size of the huge pages for a sample: smaller ones cannot waste much.
const MUCH_HUGE: Bytes = Bytes::mib(8);
/// Maximum number of base pages of huge pages that are read.
const HUGE_SAMPLE: u64 = 4000;

/// Rates per second by which recordings are chosen. `system_share` and `shootdowns` are
/// extrapolated to a machine whose CPUs are free; `faults` is the measured rate.
struct TriageRates {
    faults: f64,
    has_major_faults: bool,
    /// CPU time in the kernel as a share of one CPU.
    system_share: f64,
    /// TLB shootdowns of the machine; `None` if the kernel does not count them.
    shootdowns: Option<f64>,
    has_threads: bool,
    /// Factor by which rates are higher on a machine whose CPUs are free.
    demand: f64,
}

/// A diagnosis in progress.
pub(crate) struct Diagnosis<'a> {
    root: &'a ProcRoot,
    pid: Pid,
    request: &'a DiagnosisRequest<'a>,
    began: Instant,
    meter: CostMeter,
    page_size: PageSize,
    first: Snapshot,
    machine: MachinePoint,
    sizes: ProcessSizes,
    memory_files: MemoryFiles,
    cgroup: Reading<WatchedCgroup>,
    collector: CollectorWatch,
    points: Vec<ActivityPoint>,
    heap_samples: Vec<HeapSample>,
    run_queue: Reading<RunQueueTimes>,
    faults: RecordingSlot<FaultsRunning>,
    shootdowns: RecordingSlot<ShootdownsRunning>,
    calls: RecordingSlot<CallsRunning>,
    interrupted: bool,
}

impl<'a> Diagnosis<'a> {
    /// Applies the instruments that read the process at one time point, and begins the observation.
    pub(crate) fn begin(
        root: &'a ProcRoot,
        pid: Pid,
        request: &'a DiagnosisRequest<'a>,
        began: Instant,
    ) -> Result<Diagnosis<'a>, ProcError> {
        let mut meter = CostMeter::new(request.budget);
        (request.progress)(Instrument::Snapshot);
        let first = meter.measure(Instrument::Snapshot, || snapshot(root, pid))?;
        let page_size = first.provenance.page_size;
        let collector = meter.measure(Instrument::Collector, || {
            let mut watch = CollectorWatch::begin(root, &first);
            let pause = watch.step(root, &first, began);
            (watch, pause)
        });
        let at = |began: Instant| nanoseconds(began.elapsed());
        Ok(Diagnosis {
            root,
            pid,
            request,
            began,
            meter,
            page_size,
            first,
            machine: machine_activity::point(root, at(began)),
            sizes: ProcessSizes::read(root, page_size),
            memory_files: MemoryFiles::read(root, pid),
            cgroup: WatchedCgroup::begin(root, pid),
            collector,
            points: activity::point(root, pid, page_size, at(began)).into_iter().collect(),
            heap_samples: Vec::new(),
            run_queue: RunQueueTimes::read(root, pid),
            faults: RecordingSlot::NotBegun,
            shootdowns: RecordingSlot::NotBegun,
            calls: RecordingSlot::NotBegun,
            interrupted: false,
        })
    }

    /// Adds `ksm_stat` to the latest snapshot if KSM runs on the machine. Without KSM, the file has
    /// no evidence, and the kernel's walk of all mappings is avoided.
    fn add_ksm(&mut self, machine: &MachinePoint, last: Option<&mut Snapshot>) {
        let runs = machine.ksm.iter().any(|it| it.name.as_bytes() == b"run" && it.count == 1);
        if runs {
            last.unwrap_or(&mut self.first).ksm = ksm_stat(self.root, self.pid);
        }
    }

    /// Watches the process, applies the last instruments, and returns the evidence.
    pub(crate) fn finish(mut self) -> Result<Evidence, ProcError> {
        (self.request.progress)(Instrument::Activity);
        self.watch();
        let cpu_waits = Gathered::from(self.cpu_waits());
        let faults = self.faults.finish();
        let shootdowns = self.shootdowns.finish();
        let calls = self.calls.finish();
        let machine = machine_activity::point(self.root, nanoseconds(self.began.elapsed()));
        let huge_pages = self.huge_pages();
        let zero_pages = self.zero_pages();
        (self.request.progress)(Instrument::Stacks);
        let (root, first) = (self.root, &self.first);
        let stacks = self.meter.measure(Instrument::Stacks, || stacks::read(root, first)).into();
        let others = self.sizes.largest_others(self.root, self.page_size, self.pid);
        let memory_files = MemoryFiles::read(self.root, self.pid).since(&self.memory_files);
        let mut last = self.last_snapshot();
        self.add_ksm(&machine, last.value_mut().map(|last| &mut **last));
        let free_recheck = self.free_recheck();
        let mut scan = match last.missing() {
            None => self.scan(last.value().map(|last| &**last)),
            Some(_) => Gathered::NotNeeded,
        };
        let leaked = scan.value_mut().and_then(|scan| scan.graph.as_mut());
        let leaked = leaked.map(|graph| mem::take(&mut graph.leak_sample)).unwrap_or_default();
        let scanned = Instant::now();
        let allocation_sizes = self.allocation_sizes(scan.value().map(|scan| &**scan));
        let leak_recheck = self.leak_recheck(scan.value().map(|scan| &**scan), &leaked, scanned);
        let allocations = self.allocations(&allocation_sizes);
        let runs = self.meter.runs();
        let pauses = runs.iter().map(|run| run.pause_ns);
        let cost = DiagnosisCost {
            cpu_ns: nanoseconds(self.meter.spent()),
            longest_pause_ns: pauses.max().unwrap_or(0),
            wall_ns: nanoseconds(self.began.elapsed()),
            cpu_budget_ns: nanoseconds(self.request.budget.cpu),
            pause_budget_ns: nanoseconds(self.request.budget.pause),
            interrupted: self.interrupted,
            runs: runs.to_vec(),
        };
        Ok(Evidence {
            pagewise_evidence: EVIDENCE_VERSION,
            first: self.first,
            last,
            activity: self.points,
            cpu_waits,
            machine: [self.machine, machine],
            others,
            memory_files,
            cgroup: self.cgroup.map(WatchedCgroup::finish),
            stacks,
            huge_pages,
            zero_pages,
            collector: self.collector.finish(),
            scan,
            leak_recheck,
            free_recheck,
            heap_samples: self.heap_samples,
            allocation_sizes,
            faults,
            shootdowns,
            calls,
            allocations,
            cost,
        })
    }

    /// Takes the second snapshot; returns `NotNeeded` if a snapshot is costly and the process
    /// hardly changed.
    fn last_snapshot(&mut self) -> Gathered<Box<Snapshot>> {
        let (root, pid, max_pause) = (self.root, self.pid, self.request.budget.pause);
        if self.is_unchanged() {
            let first = &mut self.first;
            self.meter
                .measure(Instrument::Snapshot, || ((), huge_flags::add(root, first, max_pause)));
            return Gathered::NotNeeded;
        }
        (self.request.progress)(Instrument::Snapshot);
        let last = self.meter.measure(Instrument::Snapshot, || {
            let (mut read, pause) = snapshot(root, pid);
            let add = |read: &mut Snapshot| huge_flags::add(root, read, max_pause);
            let flags = read.as_mut().map_or(Duration::ZERO, add);
            (read, pause.max(flags))
        });
        match last {
            Ok(last) => Gathered::Value(Box::new(last)),
            Err(ProcError::NoSuchProcess { .. }) => Gathered::Missing(Absent::Vanished),
            Err(error) => Gathered::Missing(Absent::NotSupported(error.to_string().into())),
        }
    }

    /// True if a snapshot is costly, and the sizes of the process hardly changed since the first
    /// snapshot.
    fn is_unchanged(&self) -> bool {
        const LARGE_PART: u64 = 4;
        let took = self.meter.runs().first().map_or(0, |run| run.cpu_ns);
        let is_costly = took > nanoseconds(self.request.budget.cpu) / LARGE_PART;
        match self.points.as_slice() {
            [first, .., last] => {
                (is_costly || first.resident >= LARGE_PROCESS) && changes_little(first, last)
            }
            [_] | [] => false,
        }
    }

    /// Reads the counters until the observation is over, and runs the recordings.
    fn watch(&mut self) {
        // On a busy machine, the first snapshot can take as long as the requested duration. The end
        // moves so that the counters are still watched for a minimum time.
        let begin = Instant::now();
        let duration = self.request.duration;
        let end = (self.began + duration).max(begin + duration.mul_f64(MIN_WATCHED));
        let mut next = begin + INTERVAL;
        let mut samples = self.times_of_samples().into_iter().peekable();
        let mut decision = begin + TRIAGE.min(duration / 4);
        loop {
            self.interrupted = (self.request.is_interrupted)();
            let now = Instant::now();
            if self.interrupted || now >= end {
                return;
            }
            if now >= next {
                self.collector.step(self.root, &self.first, self.began);
                next += INTERVAL;
                let at = nanoseconds(self.began.elapsed());
                match activity::point(self.root, self.pid, self.page_size, at) {
                    Ok(point) => self.points.push(point),
                    // The process has ended.
                    Err(_) => return,
                }
            }
            if now >= decision && self.points.len() > 1 {
                decision = now + TRIAGE;
                self.begin_recordings(end);
            }
            if samples.next_if(|due| now >= *due).is_some() {
                self.sample_heap();
            }
            let turn = if self.step_recordings() { TURN } else { IDLE_TURN };
            let due = next.min(end);
            sleep(turn.min(due.saturating_duration_since(Instant::now())));
        }
    }

    /// Returns the times of the later samples of the heap; none if its first sample shows little
    /// free memory.
    fn times_of_samples(&self) -> Vec<Instant> {
        let is_wanted = self.first.heap_sample.as_ref().is_ok_and(has_much_free);
        let times = TIMES_OF_SAMPLES.iter().filter(|_| is_wanted);
        times.map(|share| self.began + self.request.duration.mul_f64(*share)).collect()
    }

    /// Samples the heap again. Later snapshots cannot replace these samples: a program can allocate
    /// and free much of its heap several times between two snapshots.
    fn sample_heap(&mut self) {
        if self.meter.left() < self.request.budget.cpu / 2 {
            return;
        }
        let (root, first) = (self.root, &self.first);
        let sample = self.meter.measure(Instrument::Snapshot, || {
            let sample = sample::again(root, first);
            let pause = sample.as_ref().map_or(0, |sample| sample.longest_hold_ns);
            (sample, Duration::from_nanos(pause))
        });
        self.heap_samples.extend(sample);
    }

    /// Returns the rates of the process since the first reading; `None` if the process was read
    /// only once.
    fn rates(&self) -> Option<TriageRates> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let span = Duration::from_nanos(last.at_ns.checked_sub(first.at_ns)?);
        let seconds = span.as_secs_f64();
        let rate = |count: u64| to_float(count) / seconds;
        let major = last.major_faults.saturating_sub(first.major_faults);
        let flushed = self.machine.shootdowns.zip(machine_activity::shootdowns(self.root));
        // A process that waits for CPUs does all its work less often, so its rates are multiplied
        // by `demand`.
        let demand = self.cpu_waits().map_or(1.0, |waits| waits.demand());
        let demanded = |count: u64| rate(count) * demand;
        (seconds > 0.0).then(|| TriageRates {
            faults: rate(last.minor_faults.saturating_sub(first.minor_faults) + major),
            has_major_faults: major > 0,
            system_share: demanded(last.system_ns.saturating_sub(first.system_ns)) / 1e9,
            shootdowns: flushed.map(|(before, after)| demanded(after.saturating_sub(before))),
            has_threads: last.threads > 1,
            demand,
        })
    }

    /// Returns the CPU time of the threads, and their waits for CPUs, since the beginning of the
    /// diagnosis.
    fn cpu_waits(&self) -> Reading<CpuWaits> {
        let before = self.run_queue.as_ref().map_err(Clone::clone)?;
        Ok(RunQueueTimes::read(self.root, self.pid)?.since(before))
    }

    /// Begins the recordings that the counters make worth their cost, and that have not begun.
    fn begin_recordings(&mut self, end: Instant) {
        let now = Instant::now();
        let until = end.min(now + MAX_RECORDING);
        let has_time =
            end.saturating_duration_since(now) >= MIN_RECORDING.min(self.request.duration / 2);
        let Some(rates) = self.rates().filter(|_| has_time) else { return };
        let faults_often = rates.faults * rates.demand >= MANY_FAULTS;
        if self.faults.is_free() && (faults_often || rates.has_major_faults) {
            (self.request.progress)(Instrument::Faults);
            let every = (rates.faults * FAULT_COST_NS / 1e9 / RECORDING_SHARE).ceil().max(1.0);
            self.faults.fill(FaultsRunning::begin(self.pid, to_count(every)), until);
        }
        let has_calls = faults_often || rates.system_share >= MUCH_SYSTEM_TIME;
        if self.calls.is_free() && has_calls {
            (self.request.progress)(Instrument::Calls);
            self.calls.fill(CallsRunning::begin(self.pid), end);
        }
        let are_many = || rates.shootdowns.is_none_or(|flushes| flushes >= MANY_SHOOTDOWNS);
        if self.shootdowns.is_free() && rates.has_threads && are_many() {
            (self.request.progress)(Instrument::Shootdowns);
            self.shootdowns.fill(ShootdownsRunning::begin(self.pid), until);
        }
    }

    /// Reads the events of the recordings in progress. False if no recording is in progress.
    fn step_recordings(&mut self) -> bool {
        let running = [self.calls.step(), self.faults.step(), self.shootdowns.step()];
        running.contains(&true)
    }

    /// Scans the heap with the reachability of its blocks, if reachability matters and the budget
    /// permits it.
    fn scan(&mut self, last: Option<&Snapshot>) -> Gathered<Box<HeapScan>> {
        let (left, pause) = (self.meter.left(), self.request.budget.pause);
        let Ok(mappings) = &last.unwrap_or(&self.first).mappings else {
            return Gathered::NotNeeded;
        };
        let chosen = match scan::decide(mappings, &self.points, left, pause) {
            Ok(Some(chosen)) if !self.interrupted => chosen,
            Ok(_) => return Gathered::NotNeeded,
            Err(why) => return Gathered::Missing(why),
        };
        (self.request.progress)(Instrument::HeapScan);
        let request = self.request;
        self.meter.measure(Instrument::HeapScan, || {
            let scan = (request.scan)(chosen.first);
            // The scan predicts the pause of a stopped process again, from the measured speed of
            // its copy. If the predicted pause is too long, it refuses to run.
            let scan = match (scan, chosen.otherwise) {
                (Err(_), Some(otherwise)) => (request.scan)(otherwise),
                (scan, _) => scan,
            };
            let pause = Duration::from_nanos(scan.as_ref().map_or(0, |scan| scan.copy.pause_ns));
            let scan = scan.and_then(|scan| match scan::unseen_heap(&scan.heap, mappings) {
                Some(why) => Err(why),
                None => Ok(Box::new(scan)),
            });
            (Gathered::from(scan), pause)
        })
    }

    /// Records the sizes of allocations, if many blocks are unreachable: the sizes of these blocks
    /// identify the functions that allocate them.
    fn allocation_sizes(&mut self, scan: Option<&HeapScan>) -> Gathered<AllocationSizes> {
        if self.interrupted || !has_many_leaks(scan) {
            return Gathered::NotNeeded;
        }
        (self.request.progress)(Instrument::AllocationSizes);
        let (pid, request) = (self.pid, self.request);
        let max_time = self.time_of_sizes();
        self.meter.measure(Instrument::AllocationSizes, || {
            (recordings::allocation_sizes(pid, max_time, request.is_interrupted), Duration::ZERO)
        })
    }

    /// Reads free pages of the first heap sample again, if there was much free memory: the program
    /// may have used it meanwhile.
    fn free_recheck(&mut self) -> Gathered<MemoryRecheck> {
        let Ok(sample) = self.first.heap_sample.as_mut() else { return Gathered::NotNeeded };
        let pages = mem::take(&mut sample.free_pages);
        if !has_much_free(sample) || pages.is_empty() {
            return Gathered::NotNeeded;
        }
        let (root, first, after) = (self.root, &self.first, nanoseconds(self.began.elapsed()));
        self.meter.measure(Instrument::Snapshot, || with_pause(recheck(root, first, &pages, after)))
    }

    /// Reads some of the leaked blocks again, as long after the scan as the recording of allocation
    /// sizes takes: a program cannot change blocks that it has lost.
    fn leak_recheck(
        &mut self,
        scan: Option<&HeapScan>,
        leaked: &[MemoryExcerpt],
        scanned: Instant,
    ) -> Gathered<MemoryRecheck> {
        if leaked.is_empty() || !has_many_leaks(scan) {
            return Gathered::NotNeeded;
        }
        let due = scanned + self.time_of_sizes();
        while Instant::now() < due && !(self.request.is_interrupted)() {
            sleep(IDLE_TURN.min(due.saturating_duration_since(Instant::now())));
        }
        let (root, first) = (self.root, &self.first);
        self.meter.measure(Instrument::HeapScan, || {
            with_pause(recheck(root, first, leaked, nanoseconds(scanned.elapsed())))
        })
    }

    /// Duration of the recording of the sizes of allocations.
    fn time_of_sizes(&self) -> Duration {
        let [shortest, longest] = RECORDING_OF_SIZES;
        (self.request.duration / 4).clamp(shortest, longest)
    }

    /// Records allocations by call stack, if the user permits a recorder in the process.
    fn allocations(&mut self, sizes: &Gathered<AllocationSizes>) -> Gathered<AllocationProfile> {
        let request = self.request;
        let is_permitted = !self.interrupted
            && match request.recorder {
                RecorderConsent::Given => true,
                RecorderConsent::Refused => false,
                RecorderConsent::Asked(ask) => {
                    sizes.value().is_none() && grows(&self.points) && ask()
                }
            };
        if !is_permitted {
            return Gathered::NotNeeded;
        }
        (request.progress)(Instrument::Allocations);
        self.meter.measure(Instrument::Allocations, || {
            let (profile, pause) = (request.record)(RECORDING_OF_ALLOCATIONS);
            (Gathered::from(profile), pause)
        })
    }

    /// Samples the contents of huge pages, if the process has many.
    fn huge_pages(&mut self) -> Gathered<HugePages> {
        let Ok(mappings) = &self.first.mappings else { return Gathered::NotNeeded };
        let huge: Bytes = mappings.iter().filter_map(|it| it.anon_huge().ok()).sum();
        if huge < MUCH_HUGE {
            return Gathered::NotNeeded;
        }
        (self.request.progress)(Instrument::HugePages);
        let look = HugePageLook::Sample(HUGE_SAMPLE);
        let (root, pid, page_size) = (self.root, self.pid, self.page_size);
        self.meter.measure(Instrument::HugePages, || {
            let read = huge::scan(root, pid, mappings, page_size, look, &Pace::POLITE);
            let read: Reading<HugePages> = match read {
                Ok(read) => read,
                Err(error) => Err(Absent::NotSupported(error.to_string().into())),
            };
            let pause = read.as_ref().map_or(0, |read| read.longest_hold_ns);
            (Gathered::from(read), Duration::from_nanos(pause))
        })
    }

    /// Samples the contents of large anonymous mappings.
    fn zero_pages(&mut self) -> Gathered<Vec<ZeroSample>> {
        let Ok(mappings) = &self.first.mappings else { return Gathered::NotNeeded };
        let (root, pid, page_size) = (self.root, self.pid, self.page_size);
        self.meter.measure(Instrument::ZeroPages, || {
            match zero_pages::sample(root, pid, mappings, page_size) {
                Ok(Ok((samples, longest))) => {
                    (Gathered::Value(samples), Duration::from_nanos(longest))
                }
                Ok(Err(why)) => (Gathered::Missing(why), Duration::ZERO),
                Err(error) => {
                    let why = Absent::NotSupported(error.to_string().into());
                    (Gathered::Missing(why), Duration::ZERO)
                }
            }
        })
    }
}

/// Separates the longest pause of the process from a result.
fn with_pause<T>(found: Reading<(T, Duration)>) -> (Gathered<T>, Duration) {
    match found {
        Ok((value, pause)) => (Gathered::Value(value), pause),
        Err(why) => (Gathered::Missing(why), Duration::ZERO),
    }
}

fn has_many_leaks(scan: Option<&HeapScan>) -> bool {
    let leaked = scan.and_then(|scan| scan.graph.as_ref()).map(|graph| graph.leaked);
    leaked.is_some_and(|leaked| leaked.bytes >= MANY_LEAKED)
}

/// True if a sample of the heap shows at least [`MUCH_FREE`], which may be a cause.
fn has_much_free(sample: &HeapSample) -> bool {
    sample.free.high >= MUCH_FREE
}

/// True if the sizes of a process changed by so little that a second snapshot would add nothing.
fn changes_little(first: &ActivityPoint, last: &ActivityPoint) -> bool {
    const PART: u64 = 200;
    const MAX_CHANGE: Bytes = Bytes::mib(4);
    let most = (first.resident.0 / PART).min(MAX_CHANGE.0);
    let known = |size: &Reading<Bytes>| size.as_ref().map_or(0, |size| size.0);
    let sizes = |of: &ActivityPoint| {
        [of.mapped.0, of.resident.0, known(&of.anonymous), known(&of.shmem), known(&of.swap)]
    };
    sizes(first).into_iter().zip(sizes(last)).all(|(before, now)| before.abs_diff(now) <= most)
}

/// True if the private memory grew by at least [`WANTED_GROWTH`], so that the allocating function
/// is of interest.
fn grows(points: &[ActivityPoint]) -> bool {
    let ends = points.first().zip(points.last());
    let anonymous = ends.and_then(|(first, last)| {
        Some((first.anonymous.clone().ok()?, last.anonymous.clone().ok()?))
    });
    anonymous.is_some_and(|(before, after)| after.saturating_sub(before) >= WANTED_GROWTH)
}

/// Minimum resident size for which a snapshot is expensive.
const LARGE_PROCESS: Bytes = Bytes::gib(1);

/// Maximum size of page tables for which `smaps` is read. For `smaps`, the kernel walks the page
/// tables of a whole mapping without a break: 10 ms for 50 MiB.
const LARGE_PAGE_TABLES: Bytes = Bytes::mib(1);

/// Chooses the files to read and the pace of reading, by the sizes of the page tables and of the
/// process.
fn reading(root: &ProcRoot, pid: Pid) -> (Wish, Pace) {
    let tables =
        root.read(pid, "status").ok().and_then(|text| status::parse(&text).status.vm_pte.ok());
    let wish = match tables {
        Some(tables) if tables <= LARGE_PAGE_TABLES => Wish::Auto,
        Some(_) | None => Wish::Polite,
    };
    let is_large = resident(root, pid).is_ok_and(|resident| resident >= LARGE_PROCESS);
    (wish, if is_large { Pace::LARGE } else { Pace::POLITE })
}

/// Takes a snapshot with a sample of the heap. Also returns the longest pause of the process.
fn snapshot(root: &ProcRoot, pid: Pid) -> (Result<Snapshot, ProcError>, Duration) {
    let (wish, pace) = reading(root, pid);
    // The sums are not read, because `smaps_rollup` walks all mappings without a break.
    let request = CaptureRequest { wish, pace, sums: false, ..CaptureRequest::default() };
    let mut snapshot = match capture(root, pid, &request) {
        Ok(snapshot) => snapshot,
        Err(error) => return (Err(error), Duration::ZERO),
    };
    sample::add(root, &mut snapshot);
    let pause = snapshot.provenance.longest_hold_ns.as_ref().copied().unwrap_or(0);
    (Ok(snapshot), Duration::from_nanos(pause))
}

#[expect(clippy::cast_precision_loss, reason = "rates need few digits")]
fn to_float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is at least 1")]
fn to_count(number: f64) -> u64 {
    number as u64
}

//! TLB flushes, recorded live and summed: `tlb:tlb_flush` with the kernel functions that requested
//! it, the interrupts that carry the request to other CPUs, and the surrounding system calls.
//!
//! ```text
//! the requesting thread         sys_enter ─ tlb_flush "remote IPI send" ─ csd_queue_cpu … (waits) ─ sys_exit
//! each requested CPU                                                └ csd_function_entry ─ tlb_flush ─ csd_function_exit
//! ```

pub(crate) mod around;
mod calls;
mod fold;
mod machine;
mod returns;

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::Hash;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::ending::ProgramEnding;
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::shootdowns::{
    self, FlushCaller, FlushCpu, FlushProcess, FlushSite, FlushThread, REMOTE, REMOTE_SEND, Reason,
    ShootdownRecording, SystemCall,
};
use pagewise_model::traced::Frame;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, Pid, Reading};
use pagewise_proc::ProcRoot;
use pagewise_sys::perf_ring::Carries;
use pagewise_sys::tracefs::TraceFs;

use crate::heaviest;
use crate::kernel::KernelFunctions;
use crate::record::{PerfRecord, PerfSample};
use crate::spaces::REGION;
use crate::symbols::bytes_of;
use crate::tracepoint::{Tracepoint, TracepointField};
use crate::{
    Callers, Finder, RecordedStacks, SessionEvent, Spaces, StackId, TraceError, TraceSession,
    TraceTarget,
};

/// Maximum number of bytes of a ring, which some hundred thousand flushes fill between two reads.
/// [`MIN_RING`] is the minimum.
const RING: usize = 8 << 20;
const MIN_RING: usize = 1 << 17;
/// Divisors of the memory limit: `RINGS` for all rings together, and `NAMES` for the names at the
/// end.
const RINGS: u64 = 4;
const NAMES: u64 = 8;
/// Number of `MADV_*` values that are distinguished. The kernel has about thirty.
const ADVICE: u64 = 256;
/// The tracepoint of flushes.
const FLUSH: &str = "tlb:tlb_flush";
/// Lowest address that can be mapped (`vm.mmap_min_addr`).
const LOWEST: u64 = 1 << 16;
/// Number of pages that means all pages: `TLB_FLUSH_ALL`.
const ALL_PAGES: u64 = u64::MAX;

/// Meaning of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushRole {
    /// A flush whose cause runs on this CPU.
    Cause,
    /// Any other flush.
    Effect,
    /// A system call begins, or ends.
    Enter,
    Exit,
    /// A function is put into the queue of a CPU, or was called there.
    Queue,
    Done,
    /// A function of the C library is called, or returns.
    Called,
    Returned,
    /// An interrupt to call a function: only counted.
    Interrupt,
    /// An interrupt is sent: only counted.
    Sent,
}

impl FlushRole {
    /// Expression that the kernel filters its records by; `None` if all are wanted.
    fn filter(self, flush: &Tracepoint) -> Option<CString> {
        let expression = match self {
            FlushRole::Cause => causes(flush, true),
            FlushRole::Effect => causes(flush, false),
            FlushRole::Enter | FlushRole::Exit => Some(calls::filter()),
            FlushRole::Called
            | FlushRole::Returned
            | FlushRole::Queue
            | FlushRole::Done
            | FlushRole::Interrupt
            | FlushRole::Sent => None,
        };
        CString::new(expression?).ok()
    }
}

/// Fields of tracepoints that are read.
#[derive(Clone, Copy, Debug, Default)]
struct FlushFields {
    reason: Option<TracepointField>,
    pages: Option<TracepointField>,
    enter_id: Option<TracepointField>,
    enter_args: Option<TracepointField>,
    exit_id: Option<TracepointField>,
    queue_cpu: Option<TracepointField>,
    queue_csd: Option<TracepointField>,
    done_csd: Option<TracepointField>,
}

pub use around::CallTimers;

/// Records flushes.
#[derive(Debug)]
pub struct FlushRecorder {
    /// `None` if tracing is not permitted: then only the machine's counters are reported.
    session: Option<TraceSession>,
    target: TraceTarget,
    roles: Vec<FlushRole>,
    tracepoints: Vec<String>,
    missing: Vec<(String, Absent)>,
    /// Events of sent interrupts, which are only counted: index in the session, and name.
    sent: Vec<(usize, String)>,
    around: Reading<shootdowns::TimedCallsMeans>,
    before: machine::FlushCounts,
    began: Instant,
    began_ns: Option<u64>,
    so_far: SoFar,
}

/// The available tracepoints.
struct FlushTracepoints<'t> {
    tracefs: &'t TraceFs,
    wanted: Vec<SessionEvent>,
    roles: Vec<FlushRole>,
    tracepoints: Vec<String>,
    missing: Vec<(String, Absent)>,
}

impl FlushTracepoints<'_> {
    fn find(&mut self, name: &str) -> Option<Tracepoint> {
        match Tracepoint::find(self.tracefs, name) {
            Ok(tracepoint) => {
                self.tracepoints.push(name.to_owned());
                Some(tracepoint)
            }
            Err(absent) => {
                self.missing.push((name.to_owned(), absent));
                None
            }
        }
    }

    fn add(&mut self, role: FlushRole, wanted: SessionEvent) {
        self.roles.push(role);
        self.wanted.push(wanted);
    }
}

impl FlushRecorder {
    /// Opens the available tracepoints. `callers` is the method of finding call stacks; `around`
    /// selects the calls that are timed in the program. Nothing is recorded before
    /// [`FlushRecorder::enable`], or the command's `exec`.
    ///
    /// If the kernel provides no flush events to this user, only the machine's counters are
    /// recorded, with the reason. For a running process these counters are not usable, and the
    /// result is an error.
    ///
    /// # Errors
    /// [`TraceError::NotWatched`]; [`TraceError::NotPermitted`] for a process that runs already;
    /// [`TraceError::Gone`].
    pub fn open(
        target: TraceTarget,
        callers: Callers,
        around: CallTimers,
        limit: MemoryLimit,
    ) -> Result<FlushRecorder, TraceError> {
        match FlushRecorder::watching(target, callers, around, limit) {
            Err(TraceError::NotPermitted { .. }) if !matches!(target, TraceTarget::Process(_)) => {
                let needs = "root, or CAP_PERFMON and leave to read tracefs";
                Ok(FlushRecorder::of_machine(target, limit, &Absent::NotPermitted(needs.into())))
            }
            Err(TraceError::NoSuchEvent { .. }) => {
                Ok(FlushRecorder::of_machine(target, limit, &Absent::NotInThisKernel("".into())))
            }
            recorder => recorder,
        }
    }

    /// A recorder of only the machine's counters, with the reason.
    fn of_machine(target: TraceTarget, limit: MemoryLimit, why: &Absent) -> FlushRecorder {
        const TOLD: [&str; 5] = [
            FLUSH,
            "raw_syscalls:sys_enter",
            "raw_syscalls:sys_exit",
            "csd:csd_queue_cpu",
            "csd:csd_function_exit",
        ];
        let finder = Finder::new(Callers::FramePointers(1), limit);
        FlushRecorder {
            session: None,
            target,
            roles: Vec::new(),
            tracepoints: Vec::new(),
            missing: TOLD.map(|name| (name.to_owned(), why.clone())).to_vec(),
            sent: Vec::new(),
            around: Err(why.clone()),
            before: machine::FlushCounts::now(),
            began: Instant::now(),
            began_ns: None,
            so_far: SoFar::new(FlushFields::default(), &[], finder, limit),
        }
    }

    fn watching(
        target: TraceTarget,
        callers: Callers,
        around: CallTimers,
        limit: MemoryLimit,
    ) -> Result<FlushRecorder, TraceError> {
        let refused = |error| TraceError::NotPermitted { tracepoint: FLUSH.to_owned(), error };
        let tracefs = TraceFs::open().map_err(refused)?;
        let flush = Tracepoint::find(&tracefs, FLUSH).map_err(|absent| match absent {
            Absent::NotPermitted(_) => refused(io::Error::from_raw_os_error(libc::EACCES)),
            _ => TraceError::NoSuchEvent { what: format!("tracepoint {FLUSH}") },
        })?;
        let mut catalogue = FlushTracepoints {
            tracefs: &tracefs,
            wanted: Vec::new(),
            roles: Vec::new(),
            tracepoints: vec![FLUSH.to_owned()],
            missing: Vec::new(),
        };
        let finder = Finder::new(callers, limit);
        let fields = choose(&mut catalogue, &flush, &finder);
        let FlushTracepoints { wanted, mut roles, tracepoints, missing, .. } = catalogue;
        let mut session =
            TraceSession::open_any(target, &wanted, ring(limit)).map_err(|error| match error {
                TraceError::NotWatched { error, .. } if is_refused(&error) => refused(error),
                error => error,
            })?;
        for (which, role) in roles.iter().enumerate() {
            if let Some(expression) = role.filter(&flush) {
                session.filter(which, &expression)?;
            }
        }
        let around = around.open(target, &mut session, &wanted, &mut roles);
        let is_sent = |(which, wanted): (usize, &SessionEvent)| {
            (roles[which] == FlushRole::Sent).then(|| (which, wanted.name.clone()))
        };
        let sent = wanted.iter().enumerate().filter_map(is_sent).collect();
        let mut so_far = SoFar::new(fields, flush.symbolic_names(), finder, limit);
        so_far.meet(target);
        Ok(FlushRecorder {
            session: Some(session),
            target,
            roles,
            tracepoints,
            missing,
            sent,
            around,
            before: machine::FlushCounts::now(),
            began: Instant::now(),
            began_ns: None,
            so_far,
        })
    }

    /// Begins to record.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn enable(&mut self) -> Result<(), TraceError> {
        self.begin();
        self.session.as_ref().map_or(Ok(()), TraceSession::enable)
    }

    /// Reads the counters and the time at the beginning. If an `exec` enables the events, this call
    /// replaces [`FlushRecorder::enable`].
    pub fn begin(&mut self) {
        self.before = machine::FlushCounts::now();
        self.began = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        self.began_ns = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
    }

    /// Waits for events, at most for the time `at_most`, and processes them.
    pub fn turn(&mut self, at_most: Duration) {
        let FlushRecorder { session, roles, so_far, .. } = self;
        let Some(session) = session else { return std::thread::sleep(at_most) };
        session.wait(at_most);
        session.drain(&mut |record| so_far.note(roles, &record));
    }

    /// Ends the recording, and looks up the functions.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn finish(
        self,
        command: Vec<Name>,
        ending: Option<ProgramEnding>,
    ) -> Result<ShootdownRecording, TraceError> {
        let FlushRecorder { mut session, roles, mut so_far, .. } = self;
        let took = self.began.elapsed();
        if let Some(session) = &mut session {
            session.finish(&mut |record| so_far.note(&roles, &record));
        }
        let grown = machine::FlushCounts::now().since(&self.before);
        // Events that are only counted cannot be attributed to the target.
        let its_own = session.as_ref().filter(|session| !session.counts_others());
        let mut sent = Vec::new();
        for ((which, name), session) in self.sent.iter().zip(its_own.into_iter().cycle()) {
            let by_cpu = session.counted(*which)?;
            sent.push((name.clone(), by_cpu.iter().map(|(_, count)| count).sum()));
        }
        let missing = self.missing.first().map(|(_, absent)| absent);
        let interrupts = match (&session, its_own) {
            (_, Some(session)) => interrupts(session, &roles, missing)?,
            (Some(_), None) => Err(Absent::NotCollected(
                "a higher `ulimit -n`: the process has more threads than events may be opened of"
                    .into(),
            )),
            (None, None) => Err(missing.cloned().unwrap_or(Absent::Vanished)),
        };
        let has = |wanted: FlushRole| roles.contains(&wanted);
        let foreign = if has(FlushRole::Done) && has(FlushRole::Queue) {
            Ok(so_far.foreign)
        } else {
            Err(match &session {
                Some(_) => Absent::NotInThisKernel("6.6".into()),
                None => missing.cloned().unwrap_or(Absent::Vanished),
            })
        };
        let pid = match self.target {
            TraceTarget::Machine => None,
            TraceTarget::Process(pid) | TraceTarget::Command(pid) => Some(Pid(pid)),
        };
        let cut = so_far.finder.cut();
        let lost = session.as_ref().map_or(0, TraceSession::lost);
        // Free the rings before the lookup of functions takes memory.
        drop(session);
        let told = so_far.told();
        Ok(ShootdownRecording {
            pid,
            command,
            began_ns: self.began_ns,
            took_ns: nanoseconds(took),
            ending,
            lost,
            cut,
            tracepoints: self.tracepoints,
            missing: self.missing,
            reasons: told.reasons,
            stacks: told.stacks,
            chains: told.chains,
            calls: told.calls,
            processes: told.processes,
            threads: told.threads,
            sites: told.sites,
            callers: told.callers,
            cpus: cpus(&told.cpus, &interrupts, &grown.shootdowns),
            sent,
            waits: told.waits,
            reaches: told.reaches,
            unseen: told.unseen,
            foreign,
            around: self.around,
            machine: grown.vmstat,
            folded: told.folded,
        })
    }
}

/// Returns the interrupts of each CPU. If the tracepoint that counts them is missing, returns the
/// reason.
fn interrupts(
    session: &TraceSession,
    roles: &[FlushRole],
    missing: Option<&Absent>,
) -> Result<Reading<Vec<(u32, u64)>>, TraceError> {
    let mut sums = Vec::new();
    let mut found = false;
    for (which, _) in roles.iter().enumerate().filter(|(_, role)| **role == FlushRole::Interrupt) {
        found = true;
        sums.extend(session.counted(which)?);
    }
    let absent = || missing.cloned().unwrap_or(Absent::NotInThisKernel("".into()));
    Ok(if found { Ok(sums) } else { Err(absent()) })
}

/// Number of bytes of each CPU's ring.
fn ring(limit: MemoryLimit) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    1 << (limit.part(RINGS) / cpus).clamp(MIN_RING, RING).ilog2()
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Adds the events to record. The event that owns the rings is the first.
fn choose(
    catalogue: &mut FlushTracepoints<'_>,
    flush: &Tracepoint,
    finder: &Finder,
) -> FlushFields {
    /// Maximum number of callers: the default of `kernel.perf_event_max_stack`.
    const DEEPEST: u16 = 127;
    let mut fields = FlushFields {
        reason: flush.field("reason"),
        pages: flush.field("pages"),
        ..FlushFields::default()
    };
    let stacks = Carries { callers: DEEPEST, kernel: true, ..finder.carries() };
    catalogue.add(FlushRole::Cause, flush.sampled(stacks, true));
    if causes(flush, false).is_some() {
        catalogue.add(FlushRole::Effect, flush.sampled(Carries::default(), false));
    }
    if let Some(enter) = catalogue.find("raw_syscalls:sys_enter") {
        (fields.enter_id, fields.enter_args) = (enter.field("id"), enter.field("args"));
        let mut carries = finder.carries();
        if finder.cut().is_none() {
            // Frame pointers skip the caller of a function of the C library.
            carries.stack = returns::LOOKED_AT;
        }
        catalogue.add(FlushRole::Enter, enter.sampled(carries, false));
    }
    if let Some(exit) = catalogue.find("raw_syscalls:sys_exit") {
        fields.exit_id = exit.field("id");
        catalogue.add(FlushRole::Exit, exit.sampled(Carries::default(), false));
    }
    if let Some(queue) = catalogue.find("csd:csd_queue_cpu") {
        (fields.queue_cpu, fields.queue_csd) = (queue.field("cpu"), queue.field("csd"));
        catalogue.add(FlushRole::Queue, queue.sampled(Carries::default(), false));
    }
    if let Some(done) = catalogue.find("csd:csd_function_exit") {
        fields.done_csd = done.field("csd");
        catalogue.add(FlushRole::Done, done.sampled(Carries::default(), false));
    }
    let counted = [
        (FlushRole::Interrupt, "irq_vectors:call_function_entry"),
        (FlushRole::Interrupt, "irq_vectors:call_function_single_entry"),
        (FlushRole::Sent, "ipi:ipi_send_cpumask"),
        (FlushRole::Sent, "ipi:ipi_send_cpu"),
    ];
    for (role, name) in counted {
        if let Some(tracepoint) = catalogue.find(name) {
            catalogue.add(role, tracepoint.counted());
        }
    }
    fields
}

/// Returns the filter of the tracepoint for flushes whose cause runs on the CPU of the flush, or
/// for all other flushes. Returns `None` if the kernel has no names for reasons, so that the
/// flushes cannot be distinguished.
fn causes(flush: &Tracepoint, wanted: bool) -> Option<String> {
    let is_cause = |word: &str| {
        let word = word.to_ascii_lowercase();
        word == REMOTE_SEND || word.starts_with("local")
    };
    let reasons = flush.symbolic_names().iter().filter(|(_, word)| is_cause(word) == wanted);
    let tests: Vec<String> = reasons.map(|(number, _)| format!("reason == {number}")).collect();
    (!tests.is_empty()).then(|| tests.join(" || "))
}

fn cpus(
    seen: &HashMap<u32, (u64, u64)>,
    interrupts: &Reading<Vec<(u32, u64)>>,
    machine: &Reading<Vec<(u32, u64)>>,
) -> Vec<FlushCpu> {
    let of = |reading: &Reading<Vec<(u32, u64)>>| {
        reading.iter().flatten().map(|(cpu, _)| *cpu).collect::<Vec<u32>>()
    };
    let mut numbers: Vec<u32> = seen.keys().copied().collect();
    numbers.extend(of(interrupts));
    numbers.extend(of(machine));
    numbers.sort_unstable();
    numbers.dedup();
    let at = |reading: &Reading<Vec<(u32, u64)>>, cpu: u32| {
        let rows = reading.as_ref().map_err(Absent::clone)?;
        Ok(rows.iter().filter(|(known, _)| *known == cpu).map(|(_, count)| count).sum())
    };
    let cpu = |cpu: u32| {
        let (sent, received) = seen.get(&cpu).copied().unwrap_or_default();
        FlushCpu { cpu, sent, received, interrupts: at(interrupts, cpu), machine: at(machine, cpu) }
    };
    numbers.into_iter().map(cpu).collect()
}

/// Values with consecutive numbers, in order of their first use.
#[derive(Debug)]
struct Numbered<K, V> {
    numbers: HashMap<K, usize>,
    values: Vec<V>,
}

impl<K, V> Default for Numbered<K, V> {
    fn default() -> Numbered<K, V> {
        Numbered { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<K: Eq + Hash + Clone, V> Numbered<K, V> {
    fn number(&mut self, key: &K, new: impl FnOnce() -> V) -> usize {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = self.values.len();
        self.values.push(new());
        self.numbers.insert(key.clone(), number);
        number
    }
}

/// A thread, with its pending system call and flush request.
#[derive(Debug)]
struct Doing {
    seen: FlushThread,
    has_ended: bool,
    call: Option<OpenSystemCall>,
    sending: Option<Sending>,
}

/// A function that was called and has not returned.
#[derive(Clone, Copy, Debug)]
struct CalledFunction {
    since: u64,
    /// The system call that the function made, and true if the call flushed other CPUs.
    made: Option<(usize, bool)>,
}

/// A system call that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenSystemCall {
    since: u64,
    number: u64,
    call: usize,
    stack: StackId,
    /// Number of flush requests in the call. The field `ipis` is the number of interrupts that
    /// these requests sent.
    sends: u64,
    ipis: u64,
}

/// A flush request that is not completed by all CPUs.
#[derive(Clone, Copy, Debug)]
struct Sending {
    since: u64,
    site: usize,
    asked: u64,
    left: u64,
    /// Time at which the last CPU so far completed the flush.
    done: u64,
}

/// State of the recording.
#[derive(Debug)]
struct SoFar {
    fields: FlushFields,
    words: HashMap<i64, (String, FlushReason)>,
    spaces: Spaces,
    stacks: RecordedStacks,
    finder: Finder,
    by_tables: bool,
    returns: returns::Returns,
    chains: Numbered<Vec<u64>, Vec<u64>>,
    /// Buffer for the chain of kernel functions that is looked up.
    chain: Vec<u64>,
    calls: Numbered<(u64, Option<u64>), SystemCall>,
    processes: Numbered<u32, FlushProcess>,
    threads: HashMap<u32, Doing>,
    /// Pending calls of timed functions by TID, also of threads outside of the target.
    called: HashMap<u32, CalledFunction>,
    sites: Numbered<(usize, usize, Option<usize>, StackId), FlushSite>,
    callers: Numbered<(usize, usize, StackId), FlushCaller>,
    reasons: Numbered<i64, Reason>,
    /// Number of interrupts sent from each CPU, and number of those received by it.
    cpus: HashMap<u32, (u64, u64)>,
    /// Requesting thread and time of each queued request, by queue entry and CPU.
    queued: HashMap<(u64, u32), (u32, u64)>,
    /// For each CPU: true while it flushes at the request of another CPU.
    flushing: HashMap<u32, bool>,
    waits: TimeHistogram,
    reaches: TimeHistogram,
    unseen: u64,
    foreign: u64,
    limit: MemoryLimit,
    limits: fold::FlushLimits,
    folded: Folded,
    other_threads: Option<FlushThread>,
}

/// Meaning of a flush reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushReason {
    Send,
    Received,
    Local,
    Other,
}

impl SoFar {
    fn new(
        fields: FlushFields,
        words: &[(i64, String)],
        finder: Finder,
        limit: MemoryLimit,
    ) -> SoFar {
        let word = |(number, word): &(i64, String)| {
            let kind = match word.to_ascii_lowercase().as_str() {
                REMOTE_SEND => FlushReason::Send,
                REMOTE => FlushReason::Received,
                local if local.starts_with("local") => FlushReason::Local,
                _ => FlushReason::Other,
            };
            (*number, (word.clone(), kind))
        };
        SoFar {
            fields,
            words: words.iter().map(word).collect(),
            spaces: Spaces::within(limit.part(16 * REGION)),
            stacks: RecordedStacks::within(limit.part(5)),
            by_tables: finder.cut().is_some(),
            finder,
            returns: returns::Returns::default(),
            chains: Numbered::default(),
            chain: Vec::new(),
            calls: Numbered::default(),
            processes: Numbered::default(),
            threads: HashMap::new(),
            called: HashMap::new(),
            sites: Numbered::default(),
            callers: Numbered::default(),
            reasons: Numbered::default(),
            cpus: HashMap::new(),
            queued: HashMap::new(),
            flushing: HashMap::new(),
            waits: TimeHistogram::default(),
            reaches: TimeHistogram::default(),
            unseen: 0,
            foreign: 0,
            limit,
            limits: fold::FlushLimits::for_memory(limit),
            folded: Folded { memory_limit: limit.bytes(), ..Folded::default() },
            other_threads: None,
        }
    }

    /// Reads the mappings of the processes that run already.
    fn meet(&mut self, target: TraceTarget) {
        let root = ProcRoot::live();
        match target {
            TraceTarget::Process(pid) => self.spaces.read(&root, pid),
            TraceTarget::Command(_) => {}
            TraceTarget::Machine => {
                for pid in root.pids().unwrap_or_default() {
                    self.spaces.read(&root, pid.0);
                }
            }
        }
    }

    fn note(&mut self, roles: &[FlushRole], record: &PerfRecord<'_>) {
        self.spaces.note(record);
        match *record {
            PerfRecord::Sample(sample) => {
                let Some(role) = roles.get(sample.which) else { return };
                match role {
                    FlushRole::Cause | FlushRole::Effect => self.flush(&sample),
                    FlushRole::Enter => self.enter(&sample),
                    FlushRole::Exit => self.exit(&sample),
                    FlushRole::Queue => self.queue(&sample),
                    FlushRole::Done => self.done(&sample),
                    FlushRole::Called => {
                        let called = CalledFunction { since: sample.time, made: None };
                        self.called.insert(sample.tid, called);
                    }
                    FlushRole::Returned => self.returned(&sample),
                    FlushRole::Interrupt | FlushRole::Sent => {}
                }
            }
            PerfRecord::Named { pid, tid, name, .. } => {
                if let Some(doing) = self.threads.get_mut(&tid) {
                    doing.seen.name = Name::new(name);
                }
                if let Some(&number) = self.processes.numbers.get(&pid).filter(|_| pid == tid) {
                    self.processes.values[number].name = Name::new(name);
                }
            }
            PerfRecord::Ended { tid, .. } => {
                self.called.remove(&tid);
                self.close(tid);
                if let Some(doing) = self.threads.get_mut(&tid) {
                    doing.call = None;
                    doing.has_ended = true;
                }
            }
            _ => {}
        }
        self.make_room();
    }

    fn process(&mut self, pid: u32) -> usize {
        self.processes.number(&pid, || FlushProcess { pid, name: name_of(pid, pid), received: 0 })
    }

    fn thread(&mut self, sample: &PerfSample<'_>) -> &mut Doing {
        let PerfSample { pid, tid, .. } = *sample;
        let process = self.process(pid);
        self.threads.entry(tid).or_insert_with(|| Doing {
            seen: FlushThread {
                process,
                tid,
                name: name_of(pid, tid),
                sends: 0,
                ipis: 0,
                received: 0,
            },
            has_ended: false,
            call: None,
            sending: None,
        })
    }

    fn flush(&mut self, sample: &PerfSample<'_>) {
        let read = |field: Option<TracepointField>| field.and_then(|field| field.read(sample.raw));
        let (Some(reason), Some(pages)) = (read(self.fields.reason), read(self.fields.pages))
        else {
            return;
        };
        let reason = reason.cast_signed();
        let known = self.words.get(&reason);
        let kind = known.map_or(FlushReason::Other, |(_, kind)| *kind);
        let word = || known.map_or_else(|| reason.to_string(), |(word, _)| word.clone());
        let number =
            self.reasons.number(&reason, || Reason { reason: word(), ..Reason::default() });
        let sum = &mut self.reasons.values[number];
        sum.flushes += 1;
        if pages == ALL_PAGES {
            sum.full += 1;
        } else {
            sum.pages = sum.pages.saturating_add(pages);
        }
        match kind {
            FlushReason::Send | FlushReason::Local => self.cause(sample, kind, pages),
            FlushReason::Received => {
                self.cpus.entry(sample.cpu).or_default().1 += 1;
                self.flushing.insert(sample.cpu, true);
                let thread = self.thread(sample);
                thread.seen.received += 1;
                let process = thread.seen.process;
                self.processes.values[process].received += 1;
            }
            FlushReason::Other => {}
        }
    }

    fn cause(&mut self, sample: &PerfSample<'_>, kind: FlushReason, pages: u64) {
        if kind == FlushReason::Send {
            self.close(sample.tid);
        }
        let thread = self.thread(sample);
        let (process, open) = (thread.seen.process, thread.call);
        let stack = match open {
            Some(open) => open.stack,
            None => {
                let callers = self.finder.find(&self.spaces, sample).iter().copied();
                let callers = callers.take_while(|address| *address >= LOWEST);
                self.stacks.number(&self.spaces, sample.pid, callers)
            }
        };
        self.chain.clear();
        self.chain.extend(sample.kernel_callers());
        let chain = self.chains.number(&self.chain, || self.chain.clone());
        let call = open.map(|open| open.call);
        let site = self.sites.number(&(process, chain, call, stack), || FlushSite {
            process,
            chain,
            call,
            stack: stack.index(),
            sends: 0,
            shootdowns: 0,
            ipis: 0,
            local: 0,
            full: 0,
            pages: 0,
            waited: 0,
        });
        let sum = &mut self.sites.values[site];
        if kind == FlushReason::Local {
            sum.local += 1;
            return;
        }
        sum.sends += 1;
        if pages == ALL_PAGES {
            sum.full += 1;
        } else {
            sum.pages = sum.pages.saturating_add(pages);
        }
        let since = sample.time;
        let thread = self.thread(sample);
        thread.seen.sends += 1;
        thread.sending = Some(Sending { since, site, asked: 0, left: 0, done: since });
        if let Some(open) = &mut thread.call {
            open.sends += 1;
        }
    }

    fn enter(&mut self, sample: &PerfSample<'_>) {
        let FlushFields { enter_id: Some(id), enter_args: Some(args), .. } = self.fields else {
            return;
        };
        let Some(number) = id.read(sample.raw) else { return };
        let Some(name) = calls::name(number) else { return };
        self.close(sample.tid);
        let advice = calls::advice(name).and_then(|at| args.read_word(at, sample.raw));
        let advice = advice.filter(|advice| *advice < ADVICE);
        let call = self.calls.number(&(number, advice), || SystemCall {
            name: name.to_owned(),
            advice,
            ..SystemCall::default()
        });
        let stack = self.stack_of_call(sample);
        let since = sample.time;
        self.thread(sample).call =
            Some(OpenSystemCall { since, number, call, stack, sends: 0, ipis: 0 });
    }

    /// Call stack of a system call, including the caller of the C library's function that made it.
    fn stack_of_call(&mut self, sample: &PerfSample<'_>) -> StackId {
        let PerfSample { pid, stack, .. } = *sample;
        let found = self.finder.find(&self.spaces, sample).iter().copied();
        let mut callers = found.take_while(|address| *address >= LOWEST).peekable();
        let first = callers.next();
        let caller = match self.by_tables {
            true => None,
            false => first.and_then(|ip| self.returns.find(&self.spaces, pid, ip, stack)),
        };
        let caller = caller.filter(|caller| callers.peek() != Some(caller));
        let all = first.into_iter().chain(caller).chain(callers);
        self.stacks.number(&self.spaces, pid, all)
    }

    fn exit(&mut self, sample: &PerfSample<'_>) {
        let Some(number) = self.fields.exit_id.and_then(|field| field.read(sample.raw)) else {
            return;
        };
        self.close(sample.tid);
        let has_queue = self.fields.queue_csd.is_some();
        let thread = self.thread(sample);
        let process = thread.seen.process;
        let Some(open) = thread.call.take().filter(|open| open.number == number) else { return };
        let took = sample.time.saturating_sub(open.since);
        // A request that interrupted no CPU has no wait.
        let shoots = if has_queue { open.ipis > 0 } else { open.sends > 0 };
        if let Some(called) = self.called.get_mut(&sample.tid) {
            called.made = Some((open.call, shoots));
        }
        let call = &mut self.calls.values[open.call];
        if shoots { &mut call.shooting } else { &mut call.quiet }.note(took);
        let caller = self.callers.number(&(process, open.call, open.stack), || FlushCaller {
            process,
            call: open.call,
            stack: open.stack.index(),
            calls: 0,
            shooting: 0,
            shooting_ns: 0,
            quiet_ns: 0,
        });
        let caller = &mut self.callers.values[caller];
        caller.calls += 1;
        if shoots {
            caller.shooting += 1;
            caller.shooting_ns += took;
        } else {
            caller.quiet_ns += took;
        }
    }

    /// Handles the return of a function. Its duration counts for the system call that the function
    /// made, if it made one.
    fn returned(&mut self, sample: &PerfSample<'_>) {
        let Some(CalledFunction { since, made }) = self.called.remove(&sample.tid) else { return };
        let Some((call, shoots)) = made else { return };
        let call = &mut self.calls.values[call];
        let times = if shoots { &mut call.around_shooting } else { &mut call.around_quiet };
        times.note(sample.time.saturating_sub(since));
    }

    fn queue(&mut self, sample: &PerfSample<'_>) {
        let FlushFields { queue_cpu: Some(cpu), queue_csd: Some(csd), .. } = self.fields else {
            return;
        };
        let (Some(cpu), Some(csd)) = (cpu.read(sample.raw), csd.read(sample.raw)) else { return };
        let thread = self.thread(sample);
        // Functions are queued for other purposes, too.
        let Some(sending) = &mut thread.sending else { return };
        sending.asked += 1;
        sending.left += 1;
        let (site, is_first) = (sending.site, sending.asked == 1);
        thread.seen.ipis += 1;
        if let Some(open) = &mut thread.call {
            open.ipis += 1;
        }
        let sum = &mut self.sites.values[site];
        sum.ipis += 1;
        sum.shootdowns += u64::from(is_first);
        self.cpus.entry(sample.cpu).or_default().0 += 1;
        if let Ok(cpu) = u32::try_from(cpu) {
            self.queued.insert((csd, cpu), (sample.tid, sample.time));
        }
    }

    fn done(&mut self, sample: &PerfSample<'_>) {
        let Some(csd) = self.fields.done_csd.and_then(|field| field.read(sample.raw)) else {
            return;
        };
        // The value 0 is not an entry of a queue.
        if csd == 0 {
            return;
        }
        let flushed = self.flushing.insert(sample.cpu, false).unwrap_or(false);
        let Some((tid, since)) = self.queued.remove(&(csd, sample.cpu)) else {
            self.foreign += u64::from(flushed);
            return;
        };
        self.reaches.note(sample.time.saturating_sub(since));
        let sending = self.threads.get_mut(&tid).and_then(|thread| thread.sending.as_mut());
        if let Some(sending) = sending {
            sending.left = sending.left.saturating_sub(1);
            sending.done = sending.done.max(sample.time);
        }
    }

    /// Closes the request of a thread: the thread continues only after all CPUs have flushed.
    fn close(&mut self, tid: u32) {
        let sending = self.threads.get_mut(&tid).and_then(|thread| thread.sending.take());
        let Some(sending) = sending.filter(|sending| sending.asked > 0) else { return };
        if sending.left > 0 {
            self.unseen += 1;
            self.queued.retain(|_, (by, _)| *by != tid);
            return;
        }
        let waited = sending.done.saturating_sub(sending.since);
        self.waits.note(waited);
        self.sites.values[sending.site].waited += waited;
    }

    fn told(mut self) -> FlushTables {
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        threads.into_iter().for_each(|tid| self.close(tid));
        let (stacks, stack_of) = self.symbolized();
        let number = |stack: usize| stack_of.get(&stack).copied().unwrap_or(stacks.len());
        self.sites.values.iter_mut().for_each(|site| site.stack = number(site.stack));
        self.callers.values.iter_mut().for_each(|caller| caller.stack = number(caller.stack));
        self.folded.forgotten_mappings = self.spaces.forgotten();
        let functions = KernelFunctions::read();
        let name = |functions: &KernelFunctions, address: u64| {
            functions.find(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
        };
        let chains = functions.map(|functions| {
            let chains = self.chains.values.iter();
            chains.map(|chain| chain.iter().map(|at| name(&functions, *at)).collect()).collect()
        });
        let mut threads: Vec<FlushThread> = self.threads.into_values().map(|it| it.seen).collect();
        threads.retain(|thread| thread.sends > 0 || thread.received > 0);
        threads.sort_by_key(|thread| thread.tid);
        threads.extend(self.other_threads);
        FlushTables {
            stacks,
            chains,
            calls: self.calls.values,
            processes: self.processes.values,
            threads,
            sites: self.sites.values,
            callers: self.callers.values,
            reasons: self.reasons.values,
            cpus: self.cpus,
            waits: self.waits,
            reaches: self.reaches,
            unseen: self.unseen,
            folded: self.folded,
        }
    }

    /// The used call stacks, and the index of each number. Stacks with the largest counts come
    /// first; once names take too much memory, the remaining stacks are merged into one.
    fn symbolized(&mut self) -> (Vec<Vec<Frame>>, HashMap<usize, usize>) {
        let sites = self.sites.values.iter().map(|it| (it.stack, it.sends + it.local));
        let callers = self.callers.values.iter().map(|it| (it.stack, it.calls));
        let counted = heaviest::sums(sites.chain(callers));
        let mut order: Vec<(usize, u64)> = counted.into_iter().collect();
        order.sort_unstable_by_key(|(stack, count)| (std::cmp::Reverse(*count), *stack));
        let (mut symbols, mut room) = (self.stacks.symbols(), self.limit.part(NAMES));
        let (mut stacks, mut stack_of) = (Vec::new(), HashMap::new());
        let (mut other, mut error) = (None, 0);
        for (stack, count) in order {
            let is_other = stack == StackId::OTHER.index();
            if is_other || room == 0 {
                if !is_other {
                    error = error.max(count);
                    self.folded.stacks += 1;
                }
                self.folded.stack_events += count;
                let other = *other.get_or_insert_with(|| {
                    stacks.push(vec![Folded::frame()]);
                    stacks.len() - 1
                });
                stack_of.insert(stack, other);
                continue;
            }
            let places = self.stacks.places().get(stack).map_or(&[][..], |places| places);
            let frames = places.iter().flat_map(|place| symbols.frames(place).to_vec());
            let frames: Vec<Frame> = frames.collect();
            room = room.saturating_sub(frames.iter().map(bytes_of).sum());
            stack_of.insert(stack, stacks.len());
            stacks.push(frames);
        }
        self.folded.stack_error += error;
        (stacks, stack_of)
    }
}

/// Tables that become a part of the recording unchanged.
struct FlushTables {
    stacks: Vec<Vec<Frame>>,
    chains: Reading<Vec<Vec<String>>>,
    calls: Vec<SystemCall>,
    processes: Vec<FlushProcess>,
    threads: Vec<FlushThread>,
    sites: Vec<FlushSite>,
    callers: Vec<FlushCaller>,
    reasons: Vec<Reason>,
    cpus: HashMap<u32, (u64, u64)>,
    waits: TimeHistogram,
    reaches: TimeHistogram,
    unseen: u64,
    folded: Folded,
}

/// Returns the name of a thread; empty if the thread has ended.
fn name_of(pid: u32, tid: u32) -> Name {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    Name::new(name.strip_suffix(b"\n").unwrap_or(&name))
}

//! Page faults, recorded live and summed by call stack, mapping, kind and thread.
//!
//! With privileges, a fault has two events: a tracepoint at its beginning, with the error code and
//! the call stack, and an event of the kernel at its end, with further data:
//!
//! ```text
//! user mode    page_fault_user ──── mm_page_alloc (order 9) ──── major-faults [minor-faults, for the latency]
//! the kernel   page_fault_kernel ──────────────────────────────── major-faults or minor-faults
//! ```
//!
//! A thread has one fault at a time, so the next events of the same thread belong to this fault. A
//! fault in the kernel counts only if it has an end event. A fault without an end event is an
//! attempt of the kernel that may not sleep, and the kernel repeats the attempt.
//!
//! Without privileges, only the events at the end are available.

mod calls;
mod fold;
mod kinds;
mod mappings;
mod moves;
mod owners;
mod plan;
mod state;
mod time_line;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewise_model::bounds::MemoryLimit;
use pagewise_model::ending::ProgramEnding;
use pagewise_model::faults::{Allocation, FaultRecording, FaultSource, Owner, VERSION};
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Name, PageSize, Pid, Reading};
use pagewise_sys::system;

use crate::TraceError;
use crate::session::{self, TraceSession, TraceTarget};
use crate::unwind::Unwinder;
use plan::FaultPlan;
use state::{FaultState, FaultsFound};

/// Divisor of the memory limit for all rings together. With larger rings, this process may be
/// delayed longer without lost events.
const RINGS: u64 = 4;
/// Divisor of the ring size: this process is woken when 1/`WAKE_AT` of a ring is full.
const WAKE_AT: usize = 8;
/// Maximum size of one ring in bytes. Without privileges, the limit of locked memory is much lower.
const LARGEST: usize = 32 << 20;
const SMALLEST: usize = 1 << 17;

/// Default number of stack bytes that are copied. With this number, six in seven stacks of Python
/// and of a shell, both without frame pointers, are complete. Recording is some 2 % slower than
/// with 512 bytes; with 8 KiB it would be 20 % slower. See `docs/performance.md`.
pub const STACK: u16 = 2048;

/// Parameters of a recording of page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultsRequest {
    /// Processes whose faults are recorded.
    pub target: TraceTarget,
    /// Sampling rate: one fault in `every` is recorded; 1 for all.
    pub every: u64,
    /// True to measure the duration of each fault.
    pub latency: bool,
    /// Number of stack bytes that are copied with each fault, to find callers without frame
    /// pointers: at most 65528.
    pub stack: u16,
    /// True to follow `mremap`, which adds time to every system call of the machine.
    pub mremap: bool,
    /// Memory limit of the recording.
    pub limit: MemoryLimit,
}

/// Source of the heap block that contained an address.
pub trait HeapBlocks: std::fmt::Debug {
    /// Reads new data. Later queries are not for times before `asked` (`CLOCK_MONOTONIC`).
    fn drain(&mut self, asked: u64);

    /// Owner of an address of a process at a time. Later queries are not for earlier times.
    fn find(&mut self, pid: u32, time: u64, address: u64) -> Owner;

    /// Handles an `execve` of the process: its blocks are gone.
    fn replaced(&mut self, pid: u32);

    /// True if a frame belongs to the recorder in the program.
    fn is_recorder(&self, frame: &Frame) -> bool;

    /// Ends the source and returns the data of the whole recording.
    fn finish(&mut self) -> FaultsOutcome;
}

/// Data about blocks at the end of the recording.
#[derive(Clone, Debug, Default)]
pub struct FaultsOutcome {
    /// True if anything was recorded.
    pub is_known: bool,
    /// Minimum size of recorded blocks, in bytes.
    pub least: u64,
    /// Number of times the live blocks became unknown.
    pub lost: u64,
    /// Number of processes that could have been recorded but were not.
    pub refused: u64,
    /// Allocating call stacks, by the number in [`Owner::Block`].
    pub allocations: Vec<Allocation<Frame>>,
    /// Missing data, and the reason.
    pub lacks: Vec<Absent>,
}

/// Data about the end of a recording that only the caller has.
#[derive(Clone, Debug)]
pub struct FaultsContext {
    /// Process ID of the command, or of the process that was already running.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// Ending of the command; `None` if it is still running.
    pub ending: Option<ProgramEnding>,
    /// Minor and major faults as the kernel counted them for the command.
    pub usage: Reading<(u64, u64)>,
}

/// Records page faults.
#[derive(Debug)]
pub struct FaultRecorder {
    request: FaultsRequest,
    /// True for tracepoints: their samples contain stack copies, so incomplete call stacks are
    /// counted.
    counts_cut: bool,
    session: TraceSession,
    state: FaultState,
    source: FaultSource,
    lacks: Vec<Absent>,
    began_ns: Option<u64>,
    stopped: Option<u64>,
}

impl FaultRecorder {
    /// Opens the events that may be watched. Nothing is recorded before [`FaultRecorder::start`],
    /// or the command's `exec`.
    ///
    /// # Errors
    /// The errors of [`TraceSession::open`], where no events may be watched at all.
    pub fn open(request: FaultsRequest) -> Result<FaultRecorder, TraceError> {
        let plans: [&dyn Fn() -> Result<FaultPlan, TraceError>; 3] = [
            &|| FaultPlan::tracepoints(&request),
            &|| Ok(FaultPlan::counters(&request, false)),
            &|| Ok(FaultPlan::counters(&request, true)),
        ];
        let mut last = None;
        for plan in plans {
            match plan().and_then(|mut plan| Ok((open(&request, &mut plan)?, plan))) {
                Ok((session, plan)) => {
                    let counts_cut = plan.source == FaultSource::Tracepoints;
                    return Ok(FaultRecorder {
                        counts_cut,
                        request,
                        session,
                        state: FaultState::new(
                            plan.roles,
                            request.every,
                            request.latency,
                            request.limit,
                        ),
                        source: plan.source,
                        lacks: plan.lacks,
                        began_ns: None,
                        stopped: None,
                    });
                }
                Err(error @ TraceError::Gone { .. }) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("three were tried"))
    }

    /// Sets the source that attributes faulting addresses to heap blocks.
    pub fn ask(&mut self, blocks: Box<dyn HeapBlocks>) {
        self.state.ask(blocks);
    }

    /// Begins to record.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn start(&mut self) -> Result<(), TraceError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        self.began_ns = now.and_then(|now| u64::try_from(now.as_nanos()).ok());
        self.state.begin(session::now());
        match self.request.target {
            // The events start with the `exec` of the command.
            TraceTarget::Command(_) => {}
            TraceTarget::Machine => self.session.enable()?,
            TraceTarget::Process(pid) => {
                self.session.enable()?;
                // New mappings are reported from here on; existing ones are read.
                self.state.know(pid);
            }
        }
        Ok(())
    }

    /// Waits until a ring is partly full, for at most `at_most`, and processes the faults.
    pub fn step(&mut self, at_most: Duration) {
        if self.stopped.is_some() {
            return std::thread::sleep(at_most);
        }
        self.session.wait(at_most);
        let FaultRecorder { session, state, .. } = self;
        // Records after `now` are left in the rings: the owners of memory are known only up to
        // `now`.
        let now = session::now();
        state.drain(session.handed_on());
        session.drain_until(now, &mut |record| state.note(&record));
    }

    /// Stops recording.
    pub fn stop(&mut self) {
        if self.stopped.is_none() {
            // An error here has no consequence: the files are closed next.
            let _ = self.session.disable();
        }
        self.stopped.get_or_insert_with(session::now);
        let state = &mut self.state;
        state.drain(self.session.handed_on());
        self.session.finish(&mut |record| state.note(&record));
    }

    /// Ends the recording, and looks up the functions.
    pub fn finish(mut self, about: FaultsContext) -> FaultRecording {
        self.stop();
        let stopped = self.stopped.unwrap_or_else(session::now);
        let took_ns = stopped.saturating_sub(self.state.begin_ns());
        let counted = self.session.total(0).filter(|_| self.source == FaultSource::Tracepoints);
        // The kernel reports lost events with the next event that is not lost, so losses at the end
        // show only in the counts.
        let missing = counted.filter(|_| self.request.every == 1);
        let missing = missing.map_or(0, |all| all.saturating_sub(self.state.seen()));
        let is_copied = self.counts_cut && Unwinder::carries(self.request.stack).stack > 0;
        let cut = is_copied.then(|| self.state.cut());
        let FaultRecorder {
            request, session, state, source, lacks: mut all_lacks, began_ns, ..
        } = self;
        let lost = session.lost().max(missing);
        // Free the rings before the lookup of functions takes memory.
        drop(session);
        let found = state.finish(took_ns);
        let FaultsFound {
            frames,
            stacks,
            mappings,
            threads,
            heap,
            rows,
            latencies,
            time_line,
            lacks,
            folded,
        } = found;
        all_lacks.extend(lacks);
        FaultRecording {
            version: VERSION,
            pid: about.pid,
            command: about.command,
            page_size: PageSize::new(system::page_size()).expect("the kernel's page size is one"),
            huge_page: plan::huge_page(),
            began_ns,
            took_ns,
            ending: about.ending,
            source,
            every: request.every,
            lost,
            counted,
            stack_bytes: if is_copied { u32::from(request.stack) & !7 } else { 0 },
            cut,
            usage: about.usage,
            frames,
            stacks,
            mappings,
            threads,
            heap,
            rows,
            latencies,
            time_line,
            folded,
            lacks: all_lacks,
        }
    }
}

/// Opens the events of a plan with the largest rings that we may have.
fn open(request: &FaultsRequest, plan: &mut FaultPlan) -> Result<TraceSession, TraceError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let rings = request.limit.part(RINGS);
    // The largest power of two with which all rings together stay within the limit.
    let most = (rings / cpus).clamp(SMALLEST, LARGEST);
    let mut ring = 1 << most.ilog2();
    loop {
        for wanted in &mut plan.wanted {
            wanted.sampling.wake_at = u32::try_from(ring / WAKE_AT).unwrap_or(u32::MAX);
        }
        match TraceSession::open_any(request.target, &plan.wanted, ring) {
            Ok(session) => {
                for (which, filter) in &plan.filters {
                    session.filter(*which, filter)?;
                }
                return Ok(session);
            }
            Err(TraceError::NotWatched { .. }) if ring > SMALLEST => ring /= 2,
            Err(error) => return Err(error),
        }
    }
}

//! Recordings of a running process: page faults, TLB shootdowns, memory system calls, allocations.
//! The first three can run at the same time, and each has an end time of its own.

use std::time::{Duration, Instant};

use pagewise_model::bounds::MemoryLimit;
use pagewise_model::evidence::{AllocationSizes, CallProfile, Gathered};
use pagewise_model::faults::FaultRecording;
use pagewise_model::shootdowns::ShootdownRecording;
use pagewise_model::{Absent, Pid};
use pagewise_trace::allocation_profile::AllocationProfiler;
use pagewise_trace::call_profile::CallProfiler;
use pagewise_trace::faults::{FaultRecorder, FaultsContext, FaultsRequest};
use pagewise_trace::shootdowns::{CallTimers, FlushRecorder};
use pagewise_trace::{Callers, TraceError, TraceTarget};

/// Maximum size in bytes of the memory of one recording.
const MEMORY: u64 = 64 << 20;
/// Number of stack bytes that are copied with each event.
const STACK: u16 = 2048;
/// Number of stack bytes that are copied with each allocation. The stack between malloc and the
/// program's functions can hold buffers of some KiB, in functions of the C library such as
/// `realpath`.
const STACK_OF_ALLOCATION: u16 = 8192;

fn limit() -> MemoryLimit {
    MemoryLimit::new(pagewise_model::Bytes(MEMORY)).unwrap_or_default()
}

fn absent(error: &TraceError) -> Absent {
    error.absent("CAP_PERFMON and read access to tracefs")
}

/// A recording in progress.
pub(crate) trait RunningRecording: Sized {
    type Recorded;

    /// Reads the events since the last call.
    fn step(&mut self);

    /// True if the recording has enough events.
    fn is_full(&self) -> bool {
        false
    }

    fn finish(self) -> Gathered<Self::Recorded>;
}

/// A recording that begins at most once, when the counters make it worth its cost.
pub(crate) enum RecordingSlot<R: RunningRecording> {
    NotBegun,
    Refused(Absent),
    /// The recording, and the time at which it ends.
    Running(R, Instant),
    Ended(Gathered<R::Recorded>),
}

impl<R: RunningRecording> RecordingSlot<R> {
    /// True if no attempt was made to begin the recording.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self, RecordingSlot::NotBegun)
    }

    pub(crate) fn fill(&mut self, begun: Result<R, Absent>, until: Instant) {
        *self = match begun {
            Ok(recording) => RecordingSlot::Running(recording, until),
            Err(why) => RecordingSlot::Refused(why),
        };
    }

    /// Reads the events since the last call. Ends the recording if its time is over or it is full:
    /// otherwise it would lose events, and would still slow the process. False if the recording is
    /// not in progress.
    pub(crate) fn step(&mut self) -> bool {
        let RecordingSlot::Running(recording, until) = self else { return false };
        if Instant::now() < *until && !recording.is_full() {
            recording.step();
            return true;
        }
        self.end();
        false
    }

    /// Ends the recording, if it is in progress, and keeps its result in the slot.
    pub(crate) fn end(&mut self) {
        if matches!(self, RecordingSlot::Running(..)) {
            *self = RecordingSlot::Ended(self.finish());
        }
    }

    /// Ends the recording, returns its result, and makes the slot free.
    pub(crate) fn finish(&mut self) -> Gathered<R::Recorded> {
        match std::mem::replace(self, RecordingSlot::NotBegun) {
            RecordingSlot::NotBegun => Gathered::NotNeeded,
            RecordingSlot::Refused(why) => Gathered::Missing(why),
            RecordingSlot::Running(recording, _) => recording.finish(),
            RecordingSlot::Ended(recorded) => recorded,
        }
    }
}

/// A recording of page faults.
#[derive(Debug)]
pub(crate) struct FaultsRunning {
    recorder: FaultRecorder,
    pid: Pid,
}

impl FaultsRunning {
    /// Begins to record one page fault in `every`.
    pub(crate) fn begin(pid: Pid, every: u64) -> Result<FaultsRunning, Absent> {
        let request = FaultsRequest {
            target: TraceTarget::Process(pid.0),
            every,
            latency: false,
            stack: STACK,
            mremap: false,
            limit: limit(),
        };
        let opened = FaultRecorder::open(request).and_then(|mut recorder| {
            recorder.start()?;
            Ok(recorder)
        });
        let recorder = opened.map_err(|error| absent(&error))?;
        Ok(FaultsRunning { recorder, pid })
    }
}

impl RunningRecording for FaultsRunning {
    type Recorded = Box<FaultRecording>;

    fn step(&mut self) {
        self.recorder.step(Duration::ZERO);
    }

    fn finish(self) -> Gathered<Box<FaultRecording>> {
        let usage = Err(Absent::NotCollected("only of a command that is run".into()));
        let (pid, command) = (self.pid, Vec::new());
        let context = FaultsContext { pid, command, ending: None, usage };
        Gathered::Value(Box::new(self.recorder.finish(context)))
    }
}

/// A recording of TLB shootdowns.
#[derive(Debug)]
pub(crate) struct ShootdownsRunning {
    recorder: FlushRecorder,
}

impl ShootdownsRunning {
    /// Begins to record the TLB shootdowns of a process.
    pub(crate) fn begin(pid: Pid) -> Result<ShootdownsRunning, Absent> {
        let target = TraceTarget::Process(pid.0);
        let opened =
            FlushRecorder::open(target, Callers::Tables(STACK), CallTimers::none(), limit())
                .and_then(|mut recorder| {
                    recorder.enable()?;
                    Ok(recorder)
                });
        let recorder = opened.map_err(|error| absent(&error))?;
        Ok(ShootdownsRunning { recorder })
    }
}

impl RunningRecording for ShootdownsRunning {
    type Recorded = Box<ShootdownRecording>;

    fn step(&mut self) {
        self.recorder.turn(Duration::ZERO);
    }

    fn finish(self) -> Gathered<Box<ShootdownRecording>> {
        match self.recorder.finish(Vec::new(), None) {
            Ok(recording) => Gathered::Value(Box::new(recording)),
            Err(error) => Gathered::Missing(absent(&error)),
        }
    }
}

/// A recording of memory system calls and forks.
#[derive(Debug)]
pub(crate) struct CallsRunning {
    profiler: CallProfiler,
}

/// Maximum number of recorded calls, which take about 0.2 s of CPU time.
const MAX_CALLS: u64 = 100_000;

impl CallsRunning {
    /// Begins to record the memory system calls and forks of a process.
    pub(crate) fn begin(pid: Pid) -> Result<CallsRunning, Absent> {
        let profiler =
            CallProfiler::begin(pid.0, STACK, limit()).map_err(|error| absent(&error))?;
        Ok(CallsRunning { profiler })
    }
}

impl RunningRecording for CallsRunning {
    type Recorded = CallProfile;

    fn step(&mut self) {
        self.profiler.step(Duration::ZERO);
    }

    fn is_full(&self) -> bool {
        self.profiler.calls() >= MAX_CALLS
    }

    fn finish(self) -> Gathered<CallProfile> {
        Gathered::Value(self.profiler.finish())
    }
}

/// Records allocations for at most `max_time`, or until the maximum number of calls is recorded.
pub(crate) fn allocation_sizes(
    pid: Pid,
    max_time: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> Gathered<AllocationSizes> {
    /// Maximum number of recorded calls, which cost the process about 0.1 s.
    const MAX_CALLS: u64 = 20_000;
    const TURN: Duration = Duration::from_millis(10);
    let began = Instant::now();
    let mut profiler = match AllocationProfiler::begin(pid.0, STACK_OF_ALLOCATION, limit()) {
        Ok(profiler) => profiler,
        Err(why) => return Gathered::Missing(why),
    };
    while began.elapsed() < max_time && profiler.calls() < MAX_CALLS && !is_interrupted() {
        profiler.step(TURN);
    }
    Gathered::Value(profiler.finish())
}

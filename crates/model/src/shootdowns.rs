//! TLB flushes of some processes or of a machine: the reasons, the threads that requested them and
//! waited, and the interrupted CPUs.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::ending::ProgramEnding;
use crate::histogram::TimeHistogram;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Name, Pid, Reading};

/// Reason of a flush that this CPU requested from other CPUs: the kernel's word in `tlb:tlb_flush`,
/// in lower case.
pub const REMOTE_SEND: &str = "remote ipi send";
/// Reason of a flush that another CPU requested: the kernel's word in `tlb:tlb_flush`, in lower
/// case.
pub const REMOTE: &str = "remote shootdown";

/// Recorded TLB flushes and shootdowns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShootdownRecording {
    /// PID of the command, or of the process that was already running; `None` for the whole
    /// machine.
    pub pid: Option<Pid>,
    /// Words of the command line; empty if no command was started.
    pub command: Vec<Name>,
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Ending of the command; `None` if it is still running, and if no command was started.
    pub ending: Option<ProgramEnding>,
    /// Number of events that did not fit into the perf ring buffers.
    pub lost: u64,
    /// Number of incomplete call stacks; `None` if it is unknown, because frame pointers do not
    /// show the end of a call stack.
    pub cut: Option<u64>,
    /// Tracepoints that were recorded.
    pub tracepoints: Vec<String>,
    /// Tracepoints that could not be recorded, with the reasons.
    pub missing: Vec<(String, Absent)>,
    /// Flushes by the reason that `tlb:tlb_flush` gives.
    pub reasons: Vec<Reason>,
    /// User call stacks, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Call chains of kernel functions that flushed, the innermost function first.
    #[serde(with = "plain")]
    pub chains: Reading<Vec<Vec<String>>>,
    /// System calls that can flush, with their durations.
    pub calls: Vec<SystemCall>,
    /// Processes that requested flushes or were interrupted by them.
    pub processes: Vec<FlushProcess>,
    /// Threads of these processes that requested flushes or were interrupted by them.
    pub threads: Vec<FlushThread>,
    /// Flushes and flush requests by call stack.
    pub sites: Vec<FlushSite>,
    /// Call stacks that called system calls that can flush.
    pub callers: Vec<FlushCaller>,
    /// Interrupts and flushes by CPU.
    pub cpus: Vec<FlushCpu>,
    /// Counts of interprocessor interrupts that were sent, for flushes or other purposes: the name
    /// of each tracepoint that counts them, and its count.
    pub sent: Vec<(String, u64)>,
    /// Histogram of the time from a flush request until the last interrupted CPU had flushed, in
    /// nanoseconds.
    pub waits: TimeHistogram,
    /// Histogram of the time from the queuing of a flush request for a CPU until that CPU had
    /// flushed, in nanoseconds.
    pub reaches: TimeHistogram,
    /// Number of flush requests whose end was not recorded, because an interrupted CPU ran no
    /// recorded thread.
    pub unseen: u64,
    /// Number of flushes that interrupted recorded threads and that unrecorded threads requested.
    #[serde(with = "plain")]
    pub foreign: Reading<u64>,
    /// Method that measured the durations of system calls from the call of the C library's function
    /// to its return: [`SystemCall::around_shooting`] and [`SystemCall::around_quiet`]. Absent if
    /// these durations were not measured.
    #[serde(with = "plain")]
    pub around: Reading<TimedCallsMeans>,
    /// Counters of `/proc/vmstat` that count page moves or page protections, and that grew during
    /// the recording.
    pub machine: Vec<(Name, u64)>,
    /// Events that were merged to stay within the memory limit.
    #[serde(default)]
    pub folded: Folded,
}

/// PID that stands for merged processes.
pub const NO_PID: u32 = u32::MAX;

impl ShootdownRecording {
    /// True if a tracepoint was recorded.
    pub fn has(&self, tracepoint: &str) -> bool {
        self.tracepoints.iter().any(|known| known == tracepoint)
    }

    /// Reason why a tracepoint was not recorded.
    pub fn why_not(&self, tracepoint: &str) -> Absent {
        let missing = self.missing.iter().find(|(known, _)| known == tracepoint);
        missing.map_or(Absent::NotInThisKernel("".into()), |(_, why)| why.clone())
    }
}

/// Method that measures durations of system calls inside of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedCallsMeans {
    /// The measured functions with the files that contain them. They are functions of the C
    /// library, or of the program if it has no C library, and were measured from the first
    /// instruction to the last.
    pub functions: Vec<(String, Name)>,
    /// Overhead of the measurement for each call, in nanoseconds: the median difference between
    /// measured and unmeasured calls that do nothing.
    #[serde(with = "plain")]
    pub cost_ns: Reading<u64>,
}

/// Flushes with the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kernel's word for the reason, or its number if the kernel has no word.
    pub reason: String,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of flushes of the whole TLB.
    pub full: u64,
    /// Number of pages that were flushed by flushes of less than the whole TLB.
    pub pages: u64,
}

/// System calls with the same name and advice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCall {
    /// The kernel's name of the system call.
    pub name: String,
    /// Advice of `madvise` or `process_madvise`; `None` for other system calls.
    pub advice: Option<u64>,
    /// Durations of calls that made other CPUs flush, in nanoseconds.
    pub shooting: TimeHistogram,
    /// Durations of calls that did not make other CPUs flush, in nanoseconds.
    pub quiet: TimeHistogram,
    /// Durations of calls that made other CPUs flush, measured in the program: from the call of the
    /// C library's function to its return, in nanoseconds.
    pub around_shooting: TimeHistogram,
    /// Durations of calls that did not make other CPUs flush, measured like `around_shooting`, in
    /// nanoseconds.
    pub around_quiet: TimeHistogram,
}

/// A process that requested flushes or was interrupted by them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushProcess {
    /// PID of the process; 0 for idle CPUs, [`NO_PID`] for merged processes.
    pub pid: u32,
    /// Name of the process's main thread.
    pub name: Name,
    /// Number of flushes that other CPUs requested and that interrupted the process.
    pub received: u64,
}

/// A thread that requested flushes or was interrupted by them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushThread {
    /// Index in [`ShootdownRecording::processes`].
    pub process: usize,
    /// Thread ID.
    pub tid: u32,
    /// Name of the thread.
    pub name: Name,
    /// Number of flush requests that the thread sent.
    pub sends: u64,
    /// Number of CPUs that these requests interrupted, summed over the requests.
    pub ipis: u64,
    /// Number of flushes that other CPUs requested and that interrupted the thread.
    pub received: u64,
}

/// Flushes from one call stack of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSite {
    /// Index in [`ShootdownRecording::processes`].
    pub process: usize,
    /// Index in [`ShootdownRecording::chains`].
    pub chain: usize,
    /// Index in [`ShootdownRecording::calls`] of the system call that was running; `None` if none
    /// of these system calls was running.
    pub call: Option<usize>,
    /// Index in [`ShootdownRecording::stacks`].
    pub stack: usize,
    /// Number of flush requests.
    pub sends: u64,
    /// Number of requests that interrupted at least one CPU.
    pub shootdowns: u64,
    /// Number of CPUs that the requests interrupted, summed over the requests.
    pub ipis: u64,
    /// Number of times that the CPU that ran the call stack flushed its own TLB.
    pub local: u64,
    /// Number of requests to flush the whole TLB.
    pub full: u64,
    /// Number of pages that were flushed by requests for less than the whole TLB.
    pub pages: u64,
    /// Total time for which requests waited for interrupted CPUs, in nanoseconds. Only requests
    /// with a recorded end count.
    pub waited: u64,
}

/// System calls with the same name and advice from one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushCaller {
    /// Index in [`ShootdownRecording::processes`].
    pub process: usize,
    /// Index in [`ShootdownRecording::calls`].
    pub call: usize,
    /// Index in [`ShootdownRecording::stacks`].
    pub stack: usize,
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that made other CPUs flush.
    pub shooting: u64,
    /// Total duration of the calls that made other CPUs flush, in nanoseconds.
    pub shooting_ns: u64,
    /// Total duration of the calls that did not make other CPUs flush, in nanoseconds.
    pub quiet_ns: u64,
}

/// Interrupts and flushes of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushCpu {
    /// Number (index) of the CPU.
    pub cpu: u32,
    /// Number of interrupts that this CPU sent to other CPUs.
    pub sent: u64,
    /// Number of flushes on this CPU that other CPUs requested.
    pub received: u64,
    /// Number of function-call interrupts that this CPU received while a recorded thread ran, for
    /// flushes or other purposes.
    #[serde(with = "plain")]
    pub interrupts: Reading<u64>,
    /// Number of TLB shootdown interrupts that this CPU received while any thread ran, from
    /// `/proc/interrupts`.
    #[serde(with = "plain")]
    pub machine: Reading<u64>,
}

//! TLB flushes of some processes or of a machine: their reasons, the threads that requested them
//! and waited, and the CPUs that were interrupted.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::ending::ProgramEnding;
use crate::histogram::TimeHistogram;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Name, Pid, Reading};

/// Kernel name of a flush request to other CPUs; the word of `tlb:tlb_flush`, in lower case.
pub const REMOTE_SEND: &str = "remote ipi send";
/// Kernel name of a flush that another CPU requested.
pub const REMOTE: &str = "remote shootdown";

/// Recorded TLB flushes and shootdowns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShootdownRecording {
    /// The command, or the process that was already running; `None` for the whole machine.
    pub pid: Option<Pid>,
    /// The command's words; empty without a command.
    pub command: Vec<Name>,
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Ending of the command; `None` if it is still running, and for a running process.
    pub ending: Option<ProgramEnding>,
    /// Number of events that did not fit into the perf ring buffers.
    pub lost: u64,
    /// Number of incomplete call stacks; `None` if unknown, because callers were found by frame
    /// pointers.
    pub cut: Option<u64>,
    /// Tracepoints that were recorded.
    pub tracepoints: Vec<String>,
    /// Tracepoints that could not be recorded, with the reasons.
    pub missing: Vec<(String, Absent)>,
    /// Flushes by the reason that `tlb:tlb_flush` gives.
    pub reasons: Vec<Reason>,
    /// User call stacks, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// The functions of the kernel that led to a flush, the innermost first.
    #[serde(with = "plain")]
    pub chains: Reading<Vec<Vec<String>>>,
    /// The system calls that can flush, with how long they took.
    pub calls: Vec<SystemCall>,
    /// The processes that requested flushes or were interrupted by them.
    pub processes: Vec<FlushProcess>,
    /// Their threads that requested flushes or were interrupted by them.
    pub threads: Vec<FlushThread>,
    /// Call stacks that flushed or requested flushes.
    pub sites: Vec<FlushSite>,
    /// Callers of system calls that can flush.
    pub callers: Vec<FlushCaller>,
    /// The CPUs.
    pub cpus: Vec<FlushCpu>,
    /// Number of interrupts sent to call a function, for flushes or other purposes, by tracepoint.
    pub sent: Vec<(String, u64)>,
    /// Time from a flush request until the last interrupted CPU had flushed, in nanoseconds.
    pub waits: TimeHistogram,
    /// Time from the queuing of a flush request for a CPU until that CPU had flushed, in
    /// nanoseconds.
    pub reaches: TimeHistogram,
    /// Flush requests whose end was not recorded: an interrupted CPU ran no recorded thread.
    pub unseen: u64,
    /// Flushes requested by other CPUs but by none of the recorded threads.
    #[serde(with = "plain")]
    pub foreign: Reading<u64>,
    /// Method of the times in [`SystemCall::around_shooting`]; absent if they were not taken.
    #[serde(with = "plain")]
    pub around: Reading<TimedCallsMeans>,
    /// Counters of the machine's `/proc/vmstat` that move or protect pages and that grew during the
    /// recording.
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

/// Method of taking times in the program, around system calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedCallsMeans {
    /// The functions of the C library, or of a program that has none, that were timed from their
    /// first instruction to their last, and the files that they are of.
    pub functions: Vec<(String, Name)>,
    /// Overhead of taking the time and of recording the call, in nanoseconds: the median difference
    /// between recorded and unrecorded calls that do nothing.
    #[serde(with = "plain")]
    pub cost_ns: Reading<u64>,
}

/// Flushes for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kernel's word for the reason, or its number if the kernel has no word.
    pub reason: String,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of those that flushed all pages.
    pub full: u64,
    /// Number of pages of the other flushes.
    pub pages: u64,
}

/// A kind of system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCall {
    /// The kernel's name.
    pub name: String,
    /// Advice passed to `madvise` or `process_madvise`.
    pub advice: Option<u64>,
    /// Durations of calls that made other CPUs flush, in nanoseconds.
    pub shooting: TimeHistogram,
    /// Durations of the other calls.
    pub quiet: TimeHistogram,
    /// Durations seen by the program of calls that made other CPUs flush: from the call of the C
    /// library's function to its return, in nanoseconds.
    pub around_shooting: TimeHistogram,
    /// Durations seen by the program of the other calls.
    pub around_quiet: TimeHistogram,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushProcess {
    /// Its PID; 0 for idle CPUs, [`NO_PID`] for merged processes.
    pub pid: u32,
    /// Name that the thread gave itself.
    pub name: Name,
    /// Flushes that other CPUs requested and that interrupted it.
    pub received: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushThread {
    /// Index in [`ShootdownRecording::processes`].
    pub process: usize,
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: Name,
    /// Flush requests that it sent.
    pub sends: u64,
    /// Number of CPUs that these requests interrupted.
    pub ipis: u64,
    /// Flushes that other CPUs requested and that interrupted it.
    pub received: u64,
}

/// Flushes from one call stack of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSite {
    /// Index in [`ShootdownRecording::processes`].
    pub process: usize,
    /// Index in [`ShootdownRecording::chains`].
    pub chain: usize,
    /// Index in [`ShootdownRecording::calls`] of the system call in progress; `None` outside of
    /// these calls.
    pub call: Option<usize>,
    /// Index in [`ShootdownRecording::stacks`].
    pub stack: usize,
    /// Number of flush requests.
    pub sends: u64,
    /// Requests that interrupted at least one CPU.
    pub shootdowns: u64,
    /// CPUs that were interrupted.
    pub ipis: u64,
    /// Flushes of its own CPU.
    pub local: u64,
    /// Requests to flush all pages.
    pub full: u64,
    /// Number of pages of the other requests.
    pub pages: u64,
    /// Time waited for those CPUs in total, in nanoseconds, for requests whose end was recorded.
    pub waited: u64,
}

/// System calls of one kind from one call stack.
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
    /// Total duration of those calls, in nanoseconds.
    pub shooting_ns: u64,
    /// Total duration of the other calls.
    pub quiet_ns: u64,
}

/// A CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushCpu {
    /// Its number.
    pub cpu: u32,
    /// Number of interrupts that this CPU sent to other CPUs.
    pub sent: u64,
    /// Flushes on this CPU that other CPUs requested.
    pub received: u64,
    /// Function-call interrupts that this CPU received while a recorded thread ran, for flushes or
    /// other purposes.
    #[serde(with = "plain")]
    pub interrupts: Reading<u64>,
    /// TLB shootdown interrupts that this CPU received while any thread ran: the row of
    /// `/proc/interrupts`.
    #[serde(with = "plain")]
    pub machine: Reading<u64>,
}

//! TLB flushes of some processes or of a machine: why they came, who asked for them and waited, and
//! which CPUs got them.

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
    /// The command, or the process that was running; none where it is all that ran on the machine.
    pub pid: Option<Pid>,
    /// The command's words; none of what was running.
    pub command: Vec<Name>,
    /// When it began, in nanoseconds since 1970; none where that is not known.
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
    /// Those that could not be had, and why.
    pub missing: Vec<(String, Absent)>,
    /// Flushes by the reason that `tlb:tlb_flush` gives.
    pub reasons: Vec<Reason>,
    /// The call stacks of the programs: where they were, then the callers.
    pub stacks: Vec<Vec<Frame>>,
    /// The functions of the kernel that led to a flush, the innermost first.
    #[serde(with = "plain")]
    pub chains: Reading<Vec<Vec<String>>>,
    /// The system calls that can flush, with how long they took.
    pub calls: Vec<SystemCall>,
    /// The processes that flushed or were interrupted to.
    pub processes: Vec<FlushProcess>,
    /// Their threads that did.
    pub threads: Vec<FlushThread>,
    /// Call stacks that flushed or requested flushes.
    pub sites: Vec<FlushSite>,
    /// Callers of system calls that can flush.
    pub callers: Vec<FlushCaller>,
    /// The CPUs.
    pub cpus: Vec<FlushCpu>,
    /// Number of interrupts sent to call a function, for flushes or other purposes, by tracepoint.
    pub sent: Vec<(String, u64)>,
    /// From the order to flush until the last CPU that got it had done so, in nanoseconds.
    pub waits: TimeHistogram,
    /// From putting the order into the queue of a CPU until that CPU had done it, in nanoseconds.
    pub reaches: TimeHistogram,
    /// Orders whose end was not seen: the CPU was not running any of those that are watched.
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

/// The number of processes that are not kept apart.
pub const NO_PID: u32 = u32::MAX;

impl ShootdownRecording {
    /// True if a tracepoint was recorded.
    pub fn has(&self, tracepoint: &str) -> bool {
        self.tracepoints.iter().any(|known| known == tracepoint)
    }

    /// Why a tracepoint did not.
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
    /// The kernel's word; its number where it has none.
    pub reason: String,
    /// Number of flushes.
    pub flushes: u64,
    /// Those that flushed all pages.
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
    /// Its number; 0 for CPUs that idle, [`NO_PID`] for those that are not kept apart.
    pub pid: u32,
    /// Name that the thread gave itself.
    pub name: Name,
    /// Flushes that others asked for and that interrupted it.
    pub received: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushThread {
    /// Which of the processes.
    pub process: usize,
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: Name,
    /// Orders to flush that it sent.
    pub sends: u64,
    /// CPUs that it interrupted so.
    pub ipis: u64,
    /// Flushes that others asked for and that interrupted it.
    pub received: u64,
}

/// Flushes of one kind of origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSite {
    /// Which of the processes.
    pub process: usize,
    /// Which of the chains of kernel functions.
    pub chain: usize,
    /// Which of the calls it was in; none outside of those.
    pub call: Option<usize>,
    /// Which of the stacks.
    pub stack: usize,
    /// Orders to flush.
    pub sends: u64,
    /// Those that interrupted at least one CPU.
    pub shootdowns: u64,
    /// CPUs that were interrupted.
    pub ipis: u64,
    /// Flushes of its own CPU.
    pub local: u64,
    /// Orders to flush all pages.
    pub full: u64,
    /// Number of pages of the other requests.
    pub pages: u64,
    /// Time waited for those CPUs in total, in nanoseconds, for requests whose end was recorded.
    pub waited: u64,
}

/// Calls of one kind from one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushCaller {
    /// Which of the processes.
    pub process: usize,
    /// Which of the calls.
    pub call: usize,
    /// Which of the stacks.
    pub stack: usize,
    /// Number of calls.
    pub calls: u64,
    /// Those that had other CPUs flush.
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
    /// CPUs that were interrupted from here.
    pub sent: u64,
    /// Flushes here that others asked for.
    pub received: u64,
    /// Interrupts here to call a function, for flushes or anything else, while one of those who are
    /// watched ran.
    #[serde(with = "plain")]
    pub interrupts: Reading<u64>,
    /// The same to flush the TLB, whoever ran: the row of `/proc/interrupts`.
    #[serde(with = "plain")]
    pub machine: Reading<u64>,
}

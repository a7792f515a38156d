//! TLB flushes of some processes or of a machine: why they came, who asked for them and waited, and which CPUs got them.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::calls::Ending;
use crate::histogram::Histogram;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Name, Pid, Reading};

/// What the kernel calls an order to other CPUs to flush; the word of `tlb:tlb_flush`, in lower case.
pub const REMOTE_SEND: &str = "remote ipi send";
/// What it calls a flush that another CPU asked for.
pub const REMOTE: &str = "remote shootdown";

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The command, or the process that was running; none where it is all that ran on the machine.
    pub pid: Option<Pid>,
    /// The command's words; none of what was running.
    pub command: Vec<Name>,
    /// When it began, in nanoseconds since 1970; none where that is not known.
    pub began_ns: Option<u64>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// How the command ended; `None` where it runs on, and of a process that was running.
    pub ending: Option<Ending>,
    /// How many events are missing, since the kernel found no room to write them down.
    pub lost: u64,
    /// How many call stacks are known not to be whole; none where that is not known, since they were found by frame pointers.
    pub cut: Option<u64>,
    /// The tracepoints that told of it.
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
    pub calls: Vec<Call>,
    /// The processes that flushed or were interrupted to.
    pub processes: Vec<Process>,
    /// Their threads that did.
    pub threads: Vec<Thread>,
    /// Who flushed and had others flush.
    pub sites: Vec<Site>,
    /// Who made calls that can flush.
    pub callers: Vec<Caller>,
    /// The CPUs.
    pub cpus: Vec<Cpu>,
    /// How often interrupts were sent to call a function, for flushes or anything else, by the tracepoint that says so.
    pub sent: Vec<(String, u64)>,
    /// From the order to flush until the last CPU that got it had done so, in nanoseconds.
    pub waits: Histogram,
    /// From putting the order into the queue of a CPU until that CPU had done it, in nanoseconds.
    pub reaches: Histogram,
    /// Orders whose end was not seen: the CPU was not running any of those that are watched.
    pub unseen: u64,
    /// Of the flushes that others asked for, those that none of those who are watched asked for.
    #[serde(with = "plain")]
    pub foreign: Reading<u64>,
    /// How the times around calls were taken that [`Call::around_shooting`] has; absent where they were not.
    #[serde(with = "plain")]
    pub around: Reading<Around>,
    /// What `/proc/vmstat` of the machine counted meanwhile, where that moves or protects pages; only what grew.
    pub machine: Vec<(Name, u64)>,
    /// What was not kept apart, for want of memory.
    #[serde(default)]
    pub folded: Folded,
}

/// The number of processes that are not kept apart.
pub const NO_PID: u32 = u32::MAX;

impl Recording {
    /// Whether a tracepoint told of it.
    pub fn has(&self, tracepoint: &str) -> bool {
        self.tracepoints.iter().any(|known| known == tracepoint)
    }

    /// Why a tracepoint did not.
    pub fn why_not(&self, tracepoint: &str) -> Absent {
        let missing = self.missing.iter().find(|(known, _)| known == tracepoint);
        missing.map_or(Absent::NotInThisKernel("".into()), |(_, why)| why.clone())
    }
}

/// How times were taken in the program, around system calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Around {
    /// The functions of the C library, or of a program that has none, that were timed from their first instruction to their
    /// last, and the files that they are of.
    pub functions: Vec<(String, Name)>,
    /// What taking the time and recording the call adds to it, in nanoseconds: half of the calls that do nothing took so much
    /// longer than they take unwatched.
    #[serde(with = "plain")]
    pub cost_ns: Reading<u64>,
}

/// Flushes for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kernel's word; its number where it has none.
    pub reason: String,
    /// How many.
    pub flushes: u64,
    /// Those that flushed all pages.
    pub full: u64,
    /// How many pages the others flushed.
    pub pages: u64,
}

/// A kind of system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The kernel's name.
    pub name: String,
    /// What `madvise` or `process_madvise` was asked for.
    pub advice: Option<u64>,
    /// How long those took that had other CPUs flush, in nanoseconds.
    pub shooting: Histogram,
    /// How long the others took.
    pub quiet: Histogram,
    /// How long the program waited for those that had other CPUs flush: from calling a function of the C library until it
    /// returns, in nanoseconds.
    pub around_shooting: Histogram,
    /// How long it waited for the others.
    pub around_quiet: Histogram,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number; 0 for CPUs that idle, [`NO_PID`] for those that are not kept apart.
    pub pid: u32,
    /// What it calls itself.
    pub name: Name,
    /// Flushes that others asked for and that interrupted it.
    pub received: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
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
pub struct Site {
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
    /// How many pages the other orders were for.
    pub pages: u64,
    /// How long it waited for those CPUs together, in nanoseconds, where the end was seen.
    pub waited: u64,
}

/// Calls of one kind from one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Which of the processes.
    pub process: usize,
    /// Which of the calls.
    pub call: usize,
    /// Which of the stacks.
    pub stack: usize,
    /// How many.
    pub calls: u64,
    /// Those that had other CPUs flush.
    pub shooting: u64,
    /// How long those took together, in nanoseconds.
    pub shooting_ns: u64,
    /// How long the others took together.
    pub quiet_ns: u64,
}

/// A CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// CPUs that were interrupted from here.
    pub sent: u64,
    /// Flushes here that others asked for.
    pub received: u64,
    /// Interrupts here to call a function, for flushes or anything else, while one of those who are watched ran.
    #[serde(with = "plain")]
    pub interrupts: Reading<u64>,
    /// The same to flush the TLB, whoever ran: the row of `/proc/interrupts`.
    #[serde(with = "plain")]
    pub machine: Reading<u64>,
}

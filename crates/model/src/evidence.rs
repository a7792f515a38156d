//! Evidence for a diagnosis: the results of all instruments that were applied to one process.

use serde::{Deserialize, Serialize};

use crate::faults::FaultRecording;
use crate::fragmentation::BootCounter;
use crate::heap_scan::HeapScan;
use crate::mapping::AddrRange;
use crate::reading::plain;
use crate::settings::Pressure;
use crate::shootdowns::ShootdownRecording;
use crate::thp::HugePages;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, Pid, Reading, Snapshot};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const EVIDENCE_VERSION: u32 = 1;

/// Everything that a diagnosis knows about a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// [`EVIDENCE_VERSION`] of the writer.
    pub pagewise_evidence: u32,
    /// The process at the beginning.
    pub first: Snapshot,
    /// The process at the end.
    pub last: Gathered<Box<Snapshot>>,
    /// Counters of the process over the time between, in order of time.
    pub activity: Vec<ActivityPoint>,
    /// Time that the threads waited for a CPU between the first and the last counters.
    #[serde(default)]
    pub cpu_waits: Gathered<CpuWaits>,
    /// The machine at the beginning and at the end.
    pub machine: [MachinePoint; 2],
    /// The other processes that have the most memory, largest first.
    pub others: Vec<OtherProcess>,
    /// Files in memory that the process holds open or created, largest first.
    #[serde(default)]
    pub memory_files: Vec<MemoryFile>,
    /// The memory cgroup.
    #[serde(with = "plain")]
    pub cgroup: Reading<CgroupActivity>,
    /// Stacks with pages that no thread uses.
    pub stacks: Gathered<Vec<StackUse>>,
    /// Zero-filled pages of huge pages.
    pub huge_pages: Gathered<HugePages>,
    /// Zero-filled pages of large anonymous mappings.
    #[serde(default)]
    pub zero_pages: Gathered<Vec<ZeroSample>>,
    /// The garbage collector of a language runtime, in order of time.
    #[serde(default)]
    pub collector: Gathered<Vec<CollectorPoint>>,
    /// The heap, with the reachability of its blocks.
    pub scan: Gathered<Box<HeapScan>>,
    /// Page faults by call stack.
    pub faults: Gathered<Box<FaultRecording>>,
    /// TLB shootdowns by cause.
    pub shootdowns: Gathered<Box<ShootdownRecording>>,
    /// Memory system calls and forks by call stack.
    pub calls: Gathered<CallProfile>,
    /// Allocations by call stack and size, if the heap scan found leaks.
    #[serde(default)]
    pub allocation_sizes: Gathered<AllocationSizes>,
    /// Allocations by call stack, if the user permits a recorder in the process.
    #[serde(default)]
    pub allocations: Gathered<AllocationProfile>,
    /// Cost of the diagnosis.
    pub cost: DiagnosisCost,
}

/// Time that the threads of a process ran, and that they were ready to run while other threads had
/// the CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuWaits {
    /// CPU time in nanoseconds, of all threads together.
    pub ran_ns: u64,
    /// Time in the run queues in nanoseconds, of all threads together.
    pub waited_ns: u64,
    /// CPU time in nanoseconds that the threads would have used in the same time on free CPUs.
    /// `None` in older files, whose waits have no duration to be compared with.
    #[serde(default)]
    pub undelayed_ns: Option<u64>,
}

impl CpuWaits {
    /// Shorter CPU time measures nothing.
    const MIN_RAN_NS: u64 = 1_000_000;
    /// Upper bound of [`CpuWaits::demand`]: at a higher ratio, little of the process was observed.
    const MAX_DEMAND: f64 = 30.0;

    /// Ratio of the CPU time that the threads asked for to the time that they got, at least 1. The
    /// rates of a process whose CPUs are busy with other work are lower by this factor.
    pub fn demand(&self) -> f64 {
        if self.ran_ns < CpuWaits::MIN_RAN_NS {
            return 1.0;
        }
        let wanted = self.undelayed_ns.unwrap_or(self.ran_ns.saturating_add(self.waited_ns));
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
        let ratio = wanted as f64 / self.ran_ns as f64;
        ratio.clamp(1.0, CpuWaits::MAX_DEMAND)
    }

    /// CPU time of one thread that ran and waited for these times within `span_ns`, if it had not
    /// waited. Between two pieces of work it sleeps as long as before, so that a thread that mostly
    /// sleeps gets little more CPU time, and one that never sleeps gets all of it.
    pub fn undelayed(ran_ns: u64, waited_ns: u64, span_ns: u64) -> u64 {
        let own = span_ns.saturating_sub(waited_ns).max(ran_ns).max(1);
        let wanted = u128::from(ran_ns) * u128::from(span_ns.max(own)) / u128::from(own);
        u64::try_from(wanted).unwrap_or(u64::MAX)
    }
}

/// Resident pages of an anonymous mapping, read at random positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroSample {
    /// The mapping.
    pub range: AddrRange,
    /// Its resident memory.
    pub resident: Bytes,
    /// True if it is locked; `None` if its `VmFlags` were not read.
    pub locked: Option<bool>,
    /// Number of pages that were read.
    pub read: u64,
    /// Number of those that are zero in every byte.
    pub zero: u64,
}

/// The garbage collector of a language runtime at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorPoint {
    /// Nanoseconds since the beginning of the diagnosis.
    pub at_ns: u64,
    /// Number of collections since the process began, if the runtime counts them.
    pub collections: Option<u64>,
    /// Bytes in the old generation: objects that survived collections. `None` in a runtime without
    /// generations.
    pub old: Option<Bytes>,
    /// Number of classes that are loaded, if the runtime counts them.
    #[serde(default)]
    pub classes: Option<u64>,
}

/// Result of an instrument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gathered<T> {
    /// The instrument ran.
    Value(T),
    /// Cheaper instruments made it unnecessary.
    #[default]
    NotNeeded,
    /// The instrument could not run, or would have exceeded the budget.
    Missing(Absent),
}

impl<T> Gathered<T> {
    /// The value, if the instrument ran.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Gathered::Value(value) => Some(value),
            Gathered::NotNeeded | Gathered::Missing(_) => None,
        }
    }

    /// The reason why the instrument could not run.
    pub const fn missing(&self) -> Option<&Absent> {
        match self {
            Gathered::Missing(why) => Some(why),
            Gathered::Value(_) | Gathered::NotNeeded => None,
        }
    }
}

impl<T> From<Reading<T>> for Gathered<T> {
    fn from(reading: Reading<T>) -> Gathered<T> {
        match reading {
            Ok(value) => Gathered::Value(value),
            Err(absent) => Gathered::Missing(absent),
        }
    }
}

/// Instruments of a diagnosis, in order of their cost to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instrument {
    /// Mappings, pages and limits at one time.
    Snapshot,
    /// Counters of the process, its cgroup and the machine over time.
    Activity,
    /// Unused pages of stacks.
    Stacks,
    /// A sample of the contents of huge pages.
    HugePages,
    /// A sample of the contents of anonymous mappings.
    ZeroPages,
    /// Counters of the garbage collector of a language runtime.
    Collector,
    /// Page faults.
    Faults,
    /// TLB shootdowns.
    Shootdowns,
    /// Memory system calls and forks.
    Calls,
    /// Blocks of the heap and their reachability.
    HeapScan,
    /// Calls of allocation functions.
    AllocationSizes,
    /// Allocations, by a recorder in the process.
    Allocations,
}

impl Instrument {
    /// All, in order of their cost.
    pub const ALL: [Instrument; 12] = [
        Instrument::Snapshot,
        Instrument::Activity,
        Instrument::Stacks,
        Instrument::HugePages,
        Instrument::ZeroPages,
        Instrument::Collector,
        Instrument::Faults,
        Instrument::Shootdowns,
        Instrument::Calls,
        Instrument::HeapScan,
        Instrument::AllocationSizes,
        Instrument::Allocations,
    ];

    /// The name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Instrument::Snapshot => "snapshot",
            Instrument::Activity => "activity",
            Instrument::Stacks => "stacks",
            Instrument::HugePages => "huge-pages",
            Instrument::ZeroPages => "zero-pages",
            Instrument::Collector => "garbage-collections",
            Instrument::Faults => "faults",
            Instrument::Shootdowns => "shootdowns",
            Instrument::Calls => "memory-calls",
            Instrument::HeapScan => "heap-scan",
            Instrument::AllocationSizes => "allocation-sizes",
            Instrument::Allocations => "allocations",
        }
    }

    /// The name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            Instrument::Snapshot => "snapshot",
            Instrument::Activity => "counters over time",
            Instrument::Stacks => "stacks",
            Instrument::HugePages => "contents of huge pages",
            Instrument::ZeroPages => "zero-filled pages",
            Instrument::Collector => "garbage collections",
            Instrument::Faults => "page faults",
            Instrument::Shootdowns => "TLB shootdowns",
            Instrument::Calls => "memory system calls",
            Instrument::HeapScan => "heap scan",
            Instrument::AllocationSizes => "sizes of allocations",
            Instrument::Allocations => "sampled allocations",
        }
    }

    /// Cost to the target, in words.
    pub const fn cost(self) -> &'static str {
        match self {
            Instrument::Snapshot => "reads page tables in pieces: pauses below 0.2 ms",
            Instrument::Activity => "reads counters 4 times a second: no pause",
            Instrument::Stacks => "reads unused stack pages: no pause",
            Instrument::HugePages => "reads a sample of huge pages: no pause",
            Instrument::ZeroPages => "reads a sample of resident pages: no pause",
            Instrument::Collector => "reads counters of the runtime: no pause",
            Instrument::Faults => "about 1 µs for each recorded fault",
            Instrument::Shootdowns => "about 1 µs for each flush",
            Instrument::Calls => "about 0.1 µs for each system call of the machine",
            Instrument::HeapScan => "reads the heap: no pause, or one pause within the budget",
            Instrument::AllocationSizes => "some microseconds for each allocation, for at most 1 s",
            Instrument::Allocations => "loads a recorder into the process: two pauses",
        }
    }

    /// The command that applies this instrument alone, without the target.
    pub const fn command(self) -> &'static str {
        match self {
            Instrument::Snapshot => "pagewise explain",
            Instrument::Activity => "pagewise diff --every 2s --for 1m",
            Instrument::Stacks => "pagewise trim --stacks",
            Instrument::HugePages => "pagewise thp",
            Instrument::ZeroPages => "pagewise pages",
            Instrument::Collector => "pagewise diagnose --for 1m",
            Instrument::Faults => "pagewise faults --for 10s",
            Instrument::Shootdowns => "pagewise shootdowns --for 10s",
            Instrument::Calls => "pagewise syscalls --for 5s",
            Instrument::HeapScan => "pagewise heap scan --leaks --retained",
            Instrument::AllocationSizes => "pagewise heap attach --for 10s",
            Instrument::Allocations => "pagewise heap attach --for 10s",
        }
    }
}

/// Counters of a process at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityPoint {
    /// Nanoseconds since the beginning of the diagnosis.
    pub at_ns: u64,
    /// `VmSize`.
    pub mapped: Bytes,
    /// `VmRSS`.
    pub resident: Bytes,
    /// `RssAnon`.
    #[serde(with = "plain")]
    pub anonymous: Reading<Bytes>,
    /// `RssFile`.
    #[serde(with = "plain")]
    pub file: Reading<Bytes>,
    /// `RssShmem`.
    #[serde(with = "plain")]
    pub shmem: Reading<Bytes>,
    /// `VmSwap`.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// `VmHWM`: the highest RES so far.
    #[serde(with = "plain")]
    pub peak: Reading<Bytes>,
    /// Minor page faults since the process began.
    pub minor_faults: u64,
    /// Major page faults since the process began.
    pub major_faults: u64,
    /// CPU time in user mode since the process began, in nanoseconds.
    pub user_ns: u64,
    /// CPU time in the kernel since the process began, in nanoseconds.
    pub system_ns: u64,
    /// Number of threads.
    pub threads: u64,
    /// Bytes that the process and its reaped children have read and written since the process began
    /// (`/proc/PID/io`): the largest of the bytes of system calls, one page for each system call,
    /// and the bytes of storage.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub file_traffic: Reading<Bytes>,
    /// The bytes of storage alone: read from a device, or written to pages that a device will
    /// receive. I/O of sockets, pipes and tmpfs is not part of it.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub storage_traffic: Reading<Bytes>,
    /// Bytes that the process and its reaped children have written by system calls since the
    /// process began, minus the bytes that storage will receive: writes to tmpfs, sockets and
    /// pipes.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub memory_writes: Reading<Bytes>,
    /// Number of times that the main thread has waited since it began
    /// (`voluntary_ctxt_switches`).
    #[serde(with = "plain", default = "not_in_evidence")]
    pub main_thread_waits: Reading<u64>,
}

/// Evidence of older versions has no such value.
fn not_in_evidence<T>() -> Reading<T> {
    Err(Absent::NotRecorded("the saved evidence".into()))
}

/// Counters of the machine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePoint {
    /// Nanoseconds since the beginning of the diagnosis.
    pub at_ns: u64,
    /// `vmstat`.
    pub vmstat: Vec<BootCounter>,
    /// `meminfo`: names and values in bytes (without a unit: counts).
    pub meminfo: Vec<BootCounter>,
    /// Files of `/sys/kernel/mm/ksm`: names and values.
    pub ksm: Vec<BootCounter>,
    /// TLB shootdowns received since boot, over all CPUs; `None` if the kernel does not count them.
    pub shootdowns: Option<u64>,
    /// Processes and threads created since boot (`processes` of `/proc/stat`).
    pub forks: Option<u64>,
    /// Pressure of the machine's memory.
    pub pressure: Option<Pressure>,
    /// Number of memory cgroups that were removed and still hold memory, if the kernel counts them.
    pub dying_cgroups: Option<u64>,
}

/// The value of a counter in a list.
pub fn counter(list: &[BootCounter], name: &str) -> Option<u64> {
    list.iter().find(|counter| counter.name.as_bytes() == name.as_bytes()).map(|it| it.count)
}

/// Another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherProcess {
    /// Its ID.
    pub pid: Pid,
    /// `comm`.
    pub name: Name,
    /// RES at the end.
    pub resident: Bytes,
    /// RES at the end minus RES at the beginning, in bytes.
    pub growth: i64,
    /// Major page faults between the beginning and the end.
    pub major_faults: u64,
    /// True if it is in the same memory cgroup.
    pub same_cgroup: bool,
}

/// Files in memory of one name: on tmpfs, of memfd_create, or System V segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFile {
    /// The path, or the name that the files have in common.
    pub name: Name,
    /// Allocated memory at the beginning.
    pub before: Bytes,
    /// Allocated memory at the end.
    pub after: Bytes,
    /// Number of files at the end.
    pub count: u64,
    /// True if no descriptor of the process leads to the files: only their names keep them.
    #[serde(default)]
    pub is_closed: bool,
}

/// A memory cgroup over the time of a diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupActivity {
    /// Path of the cgroup of the process.
    pub path: Name,
    /// Path of the cgroup with the lowest limit, from the cgroup of the process up, below the
    /// mount; the cgroup of the process if no limit is set.
    pub limited: Name,
    /// 1 or 2.
    pub version: u8,
    /// The limit; `None` is unlimited.
    pub limit: Option<Bytes>,
    /// The limit of memory and swap together (v1), or of swap (v2); `None` is unlimited or unknown.
    pub swap_limit: Option<Bytes>,
    /// The beginning and the end.
    pub points: [CgroupPoint; 2],
}

/// Counters of a memory cgroup at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPoint {
    /// Charged bytes.
    pub usage: Option<Bytes>,
    /// The highest number of charged bytes so far.
    pub peak: Option<Bytes>,
    /// Number of hits of the limit (`failcnt` of v1, `max` of `memory.events`).
    pub limit_hits: Option<u64>,
    /// OOM kills in the cgroup.
    pub oom_kills: Option<u64>,
    /// `memory.stat`, children included.
    pub stat: Vec<BootCounter>,
    /// Pressure (v2 only).
    pub pressure: Option<Pressure>,
}

/// The stack of a thread, and its resident pages below the stack pointer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackUse {
    /// The thread.
    pub tid: Pid,
    /// Its name.
    pub name: Name,
    /// The mapping that contains the stack.
    pub range: AddrRange,
    /// Resident memory of the stack.
    pub resident: Bytes,
    /// Resident memory below the stack pointer, which no function uses.
    pub unused: Bytes,
    /// Functions to which return addresses in the stack lead, with the number of these addresses;
    /// the function whose frames take most of the stack first.
    pub functions: Vec<(Frame, u64)>,
}

/// Memory system calls, and forks, by call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProfile {
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Number of lost events: the counts are then too low.
    pub lost: u64,
    /// The frames of all call stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Calls that are alike.
    pub rows: Vec<CallProfileRow>,
    /// Number of children of the process that called `execve`.
    pub execs: u64,
}

/// Calls of one kind from one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProfileRow {
    /// The system call: `mmap`, `madvise`, `fork` for all calls that create a process.
    pub call: String,
    /// For `madvise` and `mmap` the number of the advice or the flags; 0 otherwise.
    pub detail: u64,
    /// Index of the call stack.
    pub stack: u32,
    /// Number of calls.
    pub count: u64,
    /// Sum of the length arguments in bytes.
    pub bytes: u64,
}

/// Allocations by call stack and size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationSizes {
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Number of recorded calls.
    pub calls: u64,
    /// Number of lost events.
    pub lost: u64,
    /// The frames of all call stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Calls that are alike.
    pub rows: Vec<AllocationSizeRow>,
}

/// Allocations of one size from one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationSizeRow {
    /// Index of the call stack.
    pub stack: u32,
    /// Requested size in bytes.
    pub size: u64,
    /// Number of calls.
    pub count: u64,
}

/// Blocks that a process allocated during a recording and did not free, by call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationProfile {
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Allocated bytes for each sample on average; `None` if all allocations were recorded.
    pub every_bytes: Option<u64>,
    /// The frames of all call stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Allocations by call stack, most live bytes first.
    pub rows: Vec<AllocationProfileRow>,
}

/// Allocations of one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationProfileRow {
    /// Index of the call stack.
    pub stack: u32,
    /// Bytes that are live at the end of the recording.
    pub live: Bytes,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Bytes that were allocated.
    pub allocated: Bytes,
}

/// Cost of a diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosisCost {
    /// CPU time of pagewise in nanoseconds.
    pub cpu_ns: u64,
    /// The longest pause of the target, or of a thread of it, in nanoseconds.
    pub longest_pause_ns: u64,
    /// Duration in nanoseconds.
    pub wall_ns: u64,
    /// CPU time that the budget permits in nanoseconds.
    pub cpu_budget_ns: u64,
    /// Pause that the budget permits in nanoseconds.
    pub pause_budget_ns: u64,
    /// True if the user ended the diagnosis early.
    pub interrupted: bool,
    /// The instruments that ran.
    pub runs: Vec<InstrumentRun>,
}

/// One use of an instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstrumentRun {
    /// The instrument.
    pub instrument: Instrument,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// CPU time of pagewise in nanoseconds.
    pub cpu_ns: u64,
    /// The longest pause of the target in nanoseconds.
    pub pause_ns: u64,
}

//! Evidence for a diagnosis: the results of all instruments that measured one process.

use serde::{Deserialize, Serialize};

use crate::faults::FaultRecording;
use crate::fragmentation::BootCounter;
use crate::heap_sample::HeapSample;
use crate::heap_scan::HeapScan;
use crate::mapping::AddrRange;
use crate::reading::plain;
use crate::settings::Pressure;
use crate::shootdowns::ShootdownRecording;
use crate::thp::HugePages;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, Pid, Reading, Snapshot};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const EVIDENCE_VERSION: u32 = 1;

/// All measurements of a process that a diagnosis uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// [`EVIDENCE_VERSION`] of the program that wrote the file.
    pub pagewise_evidence: u32,
    /// The process at the beginning of the diagnosis.
    pub first: Snapshot,
    /// The process at the end of the diagnosis.
    pub last: Gathered<Box<Snapshot>>,
    /// Counters of the process during the diagnosis, in order of time.
    pub activity: Vec<ActivityPoint>,
    /// Time that the threads waited for a CPU between the first and the last counters.
    #[serde(default)]
    pub cpu_waits: Gathered<CpuWaits>,
    /// The machine at the beginning and at the end of the diagnosis.
    pub machine: [MachinePoint; 2],
    /// The other processes with the most memory, largest first.
    pub others: Vec<OtherProcess>,
    /// Files in memory (tmpfs, memfd, System V) that the process has open or created, and removed
    /// files on disks that it has open, largest first.
    #[serde(default)]
    pub memory_files: Vec<MemoryFile>,
    /// The memory cgroup of the process.
    #[serde(with = "plain")]
    pub cgroup: Reading<CgroupActivity>,
    /// Stacks of threads, with their resident pages below the stack pointer.
    pub stacks: Gathered<Vec<StackUse>>,
    /// Huge pages of the process, with their zero-filled parts.
    pub huge_pages: Gathered<HugePages>,
    /// Samples of large anonymous mappings, with the number of zero-filled pages.
    #[serde(default)]
    pub zero_pages: Gathered<Vec<ZeroSample>>,
    /// Counters of the garbage collector of a language runtime, in order of time.
    #[serde(default)]
    pub collector: Gathered<Vec<CollectorPoint>>,
    /// Scan of the heap, with the reachability of its blocks.
    pub scan: Gathered<Box<HeapScan>>,
    /// Leaked blocks of the scan that were read again later. A program cannot change a block that
    /// it has lost. Changed blocks show that it finds them without pointers, for example by offsets
    /// or encoded addresses, or that it used them during the scan.
    #[serde(default)]
    pub leak_recheck: Gathered<MemoryRecheck>,
    /// Free pages of the first heap sample that were read again at the end of the observation.
    /// Changed pages show that the program used them meanwhile.
    #[serde(default)]
    pub free_recheck: Gathered<MemoryRecheck>,
    /// Samples of the heap between the two snapshots, in order of time. Empty if the first snapshot
    /// shows little free memory.
    #[serde(default)]
    pub heap_samples: Vec<HeapSample>,
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

/// Time for which the threads of a process ran, and time for which they were runnable but waited
/// for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuWaits {
    /// CPU time in nanoseconds, of all threads together.
    pub ran_ns: u64,
    /// Time in the run queues in nanoseconds, of all threads together.
    pub waited_ns: u64,
    /// CPU time in nanoseconds that the threads would have used in the measured interval if they
    /// had never waited for a CPU. `None` in older files, which do not contain this number.
    #[serde(default)]
    pub undelayed_ns: Option<u64>,
}

impl CpuWaits {
    /// Minimum CPU time in nanoseconds for a meaningful ratio.
    const MIN_RAN_NS: u64 = 1_000_000;
    /// Maximum of [`CpuWaits::demand`]. A higher ratio is not reliable, because the process ran for
    /// too short a time.
    const MAX_DEMAND: f64 = 30.0;

    /// Ratio of requested CPU time (running and waiting) to received CPU time, at least 1. Measured
    /// rates of the process are too low by this factor, because other work used its CPUs.
    pub fn demand(&self) -> f64 {
        if self.ran_ns < CpuWaits::MIN_RAN_NS {
            return 1.0;
        }
        let wanted = self.undelayed_ns.unwrap_or(self.ran_ns.saturating_add(self.waited_ns));
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
        let ratio = wanted as f64 / self.ran_ns as f64;
        ratio.clamp(1.0, CpuWaits::MAX_DEMAND)
    }

    /// CPU time in nanoseconds that a thread would have used within `span_ns` without waiting for a
    /// CPU. The thread ran for `ran_ns` and waited for `waited_ns`. The estimate keeps the ratio of
    /// its CPU time to its sleeping time: a thread that mostly sleeps gets little more CPU time,
    /// and a thread that never sleeps gets the whole span.
    pub fn undelayed(ran_ns: u64, waited_ns: u64, span_ns: u64) -> u64 {
        let own = span_ns.saturating_sub(waited_ns).max(ran_ns).max(1);
        let wanted = u128::from(ran_ns) * u128::from(span_ns.max(own)) / u128::from(own);
        u64::try_from(wanted).unwrap_or(u64::MAX)
    }
}

/// Parts of the memory that were read twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRecheck {
    /// Number of equal parts of the memory that were read a second time.
    pub parts: u64,
    /// Number of these parts whose bytes had changed.
    pub changed: u64,
    /// Nanoseconds between the two readings.
    pub after_ns: u64,
}

impl MemoryRecheck {
    /// Minimum number of parts for a meaningful share.
    const MIN_PARTS: u64 = 32;

    /// Changed share of the memory; `None` if too few parts were read a second time.
    pub fn changed_share(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
        let share = self.changed as f64 / self.parts.max(1) as f64;
        (self.parts >= MemoryRecheck::MIN_PARTS).then_some(share)
    }
}

/// Sample of the resident pages of an anonymous mapping, at random positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroSample {
    /// Address range of the mapping.
    pub range: AddrRange,
    /// Resident memory of the mapping.
    pub resident: Bytes,
    /// True if the mapping is locked; `None` if its `VmFlags` were not read.
    pub locked: Option<bool>,
    /// Number of pages whose contents were read.
    pub read: u64,
    /// Number of read pages that are zero in every byte.
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
    /// Number of full collections since the process began: those that free all garbage of the old
    /// generation. `None` if the runtime does not count them.
    #[serde(default)]
    pub full: Option<u64>,
}

/// Result of an instrument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gathered<T> {
    /// The instrument ran, with this result.
    Value(T),
    /// Results of cheaper instruments made this instrument unnecessary.
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

    /// The value for changes, if the instrument ran.
    pub const fn value_mut(&mut self) -> Option<&mut T> {
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
    /// All instruments, in order of their cost to the target.
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

    /// The instrument's name in JSON.
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

    /// The instrument's name in reports.
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

    /// The instrument's cost to the target, in words.
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

    /// The command that runs this instrument alone; the user adds the target.
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
    /// Number of minor page faults since the process began.
    pub minor_faults: u64,
    /// Number of major page faults since the process began.
    pub major_faults: u64,
    /// CPU time in user mode since the process began, in nanoseconds.
    pub user_ns: u64,
    /// CPU time in the kernel since the process began, in nanoseconds.
    pub system_ns: u64,
    /// Number of threads at this time.
    pub threads: u64,
    /// Bytes that the process and its reaped children have read and written since the process began
    /// (`/proc/PID/io`). The value is the maximum of three sums: the bytes of system calls, one
    /// page for each system call, and the bytes of storage I/O.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub file_traffic: Reading<Bytes>,
    /// Bytes of storage I/O of the process and its reaped children: bytes that were read from a
    /// device, or written to pages that will be written to a device. I/O of sockets, pipes and
    /// tmpfs is not included.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub storage_traffic: Reading<Bytes>,
    /// Bytes that the process and its reaped children have written by system calls since the
    /// process began, minus the bytes that will be written to a device. The difference is the bytes
    /// written to tmpfs, sockets and pipes.
    #[serde(with = "plain", default = "not_in_evidence")]
    pub memory_writes: Reading<Bytes>,
    /// Number of voluntary context switches of the main thread since it began
    /// (`voluntary_ctxt_switches`).
    #[serde(with = "plain", default = "not_in_evidence")]
    pub main_thread_waits: Reading<u64>,
}

/// Value of a field that evidence of older versions does not contain.
fn not_in_evidence<T>() -> Reading<T> {
    Err(Absent::NotRecorded("the saved evidence".into()))
}

/// Counters of the machine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePoint {
    /// Nanoseconds since the beginning of the diagnosis.
    pub at_ns: u64,
    /// Counters of `/proc/vmstat`.
    pub vmstat: Vec<BootCounter>,
    /// Counters of `/proc/meminfo`. Counters in kB are converted to bytes; the other ones are
    /// counts.
    pub meminfo: Vec<BootCounter>,
    /// Files of `/sys/kernel/mm/ksm`, each with its value.
    pub ksm: Vec<BootCounter>,
    /// Number of TLB shootdowns received since boot, over all CPUs; `None` if the kernel does not
    /// count them.
    pub shootdowns: Option<u64>,
    /// Number of processes and threads created since boot (`processes` of `/proc/stat`).
    pub forks: Option<u64>,
    /// Memory pressure of the machine.
    pub pressure: Option<Pressure>,
    /// Number of removed memory cgroups that still hold memory; `None` if the kernel does not count
    /// them.
    pub dying_cgroups: Option<u64>,
}

/// Returns the value of the counter `name`; `None` if the list does not contain it.
pub fn counter(list: &[BootCounter], name: &str) -> Option<u64> {
    list.iter().find(|counter| counter.name.as_bytes() == name.as_bytes()).map(|it| it.count)
}

/// A process other than the diagnosed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherProcess {
    /// PID of the process.
    pub pid: Pid,
    /// `comm` of the process.
    pub name: Name,
    /// RES at the end of the diagnosis.
    pub resident: Bytes,
    /// RES at the end minus RES at the beginning, in bytes.
    pub growth: i64,
    /// Number of major page faults during the diagnosis.
    pub major_faults: u64,
    /// True if the process is in the memory cgroup of the diagnosed process.
    pub same_cgroup: bool,
}

/// Files in memory with the same name: on tmpfs, of `memfd_create`, or System V segments. Also
/// removed files on a disk, whose pages are in the page cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFile {
    /// Path of the file, or the common name of the files.
    pub name: Name,
    /// Allocated memory, or disk space of removed files, at the beginning of the diagnosis.
    pub before: Bytes,
    /// Allocated memory, or disk space of removed files, at the end of the diagnosis.
    pub after: Bytes,
    /// Number of files at the end of the diagnosis.
    pub count: u64,
    /// True if the process has no open descriptor of the files, so that only their paths keep them
    /// allocated.
    #[serde(default)]
    pub is_closed: bool,
    /// True if the files are on a disk and were removed: an open descriptor keeps them allocated.
    #[serde(default)]
    pub is_removed: bool,
}

impl MemoryFile {
    /// Growth of the files during the diagnosis; 0 if they shrank.
    pub fn growth(&self) -> Bytes {
        self.after.saturating_sub(self.before)
    }
}

/// A memory cgroup at the beginning and at the end of a diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupActivity {
    /// Path of the cgroup of the process.
    pub path: Name,
    /// Path of the cgroup with the lowest limit among the process's cgroup and its ancestors below
    /// the mount; the cgroup of the process if no limit is set.
    pub limited: Name,
    /// Version of the cgroup hierarchy: 1 or 2.
    pub version: u8,
    /// Limit of charged memory; `None` if it is unlimited.
    pub limit: Option<Bytes>,
    /// Limit of memory and swap together (v1), or of swap (v2); `None` if it is unlimited or
    /// unknown.
    pub swap_limit: Option<Bytes>,
    /// Counters at the beginning and at the end of the diagnosis.
    pub points: [CgroupPoint; 2],
}

/// Counters of a memory cgroup at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPoint {
    /// Charged bytes.
    pub usage: Option<Bytes>,
    /// The highest number of charged bytes so far.
    pub peak: Option<Bytes>,
    /// Number of times that the limit was reached (`failcnt` of v1, `max` of `memory.events`).
    pub limit_hits: Option<u64>,
    /// Number of OOM kills in the cgroup.
    pub oom_kills: Option<u64>,
    /// `memory.stat`, descendants included.
    pub stat: Vec<BootCounter>,
    /// Memory pressure of the cgroup (v2 only).
    pub pressure: Option<Pressure>,
}

/// The stack of a thread, and its resident pages below the stack pointer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackUse {
    /// Thread ID.
    pub tid: Pid,
    /// Name of the thread.
    pub name: Name,
    /// The mapping that contains the stack.
    pub range: AddrRange,
    /// Resident memory of the stack.
    pub resident: Bytes,
    /// Resident memory that lies more than a margin below the stack pointer. Functions do not use
    /// this memory.
    pub unused: Bytes,
    /// Functions whose return addresses are in the stack, each with the number of these addresses.
    /// The function whose frames take the most stack is the first.
    pub functions: Vec<(Frame, u64)>,
}

/// Memory system calls, and forks, by call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProfile {
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Number of lost events. If it is not 0, the counts are too low.
    pub lost: u64,
    /// The frames of all call stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Calls, grouped by system call, argument and call stack.
    pub rows: Vec<CallProfileRow>,
    /// Number of children of the process that called `execve`.
    pub execs: u64,
}

/// Calls of one kind from one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProfileRow {
    /// The system call: `mmap`, `madvise`. `fork` stands for all calls that create a process.
    pub call: String,
    /// The advice (a number) for `madvise`, the flags for `mmap`; 0 for other calls.
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
    /// Calls, grouped by size and call stack.
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
    /// Mean number of allocated bytes between two samples; `None` if all allocations were recorded.
    pub every_bytes: Option<u64>,
    /// The frames of all call stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Allocations by call stack, most live bytes first.
    pub rows: Vec<AllocationProfileRow>,
}

/// Blocks that were allocated from one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationProfileRow {
    /// Index of the call stack.
    pub stack: u32,
    /// Bytes that are live at the end of the recording.
    pub live: Bytes,
    /// Number of blocks that are live at the end of the recording.
    pub live_blocks: u64,
    /// Bytes allocated during the recording.
    pub allocated: Bytes,
}

/// Cost of a diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosisCost {
    /// CPU time that pagewise used, in nanoseconds.
    pub cpu_ns: u64,
    /// The longest time for which the target or one of its threads was stopped, in nanoseconds.
    pub longest_pause_ns: u64,
    /// Duration of the diagnosis in nanoseconds.
    pub wall_ns: u64,
    /// Maximum CPU time that pagewise may use, in nanoseconds.
    pub cpu_budget_ns: u64,
    /// Maximum time for which the target may be stopped at once, in nanoseconds.
    pub pause_budget_ns: u64,
    /// True if the user ended the diagnosis early.
    pub interrupted: bool,
    /// Runs of instruments.
    pub runs: Vec<InstrumentRun>,
}

/// One run of an instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstrumentRun {
    /// The instrument.
    pub instrument: Instrument,
    /// Duration of the run in nanoseconds.
    pub took_ns: u64,
    /// CPU time that pagewise used for the run, in nanoseconds.
    pub cpu_ns: u64,
    /// The longest time for which the target was stopped during the run, in nanoseconds.
    pub pause_ns: u64,
}

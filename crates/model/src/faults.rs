//! Page faults of some processes by kind, call stack and mapping.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::ending::ProgramEnding;
use crate::histogram::TimeHistogram;
use crate::mapping::{AddrRange, Quadrant};
use crate::reading::plain;
use crate::traced::{Frame, StackCount, StackProfile};
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// Version of the file format of a saved [`FaultRecording`].
pub const VERSION: u32 = 1;

/// The page faults of a command or of a running process, and of all its descendants. Faults with
/// the same call stack, mapping, thread, kind and owner are one row with a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecording {
    /// [`VERSION`] of the program that made the recording.
    pub version: u32,
    /// PID of the command, or of the process that was already running.
    pub pid: Pid,
    /// Words of the command line; empty for a process that was already running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a transparent huge page.
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Ending of the command or process; `None` if it is still running.
    pub ending: Option<ProgramEnding>,
    /// Source of the fault events.
    pub source: FaultSource,
    /// Sampling rate: one in `every` faults was recorded. Each count is a multiple of `every`.
    pub every: u64,
    /// Number of events that did not fit into the perf ring buffers.
    pub lost: u64,
    /// Number of user-mode faults that the kernel counted, recorded or not; `None` if the counter
    /// could not be read.
    pub counted: Option<u64>,
    /// Number of stack bytes that were copied with each fault, to unwind the call stack by unwind
    /// tables; 0 if only frame pointers were used.
    #[serde(default)]
    pub stack_bytes: u32,
    /// Number of faults with an incomplete call stack; `None` if it is unknown.
    #[serde(default)]
    pub cut: Option<u64>,
    /// Minor and major faults of the command and its reaped children (`getrusage`). They include
    /// faults without an event, such as those of calls that populate memory.
    #[serde(with = "plain")]
    pub usage: Reading<(u64, u64)>,
    /// Frames that the call stacks refer to.
    pub frames: Vec<Frame>,
    /// Call stacks without duplicates: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Mappings in which faults occurred.
    pub mappings: Vec<FaultMapping>,
    /// Threads that faulted.
    pub threads: Vec<FaultThread>,
    /// Data of the heap recorder: a library in the recorded process that records allocations.
    /// `None` if the heap recorder was not requested, or produced nothing.
    #[serde(default)]
    pub heap: Option<FaultHeap>,
    /// Number of faults by call stack, mapping, thread, kind and owner.
    pub rows: Vec<FaultRow>,
    /// Latencies of faults by kind; empty if they were not requested.
    pub latencies: Vec<(FaultKind, TimeHistogram)>,
    /// Number of faults over time.
    pub time_line: TimeLine,
    /// Events that were merged to stay within the memory limit.
    #[serde(default)]
    pub folded: Folded,
    /// Reasons of missing data.
    pub lacks: Vec<Absent>,
}

/// Source of page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultSource {
    /// The tracepoints `exceptions:page_fault_user` and `exceptions:page_fault_kernel`, which also
    /// report the kind of the access.
    Tracepoints,
    /// The software events for minor and major faults. They do not show if a fault was a write.
    Counters,
}

/// Kind of a page fault, by the cause of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// First access to a page of anonymous memory, which the kernel allocated.
    Anonymous,
    /// First access, by a read, to a page of private anonymous memory. The kernel maps its zero
    /// page.
    Zero,
    /// An access to a page that was in the page cache but not mapped.
    File,
    /// Write to a private page that was shared with another process or with a file. The kernel
    /// copied the page.
    CopyOnWrite,
    /// Write to a page of shared memory that was mapped read-only: the kernel marks the page dirty.
    WriteProtect,
    /// A huge page was allocated or mapped.
    Huge,
    /// The fault waited for I/O, or for a lock that another thread held.
    Major,
    /// The kind is unknown.
    Unknown,
}

impl FaultKind {
    /// All kinds, in the order in which reports show them.
    pub const ALL: [FaultKind; 8] = [
        FaultKind::Anonymous,
        FaultKind::Zero,
        FaultKind::File,
        FaultKind::CopyOnWrite,
        FaultKind::WriteProtect,
        FaultKind::Huge,
        FaultKind::Major,
        FaultKind::Unknown,
    ];

    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            FaultKind::Anonymous => "anonymous",
            FaultKind::Zero => "zero_page",
            FaultKind::File => "file",
            FaultKind::CopyOnWrite => "copy_on_write",
            FaultKind::WriteProtect => "write_protect",
            FaultKind::Huge => "huge",
            FaultKind::Major => "major",
            FaultKind::Unknown => "unknown",
        }
    }

    /// The name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            FaultKind::Anonymous => "minor anonymous",
            FaultKind::Zero => "zero page",
            FaultKind::File => "minor file",
            FaultKind::CopyOnWrite => "copy-on-write",
            FaultKind::WriteProtect => "write-protect",
            FaultKind::Huge => "huge",
            FaultKind::Major => "major",
            FaultKind::Unknown => "unknown",
        }
    }

    /// Meaning of the kind in one sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            FaultKind::Anonymous => {
                "Memory of no file was touched first: the kernel zeroed a page."
            }
            FaultKind::Zero => {
                "Private memory of no file was read before it was written: the kernel's zero page is there now."
            }
            FaultKind::File => {
                "A page of a file that was in memory already was mapped, and its neighbors with it."
            }
            FaultKind::CopyOnWrite => {
                "First write to a private page: it was copied, unless no other process mapped it."
            }
            FaultKind::WriteProtect => {
                "A page of shared memory that could only be read was written: it is dirty from now on."
            }
            FaultKind::Huge => "A huge page was made or mapped.",
            FaultKind::Major => {
                "The page came from a disk, or the fault waited for a lock or for another that read it."
            }
            FaultKind::Unknown => "In no known mapping, or an access that is not permitted.",
        }
    }

    /// Index of the kind in [`FaultKind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A mapping in which faults occurred. Adjacent anonymous mappings that the kernel merged are one
/// mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultMapping {
    /// PID of the first process in which the mapping was observed; its children may have the
    /// mapping too.
    pub pid: Pid,
    /// Address range.
    pub range: AddrRange,
    /// The name as `maps` prints it; empty if the mapping has no name.
    pub name: Name,
    /// The mapping's type by the arguments of `mmap`: private or shared, and anonymous or of a
    /// file. `None` for faults at addresses that no known mapping contains.
    pub quadrant: Option<Quadrant>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultThread {
    /// PID of the thread's process.
    pub pid: Pid,
    /// Thread ID.
    pub tid: Pid,
    /// Last known name of the thread.
    pub name: Name,
}

/// Data that the heap recorder of the recorded process produced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultHeap {
    /// Minimum size of recorded blocks in bytes.
    pub least: u64,
    /// Number of times that the live blocks became unknown because the recorder's log was not read
    /// in time.
    pub lost: u64,
    /// Number of child processes that loaded the recorder but were not recorded.
    pub refused: u64,
    /// Call stacks that allocated blocks.
    pub allocations: Vec<Allocation<u32>>,
}

/// Blocks allocated by one call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation<F> {
    /// Number of recorded blocks; 0 if only the allocator itself faulted.
    pub blocks: u64,
    /// Requested bytes of these blocks.
    pub bytes: u64,
    /// The allocating function, followed by its callers.
    pub frames: Vec<F>,
}

impl FaultHeap {
    /// Returns the allocation that owns the memory; `None` if it is unknown.
    pub fn allocation(&self, owner: Owner) -> Option<&Allocation<u32>> {
        let (Owner::Block(number) | Owner::Allocator(number)) = owner else { return None };
        self.allocations.get(number as usize)
    }
}

/// Owner of the memory whose access caused a page fault.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Unknown: the heap of the process was not recorded at the time of the fault.
    #[default]
    Unrecorded,
    /// A live block of the allocation with this index in [`FaultHeap::allocations`].
    Block(u32),
    /// The allocator accessed the memory during a call of the allocation with this index, or while
    /// it freed a block of that allocation.
    Allocator(u32),
    /// Memory of the recorder itself.
    Recorder,
    /// Memory outside of recorded blocks: a block below the minimum size, a stack, a file, or
    /// another mapping.
    Elsewhere,
}

impl Owner {
    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Owner::Unrecorded => "unrecorded",
            Owner::Block(_) => "block",
            Owner::Allocator(_) => "allocator",
            Owner::Recorder => "recorder",
            Owner::Elsewhere => "elsewhere",
        }
    }
}

/// Faults with the same call stack, mapping, thread, kind and owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRow {
    /// Index in [`FaultRecording::stacks`].
    pub stack: u32,
    /// Index in [`FaultRecording::mappings`].
    pub mapping: u32,
    /// Index in [`FaultRecording::threads`].
    pub thread: u32,
    /// Kind of the faults.
    pub kind: FaultKind,
    /// True if kernel code accessed the memory during a system call of the program.
    pub by_kernel: bool,
    /// True if the thread's stack pointer was in the mapping that faulted.
    #[serde(default)]
    pub on_stack: bool,
    /// Owner of the memory.
    #[serde(default)]
    pub owner: Owner,
    /// Number of faults.
    pub count: u64,
    /// Total duration of the faults in nanoseconds; `None` if it was not recorded.
    pub took_ns: Option<u64>,
}

/// Number of faults by kind, in time intervals of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLine {
    /// Length of an interval in nanoseconds.
    pub span_ns: u64,
    /// Counts of each interval, by [`FaultKind::index`].
    pub spans: Vec<[u64; FaultKind::ALL.len()]>,
}

impl FaultRecording {
    /// Fault counts by call stack: the input of flame graphs and of other tools.
    pub fn profile(&self) -> StackProfile {
        let stack = |stack: &Vec<u32>| {
            stack.iter().filter_map(|frame| self.frames.get(*frame as usize).cloned()).collect()
        };
        let sample = |row: &FaultRow| {
            let thread = self.threads.get(row.thread as usize);
            let mapping = self.mappings.get(row.mapping as usize);
            let mapping = mapping.map(|it| it.name.escaped().into_owned()).unwrap_or_default();
            let quadrant = self.mappings.get(row.mapping as usize).and_then(|it| it.quadrant);
            let mut labels = vec![("kind".to_owned(), row.kind.key().to_owned())];
            labels.extend((!mapping.is_empty()).then(|| ("mapping".to_owned(), mapping)));
            labels.extend(quadrant.map(|it| ("quadrant".to_owned(), it.key().to_owned())));
            if let Some(heap) = &self.heap {
                labels.push(("owner".to_owned(), row.owner.key().to_owned()));
                let name = heap.allocation(row.owner).and_then(|it| self.asked_for(it));
                labels.extend(name.map(|name| ("allocation".to_owned(), name)));
            }
            StackCount {
                stack: row.stack,
                count: row.count,
                took_ns: row.took_ns,
                // Merged threads have thread ID 0.
                thread: thread.filter(|it| it.tid.0 != 0).map(|it| (it.pid.0, it.tid.0)),
                labels,
            }
        };
        StackProfile {
            what: "page faults".to_owned(),
            began_ns: self.began_ns,
            took_ns: self.took_ns,
            stacks: self.stacks.iter().map(stack).collect(),
            samples: self.rows.iter().map(sample).collect(),
        }
    }

    /// Name of the function that called the allocator; the name of its file if the function is
    /// unknown.
    fn asked_for(&self, allocation: &Allocation<u32>) -> Option<String> {
        let frame = self.frames.get(*allocation.frames.first()? as usize)?;
        let base = |module: &Name| Name::new(module.base()).escaped().into_owned();
        frame.function.clone().or_else(|| frame.module.as_ref().map(base))
    }

    /// Number of faults. Each sample counts for all faults that it represents.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }
}

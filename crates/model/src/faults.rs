//! Page faults of some processes by kind, call stack and mapping.

use serde::{Deserialize, Serialize};

use crate::bounds::Folded;
use crate::ending::ProgramEnding;
use crate::histogram::TimeHistogram;
use crate::mapping::{AddrRange, Quadrant};
use crate::reading::plain;
use crate::traced::{Frame, StackCount, StackProfile};
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// The form of a saved [`FaultRecording`].
pub const VERSION: u32 = 1;

/// The page faults of a command or of a running process, and of all its descendants. Equal faults
/// are added up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecording {
    /// [`VERSION`], where it was saved.
    pub version: u32,
    /// The command, or the process that was running.
    pub pid: Pid,
    /// The command's words; empty for a process that was already running.
    pub command: Vec<Name>,
    /// The base page size.
    pub page_size: PageSize,
    /// The size of a transparent huge page.
    #[serde(with = "plain")]
    pub huge_page: Reading<Bytes>,
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Ending of the command or process; `None` if it is still running.
    pub ending: Option<ProgramEnding>,
    /// Source of the faults.
    pub source: FaultSource,
    /// Sampling rate: one in `every` faults was recorded; every count is a multiple of it.
    pub every: u64,
    /// Number of events that did not fit into the perf ring buffers.
    pub lost: u64,
    /// Number of user-mode faults that the kernel counted, recorded or not; `None` if the counter
    /// could not be read.
    pub counted: Option<u64>,
    /// Number of stack bytes copied with each fault, to find callers by unwind tables; 0 if callers
    /// were found by frame pointers only.
    #[serde(default)]
    pub stack_bytes: u32,
    /// Number of faults with an incomplete call stack; `None` if unknown.
    #[serde(default)]
    pub cut: Option<u64>,
    /// Kernel counts for the command and its waited-for children: minor and major faults. They
    /// include faults without an event, of calls that populate memory.
    #[serde(with = "plain")]
    pub usage: Reading<(u64, u64)>,
    /// Frames that the call stacks refer to.
    pub frames: Vec<Frame>,
    /// Call stacks without duplicates: indices of frames, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// The mappings.
    pub mappings: Vec<FaultMapping>,
    /// The threads.
    pub threads: Vec<FaultThread>,
    /// Data of the heap recorder; `None` if it was not requested, or produced nothing.
    #[serde(default)]
    pub heap: Option<FaultHeap>,
    /// Faults by site.
    pub rows: Vec<FaultRow>,
    /// Latencies of faults by kind; empty if not requested.
    pub latencies: Vec<(FaultKind, TimeHistogram)>,
    /// Faults over time.
    pub time_line: TimeLine,
    /// Events that were merged to stay within the memory limit.
    #[serde(default)]
    pub folded: Folded,
    /// Missing data, and the reason.
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

/// Kind of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// First access to a page of anonymous memory.
    Anonymous,
    /// A read of private anonymous memory that was never written: the kernel maps its zero page.
    Zero,
    /// A page-cache page that was already in memory was mapped.
    File,
    /// Write to a private page that another process shared, or that belonged to a file: the page
    /// was copied.
    CopyOnWrite,
    /// Write to a page of shared memory that was mapped read-only: the kernel marks the page dirty.
    WriteProtect,
    /// A huge page was allocated or mapped.
    Huge,
    /// The fault waited for I/O or for a lock.
    Major,
    /// Kind unknown.
    Unknown,
}

impl FaultKind {
    /// All, in the order in which they are shown.
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

    /// The name used as a key.
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

    /// The name in words.
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

    /// Meaning of the kind as a sentence.
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

    /// As an index.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A mapping in which faults occurred. Anonymous neighbors that the kernel merged are one mapping
/// here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultMapping {
    /// The process in which it was first observed; its children may have it too.
    pub pid: Pid,
    /// Address range.
    pub range: AddrRange,
    /// The name as `maps` prints it; empty if the mapping has no name.
    pub name: Name,
    /// The quadrant by the arguments of `mmap`; `None` if no known mapping contains the address.
    pub quadrant: Option<Quadrant>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultThread {
    /// Its process.
    pub pid: Pid,
    /// Its number.
    pub tid: Pid,
    /// Its last name.
    pub name: Name,
}

/// Data that the heap recorder of the recorded process produced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultHeap {
    /// Minimum size of recorded blocks, in bytes.
    pub least: u64,
    /// Number of times the live blocks became unknown, because the log was not read in time.
    pub lost: u64,
    /// Number of child processes that loaded the recorder and were not recorded.
    pub refused: u64,
    /// Allocating call stacks.
    pub allocations: Vec<Allocation<u32>>,
}

/// Blocks allocated by one call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation<F> {
    /// Recorded blocks; 0 if only the allocator faulted.
    pub blocks: u64,
    /// Their requested bytes.
    pub bytes: u64,
    /// The allocating function, then its callers.
    pub frames: Vec<F>,
}

impl FaultHeap {
    /// The allocation of the memory of an owner; `None` if it is not known.
    pub fn allocation(&self, owner: Owner) -> Option<&Allocation<u32>> {
        let (Owner::Block(number) | Owner::Allocator(number)) = owner else { return None };
        self.allocations.get(number as usize)
    }
}

/// Owner of the memory that faulted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Unknown: the heap of the process was not recorded, or not yet.
    #[default]
    Unrecorded,
    /// A live block of the allocation with this index in [`FaultHeap::allocations`].
    Block(u32),
    /// The allocator accessed the memory while it served the allocation with this index, or freed a
    /// block there.
    Allocator(u32),
    /// Memory of the recorder itself.
    Recorder,
    /// Outside of recorded blocks: in a small one, a stack, a file, or a mapping.
    Elsewhere,
}

impl Owner {
    /// The name used as a key.
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
    /// True if the kernel accessed the memory in a system call of the program.
    pub by_kernel: bool,
    /// True if the stack pointer of the thread was in the same mapping.
    #[serde(default)]
    pub on_stack: bool,
    /// Owner of the memory.
    #[serde(default)]
    pub owner: Owner,
    /// Number of faults.
    pub count: u64,
    /// Duration of all of them in nanoseconds, if it was recorded.
    pub took_ns: Option<u64>,
}

/// Number of faults by kind, in spans of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLine {
    /// The length of a span in nanoseconds.
    pub span_ns: u64,
    /// The spans, from the beginning.
    pub spans: Vec<[u64; FaultKind::ALL.len()]>,
}

impl FaultRecording {
    /// Counts by call stack: the input of flame graphs and of other tools.
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
                // Merged threads have the ID 0.
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

    /// Name of the call stack's allocating function, or of its file.
    fn asked_for(&self, allocation: &Allocation<u32>) -> Option<String> {
        let frame = self.frames.get(*allocation.frames.first()? as usize)?;
        let base = |module: &Name| Name::new(module.base()).escaped().into_owned();
        frame.function.clone().or_else(|| frame.module.as_ref().map(base))
    }

    /// Number of faults; each sample counts for all faults that it represents.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }
}

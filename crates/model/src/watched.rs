//! Accesses to some bytes of a process's memory: thread, call stack and value of each.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// Watched bytes, and the accesses to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRecording {
    /// The process.
    pub pid: Pid,
    /// Name of the process; for a command its first word.
    pub name: Name,
    /// The command's words; empty for a process that was already running.
    pub command: Vec<Name>,
    /// The first of the bytes.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
    /// The variable that contains the bytes, if they were found by its name.
    pub symbol: Option<Name>,
    /// The mapping that contained the bytes at the start, and true if it was shared; `None` without
    /// one.
    pub mapping: Option<(Name, bool)>,
    /// The heap block that contained them at the start, if the process has a recorder.
    #[serde(default)]
    pub block: Option<WatchedBlock>,
    /// True if reads count as well.
    pub reads: bool,
    /// `Ok` if accesses of the kernel for the process are recorded too.
    #[serde(with = "plain")]
    pub kernel: Reading<()>,
    /// Content of the bytes at the start.
    #[serde(with = "plain")]
    pub first: Reading<Vec<u8>>,
    /// Condition under which accesses are stored; `None` if all are.
    pub when: Option<String>,
    /// The stored accesses, in order of time.
    pub hits: Vec<Hit>,
    /// Call stacks without duplicates, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Number of accesses that did not meet the condition `when`.
    pub passed_over: u64,
    /// Number of accesses that were not stored, because the limit was reached.
    pub dropped: u64,
    /// Accesses of child processes to their own copies of the memory.
    pub in_copies: u64,
    /// Number of times the memory differed from the value that the last access had left.
    pub unseen: u64,
    /// Number of accesses whose call stacks were merged to stay within the memory limit.
    #[serde(default)]
    pub other_stacks: u64,
    /// The memory limit of the recorder in bytes; 0 without a limit.
    #[serde(default)]
    pub memory_limit: u64,
    /// Accesses that did not fit into the kernel's buffers.
    pub lost: u64,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Why it ended.
    pub ended: WatchEnding,
}

/// Reason of the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnding {
    /// The process ended; for a command with its exit status or signal.
    Process(Option<ProgramEnding>),
    /// The process executed another program, so the memory is gone.
    Executed,
    /// The requested number of accesses was reached.
    Enough,
    /// The time was up.
    Time,
    /// The user interrupted the recording.
    Interrupted,
}

/// An access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// The process that made the access: another one if the memory is shared.
    pub pid: Pid,
    /// The thread.
    pub tid: Pid,
    /// The thread's name.
    pub thread: Name,
    /// Kind of the access.
    pub access: WatchAccess,
    /// Content of the bytes before the access.
    #[serde(with = "plain")]
    pub old: Reading<Vec<u8>>,
    /// Content of the bytes after the access.
    #[serde(with = "plain")]
    pub value: Reading<Vec<u8>>,
    /// Source of the value.
    pub known: ValueOrigin,
    /// The instruction, if it was found; `None` for an access of the kernel.
    pub instruction: Option<String>,
    /// Function of the kernel that made the access for the process; `None` if the program made it
    /// itself.
    pub kernel: Option<InKernel>,
    /// Index in [`WatchRecording::stacks`].
    pub stack: u32,
}

/// A block of the heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedBlock {
    /// First address.
    pub start: u64,
    /// Requested size in bytes; `None` if only the usable size is known, as for large blocks.
    pub size: Option<u64>,
    /// Usable size in bytes; `None` if the allocator does not report it.
    pub room: Option<u64>,
    /// The allocating function, then its callers.
    pub frames: Vec<Frame>,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchAccess {
    /// It was written.
    Write,
    /// It was read.
    Read,
    /// It was read or written: the instruction was not found.
    Either,
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOrigin {
    /// The instruction stored it: exact.
    Stored,
    /// The instruction computed it from the value before the access, whose certainty it has.
    Computed,
    /// The kernel copied the memory when it reported the access: some microseconds later, before
    /// the accessing thread continued.
    Copied,
    /// It was read from memory after this access and before the next.
    Read,
    /// An access that only reads changes nothing.
    Unchanged,
    /// The value is not known.
    Not,
}

/// Location of an access in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InKernel {
    /// The system call of the thread: `read`; `None` for other work, such as a page fault or a
    /// signal.
    pub call: Option<String>,
    /// The function that made the access, where its name may be known.
    pub function: Option<String>,
}

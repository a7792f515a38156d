//! Recorded accesses to some bytes of a process's memory, with thread, call stack and value.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// Watched bytes, and the recorded accesses to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRecording {
    /// PID of the process.
    pub pid: Pid,
    /// Name of the process; for a command, its first word.
    pub name: Name,
    /// Words of the command line; empty for a process that was already running.
    pub command: Vec<Name>,
    /// Address of the first watched byte.
    pub address: u64,
    /// Number of watched bytes.
    pub length: u64,
    /// The variable that contains the bytes; `None` if the user did not name a variable.
    pub symbol: Option<Name>,
    /// Name of the mapping that contained the bytes at the start, and true if it was a shared
    /// mapping; `None` if no mapping contained them.
    pub mapping: Option<(Name, bool)>,
    /// The heap block that contained the bytes at the start; `None` if the bytes were not in a heap
    /// block, or if the process had no heap recorder.
    #[serde(default)]
    pub block: Option<WatchedBlock>,
    /// True if reads are recorded as well as writes.
    pub reads: bool,
    /// `Ok` if accesses that the kernel makes for the process are recorded too.
    #[serde(with = "plain")]
    pub kernel: Reading<()>,
    /// Content of the watched bytes at the start.
    #[serde(with = "plain")]
    pub first: Reading<Vec<u8>>,
    /// Condition under which accesses are stored; `None` if all accesses are stored.
    pub when: Option<String>,
    /// The stored accesses, in order of time.
    pub hits: Vec<Hit>,
    /// Call stacks without duplicates, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Number of accesses that did not meet the condition `when`.
    pub passed_over: u64,
    /// Number of accesses that were not stored because the maximum number was reached.
    pub dropped: u64,
    /// Number of accesses by child processes to their own copies of the memory.
    pub in_copies: u64,
    /// Number of times that the memory differed from the value after the last recorded access.
    pub unseen: u64,
    /// Number of accesses whose call stacks were merged to stay within the memory limit.
    #[serde(default)]
    pub other_stacks: u64,
    /// The memory limit of the recorder in bytes; 0 without a limit.
    #[serde(default)]
    pub memory_limit: u64,
    /// Number of accesses that did not fit into the perf ring buffers.
    pub lost: u64,
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Reason of the end of the recording.
    pub ended: WatchEnding,
}

/// Reason of the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnding {
    /// The process ended. The value is its exit status or signal; `None` if the process is not a
    /// child of pagewise.
    Process(Option<ProgramEnding>),
    /// The process called `execve`, so the watched memory is gone.
    Executed,
    /// The requested number of accesses was reached.
    Enough,
    /// The requested duration elapsed.
    Time,
    /// The user interrupted the recording.
    Interrupted,
}

/// A recorded access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// PID of the process that made the access. It can be another process if the memory is shared.
    pub pid: Pid,
    /// Thread ID of the thread that made the access.
    pub tid: Pid,
    /// Name of the thread.
    pub thread: Name,
    /// Kind of the access.
    pub access: WatchAccess,
    /// Content of the watched bytes before the access.
    #[serde(with = "plain")]
    pub old: Reading<Vec<u8>>,
    /// Content of the watched bytes after the access.
    #[serde(with = "plain")]
    pub value: Reading<Vec<u8>>,
    /// Origin of `value`.
    pub known: ValueOrigin,
    /// The accessing instruction in text form; `None` if it was not found, or if the kernel made
    /// the access.
    pub instruction: Option<String>,
    /// Kernel function that made the access for the process; `None` if the program itself made the
    /// access.
    pub kernel: Option<InKernel>,
    /// Index in [`WatchRecording::stacks`].
    pub stack: u32,
}

/// A block of the heap that contains watched bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedBlock {
    /// Address of the block's first byte.
    pub start: u64,
    /// Requested size in bytes; `None` if only the usable size is known, as for large blocks.
    pub size: Option<u64>,
    /// Usable size in bytes; `None` if the allocator does not report it.
    pub room: Option<u64>,
    /// The function that allocated the block, followed by its callers.
    pub frames: Vec<Frame>,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchAccess {
    /// The memory was written.
    Write,
    /// The memory was read.
    Read,
    /// The memory was read or written; the instruction, which would show it, was not found.
    Either,
}

/// Origin of the value after an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOrigin {
    /// The value is an operand that the instruction stored; it is exact.
    Stored,
    /// The value was computed from the instruction and the value before the access. It is as
    /// certain as the value before the access.
    Computed,
    /// The kernel copied the memory when it reported the access: some microseconds after the
    /// access, before the accessing thread continued.
    Copied,
    /// The value was read from memory after this access and before the next access.
    Read,
    /// The access only read the memory, so the value is that before the access.
    Unchanged,
    /// The value is unknown.
    Not,
}

/// Kernel code that made an access.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InKernel {
    /// Name of the system call that the thread was executing: `read`; `None` for other kernel code,
    /// such as a page fault or a signal.
    pub call: Option<String>,
    /// Name of the kernel function that made the access; `None` if the kernel's symbols are hidden
    /// (`kptr_restrict`) or lack it.
    pub function: Option<String>,
}

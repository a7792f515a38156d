//! Accesses to some bytes of a process's memory: who made each, and what it wrote.

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
    /// The command's words; none of a process that was running.
    pub command: Vec<Name>,
    /// The first of the bytes.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
    /// The variable that they are of, where they were found by its name.
    pub symbol: Option<Name>,
    /// The mapping that they were in when it began, and whether it was shared; none where there was
    /// none.
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
    /// Which accesses are kept, where not all are.
    pub when: Option<String>,
    /// The accesses that are kept, in order of time.
    pub hits: Vec<Hit>,
    /// Call stacks, each once: where the access was made first, then its callers.
    pub stacks: Vec<Vec<Frame>>,
    /// Accesses that `when` did not hold for.
    pub passed_over: u64,
    /// Accesses that are kept no more, for want of room.
    pub dropped: u64,
    /// Accesses of child processes to their own copies of the memory.
    pub in_copies: u64,
    /// Number of times the memory differed from the value that the last access had left.
    pub unseen: u64,
    /// Accesses of call stacks that are not kept apart, for want of memory.
    #[serde(default)]
    pub other_stacks: u64,
    /// The most memory that the recorder might take, in bytes; 0 where it had no limit.
    #[serde(default)]
    pub memory_limit: u64,
    /// Accesses that did not fit into the kernel's buffers.
    pub lost: u64,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Why it ended.
    pub ended: WatchEnding,
}

/// Why the watching ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnding {
    /// The process ended; how, where it was a command.
    Process(Option<ProgramEnding>),
    /// It executes another program: the memory is gone.
    Executed,
    /// There were as many accesses as were wanted.
    Enough,
    /// The time was up.
    Time,
    /// The user had seen enough.
    Interrupted,
}

/// An access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Nanoseconds since the watching began.
    pub time_ns: u64,
    /// The process: another one where the memory is shared.
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
    /// The instruction, where it was found; none in the kernel.
    pub instruction: Option<String>,
    /// Function of the kernel that made the access for the process; `None` if the program made it
    /// itself.
    pub kernel: Option<InKernel>,
    /// Which of the call stacks.
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
    /// The instruction made it from what was there before: as exact as that.
    Computed,
    /// The kernel copied the memory when it reported the access: some microseconds after it, with
    /// no other thread near.
    Copied,
    /// It was read from memory after this access and before the next.
    Read,
    /// An access that only reads changes nothing.
    Unchanged,
    /// It is not known.
    Not,
}

/// Location of an access in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InKernel {
    /// The system call that the thread was in: `read`; none for other work, as a fault or a signal.
    pub call: Option<String>,
    /// The function that made the access, where its name may be known.
    pub function: Option<String>,
}

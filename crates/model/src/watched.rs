//! Accesses to some bytes of a process's memory: who made each, and what it wrote.

use serde::{Deserialize, Serialize};

use crate::calls::Ending;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// What was watched, and what happened to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The process.
    pub pid: Pid,
    /// What it is called; of a command, its first word.
    pub name: Name,
    /// The command's words; none of a process that was running.
    pub command: Vec<Name>,
    /// The first of the bytes.
    pub address: u64,
    /// How many.
    pub length: u64,
    /// The variable that they are of, where they were found by its name.
    pub symbol: Option<Name>,
    /// The mapping that they were in when it began, and whether it was shared; none where there was none.
    pub mapping: Option<(Name, bool)>,
    /// The block of the heap that they were in when it began, where a recorder in the process tells.
    #[serde(default)]
    pub block: Option<Held>,
    /// Whether reads count as well.
    pub reads: bool,
    /// Whether what the kernel does for the process counts as well.
    #[serde(with = "plain")]
    pub kernel: Reading<()>,
    /// What they held at first.
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
    /// How often something else was found in memory than the last access had left there.
    pub unseen: u64,
    /// Accesses of call stacks that are not kept apart, for want of memory.
    #[serde(default)]
    pub other_stacks: u64,
    /// The most memory that the recorder might take, in bytes; 0 where it had no limit.
    #[serde(default)]
    pub memory_limit: u64,
    /// Accesses that the kernel could not tell us of.
    pub lost: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Why it ended.
    pub ended: Ended,
}

/// Why the watching ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The process ended; how, where it was a command.
    Process(Option<Ending>),
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
    /// What was done.
    pub access: Access,
    /// What the bytes held before.
    #[serde(with = "plain")]
    pub old: Reading<Vec<u8>>,
    /// What they held after it.
    #[serde(with = "plain")]
    pub value: Reading<Vec<u8>>,
    /// How the value is known.
    pub known: Known,
    /// The instruction, where it was found; none in the kernel.
    pub instruction: Option<String>,
    /// What the kernel did for the process then; none where the program made the access itself.
    pub kernel: Option<InKernel>,
    /// Which of the call stacks.
    pub stack: u32,
}

/// A block of the heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Where it begins.
    pub start: u64,
    /// How many bytes were asked for; none where only its room is known, as of large blocks.
    pub size: Option<u64>,
    /// How many bytes the allocator gave; none where it does not tell.
    pub room: Option<u64>,
    /// Who asked for it, then its callers.
    pub frames: Vec<Frame>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It was written.
    Write,
    /// It was read.
    Read,
    /// It was read or written: the instruction was not found.
    Either,
}

/// How a value is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// The instruction stored it: exact.
    Stored,
    /// The instruction made it from what was there before: as exact as that.
    Computed,
    /// The kernel copied the memory as it told of the access: some microseconds after it, and no other thread was near.
    Copied,
    /// It was read from memory after this access and before the next.
    Read,
    /// An access that only reads changes nothing.
    Unchanged,
    /// It is not known.
    Not,
}

/// Where in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InKernel {
    /// The system call that the thread was in: `read`; none for other work, as a fault or a signal.
    pub call: Option<String>,
    /// The function that made the access, where its name may be known.
    pub function: Option<String>,
}

//! Misuse of the heap, as a guarded command was found to do it.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// Guarded allocations, and the memory errors found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// The command's process.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// Sampling rate: one in `rate` allocations is guarded on average.
    pub rate: u64,
    /// Method that makes pages inaccessible; the reason if no allocation was guarded.
    #[serde(with = "plain")]
    pub means: Reading<GuardMeans>,
    /// Processes that were guarded: the command, its children, and each program that one of them
    /// became.
    pub processes: u64,
    /// Those of them that reported the number of guarded objects, because they exited normally.
    pub told: u64,
    /// Guarded objects of the reporting processes.
    pub guarded: u64,
    /// Objects that were selected but not guarded, because the memory limit was reached, of the
    /// reporting processes.
    pub left_out: u64,
    /// Largest memory in guarded objects at a time, of any reporting process.
    pub most_bytes: u64,
    /// Memory errors in order of time.
    pub bugs: Vec<MemoryBug>,
    /// Number of further memory errors that were not stored, because the limit was reached.
    #[serde(default)]
    pub bugs_dropped: u64,
    /// Ending of the command.
    pub ending: ProgramEnding,
    /// Duration in nanoseconds.
    pub took_ns: u64,
}

/// Method that makes pages inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardMeans {
    /// Objects of less than a page by taking their pages away (`UFFDIO_MOVE`, Linux 6.8); others by
    /// marks or mappings.
    Moves,
    /// By marks in the page tables (`MADV_GUARD_INSTALL`, Linux 6.13).
    Marks,
    /// Mappings (`mprotect`); the number of mappings of a process is limited.
    Mappings,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBug {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The process.
    pub pid: Pid,
    /// Its program's file.
    pub program: Name,
    /// The thread.
    pub tid: Pid,
    /// The thread's name.
    pub thread: Name,
    /// Kind of the memory error.
    pub kind: BugKind,
    /// Access that caused the error.
    pub access: BugAccess,
    /// First byte that must not be accessed.
    pub address: u64,
    /// Call stack of the access or of its detection, innermost call first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
    /// The object nearest to the access; `None` without an object nearby.
    pub object: Option<GuardedObject>,
    /// Functions that allocated and freed the object; `None` if the error is not a mismatch.
    #[serde(default)]
    pub mismatch: Option<FreeMismatch>,
    /// True if the program went on.
    pub goes_on: bool,
}

/// Kind of a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BugKind {
    /// An access behind an object's end.
    Overflow,
    /// An access before an object's beginning.
    Underflow,
    /// An access to an object that was freed.
    UseAfterFree,
    /// An object was freed again.
    DoubleFree,
    /// Free of an address that is not an object.
    InvalidFree,
    /// An access to guarded memory where no object ever was.
    Wild,
    /// An object was freed by a function that does not go with the one that made it, or as one of
    /// another size.
    Mismatch,
    /// An access to memory that is not guarded, by which SIGSEGV ended the program.
    Segv,
    /// One by which SIGBUS did.
    Bus,
}

/// By which functions an object was made and freed that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeMismatch {
    /// Functions that allocated it.
    pub made_by: Family,
    /// Functions that freed it.
    pub freed_as: Family,
    /// Size in bytes that was passed to `operator delete`.
    pub freed_size: Option<u64>,
}

/// Functions that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `malloc` and the other C functions, `free`.
    Malloc,
    /// `new`, `delete`.
    New,
    /// `new[]`, `delete[]`.
    NewArray,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BugAccess {
    /// It was read.
    Read,
    /// It was written.
    Write,
    /// It was executed.
    Execute,
    /// It was freed, by `free` or `realloc`.
    Free,
    /// It had been written when the object was freed, which the stack is of.
    WrittenBeforeFree,
    /// It had been written when the program ended.
    WrittenBeforeEnd,
}

/// An object that was guarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedObject {
    /// Its first byte.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Thread and call stack of the allocation.
    pub allocated: AllocatorCall,
    /// Thread and call stack of the free; `None` if it was not freed.
    pub freed: Option<AllocatorCall>,
}

/// A call of `malloc`'s family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorCall {
    /// The thread.
    pub tid: Pid,
    /// Its call stack, the innermost call first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
}

impl MemoryBug {
    /// Distance from the object: bytes after its end, or before its beginning; `None` for an access
    /// inside.
    pub fn distance(&self) -> Option<u64> {
        let object = self.object.as_ref()?;
        let end = object.address.saturating_add(object.size);
        if self.address < object.address {
            Some(object.address - self.address)
        } else {
            self.address.checked_sub(end)
        }
    }
}

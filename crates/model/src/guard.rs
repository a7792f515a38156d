//! Memory errors of a command whose allocations are guarded.

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
    /// executed.
    pub processes: u64,
    /// Number of these processes that reported their guarded objects, because they exited normally.
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
    /// Objects smaller than a page: `UFFDIO_MOVE` (Linux 6.8) moves their pages away. Other objects
    /// use guard regions or `mprotect`.
    Moves,
    /// Guard regions: markers in the page tables (`MADV_GUARD_INSTALL`, Linux 6.13).
    Marks,
    /// Mappings without access (`mprotect`); the number of mappings of a process is limited.
    Mappings,
}

/// A memory error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBug {
    /// Time of the error, in nanoseconds since 1970.
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
    /// True if the program continued after the error.
    pub goes_on: bool,
}

/// Kind of a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BugKind {
    /// An access behind the end of an object.
    Overflow,
    /// An access before the beginning of an object.
    Underflow,
    /// An access to an object that was freed.
    UseAfterFree,
    /// An object was freed again.
    DoubleFree,
    /// Free of an address that is not an object.
    InvalidFree,
    /// An access to guarded memory where no object ever was.
    Wild,
    /// An object was freed by a function of another family than the allocating function, or with
    /// another size.
    Mismatch,
    /// SIGSEGV ended the program: an access to memory that is not guarded.
    Segv,
    /// SIGBUS ended the program: an access to memory that is not guarded.
    Bus,
}

/// Allocating and freeing function of an object that do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeMismatch {
    /// Family of the function that allocated it.
    pub made_by: Family,
    /// Family of the function that freed it.
    pub freed_as: Family,
    /// Size in bytes that was passed to `operator delete`.
    pub freed_size: Option<u64>,
}

/// Family of allocation functions: the functions of a family free only its own objects.
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
    /// The object was written before it was freed; the call stack is that of the free.
    WrittenBeforeFree,
    /// The object was written before the program ended.
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

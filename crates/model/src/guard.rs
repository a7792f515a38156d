//! Memory errors of a command whose allocations are guarded. A guarded object lies next to
//! inaccessible pages and canary bytes, and becomes inaccessible when it is freed.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// Guarded allocations of a command, and the memory errors that they revealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// PID of the command.
    pub pid: Pid,
    /// Words of the command line.
    pub command: Vec<Name>,
    /// Sampling rate: one in `rate` allocations is guarded on average.
    pub rate: u64,
    /// Method that makes pages inaccessible; absent with the reason if no allocation was guarded.
    #[serde(with = "plain")]
    pub means: Reading<GuardMeans>,
    /// Number of processes that were guarded: the command, its descendants, and each program that
    /// one of these processes executed.
    pub processes: u64,
    /// Number of guarded processes that reported their counts, because they exited normally.
    pub told: u64,
    /// Number of guarded objects in the reporting processes.
    pub guarded: u64,
    /// Number of objects in the reporting processes that were selected but not guarded, because the
    /// memory limit was reached.
    pub left_out: u64,
    /// Maximum memory of guarded objects at any time, of any reporting process, in bytes.
    pub most_bytes: u64,
    /// Memory errors in order of time.
    pub bugs: Vec<MemoryBug>,
    /// Number of further memory errors that were not stored, because the maximum number was
    /// reached.
    #[serde(default)]
    pub bugs_dropped: u64,
    /// Ending of the command.
    pub ending: ProgramEnding,
    /// Duration of the run in nanoseconds.
    pub took_ns: u64,
}

/// Method that makes pages inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardMeans {
    /// `UFFDIO_MOVE` (Linux 6.8) moves the page of a freed object to the next object, so the freed
    /// object is inaccessible. Objects of at least a page use guard regions or `mprotect` instead.
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
    /// PID of the process that made the error.
    pub pid: Pid,
    /// Path of the process's program.
    pub program: Name,
    /// Thread ID.
    pub tid: Pid,
    /// Name of the thread.
    pub thread: Name,
    /// Kind of the memory error.
    pub kind: BugKind,
    /// Access that caused the error.
    pub access: BugAccess,
    /// Address of the first byte that must not be accessed.
    pub address: u64,
    /// Call stack of the access, or of the check that detected the error; innermost frame first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
    /// The object nearest to the access; `None` if no object is near.
    pub object: Option<GuardedObject>,
    /// Families of the functions that allocated and freed the object; `None` if the error is not a
    /// mismatch.
    #[serde(default)]
    pub mismatch: Option<FreeMismatch>,
    /// True if the program continued after the error.
    pub goes_on: bool,
}

/// Kind of a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BugKind {
    /// An access after the end of an object.
    Overflow,
    /// An access before the beginning of an object.
    Underflow,
    /// An access to an object that was freed.
    UseAfterFree,
    /// A free of an object that was already freed.
    DoubleFree,
    /// A free of an address at which no object begins.
    InvalidFree,
    /// An access to guarded memory that never contained an object.
    Wild,
    /// An object was freed by a function of another family than the allocating function, or with a
    /// wrong size.
    Mismatch,
    /// SIGSEGV ended the program. The accessed memory was not guarded.
    Segv,
    /// SIGBUS ended the program. The accessed memory was not guarded.
    Bus,
}

/// Allocating and freeing function of an object, of different families or with different sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeMismatch {
    /// Family of the function that allocated the object.
    pub made_by: Family,
    /// Family of the function that freed the object.
    pub freed_as: Family,
    /// Size in bytes that was passed to `operator delete`.
    pub freed_size: Option<u64>,
}

/// Family of allocation functions. A function of a family may free only objects of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `malloc` and the other C allocation functions, with `free`.
    Malloc,
    /// `operator new` with `operator delete`.
    New,
    /// `operator new[]` with `operator delete[]`.
    NewArray,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BugAccess {
    /// The memory was read.
    Read,
    /// The memory was written.
    Write,
    /// The memory was executed.
    Execute,
    /// The memory was freed, by `free` or `realloc`.
    Free,
    /// Canary bytes beside the object were overwritten before the object was freed. The call stack
    /// is that of the free, which detected the error.
    WrittenBeforeFree,
    /// Canary bytes beside the object were overwritten. The check at the end of the program
    /// detected the error.
    WrittenBeforeEnd,
}

/// An object that was guarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedObject {
    /// Address of the object's first byte.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Thread and call stack of the allocation.
    pub allocated: AllocatorCall,
    /// Thread and call stack of the free; `None` if the object was not freed.
    pub freed: Option<AllocatorCall>,
}

/// A call of an allocating or freeing function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorCall {
    /// Thread ID.
    pub tid: Pid,
    /// Call stack, innermost frame first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
}

impl MemoryBug {
    /// Distance of the access from the object in bytes: after its end, or before its beginning;
    /// `None` for an access inside the object.
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

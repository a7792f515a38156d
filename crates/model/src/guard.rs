//! Misuse of the heap, as a guarded command was found to do it.

use serde::{Deserialize, Serialize};

use crate::calls::Ending;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Name, Pid, Reading};

/// What was guarded, and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// The command's process.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// Each of so many allocations is guarded, in the mean.
    pub rate: u64,
    /// How pages are made inaccessible; why nothing was guarded, where it was not.
    #[serde(with = "plain")]
    pub means: Reading<Means>,
    /// Processes that were guarded: the command, its children, and each program that one of them became.
    pub processes: u64,
    /// Those of them that told how much they guarded, as they ended in order.
    pub told: u64,
    /// Objects that were guarded, by those that told.
    pub guarded: u64,
    /// Objects that were to be guarded and were not, for want of room, by those that told.
    pub left_out: u64,
    /// The most bytes of memory in guarded objects at a time, of any of those that told.
    pub most_bytes: u64,
    /// What is wrong, in order of time.
    pub bugs: Vec<Bug>,
    /// How many more were told, which are not kept for want of memory.
    #[serde(default)]
    pub bugs_dropped: u64,
    /// How the command ended.
    pub ending: Ending,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
}

/// How pages are made inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// Objects of less than a page by taking their pages away (`UFFDIO_MOVE`, Linux 6.8); others by marks or mappings.
    Moves,
    /// By marks in the page tables (`MADV_GUARD_INSTALL`, Linux 6.13).
    Marks,
    /// By mappings (`mprotect`), of which a process may have only so many.
    Mappings,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bug {
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
    /// What it is.
    pub kind: Kind,
    /// What was done.
    pub access: Access,
    /// Where: the first byte that must not be touched.
    pub address: u64,
    /// Where it was done, or noticed: the innermost call first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
    /// The object that it was done to; none where there is none.
    pub object: Option<Object>,
    /// Of a mismatch: by which functions the object was made and freed.
    #[serde(default)]
    pub mismatch: Option<Mismatch>,
    /// Whether the program went on.
    pub goes_on: bool,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An access behind an object's end.
    Overflow,
    /// An access before an object's beginning.
    Underflow,
    /// An access to an object that was freed.
    UseAfterFree,
    /// An object was freed again.
    DoubleFree,
    /// Something was freed that is no object.
    InvalidFree,
    /// An access to guarded memory where no object ever was.
    Wild,
    /// An object was freed by a function that does not go with the one that made it, or as one of another size.
    Mismatch,
    /// An access to memory that is not guarded, by which SIGSEGV ended the program.
    Segv,
    /// One by which SIGBUS did.
    Bus,
}

/// By which functions an object was made and freed that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// How it was made.
    pub made_by: Family,
    /// How it was freed.
    pub freed_as: Family,
    /// Of how many bytes it is, as `operator delete` was told.
    pub freed_size: Option<u64>,
}

/// Functions that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `malloc` and its kin, `free`.
    Malloc,
    /// `new`, `delete`.
    New,
    /// `new[]`, `delete[]`.
    NewArray,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
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
pub struct Object {
    /// Its first byte.
    pub address: u64,
    /// How many bytes were asked for.
    pub size: u64,
    /// Who allocated it.
    pub allocated: Call,
    /// Who freed it, where it was.
    pub freed: Option<Call>,
}

/// A call of `malloc`'s family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The thread.
    pub tid: Pid,
    /// Its call stack, the innermost call first.
    #[serde(with = "plain")]
    pub stack: Reading<Vec<Frame>>,
}

impl Bug {
    /// How far outside of the object: bytes behind its end, or before its beginning; none where it is inside.
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

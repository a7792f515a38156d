//! The heap of one process over time: what was live when, and where in the program it was allocated.

mod profile;

use serde::{Deserialize, Serialize};

pub use profile::Of;

use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// A recording of a heap, with its call stacks looked up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The process.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// The program's file.
    pub program: Name,
    /// What provides `malloc`.
    pub allocator: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// When it began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The mean number of allocated bytes between two samples; `None` where every call was recorded.
    pub every_bytes: Option<u64>,
    /// The process was running already when it began: what was allocated before is not known.
    pub attached: bool,
    /// How it ended.
    pub ending: Ending,
    /// All that happened.
    pub totals: Totals,
    /// When most was live, in nanoseconds since it began.
    #[serde(with = "plain")]
    pub peak_at_ns: Reading<u64>,
    /// The calls that stacks are made of.
    pub frames: Vec<Frame>,
    /// Call stacks: numbers of frames, the allocation's first, then its callers. None twice.
    pub stacks: Vec<Vec<u32>>,
    /// What was allocated where.
    pub sites: Vec<Site>,
    /// How much was live when, in order of time.
    pub moments: Vec<Moment>,
    /// Allocations by size: cell *n* counts those of 2^(n-1) .. 2^n - 1 bytes, cell 0 those of none.
    pub sizes: Vec<u64>,
    /// How long some blocks lived: cell *n* counts those of 2^(n-1) .. 2^n - 1 nanoseconds.
    pub lifetimes: Vec<u64>,
    /// Each of so many allocations had its lifetime measured; 0 where none had.
    pub lifetimes_every: u32,
    /// By thread.
    pub threads: Vec<Thread>,
    /// What could not be learned, and what it takes.
    pub lacks: Vec<Absent>,
}

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The process ended, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It became another program (`execve`).
    Replaced,
    /// It runs on.
    Detached,
    /// It ended, and how is not known.
    Gone,
    /// The recording was cut off.
    CutOff,
}

/// Bytes and the number of blocks they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// As the program asked for them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// All that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Every allocation. `realloc` is a `free` and an allocation.
    pub allocated: Amount,
    /// Every block that was freed.
    pub freed: Amount,
    /// What was live when most was live.
    pub peak: Amount,
    /// How far `peak.bytes` may be off, since threads allocated at the same time.
    pub peak_within: u64,
    /// What was live at the end.
    pub leaked: Amount,
    /// Blocks that were freed before the same thread allocated another.
    pub temporary: u64,
    /// Frees of memory that was allocated before the recording began.
    pub unknown_frees: u64,
    /// Standard errors of allocated and of live bytes, where samples were taken.
    pub errors: Option<(f64, f64)>,
}

/// What kind of memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `malloc` and its kin.
    Heap,
    /// Mappings that the program made itself.
    Mapping,
    /// Blocks of a pool.
    Pool,
}

/// What one call stack did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Which of the stacks.
    pub stack: u32,
    /// What kind of memory.
    pub kind: Kind,
    /// All that it allocated.
    pub allocated: Amount,
    /// What of that was freed.
    pub freed: Amount,
    /// Blocks that were freed before the same thread allocated another.
    pub temporary: u64,
    /// What was live when most was live in the process.
    pub at_peak: Amount,
    /// Standard errors of allocated and of live bytes, where samples were taken.
    pub errors: Option<(f64, f64)>,
}

impl Site {
    /// What was live at the end.
    pub fn leaked(&self) -> Amount {
        Amount {
            bytes: self.allocated.bytes.saturating_sub(self.freed.bytes),
            blocks: self.allocated.blocks.saturating_sub(self.freed.blocks),
        }
    }
}

/// How much was live at some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// What was live.
    pub live: Amount,
    /// All allocations so far.
    pub allocated: Amount,
    /// What the allocator held.
    #[serde(with = "plain")]
    pub held: Reading<Bytes>,
    /// What was in RAM.
    #[serde(with = "plain")]
    pub resident: Reading<Resident>,
    /// What was live by site, where that was taken down.
    pub tree: Option<Tree>,
}

/// What was live by site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Numbers of sites, largest first.
    pub sites: Vec<(u32, Amount)>,
    /// All others together.
    pub others: Amount,
}

/// What of a process was in RAM or swapped out, in bytes; what the recorder itself took is not in it, where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// `RssAnon`.
    pub anonymous: u64,
    /// `RssFile`.
    pub file: u64,
    /// `RssShmem`.
    pub shmem: u64,
    /// `VmSwap`.
    pub swap: u64,
}

impl Resident {
    /// `VmRSS`.
    pub fn rss(&self) -> u64 {
        self.anonymous.saturating_add(self.file).saturating_add(self.shmem)
    }
}

/// A thread that allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number; 0 for threads that are not told apart.
    pub tid: u32,
    /// Its name.
    pub name: Name,
    /// What it allocated.
    pub allocated: Amount,
    /// What it freed, whoever had allocated it.
    pub freed: Amount,
}

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
    /// Where the allocator's memory lay at some of these times, in order of time.
    #[serde(default)]
    pub layouts: Vec<Layout>,
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
    /// Blocks from before the recording that were freed so far, with the bytes that the allocator had given for them; `None` where
    /// that was not counted.
    #[serde(default)]
    pub older_freed: Option<Amount>,
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

/// Where the memory lies that the allocator holds, and how densely it is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// What the allocator has.
    pub areas: Vec<Area>,
    /// How full the resident pages of these are, but for blocks with mappings of their own.
    #[serde(with = "plain")]
    pub pages: Reading<Pages>,
    /// Blocks that were live and whose place could not be made out, since the program ran on meanwhile.
    pub unclear: u64,
}

/// What a part of an allocator's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaKind {
    /// glibc's first arena: the heap that `brk` moves, and what was mapped where that could not grow.
    Main,
    /// Another arena of glibc's, by number.
    Arena(u32),
    /// Blocks that are large enough for mappings of their own.
    Mapped,
    /// Mappings with blocks in them, of an allocator whose own parts are not known.
    Mappings,
}

/// A part of what the allocator holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Area {
    /// What it is.
    pub kind: AreaKind,
    /// Heaps or mappings that it is made of.
    pub parts: u32,
    /// What may be read and written of it.
    pub held: Bytes,
    /// What of that is in RAM.
    #[serde(with = "plain")]
    pub resident: Reading<Bytes>,
    /// What is live in it, as it was asked for.
    #[serde(with = "plain")]
    pub live: Reading<Amount>,
    /// What is resident and has nothing live in its pages.
    #[serde(with = "plain")]
    pub empty: Reading<Bytes>,
    /// What is behind the last chunk (`top`).
    #[serde(with = "plain")]
    pub top: Reading<Bytes>,
    /// The longest run without a live block, apart from what is behind the last one.
    #[serde(with = "plain")]
    pub gap: Reading<Bytes>,
    /// Threads that allocate from it.
    #[serde(with = "plain")]
    pub threads: Reading<u64>,
}

/// How many resident pages have how much live in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Cell 0 counts pages with nothing live, cell *n* those of which more than *n* - 1 eighths are live and no more than *n*. Blocks
    /// count with the allocator's words before them and what they are rounded up by, where these are known.
    pub cells: Vec<u64>,
    /// Who has blocks in pages of which no more than a quarter is live, most first.
    pub pinned: Vec<Pinned>,
    /// All others together; its site means nothing.
    pub others: Pinned,
}

/// What the blocks of a site keep in RAM: such pages are shared out by the bytes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Number of the site.
    pub site: u32,
    /// Its part of the pages, in bytes.
    pub bytes: u64,
    /// What it has live in them, with what blocks are rounded up by.
    pub live: Amount,
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

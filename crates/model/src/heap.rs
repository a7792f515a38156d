//! The heap of one process over time: what was live when, and where in the program it was
//! allocated.

mod profile;

use serde::{Deserialize, Serialize};

pub use profile::Of;

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// A recording of a heap, with its call stacks looked up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapRecording {
    /// The process.
    pub pid: Pid,
    /// The command's words.
    pub command: Vec<Name>,
    /// The program's file.
    pub program: Name,
    /// Name of the library that provides `malloc`.
    pub allocator: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// When it began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The mean number of allocated bytes between two samples; `None` where every call was
    /// recorded.
    pub every_bytes: Option<u64>,
    /// The process was running already when it began: what was allocated before is not known.
    pub attached: bool,
    /// Ending of the recording.
    pub ending: HeapEnding,
    /// All that happened.
    pub totals: Totals,
    /// When most was live, in nanoseconds since it began.
    #[serde(with = "plain")]
    pub peak_at_ns: Reading<u64>,
    /// The calls that stacks are made of.
    pub frames: Vec<Frame>,
    /// Call stacks: numbers of frames, the allocation's first, then its callers. None twice.
    pub stacks: Vec<Vec<u32>>,
    /// Allocations by call stack.
    pub sites: Vec<AllocationSite>,
    /// Snapshots of the live bytes, in order of time.
    pub moments: Vec<HeapSnapshot>,
    /// Layouts of the allocator's memory at some of these times, in order of time.
    #[serde(default)]
    pub layouts: Vec<AllocatorLayout>,
    /// Allocations by size: cell *n* counts those of 2^(n-1) .. 2^n - 1 bytes, cell 0 those of
    /// none.
    pub sizes: Vec<u64>,
    /// Lifetimes of sampled blocks: cell *n* counts lifetimes of 2^(n-1) to 2^n - 1 nanoseconds.
    pub lifetimes: Vec<u64>,
    /// Sampling rate of lifetimes: one in N allocations was measured; 0 if none was.
    pub lifetimes_every: u32,
    /// By thread.
    pub threads: Vec<HeapThread>,
    /// Missing data, and the reason.
    pub lacks: Vec<Absent>,
}

/// Ending of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeapEnding {
    /// The process ended.
    Ended(ProgramEnding),
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
pub struct HeapAmount {
    /// As the program asked for them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// All that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Every allocation. `realloc` is a `free` and an allocation.
    pub allocated: HeapAmount,
    /// Every block that was freed.
    pub freed: HeapAmount,
    /// Live amount at the time of the peak.
    pub peak: HeapAmount,
    /// Error bound of `peak.bytes`, because threads allocated at the same time.
    pub peak_within: u64,
    /// Live amount at the end.
    pub leaked: HeapAmount,
    /// Blocks that were freed before the same thread allocated another.
    pub temporary: u64,
    /// Frees of memory that was allocated before the recording began.
    pub unknown_frees: u64,
    /// Standard errors of allocated and of live bytes, where samples were taken.
    pub errors: Option<(f64, f64)>,
}

/// Kind of the memory of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationKind {
    /// `malloc` and the other allocation functions.
    Heap,
    /// Mappings that the program made itself.
    Mapping,
    /// Blocks of a pool.
    Pool,
}

/// Allocations of one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocationSite {
    /// Which of the stacks.
    pub stack: u32,
    /// Kind of the memory.
    pub kind: AllocationKind,
    /// All that it allocated.
    pub allocated: HeapAmount,
    /// Freed amount.
    pub freed: HeapAmount,
    /// Blocks that were freed before the same thread allocated another.
    pub temporary: u64,
    /// Live amount at the time of the process's peak.
    pub at_peak: HeapAmount,
    /// Standard errors of allocated and of live bytes, where samples were taken.
    pub errors: Option<(f64, f64)>,
}

impl AllocationSite {
    /// Live amount at the end.
    pub fn leaked(&self) -> HeapAmount {
        HeapAmount {
            bytes: self.allocated.bytes.saturating_sub(self.freed.bytes),
            blocks: self.allocated.blocks.saturating_sub(self.freed.blocks),
        }
    }
}

/// Live bytes and memory use at one time point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapSnapshot {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Live amount.
    pub live: HeapAmount,
    /// All allocations so far.
    pub allocated: HeapAmount,
    /// Footprint of the allocator.
    #[serde(with = "plain")]
    pub held: Reading<Bytes>,
    /// Resident memory of the process.
    #[serde(with = "plain")]
    pub resident: Reading<ResidentBytes>,
    /// Live amount by site, if it was stored at this time point.
    pub tree: Option<LiveTree>,
    /// Blocks from before the recording that were freed so far, with the bytes that the allocator
    /// had given for them; `None` where that was not counted.
    #[serde(default)]
    pub older_freed: Option<HeapAmount>,
}

/// Live amount by site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTree {
    /// Numbers of sites, largest first.
    pub sites: Vec<(u32, HeapAmount)>,
    /// All others together.
    pub others: HeapAmount,
}

/// Resident and swapped memory of a process in bytes, without the recorder's own memory if that is
/// known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentBytes {
    /// `RssAnon`.
    pub anonymous: u64,
    /// `RssFile`.
    pub file: u64,
    /// `RssShmem`.
    pub shmem: u64,
    /// `VmSwap`.
    pub swap: u64,
}

impl ResidentBytes {
    /// `VmRSS`.
    pub fn rss(&self) -> u64 {
        self.anonymous.saturating_add(self.file).saturating_add(self.shmem)
    }
}

/// Layout of the allocator's memory, and the density of its use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorLayout {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Parts of the allocator's footprint.
    pub areas: Vec<AllocatorArea>,
    /// Live share of the resident pages of these areas, without blocks that have mappings of their
    /// own.
    #[serde(with = "plain")]
    pub pages: Reading<PageDensity>,
    /// Blocks that were live and whose place could not be made out, since the program ran on
    /// meanwhile.
    pub unclear: u64,
}

/// Kind of a part of an allocator's footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorAreaKind {
    /// glibc's first arena: the heap that `brk` moves, and what was mapped where that could not
    /// grow.
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
pub struct AllocatorArea {
    /// Kind of the area.
    pub kind: AllocatorAreaKind,
    /// Heaps or mappings that it is made of.
    pub parts: u32,
    /// Readable and writable bytes.
    pub held: Bytes,
    /// Resident part of these.
    #[serde(with = "plain")]
    pub resident: Reading<Bytes>,
    /// Live blocks in it, with their requested sizes.
    #[serde(with = "plain")]
    pub live: Reading<HeapAmount>,
    /// Resident bytes in pages without a live block.
    #[serde(with = "plain")]
    pub empty: Reading<Bytes>,
    /// Size of the last chunk (`top`).
    #[serde(with = "plain")]
    pub top: Reading<Bytes>,
    /// The longest run without a live block, apart from what is behind the last one.
    #[serde(with = "plain")]
    pub gap: Reading<Bytes>,
    /// Threads that allocate from it.
    #[serde(with = "plain")]
    pub threads: Reading<u64>,
}

/// Resident pages by their live share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDensity {
    /// Cell 0 counts pages with nothing live, cell *n* those of which more than *n* - 1 eighths are
    /// live and no more than *n*. Blocks count with the allocator's words before them and what they
    /// are rounded up by, where these are known.
    pub cells: Vec<u64>,
    /// Call stacks with blocks in pages that are at most a quarter live, largest first.
    pub pinned: Vec<PinnedPages>,
    /// All others together; its site means nothing.
    pub others: PinnedPages,
}

/// Resident bytes that the blocks of a site pin: such pages are divided by the live bytes of each
/// site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedPages {
    /// Number of the site.
    pub site: u32,
    /// Its part of the pages, in bytes.
    pub bytes: u64,
    /// Live amount in these pages, with the rounding of blocks.
    pub live: HeapAmount,
}

/// A thread that allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapThread {
    /// Its number; 0 for threads without a row of their own.
    pub tid: u32,
    /// Its name.
    pub name: Name,
    /// Allocated amount.
    pub allocated: HeapAmount,
    /// Freed amount; the blocks may have been allocated by other threads.
    pub freed: HeapAmount,
}

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
    /// Start of the recording, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The mean number of allocated bytes between two samples; `None` where every call was
    /// recorded.
    pub every_bytes: Option<u64>,
    /// True if the recorder attached to a running process: earlier allocations are unknown.
    pub attached: bool,
    /// Ending of the recording.
    pub ending: HeapEnding,
    /// Sums over the whole recording.
    pub totals: Totals,
    /// Time of the largest live amount, in nanoseconds since the recording began.
    #[serde(with = "plain")]
    pub peak_at_ns: Reading<u64>,
    /// Frames that the call stacks refer to.
    pub frames: Vec<Frame>,
    /// Call stacks without duplicates: indices of frames, the allocating function first.
    pub stacks: Vec<Vec<u32>>,
    /// Allocations by call stack.
    pub sites: Vec<AllocationSite>,
    /// Snapshots of the live bytes, in order of time.
    pub moments: Vec<HeapSnapshot>,
    /// Layouts of the allocator's memory at some of these times, in order of time.
    #[serde(default)]
    pub layouts: Vec<AllocatorLayout>,
    /// Allocations by size: cell *n* counts those of 2^(n-1) to 2^n - 1 bytes, cell 0 those of 0
    /// bytes.
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
    /// The process ended; its exit status or signal is known.
    Ended(ProgramEnding),
    /// The process executed another program (`execve`).
    Replaced,
    /// The process runs on.
    Detached,
    /// The process ended; its exit status is unknown.
    Gone,
    /// The recording was cut off.
    CutOff,
}

/// Bytes and the number of blocks they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapAmount {
    /// Requested bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Sums over a recording.
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
    /// Standard errors of allocated and of live bytes; `None` if every allocation was recorded.
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
    /// Index in [`HeapRecording::stacks`].
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
    /// Standard errors of allocated and of live bytes; `None` if every allocation was recorded.
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
    /// Blocks from before the recording that were freed so far, with their usable bytes; `None` if
    /// they were not counted.
    #[serde(default)]
    pub older_freed: Option<HeapAmount>,
}

/// Live amount by site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTree {
    /// Indices in [`HeapRecording::sites`], largest first.
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
    /// Number of live blocks that could not be located, because the program ran during the reading.
    pub unclear: u64,
}

/// Kind of a part of an allocator's footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorAreaKind {
    /// glibc's main arena: the `brk` heap, and memory that was mapped because the program break
    /// could not grow.
    Main,
    /// Another arena of glibc's, by number.
    Arena(u32),
    /// Blocks that are large enough for mappings of their own.
    Mapped,
    /// Mappings that contain blocks, of an allocator whose layout is not known.
    Mappings,
}

/// A part of the allocator's footprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorArea {
    /// Kind of the area.
    pub kind: AllocatorAreaKind,
    /// Number of its heaps or mappings.
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
    /// Length of the longest range without a live block; the range behind the last live block does
    /// not count.
    #[serde(with = "plain")]
    pub gap: Reading<Bytes>,
    /// Threads that allocate from it.
    #[serde(with = "plain")]
    pub threads: Reading<u64>,
}

/// Resident pages by their live share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDensity {
    /// Cell 0 counts pages without a live block, cell *n* those of which more than *n* - 1 eighths
    /// are live and no more than *n*. Blocks count with their headers and rounding, if these are
    /// known.
    pub cells: Vec<u64>,
    /// Call stacks with blocks in pages that are at most a quarter live, largest first.
    pub pinned: Vec<PinnedPages>,
    /// All others together; their `site` has no meaning.
    pub others: PinnedPages,
}

/// Resident bytes that the blocks of a site pin. The bytes of a page are split among the sites in
/// proportion to their live bytes.
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

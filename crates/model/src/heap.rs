//! The heap of one process over time: the live memory at each time, and the functions that
//! allocated it.

mod profile;

use serde::{Deserialize, Serialize};

pub use profile::Of;

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, PageSize, Pid, Reading};

/// A recording of a heap, with symbolized call stacks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapRecording {
    /// PID of the process.
    pub pid: Pid,
    /// Words of the command line.
    pub command: Vec<Name>,
    /// Path of the process's program.
    pub program: Name,
    /// Name of the library that provides `malloc`.
    pub allocator: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// Start of the recording, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Duration of the recording in nanoseconds.
    pub took_ns: u64,
    /// Mean number of allocated bytes between two samples; `None` if all calls were recorded.
    pub every_bytes: Option<u64>,
    /// True if the recorder attached to a running process: earlier allocations are unknown.
    pub attached: bool,
    /// Ending of the recording.
    pub ending: HeapEnding,
    /// Sums over the whole recording.
    pub totals: Totals,
    /// Time at which the live bytes were at their maximum, in nanoseconds since the recording
    /// began.
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
    /// Layouts of the allocator's memory at some time points, in order of time.
    #[serde(default)]
    pub layouts: Vec<AllocatorLayout>,
    /// Number of allocations by size: cell *n* counts sizes of 2^(n-1) to 2^n - 1 bytes, cell 0
    /// counts size 0.
    pub sizes: Vec<u64>,
    /// Number of sampled blocks by lifetime: cell *n* counts lifetimes of 2^(n-1) to 2^n - 1
    /// nanoseconds.
    pub lifetimes: Vec<u64>,
    /// The lifetime of one in `lifetimes_every` allocations was measured; 0 if none was measured.
    pub lifetimes_every: u32,
    /// Allocated and freed memory by thread.
    pub threads: Vec<HeapThread>,
    /// Reasons of missing data.
    pub lacks: Vec<Absent>,
}

/// Ending of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeapEnding {
    /// The process ended; its exit status or signal is known.
    Ended(ProgramEnding),
    /// The process called `execve`, so its heap is gone.
    Replaced,
    /// The recorder detached, and the process continued.
    Detached,
    /// The process ended with an unknown exit status.
    Gone,
    /// The recording was cut off before its end.
    CutOff,
}

/// Number of blocks, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapAmount {
    /// Requested bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Sums over the whole recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// All allocations. `realloc` counts as a free and an allocation.
    pub allocated: HeapAmount,
    /// All blocks that were freed.
    pub freed: HeapAmount,
    /// Live memory at the peak: the time at which the live bytes were at their maximum.
    pub peak: HeapAmount,
    /// Upper bound of the error of `peak.bytes`, in bytes. Threads that allocate concurrently cause
    /// the error.
    pub peak_within: u64,
    /// Live memory at the end.
    pub leaked: HeapAmount,
    /// Number of blocks that were freed before the same thread allocated another block.
    pub temporary: u64,
    /// Number of frees of memory that was allocated before the recording began.
    pub unknown_frees: u64,
    /// Standard errors of the allocated bytes and of the live bytes; `None` if every allocation was
    /// recorded.
    pub errors: Option<(f64, f64)>,
}

/// Kind of the memory of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationKind {
    /// `malloc` and the other allocation functions.
    Heap,
    /// Mappings that the program created itself.
    Mapping,
    /// Blocks of a pool.
    Pool,
}

/// Allocations of one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocationSite {
    /// Index in [`HeapRecording::stacks`].
    pub stack: u32,
    /// Kind of the allocated memory.
    pub kind: AllocationKind,
    /// Memory that this call stack allocated.
    pub allocated: HeapAmount,
    /// Part of the allocated memory that was freed.
    pub freed: HeapAmount,
    /// Number of blocks that were freed before the same thread allocated another block.
    pub temporary: u64,
    /// Live memory of this call stack at the peak ([`Totals::peak`]).
    pub at_peak: HeapAmount,
    /// Standard errors of the allocated bytes and of the live bytes; `None` if every allocation was
    /// recorded.
    pub errors: Option<(f64, f64)>,
}

impl AllocationSite {
    /// Live memory at the end.
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
    /// Live memory.
    pub live: HeapAmount,
    /// All allocations since the recording began.
    pub allocated: HeapAmount,
    /// Footprint of the allocator.
    #[serde(with = "plain")]
    pub held: Reading<Bytes>,
    /// Resident memory of the process.
    #[serde(with = "plain")]
    pub resident: Reading<ResidentBytes>,
    /// Live memory by site; `None` if it was not stored at this time point.
    pub tree: Option<LiveTree>,
    /// Blocks that were allocated before the recording and freed before this time point, with their
    /// usable bytes; `None` if they were not counted.
    #[serde(default)]
    pub older_freed: Option<HeapAmount>,
}

/// Live memory by site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTree {
    /// Indices in [`HeapRecording::sites`] with the live memory of these sites, largest first.
    pub sites: Vec<(u32, HeapAmount)>,
    /// Sum of the live memory of all other sites.
    pub others: HeapAmount,
}

/// Resident and swapped memory of a process in bytes. The recorder's own memory is excluded if it
/// is known.
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
    /// Sum of the resident bytes: `VmRSS`.
    pub fn rss(&self) -> u64 {
        self.anonymous.saturating_add(self.file).saturating_add(self.shmem)
    }
}

/// Layout of the allocator's memory, and live share of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorLayout {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Parts of the allocator's footprint.
    pub areas: Vec<AllocatorArea>,
    /// Resident pages of `areas` by their live share. Blocks with their own mappings are excluded.
    #[serde(with = "plain")]
    pub pages: Reading<PageDensity>,
    /// Number of live blocks that could not be located because the program ran while its memory was
    /// read.
    pub unclear: u64,
}

/// Kind of a part of an allocator's footprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorAreaKind {
    /// glibc's main arena: the `brk` heap, and memory that was mapped because the program break
    /// could not grow.
    Main,
    /// Another arena of glibc, with its number.
    Arena(u32),
    /// Large blocks, each in its own mapping.
    Mapped,
    /// Mappings that contain blocks of an allocator with unknown layout.
    Mappings,
}

/// A part of the allocator's footprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorArea {
    /// Kind of the area.
    pub kind: AllocatorAreaKind,
    /// Number of heaps or mappings of the area.
    pub parts: u32,
    /// Readable and writable bytes of the area.
    pub held: Bytes,
    /// Resident part of these bytes.
    #[serde(with = "plain")]
    pub resident: Reading<Bytes>,
    /// Live blocks in the area, with their requested sizes.
    #[serde(with = "plain")]
    pub live: Reading<HeapAmount>,
    /// Resident bytes in pages without a live block.
    #[serde(with = "plain")]
    pub empty: Reading<Bytes>,
    /// Size of the last chunk (`top`).
    #[serde(with = "plain")]
    pub top: Reading<Bytes>,
    /// Length of the longest range without a live block. The range after the last live block is
    /// excluded.
    #[serde(with = "plain")]
    pub gap: Reading<Bytes>,
    /// Number of threads that allocate from the area.
    #[serde(with = "plain")]
    pub threads: Reading<u64>,
}

/// Number of resident pages by their live share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDensity {
    /// Cell 0 counts pages without a live block. Cell *n* counts pages of which more than *n* - 1
    /// eighths and at most *n* eighths are live. The size of a block includes its header and
    /// rounding, if these are known.
    pub cells: Vec<u64>,
    /// Call stacks with blocks in pages of which at most a quarter is live, most pinned bytes
    /// first.
    pub pinned: Vec<PinnedPages>,
    /// Sum over all other call stacks; its `site` has no meaning.
    pub others: PinnedPages,
}

/// Resident bytes that the blocks of a site pin. The bytes of a page are split among the sites in
/// proportion to their live bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedPages {
    /// Index in [`HeapRecording::sites`].
    pub site: u32,
    /// Bytes of the pages that the site pins.
    pub bytes: u64,
    /// Live memory of the site in these pages, with the rounding of blocks.
    pub live: HeapAmount,
}

/// A thread that allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapThread {
    /// Thread ID; 0 for the sum of all threads without their own row.
    pub tid: u32,
    /// Name of the thread.
    pub name: Name,
    /// Memory that the thread allocated.
    pub allocated: HeapAmount,
    /// Memory that the thread freed; other threads may have allocated it.
    pub freed: HeapAmount,
}

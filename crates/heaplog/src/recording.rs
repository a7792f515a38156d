//! Contents of a recording: plain values, in the order in which they were recorded.
//!
//! Call stacks are paths in a tree: a [`LogCallNode`] is a return address, called from that of its
//! parent. A [`LogSite`] is a node that allocated memory, and everything is counted by site. Sizes
//! are those that the program requested, without the rounding of an allocator.

/// No parent: the caller is unknown, or does not exist.
pub const ROOT: u32 = u32::MAX;

/// One process's heap, from the first snapshot to the end of the process or of the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogRecording {
    /// Parameters of the recording, and the process.
    pub begin: Begin,
    /// Files of code that were mapped, in the order in which they were first met in a call stack.
    pub modules: Vec<LogModule>,
    /// Return addresses, and those of instructions that were interrupted.
    pub places: Vec<LogAddress>,
    /// Calls; a parent comes before its children.
    pub nodes: Vec<LogCallNode>,
    /// Call stacks that allocated memory.
    pub sites: Vec<LogSite>,
    /// Snapshots of the live bytes, in order of time.
    pub moments: Vec<LogSnapshot>,
    /// Layouts of the allocator's memory at some of these times, in order of time.
    pub layouts: Vec<LogLayout>,
    /// Everything counted, up to the last time this was written down.
    pub counts: LogCounts,
    /// Recorded blocks that were live when the recorder left a running process, in order of
    /// address.
    pub blocks: Vec<LogBlock>,
    /// Ending; `None` if the recording was cut off, and `counts` may be older than the last
    /// snapshot.
    pub end: Option<LogEnd>,
}

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBlock {
    /// Its address.
    pub address: u64,
    /// The site that allocated it.
    pub site: u32,
}

/// Maximum number of blocks in a recording: a reader refuses more.
pub const MAX_BLOCKS: usize = 1 << 22;

/// Parameters of a recording, and the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// When the recording began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Bytes in a base page.
    pub page_size: u64,
    /// The mean number of allocated bytes between two samples; 0 if every call was recorded.
    pub every_bytes: u64,
    /// The command's words.
    pub command: Vec<Vec<u8>>,
    /// The program's file.
    pub program: Vec<u8>,
    /// Provider of `malloc`: `glibc 2.36`, or the path of the library.
    pub allocator: Vec<u8>,
    /// Sampling rate of lifetimes: one in N allocations was measured; 0 if none was.
    pub lifetimes_every: u32,
    /// True if the process was running already: its earlier allocations are unknown.
    pub attached: bool,
}

/// A file of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogModule {
    /// Its path in the list of the program's dynamic loader; the program's path if that is empty.
    pub path: Vec<u8>,
    /// The build ID of its notes; empty if it has none.
    pub build_id: Vec<u8>,
    /// Its first address.
    pub start: u64,
    /// Its end address (exclusive).
    pub end: u64,
    /// Difference between an address and the file's own (`p_vaddr`).
    pub bias: u64,
}

/// Return address of a call, or address at which a signal interrupted a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogAddress {
    /// The return address; that of the instruction itself if it is `exact`.
    pub address: u64,
    /// True if a signal interrupted the instruction at this address; false for a return address.
    pub exact: bool,
    /// Number of its module; `None` for code that was generated at run time.
    pub module: Option<u32>,
}

/// A call with its callers: one call path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogCallNode {
    /// The caller's node, [`ROOT`] for none.
    pub parent: u32,
    /// Number of its place, in [`LogRecording::places`].
    pub place: u32,
}

/// Kind of memory of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// `malloc` and the other allocation functions, and `new` through them.
    #[default]
    Heap,
    /// Mappings that the program made itself: `mmap`, `brk`.
    Mapping,
    /// Blocks of a pool of pagewise's own allocators.
    Pool,
}

/// A call stack that allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogSite {
    /// Its innermost call, [`ROOT`] if the call stack is unknown.
    pub node: u32,
    /// Kind of its allocations.
    pub kind: LogKind,
}

/// Bytes and the number of blocks they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogAmount {
    /// Requested bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Live bytes and memory use at one time point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogSnapshot {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Live amount.
    pub live: LogAmount,
    /// All allocations so far.
    pub allocated: LogAmount,
    /// Allocator footprint in bytes: live, free, and the allocator's own data. `None` if unknown.
    pub held: Option<u64>,
    /// Resident and swapped memory of the process; `None` if it could not be read.
    pub resident: Option<LogResident>,
    /// Live amount by site, largest first; `None` if only the sums were taken.
    pub tree: Option<LogLiveTree>,
    /// Blocks from before the recording that were freed so far, with their usable sizes; `None` if
    /// they are not counted.
    pub older_freed: Option<LogAmount>,
}

/// Live amount by site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLiveTree {
    /// Sites, largest first.
    pub sites: Vec<(u32, LogAmount)>,
    /// All others together, each of which is too small to be listed.
    pub others: LogAmount,
}

/// The parts of `VmRSS`, and `VmSwap`, in bytes (`/proc/PID/status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogResident {
    /// `RssAnon`.
    pub anonymous: u64,
    /// `RssFile`.
    pub file: u64,
    /// `RssShmem`, without the recorder's tables.
    pub shmem: u64,
    /// `VmSwap`.
    pub swap: u64,
    /// Part of `anonymous` that belongs to the recorder itself; `None` if unknown.
    pub recorder: Option<u64>,
}

/// Layout of the allocator's memory, and the density of its use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLayout {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Parts of the allocator's footprint: for glibc its arenas, then blocks with mappings of their
    /// own; for others, mappings.
    pub areas: Vec<LogArea>,
    /// Density of the pages of these; `None` if some live blocks are unknown, or the page tables
    /// could not be read.
    pub pages: Option<LogPageDensity>,
    /// Live blocks that could not be assigned to memory, since the program ran meanwhile.
    pub unclear: u64,
}

/// Kind of an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogAreaKind {
    /// glibc's main arena: the `brk` heap, and the mappings that replace it if it cannot grow.
    #[default]
    Main,
    /// A thread arena of glibc's.
    Arena,
    /// Blocks that are large enough for mappings of their own.
    Mapped,
    /// Mappings with blocks in them, of an allocator whose structures are unknown.
    Mappings,
}

/// A part of the allocator's footprint. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogArea {
    /// Kind of the area.
    pub kind: LogAreaKind,
    /// Index within its kind, in the order in which the areas were found.
    pub number: u32,
    /// Heaps or mappings that it is made of.
    pub parts: u32,
    /// Its footprint in bytes: the readable and writable part.
    pub held: u64,
    /// Resident part of these bytes.
    pub resident: Option<u64>,
    /// Live blocks in it, with their requested sizes; an estimate with sampling.
    pub live: Option<LogAmount>,
    /// Resident bytes in pages without a live block.
    pub empty: Option<u64>,
    /// Bytes after the last chunk (`top`), which are trimmed first.
    pub top: Option<u64>,
    /// The longest run of bytes between live blocks, without the part after the last block.
    pub gap: Option<u64>,
    /// Threads that allocate from it.
    pub threads: Option<u64>,
}

/// Resident pages by their live share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPageDensity {
    /// Cell 0 counts pages without a live block, cell *n* those of which more than *n* - 1 eighths
    /// and at most *n* eighths are live. Blocks count with all memory that they occupy: with the
    /// allocator's words before them and with their rounding.
    pub cells: [u64; 9],
    /// Sites with blocks in pages that are at most a quarter live, largest first. Such a page is
    /// divided among its sites by their live bytes.
    pub pinned: Vec<LogPinned>,
    /// All others together; its site means nothing.
    pub others: LogPinned,
}

/// Resident bytes that the blocks of a site pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPinned {
    /// The site.
    pub site: u32,
    /// Its part of the pages.
    pub bytes: u64,
    /// Live amount in these pages.
    pub live: LogAmount,
}

/// Everything counted since the recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogCounts {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// By site, in the order of [`LogRecording::sites`]; those behind the last are zero.
    pub sites: Vec<LogSiteCounts>,
    /// Largest amount that was live at once. If threads allocated at the same time, its error is at
    /// most `peak_within` bytes.
    pub peak: LogAmount,
    /// Error bound of `peak.bytes`.
    pub peak_within: u64,
    /// Time of the peak in nanoseconds since the recording began, if known; it may be approximate.
    pub peak_at_ns: Option<u64>,
    /// Calls of `free` for blocks whose allocation was not recorded, for example one before the
    /// recording.
    pub unknown_frees: u64,
    /// Blocks whose call stack is not known, since the tables were full or the stack could not be
    /// followed to its end.
    pub cut_stacks: u64,
    /// Allocations by size: cell *n* counts those of 2^(n-1) .. 2^n - 1 bytes, cell 0 those of
    /// none.
    pub sizes: Vec<u64>,
    /// Lifetimes that were measured: cell *n* counts those of 2^(n-1) .. 2^n - 1 nanoseconds.
    pub lifetimes: Vec<u64>,
    /// By thread.
    pub threads: Vec<LogThread>,
}

/// Counts of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogSiteCounts {
    /// All that it allocated.
    pub allocated: LogAmount,
    /// Freed amount.
    pub freed: LogAmount,
    /// Number of blocks that were freed before the same thread allocated another.
    pub temporary: u64,
    /// Live amount at the time of the whole process's peak.
    pub at_peak: LogAmount,
    /// With sampling: the standard errors of allocated and of live bytes. 0 if every call was
    /// recorded.
    pub errors: (f64, f64),
}

/// A thread that allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogThread {
    /// Its TID; 0 for all threads together that were merged because the process has very many.
    pub tid: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Allocated amount.
    pub allocated: LogAmount,
    /// Freed amount; other threads may have allocated the blocks.
    pub freed: LogAmount,
}

/// Ending of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Kind of the ending.
    pub how: LogEnding,
}

/// Kinds of endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnding {
    /// The process ended, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It became another program (`execve`).
    Replaced,
    /// The process is still running: a user ended the recording.
    Detached,
    /// It ended with an unknown status: it was not our child.
    Gone,
}

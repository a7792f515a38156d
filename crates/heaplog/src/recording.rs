//! Contents of a recording: plain values, in the order in which they were recorded.
//!
//! Call stacks are paths in a tree: a [`LogCallNode`] is a return address, whose caller is the
//! parent node. A [`LogSite`] is a node that allocated memory, and all amounts are counted by site.
//! Sizes are those that the program requested, without the rounding of an allocator.

/// Parent of a node without a known caller.
pub const ROOT: u32 = u32::MAX;

/// One process's heap, from the first snapshot to the end of the process or of the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogRecording {
    /// Parameters of the recording, and data of the process.
    pub begin: Begin,
    /// Files of code that were mapped, in the order of their first occurrence in a call stack.
    pub modules: Vec<LogModule>,
    /// Return addresses, and addresses of instructions that were interrupted.
    pub places: Vec<LogAddress>,
    /// Calls; a parent comes before its children.
    pub nodes: Vec<LogCallNode>,
    /// Call stacks that allocated memory.
    pub sites: Vec<LogSite>,
    /// Snapshots of the live bytes, in order of time.
    pub moments: Vec<LogSnapshot>,
    /// Layouts of the allocator's memory at some time points, in order of time.
    pub layouts: Vec<LogLayout>,
    /// All counts, as of the last time that they were written.
    pub counts: LogCounts,
    /// Recorded blocks that were live when pagewise detached from the running process, in order of
    /// address.
    pub blocks: Vec<LogBlock>,
    /// Ending of the recording. `None` if the recording was cut off; `counts` may then be older
    /// than the last snapshot.
    pub end: Option<LogEnd>,
}

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBlock {
    /// Address of the block.
    pub address: u64,
    /// Index of the site that allocated the block.
    pub site: u32,
}

/// Maximum number of blocks in a recording; readers refuse a recording with more blocks.
pub const MAX_BLOCKS: usize = 1 << 22;

/// Parameters of a recording, and data of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// PID of the process.
    pub pid: u32,
    /// PID of its parent.
    pub parent: u32,
    /// Start time of the recording, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Number of bytes in a base page.
    pub page_size: u64,
    /// Mean number of allocated bytes between two samples; 0 if every call was recorded.
    pub every_bytes: u64,
    /// Words of the command.
    pub command: Vec<Vec<u8>>,
    /// Path of the program.
    pub program: Vec<u8>,
    /// Provider of `malloc`: `glibc 2.36`, or the path of the library.
    pub allocator: Vec<u8>,
    /// Sampling rate of lifetimes: one in N allocations was measured; 0 if no lifetime was
    /// measured.
    pub lifetimes_every: u32,
    /// True if the process was already running at the start of the recording, so that its earlier
    /// allocations are unknown.
    pub attached: bool,
}

/// A file of code: the program or a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogModule {
    /// Path in the list of the dynamic loader; the program's path if the path in the list is empty.
    pub path: Vec<u8>,
    /// Build ID from the notes of the file; empty if the file has none.
    pub build_id: Vec<u8>,
    /// First address.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// Difference between an address in memory and the address in the file (`p_vaddr`).
    pub bias: u64,
}

/// Return address of a call, or address at which a signal interrupted a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogAddress {
    /// Return address; if `exact`, the address of the interrupted instruction.
    pub address: u64,
    /// True if a signal interrupted the instruction at this address; false for a return address.
    pub exact: bool,
    /// Index of the module; `None` for code that was generated at run time.
    pub module: Option<u32>,
}

/// A call path: a call together with its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogCallNode {
    /// Index of the caller's node; [`ROOT`] without a caller.
    pub parent: u32,
    /// Index of the return address in [`LogRecording::places`].
    pub place: u32,
}

/// Kind of memory of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// `malloc` and the other allocation functions, and `new` through them.
    #[default]
    Heap,
    /// Mappings that the program itself created: `mmap`, `brk`.
    Mapping,
    /// Blocks of a pool of pagewise's own allocators.
    Pool,
}

/// A call stack that allocated memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogSite {
    /// Index of the node of the innermost call; [`ROOT`] if the call stack is unknown.
    pub node: u32,
    /// Kind of the memory that it allocated.
    pub kind: LogKind,
}

/// An amount of memory: a number of bytes, and the number of blocks that contain them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogAmount {
    /// Number of requested bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Live bytes and memory use at one time point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogSnapshot {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Live amount.
    pub live: LogAmount,
    /// Amount of all allocations so far.
    pub allocated: LogAmount,
    /// Allocator footprint in bytes: live, free, and the allocator's own data. `None` if unknown.
    pub held: Option<u64>,
    /// Resident and swapped memory of the process; `None` if it could not be read.
    pub resident: Option<LogResident>,
    /// Live amount by site, largest first; `None` if the snapshot has only sums.
    pub tree: Option<LogLiveTree>,
    /// Blocks from before the recording that were freed so far, with their usable sizes; `None` if
    /// such blocks are not counted.
    pub older_freed: Option<LogAmount>,
}

/// Live amount by site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLiveTree {
    /// Indices of sites with their live amounts, largest first.
    pub sites: Vec<(u32, LogAmount)>,
    /// Sum of all other sites, each of which is too small to be listed.
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
    /// Parts of the allocator's footprint: for glibc its arenas, followed by blocks with mappings
    /// of their own; for other allocators their mappings.
    pub areas: Vec<LogArea>,
    /// Density of the pages of `areas`; `None` if some live blocks are unknown, or if the page
    /// tables could not be read.
    pub pages: Option<LogPageDensity>,
    /// Number of live blocks that could not be assigned to an area, because the program ran during
    /// the reading.
    pub unclear: u64,
}

/// Kind of an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogAreaKind {
    /// Main arena of glibc: the `brk` heap, and the mappings that replace the heap if it cannot
    /// grow.
    #[default]
    Main,
    /// A thread arena of glibc.
    Arena,
    /// Blocks that are large enough to have mappings of their own.
    Mapped,
    /// Mappings that contain blocks, of an allocator whose structures are unknown.
    Mappings,
}

/// A part of the allocator's footprint. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogArea {
    /// Kind of the area.
    pub kind: LogAreaKind,
    /// Index among the areas of its kind, in the order in which they were found.
    pub number: u32,
    /// Number of heaps or mappings that the area consists of.
    pub parts: u32,
    /// Footprint in bytes: the readable and writable part.
    pub held: u64,
    /// Number of resident bytes of the footprint.
    pub resident: Option<u64>,
    /// Live blocks in the area, with their requested sizes; an estimate with sampling.
    pub live: Option<LogAmount>,
    /// Number of resident bytes in pages without a live block.
    pub empty: Option<u64>,
    /// Size in bytes of the top chunk, whose memory the allocator trims first.
    pub top: Option<u64>,
    /// Length in bytes of the longest range without live blocks, excluding the range after the last
    /// block.
    pub gap: Option<u64>,
    /// Number of threads that allocate from the area.
    pub threads: Option<u64>,
}

/// Numbers of resident pages by the fraction of the page that is live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPageDensity {
    /// Cell 0 counts pages without a live block, cell *n* counts pages that are live by more than
    /// *n* - 1 eighths and at most *n* eighths. The live part of a page includes the allocator's
    /// words before blocks, and the rounding of block sizes.
    pub cells: [u64; 9],
    /// Sites with blocks in pages that are at most a quarter live, largest first. Each such page is
    /// divided among its sites in proportion to their live bytes.
    pub pinned: Vec<LogPinned>,
    /// Sum of all other sites; its field `site` has no meaning.
    pub others: LogPinned,
}

/// Resident bytes that the blocks of a site pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPinned {
    /// Index of the site.
    pub site: u32,
    /// Sum of the site's parts of these pages, in bytes ([`LogPageDensity::pinned`]).
    pub bytes: u64,
    /// Live amount of the site in these pages.
    pub live: LogAmount,
}

/// All counts since the recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogCounts {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Counts of each site, in the order of [`LogRecording::sites`]. Sites after the last element
    /// have zero counts.
    pub sites: Vec<LogSiteCounts>,
    /// Largest amount that was live at once. If threads allocated at the same time, the error of
    /// `peak.bytes` is at most `peak_within`.
    pub peak: LogAmount,
    /// Maximum error of `peak.bytes` in bytes.
    pub peak_within: u64,
    /// Time of the peak in nanoseconds since the recording began, if known; it may be approximate.
    pub peak_at_ns: Option<u64>,
    /// Number of calls of `free` for blocks whose allocation was not recorded, for example an
    /// allocation before the recording.
    pub unknown_frees: u64,
    /// Number of blocks whose call stack is unknown, because the tables were full or the stack
    /// could not be followed to its end.
    pub cut_stacks: u64,
    /// Number of allocations by size: cell *n* counts sizes of 2^(n-1) to 2^n - 1 bytes, cell 0
    /// counts sizes of 0 bytes.
    pub sizes: Vec<u64>,
    /// Number of measured lifetimes: cell *n* counts lifetimes of 2^(n-1) to 2^n - 1 nanoseconds.
    pub lifetimes: Vec<u64>,
    /// Counts of each thread.
    pub threads: Vec<LogThread>,
}

/// Counts of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogSiteCounts {
    /// Amount that the site allocated.
    pub allocated: LogAmount,
    /// Amount that the site allocated and that was freed.
    pub freed: LogAmount,
    /// Number of blocks that were freed before the same thread allocated another block.
    pub temporary: u64,
    /// Live amount at the time of the whole process's peak.
    pub at_peak: LogAmount,
    /// With sampling: the standard errors of allocated bytes and of live bytes. 0 if every call was
    /// recorded.
    pub errors: (f64, f64),
}

/// Counts of a thread that allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogThread {
    /// TID of the thread; 0 for the sum of threads that were merged because the process has very
    /// many.
    pub tid: u32,
    /// Name of the thread.
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
    /// A signal ended the process: number of the signal.
    Killed(i32),
    /// The process executed another program (`execve`).
    Replaced,
    /// The process is still running: a user ended the recording.
    Detached,
    /// The process ended with an unknown status, because it was not a child of the collector.
    Gone,
}

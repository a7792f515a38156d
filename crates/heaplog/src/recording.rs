//! What a recording says: plain values, in the order in which they came to be known.
//!
//! Call stacks are paths in a tree: a [`Node`] is a place in the program, called from its parent's. A [`Site`] is a node that
//! allocated something, and everything is counted by site. All numbers are kept as the program had them: bytes asked
//! for, not bytes that an allocator makes of them.

/// No parent: who called is not known, or nobody did.
pub const ROOT: u32 = u32::MAX;

/// One process's heap, from when it was first looked at until its end or the end of the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// What was recorded, and how.
    pub begin: Begin,
    /// Files of code that were mapped, in the order in which they were first met in a call stack.
    pub modules: Vec<Module>,
    /// Return addresses, and those of instructions that were interrupted.
    pub places: Vec<Place>,
    /// Calls; a parent comes before its children.
    pub nodes: Vec<Node>,
    /// Where memory was allocated.
    pub sites: Vec<Site>,
    /// How much was live when, in order of time.
    pub moments: Vec<Moment>,
    /// Where the allocator's memory lay at some of these times, in order of time.
    pub layouts: Vec<Layout>,
    /// Everything counted, up to the last time this was written down.
    pub counts: Counts,
    /// How it ended; none where the recording was cut off, and `counts` may be older than the last moment.
    pub end: Option<End>,
}

/// What was recorded, and how.
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
    /// The mean number of allocated bytes between two samples; 0 where every call was recorded.
    pub every_bytes: u64,
    /// The command's words.
    pub command: Vec<Vec<u8>>,
    /// The program's file.
    pub program: Vec<u8>,
    /// What provides `malloc`: `glibc 2.36`, or the path of the library.
    pub allocator: Vec<u8>,
    /// Each of so many allocations had its lifetime measured; 0 where none had.
    pub lifetimes_every: u32,
    /// The process was running already: what it had allocated before is not known.
    pub attached: bool,
}

/// A file of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Its path, as the program's loader had it; the program's own where the loader has none.
    pub path: Vec<u8>,
    /// The build ID of its notes; empty where it has none.
    pub build_id: Vec<u8>,
    /// Its first address.
    pub start: u64,
    /// Behind its last address.
    pub end: u64,
    /// What to take off an address to have the file's own (`p_vaddr`).
    pub bias: u64,
}

/// Where a call returns to, or where a signal interrupted a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The address behind the call; that of the instruction where it is `exact`.
    pub address: u64,
    /// Whether the address is the instruction's own: it was interrupted, and has called nobody.
    pub exact: bool,
    /// Which of the modules it is in; none for code that was made at run time.
    pub module: Option<u32>,
}

/// A call, by one way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The caller's node, [`ROOT`] for none.
    pub parent: u32,
    /// Which of the places.
    pub place: u32,
}

/// What kind of memory a site took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `malloc` and its kin, and `new` through them.
    #[default]
    Heap,
    /// Mappings that the program made itself: `mmap`, `brk`.
    Mapping,
    /// Blocks of a pool of pagewise's own allocators.
    Pool,
}

/// A call stack that allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// Its innermost call, [`ROOT`] where none is known.
    pub node: u32,
    /// What it allocated.
    pub kind: Kind,
}

/// Bytes and the number of blocks they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// As asked for.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// How much was live at some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// What was live.
    pub live: Amount,
    /// All allocations so far.
    pub allocated: Amount,
    /// Bytes that the allocator held: live, free, and its own; where that is known.
    pub held: Option<u64>,
    /// Memory of the process that was in RAM; none where it could not be read.
    pub resident: Option<Resident>,
    /// What was live by site, largest first; none where only the sums were taken.
    pub tree: Option<Tree>,
    /// Blocks that had been allocated before the recording began and were freed so far, with the bytes that the allocator had given
    /// for them; none where that is not counted.
    pub older_freed: Option<Amount>,
}

/// What was live by site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Sites, largest first.
    pub sites: Vec<(u32, Amount)>,
    /// All others together, each of which is too small to be listed.
    pub others: Amount,
}

/// `VmRSS` and `VmSwap` and what makes them up, in bytes (`/proc/PID/status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// `RssAnon`.
    pub anonymous: u64,
    /// `RssFile`.
    pub file: u64,
    /// `RssShmem`, without what the recorder itself has there.
    pub shmem: u64,
    /// `VmSwap`.
    pub swap: u64,
    /// What the recorder itself took of `anonymous`: none where that is not known.
    pub recorder: Option<u64>,
}

/// Where the memory lies that the allocator holds, and how densely it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// What the allocator has: for glibc its arenas, then blocks with mappings of their own; for others, mappings.
    pub areas: Vec<Area>,
    /// How full the pages of these are; none where not all that is live is known, or pages could not be asked for.
    pub pages: Option<Pages>,
    /// Blocks that were live and whose place could not be made out: the program ran on meanwhile.
    pub unclear: u64,
}

/// What an area is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AreaKind {
    /// glibc's first arena: the heap that `brk` moves, and what was mapped where that could not grow.
    #[default]
    Main,
    /// Another arena of glibc's.
    Arena,
    /// Blocks that are large enough for mappings of their own.
    Mapped,
    /// Mappings with blocks in them, of an allocator whose own parts are not known.
    Mappings,
}

/// A part of what the allocator holds. What is not known is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// What it is.
    pub kind: AreaKind,
    /// Which of its kind, as it was first met.
    pub number: u32,
    /// Heaps or mappings that it is made of.
    pub parts: u32,
    /// Bytes that it holds: what may be read and written of it.
    pub held: u64,
    /// What of that is in RAM.
    pub resident: Option<u64>,
    /// What is live in it, as it was asked for; of samples, an estimate.
    pub live: Option<Amount>,
    /// What is resident and has nothing live in its pages.
    pub empty: Option<u64>,
    /// Bytes behind the last chunk (`top`), which are given back first.
    pub top: Option<u64>,
    /// The longest run without a live block, apart from what is behind the last one.
    pub gap: Option<u64>,
    /// Threads that allocate from it.
    pub threads: Option<u64>,
}

/// How many resident pages have how much live in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Cell 0 counts pages with nothing live, cell *n* those of which more than *n* - 1 eighths are live and no more than *n*. Blocks
    /// count as long as nobody else may have their memory: with the allocator's words before them and what they are rounded up by.
    pub cells: [u64; 9],
    /// Who has blocks in pages of which no more than a quarter is live, most first: such a page is shared out by bytes.
    pub pinned: Vec<Pinned>,
    /// All others together; its site means nothing.
    pub others: Pinned,
}

/// What the blocks of a site keep in RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The site.
    pub site: u32,
    /// Its part of the pages.
    pub bytes: u64,
    /// What it has live in them.
    pub live: Amount,
}

/// Everything counted since the recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// By site, in the order of [`Recording::sites`]; those behind the last are zero.
    pub sites: Vec<Counted>,
    /// The most bytes that were live at once, in how many blocks. Where threads allocated at the same time, it is known to
    /// `peak_within` bytes.
    pub peak: Amount,
    /// How far `peak.bytes` may be off.
    pub peak_within: u64,
    /// When that was, in nanoseconds since the recording began, as well as it is known.
    pub peak_at_ns: Option<u64>,
    /// Calls of `free` for memory that was allocated before the recording began, or past it.
    pub unknown_frees: u64,
    /// Blocks whose call stack is not known, since the tables were full or the stack could not be followed to its end.
    pub cut_stacks: u64,
    /// Allocations by size: cell *n* counts those of 2^(n-1) .. 2^n - 1 bytes, cell 0 those of none.
    pub sizes: Vec<u64>,
    /// Lifetimes that were measured: cell *n* counts those of 2^(n-1) .. 2^n - 1 nanoseconds.
    pub lifetimes: Vec<u64>,
    /// By thread.
    pub threads: Vec<Thread>,
}

/// What a site did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// All that it allocated.
    pub allocated: Amount,
    /// What of that was freed.
    pub freed: Amount,
    /// How many blocks were freed before the same thread allocated another.
    pub temporary: u64,
    /// What was live when most was live in the whole process.
    pub at_peak: Amount,
    /// Where samples were taken: the standard errors of allocated and of live bytes. 0 where every call was recorded.
    pub errors: (f64, f64),
}

/// A thread that allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its number; 0 for all threads together that ended early in a process of very many.
    pub tid: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// What it allocated.
    pub allocated: Amount,
    /// What it freed, whoever had allocated it.
    pub freed: Amount,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// How.
    pub how: Ending,
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process ended, with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// It became another program (`execve`).
    Replaced,
    /// It runs on: somebody ended the recording.
    Detached,
    /// It ended, and how is not known: it was nobody's child here.
    Gone,
}

//! Pointers between the blocks of a heap at one time: reachable and leaked blocks, and the bytes
//! that each root retains. A root is a memory location or register that holds a pointer to a block.
//! A root retains the blocks that would be unreachable without this root.

use serde::{Deserialize, Serialize};

use crate::data_types::TypeLack;
use crate::heap_sample::MemoryExcerpt;
use crate::heap_scan::LiveAmount;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, Reading};

/// Result of the search for pointers between the blocks of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapGraph {
    /// Blocks that are reachable from a root.
    pub reachable: LiveAmount,
    /// Blocks that are not reachable from any root.
    pub leaked: LiveAmount,
    /// Leaks by size, type and call stack, most bytes first.
    pub leaks: Vec<LeakGroup>,
    /// Number of roots that point to blocks.
    pub roots: u64,
    /// Number of pointers to blocks.
    pub pointers: u64,
    /// Number of pointers that were not stored because the maximum number was reached. The blocks
    /// that they point to count as reachable.
    pub unrecorded: u64,
    /// Bytes that were not searched for pointers, because they are in swap or not readable.
    pub unseen: Bytes,
    /// Roots by retained bytes, most bytes first; empty if the retained bytes were not computed.
    pub retained: Vec<RetainingRoot>,
    /// Tree of retained bytes: roots, with blocks by size and type below them; empty if it was not
    /// computed.
    pub retention: Vec<RetentionEntry>,
    /// The block that the user asked about, and the paths to it; `None` if the user asked about
    /// none.
    pub why: Option<KeptBlock>,
    /// Types of the live blocks; `None` if they were not requested.
    #[serde(default)]
    pub types: Option<TypedBlocks>,
    /// Leaked blocks with their contents, chosen in proportion to their bytes. A later reading
    /// shows if the program still changes them. They are not saved.
    #[serde(skip)]
    pub leak_sample: Vec<MemoryExcerpt>,
    /// Duration of the search in nanoseconds.
    pub took_ns: u64,
}

/// Live blocks by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedBlocks {
    /// Types, most bytes first.
    pub groups: Vec<TypeGroup>,
    /// Sum of the blocks that have a type.
    pub typed: LiveAmount,
    /// Blocks without a type, because pointers of different types point to them.
    pub contradicted: LiveAmount,
    /// Files whose types are unknown, with the reasons.
    pub lacks: Vec<TypeLack>,
    /// Duration of the search for types in nanoseconds.
    pub took_ns: u64,
}

/// Live blocks of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeGroup {
    /// Name of the type, with `[]` if the blocks are arrays of it.
    pub name: Name,
    /// Origin of the type.
    pub evidence: TypeEvidence,
    /// Blocks and usable bytes.
    pub live: LiveAmount,
    /// Address of one block of this type.
    pub address: u64,
}

/// Origin of the type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeEvidence {
    /// The first word of the block points to a virtual method table or a type object.
    ClassTable,
    /// A pointer to the block has a type in debug information.
    DebugInformation,
}

impl TypeEvidence {
    /// The name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            TypeEvidence::ClassTable => "class_table",
            TypeEvidence::DebugInformation => "debug_information",
        }
    }
}

/// A frame of the call stack of the thread that holds a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFrame {
    /// Number of the frame; 0 is the innermost one.
    pub depth: u32,
    /// Name of the function.
    pub function: Option<Name>,
    /// The program or library that contains the function.
    pub module: Option<Name>,
    /// Path of the source file.
    pub source: Option<Name>,
    /// Line number in the source file.
    pub line: u32,
}

/// Call stacks that allocated the blocks of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationStacks {
    /// Call stacks: the allocating function, then its callers.
    pub stacks: Vec<Vec<Frame>>,
    /// For each block, the index of its call stack; `None` if its allocation was not recorded.
    pub of_blocks: Vec<Option<u32>>,
}

/// The reason why the call stacks are unknown: the process has no recorder.
pub fn not_recorded() -> Absent {
    Absent::NotCollected(
        "run the program under `pagewise heap run`, which records call stacks, and scan it meanwhile; \
         or give the file that an ended `pagewise heap attach` wrote with `--recording`"
            .into(),
    )
}

fn without_stack() -> Reading<Vec<Frame>> {
    Err(not_recorded())
}

/// Minimum number of blocks of a leak that counts as a container which the program still uses.
/// Objects that leak one by one own fewer blocks, and a leaked container cannot grow. The scan
/// missed the pointer to such a container, because the pointer changed while the memory of the
/// running process was copied.
pub const CONTAINER_BLOCKS: u64 = 500;

/// Leaks whose first blocks have the same size, type and call stack, with all blocks that are
/// reachable only from these first blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakGroup {
    /// Number of leaks. A leak begins with a block that no other leaked block points to, or with a
    /// cycle of blocks.
    pub leaks: u64,
    /// Number of blocks of all these leaks.
    pub blocks: u64,
    /// Usable bytes of all these blocks.
    pub bytes: u64,
    /// Usable bytes of the first block of each leak.
    pub size: u64,
    /// Type of the first block of each leak.
    pub block_type: Option<Name>,
    /// Address of the first block of one leak.
    pub address: u64,
    /// First bytes of the block at `address`.
    pub first_bytes: Vec<u8>,
    /// The function that allocated the first blocks, followed by its callers.
    #[serde(with = "plain", default = "without_stack")]
    pub stack: Reading<Vec<Frame>>,
}

/// Kind of memory that holds a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootKind {
    /// A register of a thread.
    Register,
    /// The stack of a thread.
    Stack,
    /// A thread-local variable, or the control block of a thread.
    ThreadLocal,
    /// A global or static variable.
    Variable,
    /// Data of a program or library that no symbol covers.
    Data,
    /// Memory of any other mapping.
    Mapping,
    /// Several roots: the blocks stay reachable if any one of these roots is removed.
    Several,
    /// Pointers that were not stored because the maximum number was reached.
    Unrecorded,
}

impl RootKind {
    /// The name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            RootKind::Register => "register",
            RootKind::Stack => "stack",
            RootKind::ThreadLocal => "thread_local",
            RootKind::Variable => "variable",
            RootKind::Data => "data",
            RootKind::Mapping => "mapping",
            RootKind::Several => "several",
            RootKind::Unrecorded => "unrecorded",
        }
    }
}

/// A memory location or register that holds a pointer to a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapRoot {
    /// Kind of the memory that holds the root.
    pub kind: RootKind,
    /// Name of the variable, of the thread, of the file, or of the mapping that holds the root.
    pub name: Name,
    /// The program or library that defines the variable.
    pub module: Option<Name>,
    /// The source file of a `static` variable, which other source files cannot access.
    #[serde(default)]
    pub source: Option<Name>,
    /// The function whose stack frame or registers hold the pointer.
    #[serde(default)]
    pub frame: Option<RootFrame>,
    /// Thread ID of the thread that holds the root.
    pub tid: Option<u32>,
    /// Address of the root's first pointer; 0 for registers.
    pub address: u64,
}

/// A root, and the blocks that would be unreachable without this root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainingRoot {
    /// The root.
    pub root: HeapRoot,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
    /// Path from the root to the blocks that retain most of these bytes.
    pub path: Vec<RetentionStep>,
    /// Roots that reach the first block on the path, nearest first, up to a maximum number. Several
    /// roots can keep the blocks alive together.
    #[serde(default)]
    pub roots: Vec<HeapRoot>,
    /// True if roots that `roots` does not list also reach the first block, or may reach it.
    #[serde(default)]
    pub has_more_roots: bool,
}

/// Blocks with the same size and type on a path from a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionStep {
    /// Address of the first block.
    pub address: u64,
    /// Usable bytes of each block.
    pub size: u64,
    /// Type of the blocks.
    pub block_type: Option<Name>,
    /// The member that points to the first block; `None` if the type of the pointing object is
    /// unknown.
    #[serde(default)]
    pub member: Option<Name>,
    /// Number of blocks.
    pub blocks: u64,
    /// Blocks and bytes that these blocks retain, including themselves.
    pub retained: LiveAmount,
}

/// An entry of the tree of retained bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionEntry {
    /// Index of the parent entry; `None` for a root of the tree.
    pub parent: Option<u32>,
    /// The root, in an entry without a parent.
    pub root: Option<HeapRoot>,
    /// The blocks; `None` in an entry for a root.
    pub blocks: Option<RetentionStep>,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
}

/// A cell in the chart of retained bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedCell {
    /// Index of the parent cell, which is lower than the index of this cell; `None` for a cell
    /// without a parent.
    pub parent: Option<u32>,
    /// Name of the root, or size and type of the blocks.
    pub label: Name,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
}

/// A block, and the paths of pointers that keep it alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBlock {
    /// The address that the user asked about.
    pub asked: u64,
    /// The block that contains the address; `None` if no block does.
    pub block: Option<KeptStep>,
    /// Shortest paths from roots.
    pub paths: Vec<RootPath>,
    /// Blocks and bytes that only this block keeps alive, including the block itself.
    pub retained: LiveAmount,
    /// True if roots that `paths` does not contain also reach the block.
    #[serde(default)]
    pub has_more_roots: bool,
}

/// A path from a root to a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootPath {
    /// The root.
    pub root: HeapRoot,
    /// Blocks from the root on. The last block is the one that the user asked about.
    pub steps: Vec<KeptStep>,
    /// Number of blocks in the middle of the path that are not listed.
    pub omitted: u64,
}

/// A block on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptStep {
    /// Address of the block.
    pub address: u64,
    /// Usable bytes of the block.
    pub size: u64,
    /// Type of the block.
    pub block_type: Option<Name>,
    /// The member that points to the block; `None` if the type of the pointing object is unknown.
    #[serde(default)]
    pub member: Option<Name>,
}

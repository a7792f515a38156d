//! Pointers between the blocks of a heap at one time: reachable and leaked blocks, and the bytes
//! that each root retains.

use serde::{Deserialize, Serialize};

use crate::data_types::TypeLack;
use crate::heap_scan::LiveAmount;
use crate::reading::plain;
use crate::traced::Frame;
use crate::{Absent, Bytes, Name, Reading};

/// Reachability of the blocks of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapGraph {
    /// Blocks that a root reaches.
    pub reachable: LiveAmount,
    /// Blocks that no root reaches.
    pub leaked: LiveAmount,
    /// Leaks by size, type and call stack, most bytes first.
    pub leaks: Vec<LeakGroup>,
    /// Number of roots that point to blocks.
    pub roots: u64,
    /// Number of pointers to blocks.
    pub pointers: u64,
    /// Number of pointers beyond the maximum number of stored pointers. Their blocks count as
    /// reachable.
    pub unrecorded: u64,
    /// Bytes that were not read: in swap, or not readable. Pointers in them are unknown.
    pub unseen: Bytes,
    /// Roots by retained bytes, most first; empty if they were not computed.
    pub retained: Vec<RetainingRoot>,
    /// Retained bytes by root, and below by size and type of blocks; empty if not computed.
    pub retention: Vec<RetentionEntry>,
    /// The block that was asked for.
    pub why: Option<KeptBlock>,
    /// Types of the live blocks, if they were asked for.
    #[serde(default)]
    pub types: Option<TypedBlocks>,
    /// Duration of the search in nanoseconds.
    pub took_ns: u64,
}

/// Live blocks by type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedBlocks {
    /// Types, most bytes first.
    pub groups: Vec<TypeGroup>,
    /// Blocks that have a type.
    pub typed: LiveAmount,
    /// Blocks to which pointers of different types lead: they have no type.
    pub contradicted: LiveAmount,
    /// Files without types.
    pub lacks: Vec<TypeLack>,
    /// Duration of the search for types in nanoseconds.
    pub took_ns: u64,
}

/// Live blocks of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeGroup {
    /// The type; with `[]` if the blocks are arrays of it.
    pub name: Name,
    /// Origin of the type.
    pub evidence: TypeEvidence,
    /// Blocks and usable bytes.
    pub live: LiveAmount,
    /// Address of one of these blocks.
    pub address: u64,
}

/// Origin of the type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeEvidence {
    /// The first word of the block points to a virtual method table or a type object.
    ClassTable,
    /// A pointer whose type debug information describes.
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

/// Function that a thread was in, or that called it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFrame {
    /// Number of the frame: 0 is the innermost function.
    pub depth: u32,
    /// The function.
    pub function: Option<Name>,
    /// The program or library that contains it.
    pub module: Option<Name>,
    /// The source file.
    pub source: Option<Name>,
    /// The line.
    pub line: u32,
}

/// Call stacks that allocated blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationStacks {
    /// Call stacks: the allocating function, then its callers.
    pub stacks: Vec<Vec<Frame>>,
    /// Index of the call stack of each block; `None` if its allocation was not recorded.
    pub of_blocks: Vec<Option<u32>>,
}

/// The reason why the call stacks of blocks are unknown if their process has no recorder.
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

/// Leaked blocks of one size, type and call stack, with the blocks that only they reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakGroup {
    /// Number of leaks: each is a block that no other leaked block points to, or a cycle.
    pub leaks: u64,
    /// All blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Usable bytes of each block at the head of a leak.
    pub size: u64,
    /// Its type.
    pub block_type: Option<Name>,
    /// Address of one of these blocks.
    pub address: u64,
    /// First bytes of this block.
    pub first_bytes: Vec<u8>,
    /// The function that allocated these blocks, then its callers.
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
    /// Data of a program or library without a symbol.
    Data,
    /// Another mapping.
    Mapping,
    /// Several roots: the blocks stay reachable without any one of them.
    Several,
    /// Pointers beyond the maximum number of stored pointers.
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

/// A root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapRoot {
    /// Kind of its memory.
    pub kind: RootKind,
    /// The variable; for a thread its name; otherwise the file or mapping.
    pub name: Name,
    /// The file that defines a variable.
    pub module: Option<Name>,
    /// The source file of a variable that other source files cannot name.
    #[serde(default)]
    pub source: Option<Name>,
    /// The function whose stack frame or registers hold the pointer.
    #[serde(default)]
    pub frame: Option<RootFrame>,
    /// The thread.
    pub tid: Option<u32>,
    /// Address of its first pointer; 0 for registers.
    pub address: u64,
}

/// A root, and the blocks that would be unreachable without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainingRoot {
    /// The root.
    pub root: HeapRoot,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
    /// The path to most of these bytes, from the root on.
    pub path: Vec<RetentionStep>,
    /// For blocks that several roots keep alive: roots that lead to the first of these blocks, the
    /// nearest first, up to a limit.
    #[serde(default)]
    pub roots: Vec<HeapRoot>,
    /// True if further roots lead to this block, or may do so.
    #[serde(default)]
    pub has_more_roots: bool,
}

/// Blocks of one size and type on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionStep {
    /// Address of the first block.
    pub address: u64,
    /// Usable bytes of each.
    pub size: u64,
    /// Their type.
    pub block_type: Option<Name>,
    /// The member that points to the first block, if the type of the pointing object is known.
    #[serde(default)]
    pub member: Option<Name>,
    /// Number of the blocks.
    pub blocks: u64,
    /// Blocks and bytes that they retain, these blocks included.
    pub retained: LiveAmount,
}

/// An entry of the tree of retained bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionEntry {
    /// Index of the entry above; `None` at the top.
    pub parent: Option<u32>,
    /// The root, at the top.
    pub root: Option<HeapRoot>,
    /// The blocks; `None` for a root.
    pub blocks: Option<RetentionStep>,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
}

/// A cell of a picture of retained bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedCell {
    /// Index of the cell above; `None` at the top. It is lower than that of this cell.
    pub parent: Option<u32>,
    /// Root, or size and type of blocks.
    pub label: Name,
    /// Retained blocks and bytes.
    pub retained: LiveAmount,
}

/// A block, and the paths of pointers that keep it alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBlock {
    /// The address that was asked for.
    pub asked: u64,
    /// The block that contains it.
    pub block: Option<KeptStep>,
    /// Shortest paths from roots.
    pub paths: Vec<RootPath>,
    /// Blocks and bytes that only this block keeps alive, the block included.
    pub retained: LiveAmount,
    /// True if further roots lead to the block.
    #[serde(default)]
    pub has_more_roots: bool,
}

/// A path from a root to a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootPath {
    /// The root.
    pub root: HeapRoot,
    /// Blocks from the root on; the last is the block that was asked for.
    pub steps: Vec<KeptStep>,
    /// Number of blocks that are left out in the middle.
    pub omitted: u64,
}

/// A block on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptStep {
    /// Its address.
    pub address: u64,
    /// Usable bytes.
    pub size: u64,
    /// Its type.
    pub block_type: Option<Name>,
    /// The member that points to it, if the type of the pointing object is known.
    #[serde(default)]
    pub member: Option<Name>,
}

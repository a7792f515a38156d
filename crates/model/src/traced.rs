//! Places in programs: what a call stack is made of, and what happened at each.

use serde::{Deserialize, Serialize};

use crate::Name;

/// A call, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// The function, demangled; none where no symbol covers the place.
    pub function: Option<String>,
    /// The file it is in; none for code in memory of no file.
    pub module: Option<Name>,
    /// Offset in that file, or the address for code in no file.
    pub offset: u64,
    /// The line of the source, where there is debugging information.
    pub line: Option<SourcePosition>,
    /// True if the function was inlined into the next frame, which has the same place.
    pub inlined: bool,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourcePosition {
    /// The path of the file, as the compiler had it.
    pub file: String,
    /// From 1; 0 where the compiler names none.
    pub number: u32,
}

/// Event counts by call stack: the input of flame graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackProfile {
    /// Name of the counted events, in the plural: `page faults`.
    pub what: String,
    /// When it began, in nanoseconds since 1970; none where that is not known.
    pub began_ns: Option<u64>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Call stacks, each without repeats: where it happened first, then its callers.
    pub stacks: Vec<Vec<Frame>>,
    /// Counts by call stack.
    pub samples: Vec<StackCount>,
}

/// Number of events at one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackCount {
    /// Which of the stacks.
    pub stack: u32,
    /// Number of events.
    pub count: u64,
    /// Total duration in nanoseconds, if known.
    pub took_ns: Option<u64>,
    /// Process and thread, if they are distinguished.
    pub thread: Option<(u32, u32)>,
    /// Further properties: `kind`, `mapping`.
    pub labels: Vec<(String, String)>,
}

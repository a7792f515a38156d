//! Frames of call stacks, and counts of events by call stack.

use serde::{Deserialize, Serialize};

use crate::Name;

/// A frame of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// The function, demangled; `None` if no symbol covers the program counter.
    pub function: Option<String>,
    /// The file that contains the code; `None` for code in anonymous memory.
    pub module: Option<Name>,
    /// Offset in that file, or the address for code in no file.
    pub offset: u64,
    /// The line of the source, where there is debugging information.
    pub line: Option<SourcePosition>,
    /// True if the function was inlined into the next frame, which has the same offset.
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
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Call stacks without duplicates, the innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Counts by call stack.
    pub samples: Vec<StackCount>,
}

/// Number of events at one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackCount {
    /// Index in [`StackProfile::stacks`].
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

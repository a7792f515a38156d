//! Frames of call stacks, and counts of events by call stack.

use serde::{Deserialize, Serialize};

use crate::Name;

/// A frame of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled name of the function; `None` if no symbol covers the program counter.
    pub function: Option<String>,
    /// The file that contains the code; `None` for code in anonymous memory.
    pub module: Option<Name>,
    /// Offset of the program counter in that file; its address if no file contains the code.
    pub offset: u64,
    /// Source line; `None` without debug information.
    pub line: Option<SourcePosition>,
    /// True if the function was inlined into the next frame, which has the same offset.
    pub inlined: bool,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourcePosition {
    /// Path of the source file, as the compiler recorded it.
    pub file: String,
    /// Line number from 1; 0 if the compiler recorded none.
    pub number: u32,
}

/// Event counts by call stack: the input of flame graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackProfile {
    /// Name of the counted events, in the plural: `page faults`.
    pub what: String,
    /// Start of the recording, in nanoseconds since 1970; `None` if unknown.
    pub began_ns: Option<u64>,
    /// Duration of the recording in nanoseconds.
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
    /// Total duration of the events in nanoseconds; `None` if it is unknown.
    pub took_ns: Option<u64>,
    /// PID and thread ID; `None` if the profile does not distinguish them.
    pub thread: Option<(u32, u32)>,
    /// Names and values of further properties: `kind`, `mapping`.
    pub labels: Vec<(String, String)>,
}

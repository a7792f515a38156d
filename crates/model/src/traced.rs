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
    /// Where in that file, or the address where there is none.
    pub offset: u64,
    /// The line of the source, where there is debugging information.
    pub line: Option<Line>,
    /// Whether the function was inlined into the next frame, which has the same place.
    pub inlined: bool,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Line {
    /// The path of the file, as the compiler had it.
    pub file: String,
    /// From 1; 0 where the compiler names none.
    pub number: u32,
}

/// How often something happened, by call stack: what flame graphs are drawn of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What was counted, in the plural: `page faults`.
    pub what: String,
    /// When it began, in nanoseconds since 1970; none where that is not known.
    pub began_ns: Option<u64>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Call stacks, each without repeats: where it happened first, then its callers.
    pub stacks: Vec<Vec<Frame>>,
    /// What happened.
    pub samples: Vec<Counted>,
}

/// So many at one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Which of the stacks.
    pub stack: u32,
    /// How many.
    pub count: u64,
    /// How long they took together, in nanoseconds, where that is known.
    pub took_ns: Option<u64>,
    /// In which process and thread, where they are told apart.
    pub thread: Option<(u32, u32)>,
    /// What else is known of them: `kind`, `mapping`.
    pub labels: Vec<(String, String)>,
}

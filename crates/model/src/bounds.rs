//! The memory that a recorder may take, and what it did not keep apart to stay within it.

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::traced::Frame;

/// The most memory that a recorder may take: its tables, the rings that the kernel writes into, and
/// what it takes at the end to find the names of functions.
///
/// ```
/// use pagewise_model::{Bytes, bounds::MemoryLimit};
/// assert_eq!(MemoryLimit::DEFAULT.bytes(), 256 << 20);
/// assert!(MemoryLimit::new(Bytes(1 << 20)).is_none(), "less than a recorder needs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit(Bytes);

impl MemoryLimit {
    /// Used if the user sets no limit.
    pub const DEFAULT: MemoryLimit = MemoryLimit(Bytes(256 << 20));
    /// No recorder takes less.
    pub const MIN: Bytes = Bytes(32 << 20);

    /// A limit; none below [`MemoryLimit::MIN`].
    pub fn new(bytes: Bytes) -> Option<MemoryLimit> {
        (bytes >= MemoryLimit::MIN).then_some(MemoryLimit(bytes))
    }

    /// The limit in bytes.
    pub const fn bytes(self) -> u64 {
        self.0.0
    }

    /// One part of `parts`, in bytes; or how many entries of `parts` bytes there may be.
    pub fn part(self, parts: u64) -> usize {
        usize::try_from(self.0.0 / parts).unwrap_or(usize::MAX)
    }
}

impl Default for MemoryLimit {
    fn default() -> MemoryLimit {
        MemoryLimit::DEFAULT
    }
}

/// Events that a recorder counted in sums to stay within its memory limit. All fields are 0 for
/// recordings of an older version, and if nothing was merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Folded {
    /// The limit, in bytes; 0 where the recorder had none.
    pub memory_limit: u64,
    /// Number of call stacks that were merged into [`OTHER_STACKS`]; one that came again later
    /// counts again.
    pub stacks: u64,
    /// Number of events counted under [`OTHER_STACKS`].
    pub stack_events: u64,
    /// Upper bound of the events that one call stack misses. A stack that is not listed had at most
    /// this number.
    pub stack_error: u64,
    /// Number of events counted under [`OTHER_THREADS`].
    pub thread_events: u64,
    /// Number of events counted under [`OTHER_MAPPINGS`].
    pub mapping_events: u64,
    /// Number of times the mappings of a process exceeded the limit, so that some were discarded.
    pub forgotten_mappings: u64,
    /// Places in code whose function was not looked up, for want of memory.
    pub unresolved_places: u64,
}

/// The name of all call stacks that are not kept apart, as a function.
pub const OTHER_STACKS: &str = "[other call stacks]";
/// The name of all threads that are not kept apart.
pub const OTHER_THREADS: &str = "[other threads]";
/// The name of all processes that are not kept apart.
pub const OTHER_PROCESSES: &str = "[other processes]";
/// The name of all mappings that are not kept apart.
pub const OTHER_MAPPINGS: &str = "[other mappings]";

impl Folded {
    /// The frame that call stacks are made of which are not kept apart.
    pub fn frame() -> Frame {
        Frame {
            function: Some(OTHER_STACKS.to_owned()),
            module: None,
            offset: 0,
            line: None,
            inlined: false,
        }
    }
}

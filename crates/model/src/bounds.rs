//! The memory limit of a recorder, and the events that it merged to stay within the limit.

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::traced::Frame;

/// The most memory that a recorder may take: its tables, the perf ring buffers, and the symbol
/// lookup at the end.
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
    /// Smallest limit: each recorder needs this size.
    pub const MIN: Bytes = Bytes(32 << 20);

    /// A limit of `bytes`; `None` below [`MemoryLimit::MIN`].
    pub fn new(bytes: Bytes) -> Option<MemoryLimit> {
        (bytes >= MemoryLimit::MIN).then_some(MemoryLimit(bytes))
    }

    /// The limit in bytes.
    pub const fn bytes(self) -> u64 {
        self.0.0
    }

    /// The limit divided by `parts`: bytes of each of `parts` equal shares, or number of entries of
    /// `parts` bytes each.
    pub fn part(self, parts: u64) -> usize {
        usize::try_from(self.0.0 / parts).unwrap_or(usize::MAX)
    }
}

impl Default for MemoryLimit {
    fn default() -> MemoryLimit {
        MemoryLimit::DEFAULT
    }
}

/// Events that a recorder merged to stay within its memory limit. All fields are 0 for recordings
/// of an older version, and if nothing was merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Folded {
    /// The limit, in bytes; 0 where the recorder had none.
    pub memory_limit: u64,
    /// Number of call stacks that were merged into [`OTHER_STACKS`]; a stack that occurs again
    /// later counts again.
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
    /// Number of program counters whose function was not looked up, to stay within the memory
    /// limit.
    pub unresolved_places: u64,
}

/// Function name of the merged call stacks.
pub const OTHER_STACKS: &str = "[other call stacks]";
/// Name of the merged threads.
pub const OTHER_THREADS: &str = "[other threads]";
/// Name of the merged processes.
pub const OTHER_PROCESSES: &str = "[other processes]";
/// Name of the merged mappings.
pub const OTHER_MAPPINGS: &str = "[other mappings]";

impl Folded {
    /// The only frame of the merged call stacks.
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

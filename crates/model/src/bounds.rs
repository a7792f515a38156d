//! The memory limit of a recorder, and the events that it merged to stay within the limit.

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::traced::Frame;

/// Maximum memory that a recorder may use for its tables, its perf ring buffers and its final
/// symbol lookup.
///
/// ```
/// use pagewise_model::{Bytes, bounds::MemoryLimit};
///
/// assert_eq!(MemoryLimit::DEFAULT.bytes(), 256 << 20);
/// assert!(MemoryLimit::new(Bytes(1 << 20)).is_none(), "less than a recorder needs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit(Bytes);

impl MemoryLimit {
    /// Limit that applies if the user sets none.
    pub const DEFAULT: MemoryLimit = MemoryLimit(Bytes(256 << 20));
    /// Minimum limit: each recorder needs this size.
    pub const MIN: Bytes = Bytes(32 << 20);

    /// Creates a limit of `bytes`; `None` if `bytes` is below [`MemoryLimit::MIN`].
    pub fn new(bytes: Bytes) -> Option<MemoryLimit> {
        (bytes >= MemoryLimit::MIN).then_some(MemoryLimit(bytes))
    }

    /// The limit in bytes.
    pub const fn bytes(self) -> u64 {
        self.0.0
    }

    /// Divides the limit by `parts`. The result is the size in bytes of each of `parts` equal
    /// shares, or the number of entries if an entry has `parts` bytes.
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
    /// The memory limit in bytes; 0 if the recorder had no limit.
    pub memory_limit: u64,
    /// Number of call stacks that were merged into [`OTHER_STACKS`]. A merged call stack that
    /// occurs again is counted again.
    pub stacks: u64,
    /// Number of events counted under [`OTHER_STACKS`].
    pub stack_events: u64,
    /// Maximum number of events by which the count of a call stack is too low. A call stack that is
    /// not listed also has at most this number of events.
    pub stack_error: u64,
    /// Number of events counted under [`OTHER_THREADS`].
    pub thread_events: u64,
    /// Number of events counted under [`OTHER_MAPPINGS`].
    pub mapping_events: u64,
    /// Number of times that the mappings of a process did not fit into the memory limit, so that
    /// the recorder discarded some of them.
    pub forgotten_mappings: u64,
    /// Number of program counters whose functions were not looked up because of the memory limit.
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
    /// Returns the frame [`OTHER_STACKS`]. Merged call stacks are reported as one call stack that
    /// consists of this frame.
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

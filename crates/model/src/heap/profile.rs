//! A heap recording as one number for each call stack: the input of flame graphs.

use super::{AllocationKind, AllocationSite, HeapRecording};
use crate::traced::Frame;

/// Quantity of an allocation site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Bytes that were live when the live bytes of the process were at their maximum.
    #[default]
    Peak,
    /// Bytes that were live at the end.
    Leaked,
    /// Bytes that were allocated.
    Allocated,
    /// Number of allocations.
    Allocations,
    /// Number of blocks that were freed before the same thread allocated another block.
    Temporary,
}

impl Of {
    /// All quantities.
    pub const ALL: [Of; 5] = [Of::Peak, Of::Leaked, Of::Allocated, Of::Allocations, Of::Temporary];

    /// Name of the counted items, in the plural.
    pub const fn what(self) -> &'static str {
        match self {
            Of::Peak => "bytes at the peak",
            Of::Leaked => "bytes at the end",
            Of::Allocated => "allocated bytes",
            Of::Allocations => "allocations",
            Of::Temporary => "temporary allocations",
        }
    }

    /// Value of the quantity for a site.
    pub fn number(self, site: &AllocationSite) -> u64 {
        match self {
            Of::Peak => site.at_peak.bytes,
            Of::Leaked => site.leaked().bytes,
            Of::Allocated => site.allocated.bytes,
            Of::Allocations => site.allocated.blocks,
            Of::Temporary => site.temporary,
        }
    }
}

impl AllocationKind {
    /// The kind of memory in one word.
    pub const fn word(self) -> &'static str {
        match self {
            AllocationKind::Heap => "heap",
            AllocationKind::Mapping => "mapping",
            AllocationKind::Pool => "pool",
        }
    }

    /// Name that replaces the name of the allocating function; `None` for `malloc` and the other C
    /// functions.
    pub const fn called(self) -> Option<&'static str> {
        match self {
            AllocationKind::Heap => None,
            AllocationKind::Mapping => Some("[mmap, brk]"),
            AllocationKind::Pool => Some("[pool]"),
        }
    }
}

impl HeapRecording {
    /// The frames of a site, the allocating function first. Indices without a frame in the
    /// recording are skipped.
    pub fn frames_of(&self, site: &AllocationSite) -> impl DoubleEndedIterator<Item = &Frame> {
        let stack = usize::try_from(site.stack).ok().and_then(|at| self.stacks.get(at));
        let numbers = stack.map_or(&[][..], Vec::as_slice);
        numbers.iter().filter_map(|at| self.frames.get(usize::try_from(*at).ok()?))
    }
}

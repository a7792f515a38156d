//! What a recording of a heap says of call stacks, one number each: what flame graphs are drawn of.

use super::{Kind, Recording, Site};
use crate::traced::Frame;

/// Which of the numbers of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Bytes that were live when most was live in the process.
    #[default]
    Peak,
    /// Bytes that were live at the end.
    Leaked,
    /// Bytes that were allocated.
    Allocated,
    /// How often something was allocated.
    Allocations,
    /// How many blocks were freed before the same thread allocated another.
    Temporary,
}

impl Of {
    /// All of them.
    pub const ALL: [Of; 5] = [Of::Peak, Of::Leaked, Of::Allocated, Of::Allocations, Of::Temporary];

    /// What is counted, in the plural.
    pub const fn what(self) -> &'static str {
        match self {
            Of::Peak => "bytes at the peak",
            Of::Leaked => "bytes at the end",
            Of::Allocated => "allocated bytes",
            Of::Allocations => "allocations",
            Of::Temporary => "temporary allocations",
        }
    }

    /// The number of a site.
    pub fn number(self, site: &Site) -> u64 {
        match self {
            Of::Peak => site.at_peak.bytes,
            Of::Leaked => site.leaked().bytes,
            Of::Allocated => site.allocated.bytes,
            Of::Allocations => site.allocated.blocks,
            Of::Temporary => site.temporary,
        }
    }
}

impl Kind {
    /// One word.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::Mapping => "mapping",
            Kind::Pool => "pool",
        }
    }

    /// What stands where a function stands that allocated it, but for `malloc` and its kin.
    pub const fn called(self) -> Option<&'static str> {
        match self {
            Kind::Heap => None,
            Kind::Mapping => Some("[mmap, brk]"),
            Kind::Pool => Some("[pool]"),
        }
    }
}

impl Recording {
    /// The frames of a site, the allocation's first; those that the recording does not have are left out.
    pub fn frames_of(&self, site: &Site) -> impl DoubleEndedIterator<Item = &Frame> {
        let stack = usize::try_from(site.stack).ok().and_then(|at| self.stacks.get(at));
        let numbers = stack.map_or(&[][..], Vec::as_slice);
        numbers.iter().filter_map(|at| self.frames.get(usize::try_from(*at).ok()?))
    }
}

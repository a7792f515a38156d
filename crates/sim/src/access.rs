//! What simulators are fed with, and how they count it.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// One access to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Of its first byte.
    pub(crate) address: u64,
    /// Bytes after the first.
    pub(crate) beyond: u16,
    pub(crate) write: bool,
}

/// Half of all numbers, and more than any CPU has addresses: those of the kernel stay apart from those of programs.
const ADDRESSES: u64 = u64::MAX >> 1;

impl Access {
    /// A read of so many bytes. One that writes them back is a read: that is when it misses.
    pub const fn read(address: u64, size: u16) -> Access {
        Access { address: address & ADDRESSES, beyond: size.saturating_sub(1), write: false }
    }

    /// A write of so many bytes.
    pub const fn write(address: u64, size: u16) -> Access {
        Access { write: true, ..Access::read(address, size) }
    }

    /// The first and the last of the blocks of 2^`shift` bytes that it lies in.
    pub(crate) fn blocks(self, shift: u32) -> (u64, u64) {
        (self.address >> shift, (self.address + u64::from(self.beyond)) >> shift)
    }
}

/// Counts of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Of accesses that read.
    pub reads: u64,
    /// Of accesses that write.
    pub writes: u64,
}

impl Split {
    /// How many of each these are.
    pub fn of(block: &[Access]) -> Split {
        let writes: u64 = block.iter().map(|access| u64::from(access.write)).sum();
        Split { reads: block.len() as u64 - writes, writes }
    }

    /// Both.
    pub const fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    pub(crate) fn one(write: bool) -> Split {
        Split { reads: u64::from(!write), writes: u64::from(write) }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, write: bool) {
        *self += Split::one(write);
    }
}

impl Add for Split {
    type Output = Split;

    fn add(self, other: Split) -> Split {
        Split { reads: self.reads + other.reads, writes: self.writes + other.writes }
    }
}

impl AddAssign for Split {
    fn add_assign(&mut self, other: Split) {
        *self = *self + other;
    }
}

impl Sum for Split {
    fn sum<I: Iterator<Item = Split>>(splits: I) -> Split {
        splits.fold(Split::default(), |sum, split| sum + split)
    }
}

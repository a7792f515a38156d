//! Input of simulators, and its counts.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// One access to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Address of the first byte.
    pub(crate) address: u64,
    /// Bytes after the first.
    pub(crate) beyond: u16,
    pub(crate) write: bool,
}

/// Mask of 63 bits for addresses: more than any CPU has, so that addresses of the kernel and of
/// programs stay distinct.
const ADDRESSES: u64 = u64::MAX >> 1;

impl MemoryAccess {
    /// A read. A read-modify-write counts as a read, since it misses at its read.
    pub const fn read(address: u64, size: u16) -> MemoryAccess {
        MemoryAccess { address: address & ADDRESSES, beyond: size.saturating_sub(1), write: false }
    }

    /// A write.
    pub const fn write(address: u64, size: u16) -> MemoryAccess {
        MemoryAccess { write: true, ..MemoryAccess::read(address, size) }
    }

    /// The first and the last of the blocks of 2^`shift` bytes that the access touches.
    pub(crate) fn blocks(self, shift: u32) -> (u64, u64) {
        (self.address >> shift, (self.address + u64::from(self.beyond)) >> shift)
    }
}

/// Counts of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadWriteCounts {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
}

impl ReadWriteCounts {
    /// Counts of reads and writes.
    pub fn count_block(block: &[MemoryAccess]) -> ReadWriteCounts {
        let writes: u64 = block.iter().map(|access| u64::from(access.write)).sum();
        ReadWriteCounts { reads: block.len() as u64 - writes, writes }
    }

    /// The sum of both.
    pub const fn total(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    pub(crate) fn one(write: bool) -> ReadWriteCounts {
        ReadWriteCounts { reads: u64::from(!write), writes: u64::from(write) }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, write: bool) {
        *self += ReadWriteCounts::one(write);
    }
}

impl Add for ReadWriteCounts {
    type Output = ReadWriteCounts;

    fn add(self, other: ReadWriteCounts) -> ReadWriteCounts {
        ReadWriteCounts { reads: self.reads + other.reads, writes: self.writes + other.writes }
    }
}

impl AddAssign for ReadWriteCounts {
    fn add_assign(&mut self, other: ReadWriteCounts) {
        *self = *self + other;
    }
}

impl Sum for ReadWriteCounts {
    fn sum<I: Iterator<Item = ReadWriteCounts>>(splits: I) -> ReadWriteCounts {
        splits.fold(ReadWriteCounts::default(), |sum, split| sum + split)
    }
}

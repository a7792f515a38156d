//! A set-associative table: a level of cache, or of TLB. Reports for each block if it was a hit.
//!
//! ```text
//! a set, of 8 ways a group:
//!
//!   signatures  | s0 | s1 | s2 | s3 | s4 | s5 | s6 | s7 | ..   a byte a way, hashed from its block
//!   blocks      | b0      | b1      | ..      | b7      | ..   64 bits a way, looked at where the signature fits
//!   order                                                      what the policy remembers
//! ```
//!
//! Three properties make it fast. One subtraction compares eight signatures. Before that, the way
//! of the last hit is tried: adjacent blocks are inserted in turn, so they are in the same way of
//! adjacent sets. And the code is specialized for each policy and number of groups, and called once
//! for many accesses.

use std::fmt::Debug;

use crate::prefetch::Prefetcher;
use crate::recency::Recency;
use crate::{MemoryAccess, ReadWriteCounts};

/// Content of an empty way: no address is in this block.
const EMPTY: u64 = u64::MAX;

/// Ways in a group: bytes in a word.
pub(crate) const LANES: usize = 8;

/// A byte of 1 in every lane.
pub(crate) const ONES: u64 = u64::from_ne_bytes([1; LANES]);

/// A block that missed a level: a request to the next level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissRequest {
    pub(crate) block: u64,
    /// True if the access is a write.
    pub(crate) write: bool,
}

/// A table of any policy.
pub(crate) trait LookupLevel: Debug + Send {
    /// Makes accesses. Returns the number of those that missed a block, and adds the missed blocks
    /// to `missed` in their order.
    fn filter(
        &mut self,
        accesses: &[MemoryAccess],
        missed: &mut Vec<MissRequest>,
    ) -> ReadWriteCounts;

    /// Looks up blocks. Returns the number of those that missed. A prefetcher observes all of them
    /// and inserts further blocks.
    fn ask(
        &mut self,
        requests: &[MissRequest],
        prefetcher: Option<&mut Prefetcher>,
    ) -> ReadWriteCounts;
}

/// A set of a table.
#[derive(Clone, Copy, Debug)]
struct TableSet<O, const GROUPS: usize> {
    signatures: [u64; GROUPS],
    blocks: [[u64; LANES]; GROUPS],
    order: O,
}

/// A table of sets of up to 8 ways a group.
#[derive(Debug)]
pub(crate) struct SetTable<R: Recency<GROUPS>, const GROUPS: usize> {
    sets: Box<[TableSet<R::Order, GROUPS>]>,
    recency: R,
    /// A block is 2^shift bytes.
    shift: u32,
    /// The block that was used last: to use it again changes nothing.
    last: u64,
    /// The way where a block was found last.
    likely: usize,
}

impl<R: Recency<GROUPS>, const GROUPS: usize> SetTable<R, GROUPS> {
    /// An empty table. `sets` is not 0.
    pub(crate) fn new(sets: usize, shift: u32, recency: R) -> SetTable<R, GROUPS> {
        let set = TableSet {
            signatures: [0; GROUPS],
            blocks: [[EMPTY; LANES]; GROUPS],
            order: recency.at_first(),
        };
        SetTable { sets: vec![set; sets].into(), recency, shift, last: EMPTY, likely: 0 }
    }

    /// Looks up a block, and inserts it if it is missing. Returns true for a hit.
    #[inline(always)]
    fn touch(&mut self, block: u64) -> bool {
        let set = set_of(&mut self.sets, block);
        if set.blocks[self.likely / LANES % GROUPS][self.likely % LANES] == block {
            self.recency.used(&mut set.order, self.likely);
            return true;
        }
        let found = set.find(block);
        match found {
            Some(way) => {
                self.likely = way;
                self.recency.used(&mut set.order, way);
            }
            None => {
                let way = self.recency.make_room(&mut set.order);
                set.put(way, block);
            }
        }
        found.is_some()
    }

    /// Inserts a block, if it is missing.
    fn insert(&mut self, block: u64) {
        let set = set_of(&mut self.sets, block);
        if set.find(block).is_none() {
            let way = self.recency.make_room(&mut set.order);
            set.put(way, block);
        }
    }

    /// Makes an access to several blocks. Returns true if any of them is missing: the access then
    /// counts as one miss.
    #[cold]
    fn across(&mut self, access: MemoryAccess, missed: &mut Vec<MissRequest>) -> bool {
        let (first, last) = access.blocks(self.shift);
        let before = missed.len();
        for block in first..=last {
            if !self.touch(block) {
                missed.push(MissRequest { block, write: access.write });
            }
        }
        missed.len() > before
    }
}

impl<R: Recency<GROUPS>, const GROUPS: usize> LookupLevel for SetTable<R, GROUPS> {
    fn filter(
        &mut self,
        accesses: &[MemoryAccess],
        missed: &mut Vec<MissRequest>,
    ) -> ReadWriteCounts {
        let mut count = ReadWriteCounts::default();
        let bytes = 1_u64 << self.shift;
        // A copy that the compiler can keep in a register.
        let mut last = self.last;
        for access in accesses {
            if (access.address & (bytes - 1)) + u64::from(access.beyond) >= bytes {
                last = access.blocks(self.shift).1;
                if self.across(*access, missed) {
                    count.add(access.write);
                }
                continue;
            }
            let block = access.address >> self.shift;
            if block == last {
                continue;
            }
            last = block;
            if !self.touch(block) {
                missed.push(MissRequest { block, write: access.write });
                count.add(access.write);
            }
        }
        self.last = last;
        count
    }

    fn ask(
        &mut self,
        requests: &[MissRequest],
        mut prefetcher: Option<&mut Prefetcher>,
    ) -> ReadWriteCounts {
        let mut count = ReadWriteCounts::default();
        for request in requests {
            if !self.touch(request.block) {
                count.add(request.write);
            }
            let foreseen = prefetcher.as_mut().and_then(|sees| sees.foresee(request.block));
            if let Some(next) = foreseen {
                self.insert(next);
            }
        }
        count
    }
}

/// Set of a block: its low bits, or the remainder if the number of sets is not a power of two, as
/// in AMD's TLBs of 3072 entries. Vendors do not document the bits that select a set of such a TLB;
/// the remainder spreads adjacent blocks as evenly.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "less than the number of sets")]
fn set_of<S>(sets: &mut [S], block: u64) -> &mut S {
    let count = sets.len();
    let number = if count & (count - 1) == 0 {
        block as usize & (count - 1)
    } else {
        (block % count as u64) as usize
    };
    &mut sets[number]
}

impl<O, const GROUPS: usize> TableSet<O, GROUPS> {
    #[inline(always)]
    fn find(&self, block: u64) -> Option<usize> {
        let sought = ONES * signature(block);
        for group in 0..GROUPS {
            let mut alike = zero_bytes(self.signatures[group] ^ sought);
            while alike != 0 {
                let lane = lowest(alike);
                if self.blocks[group][lane % LANES] == block {
                    return Some(group * LANES + lane);
                }
                alike &= alike - 1;
            }
        }
        None
    }

    #[inline(always)]
    fn put(&mut self, way: usize, block: u64) {
        let (group, lane) = (way / LANES % GROUPS, way % LANES);
        self.blocks[group][lane] = block;
        let old = self.signatures[group] & !(0xff << (8 * lane));
        self.signatures[group] = old | signature(block) << (8 * lane);
    }
}

/// The top bit of the lanes that are zero. A lane of 1 above a lane of zero may be reported, too.
#[inline(always)]
pub(crate) fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

/// The lowest lane whose top bit is set.
#[inline(always)]
pub(crate) fn lowest(tops: u64) -> usize {
    (tops.trailing_zeros() / 8) as usize
}

/// A byte that differs for most blocks of a set: the top byte of a product with the golden ratio.
#[inline(always)]
fn signature(block: u64) -> u64 {
    block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

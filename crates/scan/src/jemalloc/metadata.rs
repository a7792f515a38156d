//! Memory of the allocator itself: base blocks, which hold extents, arenas and nodes of the tree.
//!
//! ```text
//!  base_block_t                          base_t
//!    0  size: a multiple of 2 MiB          0  number of the arena
//!    8  next block of the same arena
//!   16  extent of the unused part
//!       24  its address
//!       32  its size
//!  192  base_t, in the first block
//! ```
//!
//! A block has the alignment of a huge page, and the address of an extent lies in one.

use pagewise_model::AddrRange;

use super::extent_tree::range_of;
use crate::memory::{Memory, words};
use crate::span_tally::joined;

/// Alignment of base blocks.
const BLOCK_ALIGNMENT: u64 = 2 << 20;
const HEADER: u64 = 144;
const BASE: u64 = 192;
/// Number of steps back to the start of a block, and of addresses without a block after which no
/// further ones are searched.
const MAX_STEPS: u64 = 4000;
const MAX_MISSES: u32 = 1 << 10;
/// Blocks of an arena. Each has the size of all before it, or more.
const MAX_CHAIN: usize = 1 << 10;

/// A base block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BaseBlock {
    pub(super) range: AddrRange,
    next: u64,
}

impl BaseBlock {
    fn read(memory: &dyn Memory, start: u64, region: AddrRange) -> Option<BaseBlock> {
        let [size, next, _, unused, unused_bytes] = words(memory, start)?;
        let end = start.checked_add(size)?;
        let is_block = size != 0
            && size.is_multiple_of(BLOCK_ALIGNMENT)
            && end <= region.end
            && unused >= start + HEADER
            && unused.checked_add(unused_bytes) == Some(end)
            && next.is_multiple_of(BLOCK_ALIGNMENT);
        is_block.then_some(BaseBlock { range: AddrRange { start, end }, next })
    }
}

/// The base blocks of a process.
pub(super) struct BaseBlocks<'a> {
    memory: &'a dyn Memory,
    anonymous: &'a [AddrRange],
    /// In order of address.
    blocks: Vec<BaseBlock>,
    misses: u32,
}

impl<'a> BaseBlocks<'a> {
    pub(super) fn new(memory: &'a dyn Memory, anonymous: &'a [AddrRange]) -> BaseBlocks<'a> {
        BaseBlocks { memory, anonymous, blocks: Vec::new(), misses: 0 }
    }

    pub(super) fn blocks(&self) -> &[BaseBlock] {
        &self.blocks
    }

    /// The addresses of all blocks, joined.
    pub(super) fn ranges(&self) -> Vec<AddrRange> {
        joined(self.blocks.iter().map(|block| block.range))
    }

    fn known(&self, address: u64) -> Option<BaseBlock> {
        let at = self.blocks.partition_point(|block| block.range.end <= address);
        self.blocks.get(at).copied().filter(|block| block.range.contains(address))
    }

    /// The block that contains an address of the allocator's data.
    pub(super) fn find(&mut self, address: u64) -> Option<BaseBlock> {
        if let Some(known) = self.known(address) {
            return Some(known);
        }
        let region = range_of(self.anonymous, address).filter(|_| self.misses < MAX_MISSES)?;
        let first = address & !(BLOCK_ALIGNMENT - 1);
        let starts = (0..MAX_STEPS).map_while(|step| first.checked_sub(step * BLOCK_ALIGNMENT));
        let found = starts
            .take_while(|start| *start >= region.start)
            .filter_map(|start| BaseBlock::read(self.memory, start, region))
            .find(|block| block.range.contains(address));
        match found {
            Some(block) => self.add(block),
            None => self.misses += 1,
        }
        found
    }

    fn add(&mut self, block: BaseBlock) {
        let at = self.blocks.partition_point(|it| it.range.start < block.range.start);
        let overlaps = |it: &BaseBlock| it.range.intersection(block.range).is_some();
        let neighbors = [at.checked_sub(1), Some(at)].into_iter().flatten();
        if !neighbors.filter_map(|at| self.blocks.get(at)).any(overlaps) {
            self.blocks.insert(at, block);
        }
    }

    /// The number of the arena to which a block belongs, and the address of its data. All further
    /// blocks of the arena are added.
    pub(super) fn arena_of(&mut self, block: BaseBlock) -> Option<(u64, u64)> {
        let mut block = block;
        for _ in 0..MAX_CHAIN {
            if block.next == 0 {
                let base = block.range.start + BASE;
                return self.memory.word(base).map(|word| (word & u64::from(u32::MAX), base));
            }
            block = self.find(block.next)?;
        }
        None
    }
}

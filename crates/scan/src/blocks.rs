//! Live blocks of a heap, in order of address.

use std::ops::Range;

/// Maximum number of blocks that are compared without a binary search.
const UNROLLED_SEARCH: usize = 4;

/// A live block: the bytes of an allocation that the program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address that the allocator returned.
    pub start: u64,
    /// Number of usable bytes.
    pub size: u64,
}

/// All live blocks of a process, in order of address. They do not overlap.
///
/// A block takes 8 bytes, so a lookup reads one cache line. The table takes 16 more bytes for each
/// 4 GiB of addresses that contain blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<PackedBlock>,
    parts: Vec<TablePart>,
    /// Index and size in bytes of each block of 4 GiB or more, in order of index.
    large: Vec<(usize, u64)>,
}

/// A block in compact form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedBlock {
    /// Distance in bytes from the base of the [`TablePart`] that contains the block.
    offset: u32,
    /// Number of usable bytes, or [`PackedBlock::LARGE`].
    size: u32,
}

impl PackedBlock {
    /// Value of `size` for a block whose size is in [`BlockTable::large`].
    const LARGE: u32 = u32::MAX;
}

/// Consecutive blocks that begin within 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TablePart {
    /// Index of the first block of the part.
    first: usize,
    /// Address of the first block of the part.
    base: u64,
}

impl BlockTable {
    /// Appends `block` if it begins at or above the end of the last block. Otherwise returns false
    /// and leaves the table unchanged.
    pub fn push(&mut self, block: LiveBlock) -> bool {
        let end = |block: LiveBlock| block.start.saturating_add(block.size);
        if self.last().is_some_and(|last| end(last) > block.start) {
            return false;
        }
        let distance = self.parts.last().and_then(|part| block.start.checked_sub(part.base));
        let offset = distance.and_then(|it| u32::try_from(it).ok()).unwrap_or_else(|| {
            self.parts.push(TablePart { first: self.len(), base: block.start });
            0
        });
        let size = u32::try_from(block.size).unwrap_or(PackedBlock::LARGE);
        if size == PackedBlock::LARGE {
            self.large.push((self.len(), block.size));
        }
        self.blocks.push(PackedBlock { offset, size });
        true
    }

    /// Returns a table with the blocks of both tables. If two blocks overlap, the block with the
    /// lower address remains.
    #[must_use]
    pub fn merged(&self, other: &BlockTable) -> BlockTable {
        let mut merged = BlockTable::default();
        let (mut own, mut others) = (self.iter().peekable(), other.iter().peekable());
        while let Some(block) = match (own.peek(), others.peek()) {
            (Some(one), Some(two)) if two.start < one.start => others.next(),
            (None, _) => others.next(),
            _ => own.next(),
        } {
            merged.push(block);
        }
        merged
    }

    /// Returns the table without the blocks with the indices `numbers`, which must be in ascending
    /// order.
    #[must_use]
    pub fn without(&self, numbers: &[usize]) -> BlockTable {
        let mut others = BlockTable::default();
        let mut removed = numbers.iter().peekable();
        for (number, block) in self.iter().enumerate() {
            if removed.next_if(|removed| **removed == number).is_none() {
                others.push(block);
            }
        }
        others
    }

    /// All blocks, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = LiveBlock> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block with index `index` in order of address.
    #[inline]
    pub fn get(&self, index: usize) -> Option<LiveBlock> {
        let block = self.blocks.get(index)?;
        let start = self.base_of(index) + u64::from(block.offset);
        let size = match block.size {
            PackedBlock::LARGE => self.large_size(index)?,
            size => size.into(),
        };
        Some(LiveBlock { start, size })
    }

    /// Distance in bytes of a block from the base address of its part; 0 if `index` is not below
    /// the number of blocks.
    #[inline]
    pub(crate) fn offset(&self, index: usize) -> u32 {
        self.blocks.get(index).map_or(0, |block| block.offset)
    }

    /// Index after the last block that begins at or below `address`, among the blocks whose indices
    /// are in `of`; the start of `of` if all these blocks begin above `address`.
    #[inline]
    pub(crate) fn after(&self, address: u64, of: Range<usize>) -> usize {
        let Some(last) = of.end.checked_sub(1) else { return 0 };
        let base = self.base_of(of.start);
        if of.len() > UNROLLED_SEARCH || base != self.base_of(last) {
            return self.after_search(address, of);
        }
        let up_to = |at: usize| {
            let block = self.blocks.get(at).filter(|_| at < of.end);
            block.is_some_and(|it| base + u64::from(it.offset) <= address)
        };
        // Comparing a fixed number of blocks has no branch that depends on the address.
        let found = (0..UNROLLED_SEARCH).map(|at| usize::from(up_to(of.start + at)));
        of.start + found.sum::<usize>()
    }

    /// Does the same as [`Self::after`] by binary search, for any number of blocks.
    fn after_search(&self, address: u64, of: Range<usize>) -> usize {
        let (mut low, mut high) = (of.start, of.end);
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).is_some_and(|block| block.start <= address) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Base address of the part that contains the block `index`; 0 if the table is empty.
    #[inline]
    fn base_of(&self, index: usize) -> u64 {
        let parts = match &self.parts[..] {
            // Most heaps have one or two parts; this is the fast path for two parts.
            [low, high] => return if index < high.first { low.base } else { high.base },
            parts => &parts[..parts.partition_point(|part| part.first <= index)],
        };
        parts.last().map_or(0, |part| part.base)
    }

    #[cold]
    fn large_size(&self, index: usize) -> Option<u64> {
        Some(self.large[self.large.binary_search_by_key(&index, |it| it.0).ok()?].1)
    }

    /// The last block.
    pub fn last(&self) -> Option<LiveBlock> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    /// Index of the block that contains `address`; `None` if no block does.
    pub fn containing(&self, address: u64) -> Option<usize> {
        let after = self.parts.partition_point(|part| part.base <= address);
        let part = self.parts[..after].last()?;
        let end = self.parts.get(after).map_or(self.len(), |next| next.first);
        let distance = address - part.base;
        let blocks = &self.blocks[part.first..end];
        let up_to = blocks.partition_point(|block| u64::from(block.offset) <= distance);
        let index = part.first + up_to.checked_sub(1)?;
        let block = self.get(index)?;
        (address - block.start < block.size.max(1)).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(blocks: &[(u64, u64)]) -> BlockTable {
        let mut table = BlockTable::default();
        assert!(blocks.iter().all(|&(start, size)| table.push(LiveBlock { start, size })));
        table
    }

    #[test]
    fn an_address_inside_a_block_belongs_to_it() {
        let table = table(&[(0x1000, 24), (0x1020, 40)]);
        let found = |address| table.containing(address);
        assert_eq!(found(0xfff), None);
        assert_eq!(found(0x1000), Some(0));
        assert_eq!(found(0x1017), Some(0));
        assert_eq!(found(0x1018), None);
        assert_eq!(found(0x1047), Some(1));
        assert_eq!(found(0x1048), None);
    }

    #[test]
    fn blocks_far_apart_keep_their_addresses() {
        let far = 1 << 32;
        let starts = [0x1000, 0xff0 + far, 0x1000 + far, 0x1000 + 2 * far, 40 * far];
        let blocks = starts.map(|start| (start, 1));
        let table = table(&blocks);
        let found: Vec<(u64, u64)> = table.iter().map(|it| (it.start, it.size)).collect();
        assert_eq!(found, blocks);
        for (index, start) in starts.into_iter().enumerate() {
            let around = [start - 1, start, start + 1].map(|address| table.containing(address));
            assert_eq!(around, [None, Some(index), None], "{start:x}");
        }
    }

    #[test]
    fn tables_merge_in_order_of_address() {
        let merged = table(&[(0x1000, 24), (0x3000, 8)]).merged(&table(&[(0x2000, 16)]));
        assert_eq!(merged, table(&[(0x1000, 24), (0x2000, 16), (0x3000, 8)]));
        let overlapping = table(&[(0x1000, 64)]).merged(&table(&[(0x1010, 8), (0x1040, 8)]));
        assert_eq!(overlapping, table(&[(0x1000, 64), (0x1040, 8)]));
    }

    #[test]
    fn blocks_are_removed_by_number() {
        let all = table(&[(0x1000, 24), (0x2000, 16), (0x3000, 8)]);
        assert_eq!(all.without(&[0, 2]), table(&[(0x2000, 16)]));
        assert_eq!(all.without(&[]), all);
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [0, 13, 5 << 30, u64::from(u32::MAX), 1 << 40, 24];
        let starts = (0..).map(|at: u64| at << 41);
        let blocks: Vec<(u64, u64)> = starts.zip(sizes).collect();
        let table = table(&blocks);
        let found: Vec<u64> = table.iter().map(|block| block.size).collect();
        assert_eq!(found, sizes);
    }

    #[test]
    fn blocks_that_overlap_are_refused() {
        let mut table = table(&[(0x1000, 24)]);
        assert!(!table.push(LiveBlock { start: 0x1010, size: 8 }));
        assert_eq!(table.len(), 1);
    }
}

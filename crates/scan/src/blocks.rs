//! Live blocks of a heap, in order of address.

/// A live block: the bytes that the program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address that the allocator returned.
    pub start: u64,
    /// Usable bytes.
    pub size: u64,
}

/// All live blocks of a process, in order of address. They do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    starts: Vec<u64>,
    /// Usable bytes, or [`BlockTable::LARGE`].
    sizes: Vec<u32>,
    /// Index and size of each block of 4 GiB and more, in order of index.
    large: Vec<(usize, u64)>,
}

impl BlockTable {
    /// Stands for a size in `large`.
    const LARGE: u32 = u32::MAX;

    /// Appends a block that lies behind all others. Returns false, and keeps the table as it is, if
    /// it does not.
    pub fn push(&mut self, block: LiveBlock) -> bool {
        let end = |block: LiveBlock| block.start.saturating_add(block.size);
        if self.last().is_some_and(|last| end(last) > block.start) {
            return false;
        }
        let size = u32::try_from(block.size).unwrap_or(Self::LARGE);
        if size == Self::LARGE {
            self.large.push((self.len(), block.size));
        }
        self.starts.push(block.start);
        self.sizes.push(size);
        true
    }

    /// Both tables as one. If two blocks overlap, the one with the lower address remains.
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

    /// The table without the blocks of these numbers, which are in order.
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
        self.starts.len()
    }

    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The block with number `index`, in order of address.
    pub fn get(&self, index: usize) -> Option<LiveBlock> {
        let (&start, &size) = (self.starts.get(index)?, self.sizes.get(index)?);
        let size = if size == Self::LARGE {
            self.large[self.large.binary_search_by_key(&index, |it| it.0).ok()?].1
        } else {
            size.into()
        };
        Some(LiveBlock { start, size })
    }

    /// The last block.
    pub fn last(&self) -> Option<LiveBlock> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    /// Number of the block that contains `address`.
    pub fn containing(&self, address: u64) -> Option<usize> {
        let index = self.starts.partition_point(|&start| start <= address).checked_sub(1)?;
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

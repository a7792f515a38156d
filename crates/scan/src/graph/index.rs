//! Lookup of the block that contains an address, in a few memory accesses.
//!
//! ```text
//!  regions   runs of blocks without large gaps, each divided into buckets of equal size
//!  buckets   index of the first block that starts in or after each bucket
//! ```

use crate::blocks::BlockTable;

/// Minimum number of bytes between two blocks that belong to different regions.
const REGION_GAP: u64 = 1 << 20;
/// Binary logarithm of the smallest bucket size: the smallest chunk of glibc has 32 bytes.
const MIN_BUCKET_SHIFT: u32 = 5;

/// Number of words that are compared together: one cache line.
pub(super) const WORD_GROUP: usize = 8;

/// A run of blocks without large gaps.
#[derive(Clone, Copy, Debug)]
struct IndexRegion {
    start: u64,
    end: u64,
    first_bucket: usize,
}

/// An index of blocks by address.
#[derive(Debug)]
pub(super) struct BlockIndex<'a> {
    blocks: &'a BlockTable,
    low: u64,
    span: u64,
    /// Upper half of `low`, and the difference from it to the upper half of the end address.
    upper: (u32, u32),
    regions: Vec<IndexRegion>,
    buckets: Vec<u32>,
    shift: u32,
}

impl<'a> BlockIndex<'a> {
    /// Builds the index, which takes about 4 bytes for every two blocks.
    pub(super) fn new(blocks: &'a BlockTable) -> BlockIndex<'a> {
        let mut regions = regions(blocks);
        let low = regions.first().map_or(0, |first| first.start);
        let high = regions.last().map_or(0, |last| last.end);
        let length: u64 = regions.iter().map(|region| region.end - region.start).sum();
        let per_bucket = length / (blocks.len() as u64).div_ceil(2).max(1);
        let shift = (per_bucket.max(1).ilog2() + 1).max(MIN_BUCKET_SHIFT);
        let mut buckets = Vec::with_capacity(blocks.len() / 2 + 2 * regions.len() + 1);
        let mut next = 0;
        for region in &mut regions {
            region.first_bucket = buckets.len();
            let count = ((region.end - region.start - 1) >> shift) + 1;
            for bucket in 0..count {
                let start = region.start + (bucket << shift);
                while blocks.get(next).is_some_and(|block| block.start < start) {
                    next += 1;
                }
                buckets.push(number(next));
            }
            while blocks.get(next).is_some_and(|block| block.start < region.end) {
                next += 1;
            }
            buckets.push(number(next));
        }
        let upper = (upper_half(low), upper_half(high) - upper_half(low));
        BlockIndex { blocks, low, span: high - low, upper, regions, buckets, shift }
    }

    /// False if no block contains any of these words; true if a block may. Only the upper halves
    /// are compared, because every CPU compares several 32-bit values in one instruction.
    #[inline]
    pub(super) fn may_contain_any(&self, words: &[[u8; 8]; WORD_GROUP]) -> bool {
        let (low, span) = self.upper;
        let is_inside = |word: &[u8; 8]| {
            let [.., a, b, c, d] = *word;
            u32::from(u32::from_le_bytes([a, b, c, d]).wrapping_sub(low) <= span)
        };
        words.iter().map(is_inside).fold(0, |any, it| any | it) != 0
    }

    /// False if no block contains `word`; true if a block may.
    #[inline]
    pub(super) fn may_contain(&self, word: u64) -> bool {
        word.wrapping_sub(self.low) < self.span
    }

    /// Index of the block that contains `address`; `None` if no block does.
    #[inline]
    pub(super) fn containing(&self, address: u64) -> Option<u32> {
        self.in_bucket(address, self.bucket(address))
    }

    /// Returns the range of blocks that start in the bucket of `address`. Separate from
    /// [`Self::in_bucket`], so that a loop over many addresses can wait for several buckets at
    /// once.
    #[inline]
    pub(super) fn bucket(&self, address: u64) -> (u32, u32) {
        let after = self.regions.partition_point(|region| region.start <= address);
        let Some(at) = after.checked_sub(1) else { return (0, 0) };
        let region = self.regions[at];
        // An address above the region is in no block: only the last block could contain it, and it
        // ends with the region.
        let offset = address.min(region.end) - region.start;
        let bucket = region.first_bucket + usize::try_from(offset >> self.shift).unwrap_or(0);
        let end = self.buckets.get(bucket + 1).copied();
        (self.buckets[bucket], end.unwrap_or(self.buckets[bucket]))
    }

    /// Prefetches the first block of each bucket: these reads are independent of each other.
    pub(super) fn read(&self, buckets: &[(u32, u32)]) {
        let starts = buckets.iter().map(|&(first, _)| self.blocks.offset(first as usize));
        std::hint::black_box(starts.fold(0, |all, start| all ^ start));
    }

    /// Index of the block that contains `address`, among the blocks of its bucket; `None` if none
    /// does.
    #[inline]
    pub(super) fn in_bucket(&self, address: u64, (first, end): (u32, u32)) -> Option<u32> {
        let after = self.blocks.after(address, first as usize..end as usize);
        let found = after.checked_sub(1)?;
        let block = self.blocks.get(found)?;
        (address.wrapping_sub(block.start) < block.size.max(1)).then_some(number(found))
    }
}

fn upper_half(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap_or(u32::MAX)
}

/// Block indices fit in 32 bits: [`super::PointerGraph`] accepts no larger table.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Divides the blocks into regions, at most one for every eight blocks. If blocks are far apart,
/// the gap between two blocks of a region may therefore exceed [`REGION_GAP`].
fn regions(blocks: &BlockTable) -> Vec<IndexRegion> {
    let most = blocks.len() / 8 + 8;
    let mut gap = REGION_GAP;
    loop {
        if let Some(regions) = regions_with_gap(blocks, gap, most) {
            return regions;
        }
        gap = gap.saturating_mul(16);
    }
}

fn regions_with_gap(blocks: &BlockTable, gap: u64, most: usize) -> Option<Vec<IndexRegion>> {
    let mut regions: Vec<IndexRegion> = Vec::new();
    for block in (0..blocks.len()).filter_map(|at| blocks.get(at)) {
        let end = block.start.saturating_add(block.size.max(1));
        if let Some(last) = regions.last_mut()
            && block.start.saturating_sub(last.end) <= gap
        {
            last.end = last.end.max(end);
        } else if regions.len() == most {
            return None;
        } else {
            regions.push(IndexRegion { start: block.start, end, first_bucket: 0 });
        }
    }
    Some(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::LiveBlock;
    use proptest::prelude::*;

    fn table(blocks: &[(u64, u64)]) -> BlockTable {
        let mut table = BlockTable::default();
        let mut at = 0x10_0000;
        for &(gap, units) in blocks {
            at += gap * 8;
            assert!(table.push(LiveBlock { start: at, size: units * 8 }));
            at += units * 8;
        }
        table
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_of_the_table_finds(
            blocks in proptest::collection::vec(
                (prop_oneof![0..4_u64, 0..3000_u64, Just(1 << 18), Just(1 << 38)], 1..400_u64), 0..300),
            words in proptest::collection::vec(any::<u64>(), 0..50),
        ) {
            let table = table(&blocks);
            let index = BlockIndex::new(&table);
            let edges = (0..table.len()).filter_map(|at| table.get(at)).flat_map(|block| {
                let end = block.start + block.size;
                [block.start - 1, block.start, block.start + block.size / 2, end - 1, end, end + 1]
            });
            for address in edges.chain(words) {
                let found = index.may_contain(address).then(|| index.containing(address)).flatten();
                let mut group = [[0xff; 8]; WORD_GROUP];
                prop_assert!(!index.may_contain_any(&group));
                group[usize::try_from(address % 8).unwrap()] = address.to_le_bytes();
                prop_assert!(found.is_none() || index.may_contain_any(&group));
                prop_assert_eq!(found.map(|it| it as usize), table.containing(address), "{:x}", address);
            }
        }
    }

    #[test]
    fn an_empty_table_contains_nothing() {
        let table = BlockTable::default();
        let index = BlockIndex::new(&table);
        assert!([0, 1, u64::MAX].iter().all(|&word| !index.may_contain(word)));
        assert_eq!(index.containing(7), None);
    }
}

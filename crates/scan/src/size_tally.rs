//! Number of live blocks by usable size.

use std::collections::BTreeMap;

use pagewise_model::heap_scan::LiveSize;

/// Number of small sizes: an array counts the blocks of fewer bytes, and a map counts all larger
/// blocks.
const SMALL_SIZES: u64 = 64 << 10;

/// Number of blocks by usable size.
#[derive(Debug, Default)]
pub(crate) struct SizeTally {
    small: Vec<u64>,
    large: BTreeMap<u64, u64>,
}

impl SizeTally {
    pub(crate) fn add(&mut self, size: u64) {
        if self.small.is_empty() {
            self.small = vec![0; usize::try_from(SMALL_SIZES).unwrap_or(0)];
        }
        match usize::try_from(size).ok().and_then(|size| self.small.get_mut(size)) {
            Some(blocks) => *blocks += 1,
            None => *self.large.entry(size).or_default() += 1,
        }
    }

    /// Returns the counts in ascending order of size.
    pub(crate) fn finish(self) -> Vec<LiveSize> {
        let small = (0..).zip(self.small).filter(|(_, blocks)| *blocks > 0);
        small.chain(self.large).map(|(size, blocks)| LiveSize { size, blocks }).collect()
    }
}

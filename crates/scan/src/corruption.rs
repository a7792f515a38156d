//! Contradictions in the data of an allocator.

use pagewise_model::heap_scan::HeapCorruption;

/// Maximum number of contradictions that are stored; further ones are only counted.
const MAX_ENTRIES: usize = 100;

/// The contradictions that a heap walk has found.
#[derive(Debug, Default)]
pub(crate) struct CorruptionLog {
    pub(crate) entries: Vec<HeapCorruption>,
    pub(crate) count: u64,
}

impl CorruptionLog {
    /// Adds a contradiction: the word at `address` is `found` and should be `expected`.
    pub(crate) fn add(&mut self, block: u64, address: u64, expected: &str, found: u64) {
        self.count += 1;
        if self.entries.len() < MAX_ENTRIES {
            let expected = expected.to_owned();
            self.entries.push(HeapCorruption { block, address, expected, found });
        }
    }
}

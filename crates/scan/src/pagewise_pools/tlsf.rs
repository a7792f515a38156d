//! Blocks of a TLSF pool. The layout is that of `tlsf/heap.rs` and `tlsf/block.rs` in
//! pagewise-alloc, on 64-bit machines.
//!
//! ```text
//!  region: │ previous region, size, zeroed │ word │ payload │ word │ payload │ .. │ word, size 0 │
//!  word:   size | 1 free | 2 previous block is free | 4 | 8 freed, in a bin | tag (debug)
//! ```
//!
//! A live block begins at its word, because the pool's own pointers point to the word. Its size
//! includes the word.
//!
//! A freed block in a bin counts as free. A block in the pool's cache of small blocks has the word
//! of a live block, and counts as live.

use pagewise_model::AddrRange;

use crate::blocks::LiveBlock;
use crate::corruption::CorruptionLog;
use crate::memory::Memory;

const WORD: u64 = 8;
/// Unit of block sizes in bytes.
const GRANULE: u64 = 16;
const MIN_BLOCK: u64 = 32;
/// Number of bytes between the start of a region and its first block.
const HEAD: u64 = 24;
const SIZE: u64 = ((1 << 40) - 1) & !(GRANULE - 1);
const FREE: u64 = 1;
const AFTER_FREE: u64 = 2;
/// Flag of a block that is freed and in a bin, but not yet coalesced.
const WAITING: u64 = 8;

/// Returns the blocks of the regions that fill `range`, each with true if it is free. Returns
/// `None` if the words contradict each other.
pub(super) fn blocks(
    memory: &dyn Memory,
    range: AddrRange,
    log: &mut CorruptionLog,
) -> Option<Vec<(LiveBlock, bool)>> {
    let mut found = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let size = memory.word(start + WORD)?;
        let left = range.end - start;
        if !(HEAD + WORD + MIN_BLOCK..=left).contains(&size) {
            log.add(start, start + WORD, &format!("the size of a region, up to {left}"), size);
            return None;
        }
        let end = start + (size & !(GRANULE - 1)) - WORD;
        add_region(memory, AddrRange { start: start + HEAD, end }, &mut found, log)?;
        start += size;
    }
    Some(found)
}

/// Adds the blocks of a region. `words` begins at the first word of the region, and ends at its
/// last word (size 0).
fn add_region(
    memory: &dyn Memory,
    words: AddrRange,
    found: &mut Vec<(LiveBlock, bool)>,
    log: &mut CorruptionLog,
) -> Option<()> {
    let (mut at, mut before_is_free) = (words.start, false);
    loop {
        let word = memory.word(at)?;
        let (size, is_free) = (word & SIZE, word & FREE != 0);
        let is_end = at == words.end;
        let is_sound = (word & AFTER_FREE != 0) == before_is_free
            && !(is_free && before_is_free)
            && if is_end { size == 0 && !is_free } else { size >= MIN_BLOCK };
        if !is_sound || size > words.end - at {
            log.add(at + WORD, at, "the size and the state of a block of the pool", word);
            return None;
        }
        if is_end {
            return Some(());
        }
        found.push((LiveBlock { start: at, size }, is_free || word & WAITING != 0));
        (at, before_is_free) = (at + size, is_free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::image::TestImage;

    const REGION: u64 = 0x7f00_0000_0000;
    const BYTES: u64 = 0x1000;
    const FIRST: u64 = REGION + HEAD;

    /// Creates two adjacent regions, each with a live, a free and a live block.
    fn pool() -> TestImage {
        let mut image = TestImage::default();
        image.map(REGION, 2 * BYTES, "");
        for region in [REGION, REGION + BYTES] {
            let rest = BYTES - HEAD - WORD - 64 - 96;
            image.store(region + WORD, BYTES);
            // Debug builds store a tag in the upper bits.
            image.store(region + HEAD, 64 | 0xabc << 40);
            image.store(region + HEAD + 64, 96 | FREE);
            image.store(region + HEAD + 64 + 96, rest | AFTER_FREE | 4);
        }
        image
    }

    fn found(image: &TestImage) -> (Option<Vec<(LiveBlock, bool)>>, u64) {
        let mut log = CorruptionLog::default();
        let range = AddrRange { start: REGION, end: REGION + 2 * BYTES };
        (blocks(image, range, &mut log), log.count)
    }

    #[test]
    fn blocks_of_all_regions_are_found() {
        let (blocks, corrupted) = found(&pool());
        let blocks = blocks.unwrap();
        assert_eq!((blocks.len(), corrupted), (6, 0));
        assert_eq!(blocks[0], (LiveBlock { start: FIRST, size: 64 }, false));
        assert_eq!(blocks[1], (LiveBlock { start: FIRST + 64, size: 96 }, true));
        assert_eq!(blocks[2].0.start + blocks[2].0.size, REGION + BYTES - WORD);
    }

    #[test]
    fn a_wrong_word_is_a_contradiction() {
        let damages = [
            (REGION + WORD, 3 * BYTES),
            (REGION + WORD, 0),
            (FIRST, 16),
            (FIRST, 64 | FREE),
            (FIRST, 1 << 39),
            (FIRST + 64, 96),
            (FIRST + 64, 0),
            (REGION + BYTES - WORD, 32),
            (REGION + BYTES - WORD, FREE),
        ];
        for (address, word) in damages {
            let mut image = pool();
            image.store(address, word);
            assert_eq!(found(&image), (None, 1), "{address:#x}: {word:#x}");
        }
    }
}

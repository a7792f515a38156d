//! Leaked blocks to be read again later. A program cannot change a block that it has lost.

use pagewise_model::heap_graph::CONTAINER_BLOCKS;
use pagewise_model::heap_sample::MemoryExcerpt;

use crate::blocks::BlockTable;
use crate::graph::{HeapLeak, HeapLeaks};
use crate::memory::Memory;

/// Number of equal parts of the leaked bytes; one block is chosen for each part.
const PARTS: u64 = 256;
/// Maximum number of leading bytes of a block that are compared.
const COMPARED: u64 = 256;

/// Chooses heads of leaks in proportion to the bytes of their leaks, with their contents. Returns
/// none if most leaked bytes are in leaks of [`CONTAINER_BLOCKS`] or more blocks.
pub(crate) fn leak_sample(
    memory: &dyn Memory,
    blocks: &BlockTable,
    leaks: &HeapLeaks,
) -> Vec<MemoryExcerpt> {
    let mut sample = Vec::new();
    let (mut sum, mut part) = (0_u64, 0_u64);
    let is_small = |leak: &&HeapLeak| leak.blocks < CONTAINER_BLOCKS;
    let all: u64 = leaks.leaks.iter().filter(is_small).map(|leak| leak.bytes).sum();
    if all < leaks.bytes / 2 {
        return sample;
    }
    for leak in leaks.leaks.iter().filter(is_small) {
        sum = sum.saturating_add(leak.bytes);
        // A leak gets one part for each multiple of a 256th of all bytes within its bytes.
        let end = u128::from(sum) * u128::from(PARTS) / u128::from(all.max(1));
        let end = u64::try_from(end).unwrap_or(PARTS).min(PARTS);
        let weight = end.saturating_sub(part);
        part = part.max(end);
        let Some(block) = blocks.get(leak.head as usize).filter(|_| weight > 0) else { continue };
        let length = usize::try_from(block.size.min(COMPARED)).unwrap_or(0);
        let mut bytes = vec![0; length];
        if memory.read(block.start, &mut bytes) {
            sample.push(MemoryExcerpt { address: block.start, bytes, weight });
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::LiveBlock;
    use crate::made::{MadeProcess, MemoryPiece};

    #[test]
    fn blocks_are_chosen_in_proportion_to_the_bytes_of_their_leaks() {
        let mut blocks = BlockTable::default();
        let mut leaks = HeapLeaks::default();
        // The third of three leaks has half of the bytes, most of them behind its head.
        for (head, bytes) in [(0, 1 << 20), (1, 1 << 20), (2, 2 << 20)] {
            assert!(blocks.push(LiveBlock { start: 0x1000 + 0x1000 * u64::from(head), size: 600 }));
            leaks.leaks.push(HeapLeak { head, blocks: 9, bytes });
        }
        let piece = |number: u8| MemoryPiece {
            start: 0x1000 + 0x1000 * u64::from(number),
            bytes: vec![number; 600],
        };
        let memory = MadeProcess {
            mappings: Vec::new(),
            threads: Vec::new(),
            pieces: (0..3).map(piece).collect(),
        };
        // The blocks of a large leak are not chosen.
        assert!(blocks.push(LiveBlock { start: 0x9000, size: 600 }));
        leaks.leaks.push(HeapLeak { head: 3, blocks: 1000, bytes: 4 << 20 });
        leaks.bytes = 8 << 20;
        let sample = leak_sample(&memory, &blocks, &leaks);
        let found: Vec<_> =
            sample.iter().map(|it| (it.address, it.bytes.len(), it.bytes[0], it.weight)).collect();
        assert_eq!(found, [(0x1000, 256, 0, 64), (0x2000, 256, 1, 64), (0x3000, 256, 2, 128)]);
        leaks.bytes = 9 << 20;
        assert_eq!(leak_sample(&memory, &blocks, &leaks), [], "most bytes are in the large leak");
        assert_eq!(leak_sample(&memory, &blocks, &HeapLeaks::default()), []);
    }
}

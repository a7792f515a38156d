//! Thread caches (`tcache_t`): a stack of pointers to free blocks for each size class.
//!
//! An arena has two circular lists of the caches of its threads, and the heads of both lists are
//! adjacent words. Both heads must point into the same cache, which confirms that they are list
//! heads.
//!
//! ```text
//!  5.2: tcache_t                          5.3: tcache_slow_t          tcache_t
//!    16  bins of small classes              0  next, previous          0  tcache_slow_t
//!        0  number of blocks: 4..8         16  descriptor:             8  bins
//!       16  end of the stack                   16  bins                   0  first of the stack
//!   880  next, previous                    40  arena                     20  end of the stack:
//!   896  descriptor (Debian: 920):                                            its low 16 bits
//!        16  small bins, large bins
//!        32  arena
//! ```

use std::collections::HashSet;

use super::metadata::BaseBlocks;
use super::size_classes::{CLASSES, SMALL_CLASSES};
use crate::corruption::CorruptionLog;
use crate::memory::{Memory, words};

/// Number of bytes of a bin.
const BIN: u64 = 24;
/// Maximum number of bins of a cache in 5.3.0, for classes of up to 8 MiB; and since 5.3.1, for
/// classes of up to 32 KiB. Since 5.3.1 the last field of a bin is its capacity.
const MAX_BINS: u64 = 73;
const MAX_BINS_WITH_CAPACITY: u64 = 41;
const OLD_SMALL_BINS: u64 = 16;
const OLD_LINK: u64 = OLD_SMALL_BINS + SMALL_CLASSES * BIN;
/// Possible distances in bytes from `tcache_t` to its descriptor in 5.2. One list of an arena links
/// the `tcache_t` structures, and the other list links the descriptors.
const OLD_DESCRIPTORS: [u64; 2] = [896, 920];
const NEW_DESCRIPTOR: u64 = 16;
/// Maximum distance in bytes from the descriptor to the large bins in 5.2.
const MAX_LARGE_DISTANCE: u64 = 4 << 10;
/// Number of words before a cache of 5.2 that are searched for the thread's table of arena data.
const ARENA_DATA_WORDS: usize = 16;
/// Maximum number of caches, and of cached blocks, that are read.
const MAX_CACHES: usize = 1 << 16;
const MAX_CACHED: usize = 1 << 24;

/// A free block in a thread cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CachedBlock {
    pub(super) address: u64,
    /// Size class of the block.
    pub(super) class: u64,
    /// Address of the pointer in the cache to the block.
    pub(super) pointer: u64,
}

/// All thread caches of a process.
#[derive(Debug, Default)]
pub(super) struct ThreadCaches {
    /// Cached blocks in order of address.
    pub(super) blocks: Vec<CachedBlock>,
    /// Addresses inside blocks that contain stacks of the caches or other per-thread data of the
    /// allocator.
    pub(super) internal: Vec<u64>,
    /// Address of the arena of each cache.
    pub(super) arenas: Vec<u64>,
}

/// Address of a thread cache in each range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheAddress {
    /// For 5.2: address of `tcache_t`, and distance in bytes to its descriptor.
    Old(u64, u64),
    /// For 5.3: address of `tcache_slow_t`.
    New(u64),
}

impl CacheAddress {
    /// Returns the cache to which the adjacent list heads `first` and `second` point; `None` if
    /// they do not point to a cache.
    fn of_heads(memory: &dyn Memory, first: u64, second: u64) -> Option<CacheAddress> {
        let distance = second.checked_sub(first).filter(|_| first != 0)?;
        let cache = match distance {
            NEW_DESCRIPTOR => CacheAddress::New(first),
            it if OLD_DESCRIPTORS.contains(&it) => CacheAddress::Old(first, distance),
            _ => return None,
        };
        cache.bins(memory).map(|_| cache)
    }

    /// Addresses of the small bins and of the large bins; `None` if the data is not a cache.
    fn bins(self, memory: &dyn Memory) -> Option<(u64, u64)> {
        match self {
            CacheAddress::Old(cache, distance) => {
                let descriptor = cache.checked_add(distance)?;
                let [small, large] = words(memory, descriptor.checked_add(16)?)?;
                let is_cache = small == cache + OLD_SMALL_BINS
                    && large.checked_sub(descriptor).is_some_and(|it| it < MAX_LARGE_DISTANCE);
                is_cache.then_some((small, large))
            }
            CacheAddress::New(slow) => {
                let bins = memory.word(slow.checked_add(32)?)?;
                let owner = memory.word(bins.checked_sub(8)?)?;
                (owner == slow && bins.is_multiple_of(8))
                    .then_some((bins, bins.checked_add(SMALL_CLASSES * BIN)?))
            }
        }
    }

    /// Address of the block with the thread's table of arena data (`arenas_tdata` of 5.2), if the
    /// thread has one. The address of this block is in a word before the `tcache_t`, directly after
    /// the word with the address of the thread's arena.
    fn arena_data(self, memory: &dyn Memory) -> Option<u64> {
        let CacheAddress::Old(cache, _) = self else { return None };
        let arena = self.arena(memory)?;
        let before: [u64; ARENA_DATA_WORDS] =
            words(memory, cache.checked_sub(8 * ARENA_DATA_WORDS as u64)?)?;
        let pair = before.windows(2).rev().find(|pair| pair[0] == arena)?;
        Some(pair[1]).filter(|data| *data != 0)
    }

    fn arena(self, memory: &dyn Memory) -> Option<u64> {
        memory.word(match self {
            CacheAddress::Old(cache, distance) => cache + distance + 32,
            CacheAddress::New(slow) => slow + 40,
        })
    }

    /// Next cache in the circular list; `None` if the data there is not a cache.
    fn next(self, memory: &dyn Memory) -> Option<CacheAddress> {
        let next = match self {
            CacheAddress::Old(cache, distance) => {
                CacheAddress::Old(memory.word(cache + OLD_LINK)?, distance)
            }
            CacheAddress::New(slow) => CacheAddress::New(memory.word(slow)?),
        };
        next.bins(memory).map(|_| next)
    }

    const fn address(self) -> u64 {
        match self {
            CacheAddress::Old(address, _) | CacheAddress::New(address) => address,
        }
    }
}

/// Finds the thread caches through the lists of the arenas, which are in base blocks.
pub(super) fn thread_caches(
    memory: &dyn Memory,
    base: &BaseBlocks<'_>,
    log: &mut CorruptionLog,
) -> ThreadCaches {
    let mut heads = Vec::new();
    for range in base.ranges() {
        let mut before = 0;
        memory.visit(range, &mut |_, bytes| {
            for word in bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)) {
                heads.extend(CacheAddress::of_heads(memory, before, word));
                before = word;
            }
            heads.truncate(MAX_CACHES);
        });
    }
    let mut seen = HashSet::new();
    let mut caches = ThreadCaches::default();
    for head in heads {
        let mut cache = head;
        while seen.len() < MAX_CACHES && seen.insert(cache.address()) {
            caches.add(memory, cache, log);
            let Some(next) = cache.next(memory) else {
                let at = cache.address();
                log.add(at, at, "a link to the next thread cache", 0);
                break;
            };
            cache = next;
        }
    }
    caches.blocks.sort_unstable();
    caches.internal.sort_unstable();
    caches
}

impl ThreadCaches {
    fn add(&mut self, memory: &dyn Memory, cache: CacheAddress, log: &mut CorruptionLog) {
        self.arenas.extend(cache.arena(memory));
        self.internal.extend(cache.arena_data(memory));
        let Some((small, large)) = cache.bins(memory) else { return };
        let is_old = matches!(cache, CacheAddress::Old(..));
        let mut classes = if is_old { CLASSES } else { MAX_BINS };
        for class in 0.. {
            let (first, index) =
                if class < SMALL_CLASSES { (small, class) } else { (large, class - SMALL_CLASSES) };
            let bin = first + index * BIN;
            let Some(bin_words) = words(memory, bin) else { break };
            // A bin without a stack is unused, and so are all bins of larger classes.
            if class >= classes || bin_words == [0; 3] {
                break;
            }
            if !is_old && bin_words[2] >> 48 != 0 {
                classes = MAX_BINS_WITH_CAPACITY;
            }
            let stack = if is_old { old_stack(bin_words) } else { new_stack(bin_words) };
            self.add_stack(memory, cache, class, stack, log);
        }
    }

    fn add_stack(
        &mut self,
        memory: &dyn Memory,
        cache: CacheAddress,
        class: u64,
        stack: CacheStack,
        log: &mut CorruptionLog,
    ) {
        let CacheStack { first, count } = stack;
        if class == 0 {
            // All stacks of a cache are in one block. For an empty stack, the word below its end is
            // in this block.
            self.internal.push(if count == 0 { first.saturating_sub(8) } else { first });
        }
        if count == 0 {
            return;
        }
        let mut bytes = vec![0; 8 * usize::from(count)];
        if !memory.read(first, &mut bytes) {
            log.add(cache.address(), first, "a stack of cached blocks", first);
            return;
        }
        let addresses = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let blocks = (first..).step_by(8).zip(addresses);
        self.blocks.extend(blocks.map(|(pointer, address)| CachedBlock {
            address,
            class,
            pointer,
        }));
        self.blocks.truncate(MAX_CACHED);
    }
}

/// Addresses of the pointers to the cached blocks of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheStack {
    first: u64,
    count: u16,
}

/// In 5.2 the bin contains the end of the stack and the number of blocks.
fn old_stack([counts, _, end]: [u64; 3]) -> CacheStack {
    let count = u16::try_from(counts >> 32).unwrap_or(0);
    CacheStack { first: end.saturating_sub(8 * u64::from(count)), count }
}

/// In 5.3 the bin contains the address of the first entry, and the low 16 bits of the end address.
fn new_stack([first, _, ends]: [u64; 3]) -> CacheStack {
    let low = |word: u64| u16::try_from(word & 0xffff).unwrap_or(0);
    CacheStack { first, count: low(ends >> 32).wrapping_sub(low(first)) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_whose_end_is_beyond_the_low_bits_of_its_start_has_its_entries() {
        let stack = new_stack([0x7f00_0001_fff0, 0, 0x0010 << 32]);
        assert_eq!(stack, CacheStack { first: 0x7f00_0001_fff0, count: 4 });
        let stack = old_stack([3 << 32, 0, 0x1000]);
        assert_eq!(stack, CacheStack { first: 0x1000 - 24, count: 3 });
    }
}

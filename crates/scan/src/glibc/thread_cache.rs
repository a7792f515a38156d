//! Data that threads have of their own: their arena, and their cache of free blocks (tcache).
//!
//! Both are variables in the static TLS of the C library. Their offsets from the thread pointer are
//! the same in all threads and known only by symbols, so they are found by their values: the
//! address of an arena, and the address of a block that is laid out as a cache.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pagewise_heaplog::glibc_cache::{CacheLayout, SMALL_BINS};
use pagewise_heaplog::glibc_chunk::{self, MIN_CHUNK, UNIT};
use pagewise_model::AddrRange;

use crate::memory::{Memory, ScannedThread};

/// Static TLS below the thread pointer that is searched. Behind it lies the stack.
const MAX_TLS: u64 = 64 << 10;
/// Number of threads that vote on offsets.
const MAX_VOTERS: usize = 64;

/// Sizes of the chunks in a bin.
fn sizes(bin: usize) -> RangeInclusive<u64> {
    let size = MIN_CHUNK + UNIT * bin as u64;
    if bin < SMALL_BINS { size..=size } else { MIN_CHUNK + UNIT * SMALL_BINS as u64..=u64::MAX }
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadCache {
    /// Address of the block.
    pub(super) address: u64,
    pub(super) layout: CacheLayout,
    /// The lists that are not empty.
    pub(super) heads: Vec<CacheHead>,
}

/// A list of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CacheHead {
    /// Address of the link to the first entry.
    pub(super) address: u64,
    /// The first entry, as a block.
    pub(super) entry: u64,
    pub(super) count_address: u64,
    /// Number of entries; `None` if the layout has no such count.
    pub(super) count: Option<u64>,
    /// Sizes of its chunks.
    pub(super) sizes: RangeInclusive<u64>,
}

impl ThreadCache {
    /// The block at `address` as a cache; `None` if it is laid out otherwise.
    pub(super) fn read(memory: &dyn Memory, address: u64) -> Option<ThreadCache> {
        if !address.is_multiple_of(UNIT) {
            return None;
        }
        let head = memory.word(address.checked_sub(8)?)?;
        let size = glibc_chunk::size(head);
        let layout = CacheLayout::of_chunk(size)?;
        let mut bytes = vec![0; layout.bytes()];
        if glibc_chunk::is_mapped(head) || !memory.read(address, &mut bytes) {
            return None;
        }
        let (counts, entries) = bytes.split_at(layout.entries());
        let counts = counts.chunks_exact(layout.width).map(|count| match count {
            [low, high] => u64::from(u16::from_le_bytes([*low, *high])),
            [count] => u64::from(*count),
            _ => 0,
        });
        let entries = entries.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry));
        let mut heads = Vec::new();
        for (bin, (count, entry)) in counts.zip(entries).enumerate() {
            let agrees = !layout.counts_entries || (count == 0) == (entry == 0);
            if !agrees || !entry.is_multiple_of(UNIT) {
                return None;
            }
            if entry != 0 {
                heads.push(CacheHead {
                    address: address + (layout.entries() + 8 * bin) as u64,
                    entry,
                    count_address: address + (bin * layout.width) as u64,
                    count: layout.counts_entries.then_some(count),
                    sizes: sizes(bin),
                });
            }
        }
        Some(ThreadCache { address, layout, heads })
    }
}

/// Data of the threads.
#[derive(Debug, Default)]
pub(super) struct ThreadData {
    /// Each thread's arena, if it was found for any thread.
    pub(super) arenas: Option<Vec<u64>>,
    pub(super) caches: Vec<ThreadCache>,
}

/// Finds the data of the threads. `arenas` are the addresses of all arenas, in order.
pub(super) fn thread_data(memory: &dyn Memory, arenas: &[u64]) -> ThreadData {
    let threads = memory.threads();
    let voters = &threads[..threads.len().min(MAX_VOTERS)];
    let is_arena = |word: u64| arenas.binary_search(&word).is_ok();
    let is_cache = |word: u64| word != 0 && ThreadCache::read(memory, word).is_some();
    let words = |offset: u64| {
        threads.iter().filter_map(move |it| memory.word(it.thread_pointer.checked_sub(offset)?))
    };
    let own_arenas = best_offset(memory, voters, &is_arena)
        .map(|offset| words(offset).filter(|word| is_arena(*word)).collect());
    let mut caches: Vec<ThreadCache> = best_offset(memory, voters, &is_cache)
        .into_iter()
        .flat_map(words)
        .filter_map(|address| ThreadCache::read(memory, address))
        .collect();
    caches.sort_by_key(|cache| cache.address);
    caches.dedup_by_key(|cache| cache.address);
    ThreadData { arenas: own_arenas, caches }
}

/// The offset below the thread pointer at which most threads have such a word; of several, the one
/// nearest to the thread pointer, since stale words on stacks lie further away.
fn best_offset(
    memory: &dyn Memory,
    threads: &[ScannedThread],
    is_it: &dyn Fn(u64) -> bool,
) -> Option<u64> {
    let mut votes: HashMap<u64, u64> = HashMap::new();
    for thread in threads {
        let pointer = thread.thread_pointer;
        let start = pointer.saturating_sub(MAX_TLS).next_multiple_of(8);
        memory.visit(AddrRange { start, end: pointer }, &mut |address, bytes| {
            for (word, at) in bytes.as_chunks().0.iter().zip((address..).step_by(8)) {
                let word = u64::from_le_bytes(*word);
                if word != 0 && is_it(word) {
                    *votes.entry(pointer - at).or_default() += 1;
                }
            }
        });
    }
    votes
        .into_iter()
        .max_by_key(|(offset, votes)| (*votes, std::cmp::Reverse(*offset)))
        .map(|it| it.0)
}

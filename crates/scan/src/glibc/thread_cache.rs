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
/// The part of it that is examined if no thread shows an offset. The offset is smaller in all known
/// programs whose C library is loaded at the start.
const NEAR_TLS: u64 = 1 << 10;
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
        ThreadCache::read_with(memory, address, 0)
    }

    /// The same of a cache that its thread may be changing: the thread changes the first entry and
    /// the count of a bin one after the other.
    fn read_in_change(memory: &dyn Memory, address: u64) -> Option<ThreadCache> {
        ThreadCache::read_with(memory, address, 1)
    }

    /// The block at `address` as a cache in which up to `most` bins contradict their counts.
    fn read_with(memory: &dyn Memory, address: u64, mut most: u32) -> Option<ThreadCache> {
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
            if !entry.is_multiple_of(UNIT) {
                return None;
            }
            if layout.counts_entries && (count == 0) != (entry == 0) {
                most = most.checked_sub(1)?;
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
    /// Caches that could not be read: their addresses, where these are known.
    pub(super) unread: Vec<Option<u64>>,
}

impl ThreadData {
    /// The values of the second word of blocks in the caches that could not be read, and in others
    /// with these addresses; none if they are unknown.
    ///
    /// Since 2.29 this word of a cached block is a mark, by which `free` recognizes a block that is
    /// freed twice: the address of the cache, since 2.34 a random number of the process.
    /// `malloc` overwrites it.
    pub(super) fn marks(&self, memory: &dyn Memory, others: &[u64]) -> Vec<u64> {
        let entries =
            self.caches.iter().flat_map(|cache| cache.heads.iter().map(move |it| (cache, it)));
        let marks: Vec<(u64, u64)> = entries
            .filter_map(|(cache, head)| {
                Some((cache.address, memory.word(head.entry.checked_add(8)?)?))
            })
            .collect();
        // Without marks the word is what the program has left there.
        let may_be_random = self.caches.iter().all(|cache| cache.layout.width > 1);
        match marks[..] {
            _ if self.unread.is_empty() && others.is_empty() => Vec::new(),
            [_, ..] if marks.iter().all(|(cache, mark)| cache == mark) => {
                self.unread.iter().flatten().chain(others).copied().collect()
            }
            [(_, first), ..] if may_be_random && marks.iter().all(|(_, it)| *it == first) => {
                vec![first]
            }
            _ => Vec::new(),
        }
    }
}

/// The cache of a thread.
enum CacheState {
    Read(ThreadCache),
    /// It has none yet, or none any more.
    None,
    /// Its address, if that is known.
    Unread(Option<u64>),
}

impl CacheState {
    /// The cache whose address is the word at an offset below the thread pointer. Before a thread's
    /// first allocation, some versions have the address of a constant there.
    fn at(
        memory: &dyn Memory,
        thread: &ScannedThread,
        offset: u64,
        is_in_heap: &dyn Fn(u64) -> bool,
    ) -> CacheState {
        let address = thread.thread_pointer.checked_sub(offset).and_then(|at| memory.word(at));
        let Some(address) = address else { return CacheState::Unread(None) };
        match ThreadCache::read_in_change(memory, address) {
            Some(cache) => CacheState::Read(cache),
            None if is_in_heap(address) => CacheState::Unread(Some(address)),
            None => CacheState::None,
        }
    }

    /// The same if no thread shows the offset.
    fn without_offset(
        memory: &dyn Memory,
        thread: &ScannedThread,
        is_in_heap: &dyn Fn(u64) -> bool,
    ) -> CacheState {
        let end = thread.thread_pointer;
        let Some(last) = end.checked_sub(8) else { return CacheState::Unread(None) };
        let mapping = memory.mappings().iter().find(|it| it.range.contains(last));
        let first = mapping.map_or(last, |it| it.range.start);
        let start = first.max(end.saturating_sub(NEAR_TLS));
        let mut unread = None;
        for at in (start..end).step_by(8) {
            match memory.word(at) {
                None => unread = unread.or(Some(None)),
                Some(address) if is_in_heap(address) => {
                    let head = address.checked_sub(8).and_then(|at| memory.word(at));
                    let layout = |head| CacheLayout::of_chunk(glibc_chunk::size(head));
                    if head.is_none_or(|head| layout(head).is_some()) {
                        unread = Some(Some(address));
                    }
                }
                Some(_) => {}
            }
        }
        unread.map_or(CacheState::None, CacheState::Unread)
    }
}

/// Finds the data of the threads. `arenas` are the addresses of all arenas, in order; `is_in_heap`
/// is true for addresses in their heaps.
pub(super) fn thread_data(
    memory: &dyn Memory,
    arenas: &[u64],
    is_in_heap: &dyn Fn(u64) -> bool,
) -> ThreadData {
    let threads = memory.threads();
    let voters = &threads[..threads.len().min(MAX_VOTERS)];
    let is_arena = |word: u64| arenas.binary_search(&word).is_ok();
    let is_cache = |word: u64| word != 0 && ThreadCache::read(memory, word).is_some();
    let words = |offset: u64| {
        threads.iter().filter_map(move |it| memory.word(it.thread_pointer.checked_sub(offset)?))
    };
    let own_arenas = best_offset(memory, voters, &is_arena)
        .map(|offset| words(offset).filter(|word| is_arena(*word)).collect());
    let offset = best_offset(memory, voters, &is_cache);
    let mut data = ThreadData { arenas: own_arenas, ..ThreadData::default() };
    for thread in threads {
        let state = match offset {
            Some(offset) => CacheState::at(memory, thread, offset, is_in_heap),
            None => CacheState::without_offset(memory, thread, is_in_heap),
        };
        match state {
            CacheState::Read(cache) => data.caches.push(cache),
            CacheState::Unread(address) => data.unread.push(address),
            CacheState::None => {}
        }
    }
    data.caches.sort_by_key(|cache| cache.address);
    data.caches.dedup_by_key(|cache| cache.address);
    data
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

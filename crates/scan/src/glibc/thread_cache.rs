//! Per-thread data of malloc: the arena of each thread, and its cache of free blocks (tcache).
//!
//! Both are pointers in the static TLS of the C library. Their offsets from the thread pointer are
//! equal in all threads. Only symbols state these offsets, and libraries are usually stripped, so
//! the pointers are found by their values. One pointer is the address of an arena, and the other is
//! the address of a block with the layout of a cache.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pagewise_heaplog::glibc_cache::{CacheLayout, SMALL_BINS};
use pagewise_heaplog::glibc_chunk::{self, MIN_CHUNK, UNIT};
use pagewise_model::AddrRange;

use crate::memory::{Memory, ScannedThread};

/// Maximum number of bytes of static TLS below the thread pointer that are searched. The stack
/// follows below the TLS.
const MAX_TLS: u64 = 64 << 10;
/// Number of bytes of static TLS below the thread pointer that are examined if no thread reveals
/// the offset of the cache. The offset is smaller in all known programs that load the C library at
/// their start.
const NEAR_TLS: u64 = 1 << 10;
/// Maximum number of threads whose data determines the offsets.
const MAX_VOTERS: usize = 64;

/// Sizes in bytes of the chunks in a bin.
fn sizes(bin: usize) -> RangeInclusive<u64> {
    let size = MIN_CHUNK + UNIT * bin as u64;
    if bin < SMALL_BINS { size..=size } else { MIN_CHUNK + UNIT * SMALL_BINS as u64..=u64::MAX }
}

/// A thread cache (tcache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadCache {
    /// Address of the block that contains the cache.
    pub(super) address: u64,
    pub(super) layout: CacheLayout,
    /// The nonempty lists of the cache.
    pub(super) heads: Vec<CacheHead>,
}

/// Head of a list in a thread cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CacheHead {
    /// Address of the link to the first entry.
    pub(super) address: u64,
    /// Address of the first entry, as the address of its block.
    pub(super) entry: u64,
    pub(super) count_address: u64,
    /// Number of entries; `None` if the layout has no count of entries.
    pub(super) count: Option<u64>,
    /// Sizes in bytes of the chunks in the list.
    pub(super) sizes: RangeInclusive<u64>,
}

impl ThreadCache {
    /// Reads the block at `address` as a cache; `None` if the block has another layout.
    pub(super) fn read(memory: &dyn Memory, address: u64) -> Option<ThreadCache> {
        ThreadCache::read_with(memory, address, 0)
    }

    /// Reads the cache like [`Self::read`], but accepts one inconsistent bin. The thread of the
    /// cache may be changing this bin: it changes the first entry and the count one after the
    /// other.
    fn read_in_change(memory: &dyn Memory, address: u64) -> Option<ThreadCache> {
        ThreadCache::read_with(memory, address, 1)
    }

    /// Reads the block at `address` as a cache in which up to `most` bins contradict their counts.
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

/// Per-thread data of all threads.
#[derive(Debug, Default)]
pub(super) struct ThreadData {
    /// Arena address of each thread; `None` if the arena of no thread was found.
    pub(super) arenas: Option<Vec<u64>>,
    pub(super) caches: Vec<ThreadCache>,
    /// Caches that could not be read, with their addresses if known.
    pub(super) unread: Vec<Option<u64>>,
}

impl ThreadData {
    /// Returns the marks of blocks in unread caches and in the caches with the addresses `others`.
    /// Empty if the marks are unknown.
    ///
    /// A mark is the second word of a cached block, by which `free` recognizes a block that is
    /// freed twice. Since glibc 2.29 it is the address of the cache, and since 2.34 a random number
    /// of the process. `malloc` overwrites the mark.
    pub(super) fn marks(&self, memory: &dyn Memory, others: &[u64]) -> Vec<u64> {
        let entries =
            self.caches.iter().flat_map(|cache| cache.heads.iter().map(move |it| (cache, it)));
        let marks: Vec<(u64, u64)> = entries
            .filter_map(|(cache, head)| {
                Some((cache.address, memory.word(head.entry.checked_add(8)?)?))
            })
            .collect();
        // Versions without marks leave the program's data in the second word.
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

/// Result of reading a thread's cache.
enum CacheState {
    Read(ThreadCache),
    /// The thread has no cache yet, or no longer has one.
    None,
    /// The cache could not be read; its address if known.
    Unread(Option<u64>),
}

impl CacheState {
    /// Reads the cache to which the word at `offset` below the thread pointer points. Before a
    /// thread's first allocation, this word is the address of a constant in some versions.
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

    /// Searches the words near the thread pointer for the address of an unread cache. Called only
    /// if no thread reveals the offset.
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

/// Finds the per-thread data of all threads. `arenas` are the addresses of all arenas in order;
/// `is_in_heap` is true for addresses in heaps of these arenas.
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

/// Returns the offset below the thread pointer at which most threads have a word for which `is_it`
/// returns true. If several offsets have the same number of threads, the smallest offset is chosen:
/// stale words on stacks are further away.
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

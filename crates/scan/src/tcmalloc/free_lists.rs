//! Free slots in thread caches and in the transfer caches of the central lists.
//!
//! ```text
//!  ThreadCache                                  CentralFreeList, of 1,216 bytes, one per class
//!     0  lists of 128 classes, 32 bytes each       8  its class
//!        0  first slot                            16  list of spans without free slots (a Span)
//!        8  number of slots                       64  list of spans with free slots (a Span)
//!       24  bytes of a slot                      128  64 chains of slots: first, last
//!  4096  sizes, sampler, neighbors             1152  number of chains
//! ```
//!
//! Every thread cache contains the slot sizes of all size classes, which identifies it. Static
//! variables point to the first thread cache. The links of span lists point to the central lists.

use std::collections::{HashMap, HashSet};

use pagewise_model::AddrRange;

use super::page_map::{Span, SpanLocation};
use crate::corruption::CorruptionLog;
use crate::jemalloc::extent_tree::{range_of, written_data};
use crate::memory::{Memory, words};

/// Number of size classes, including unused ones at the end.
pub(super) const CLASSES: usize = 128;
const LIST_WORDS: usize = 4;
const LISTS_BYTES: u64 = (8 * LIST_WORDS * CLASSES) as u64;
/// Number of words after the lists that include the links to the neighboring caches.
const NEIGHBOR_WORDS: usize = 12;
/// Largest slot size in bytes of a size class.
const MAX_CLASS_SIZE: u64 = 256 << 10;
const CENTRAL_BYTES: u64 = 1216;
const CENTRAL_LISTS: [u64; 2] = [16, 64];
const CHAINS: u64 = 128;
const MAX_CHAINS: u64 = 64;
const CHAIN_COUNT: u64 = 1152;
/// Maximum numbers that are read: variables, caches, slots of a chain, and slots in total.
const MAX_VARIABLES: usize = 64;
const MAX_CACHES: usize = 1 << 16;
const MAX_CHAIN: u64 = 1 << 20;
const MAX_SLOTS: usize = 1 << 26;

/// A free slot that is not in its span's own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListedSlot {
    pub(super) address: u64,
    pub(super) class: usize,
    /// True if the slot is in a thread cache, false if it is in a transfer cache.
    pub(super) is_cached: bool,
}

/// Slot sizes of all size classes, and the free slots that are in no span's own list.
#[derive(Debug, Default)]
pub(super) struct FreeLists {
    /// Slot size in bytes of each size class; 0 if the class is unused.
    pub(super) sizes: Vec<u64>,
    /// Free slots in order of address.
    pub(super) slots: Vec<ListedSlot>,
    /// Number of thread caches.
    pub(super) caches: u64,
}

type ThreadCacheLists = [u64; LIST_WORDS * CLASSES];

/// Returns the lists and the slot sizes of the thread cache at `address`; `None` if no thread cache
/// begins there.
fn thread_cache(memory: &dyn Memory, address: u64) -> Option<(ThreadCacheLists, Vec<u64>)> {
    if !address.is_multiple_of(8) {
        return None;
    }
    // The size of the second class is read first, because it rejects most addresses with one read.
    let second = memory.word(address.checked_add(56)?)?;
    if second != 8 && second != 16 {
        return None;
    }
    let lists: ThreadCacheLists = words(memory, address)?;
    let sizes: Vec<u64> =
        lists.chunks_exact(LIST_WORDS).map(|list| list[3] & u64::from(u32::MAX)).collect();
    let used = sizes.iter().rposition(|size| *size != 0)?;
    let is_cache = sizes[0] == 0
        && sizes[..=used].is_sorted_by(|one, two| one < two)
        && sizes[used] == MAX_CLASS_SIZE;
    is_cache.then_some((lists, sizes))
}

impl FreeLists {
    /// Reads all lists; `None` if no thread cache was found.
    pub(super) fn read(
        memory: &dyn Memory,
        anonymous: &[AddrRange],
        spans: &[Span],
        log: &mut CorruptionLog,
    ) -> Option<FreeLists> {
        let mut open = first_caches(memory, anonymous);
        let mut lists =
            FreeLists { sizes: thread_cache(memory, *open.first()?)?.1, ..FreeLists::default() };
        let mut seen = HashSet::new();
        while let Some(address) = open.pop().filter(|_| seen.len() < MAX_CACHES) {
            if !seen.insert(address) {
                continue;
            }
            let Some((cache, sizes)) = thread_cache(memory, address) else { continue };
            if sizes == lists.sizes {
                lists.caches += 1;
                lists.add_cache(memory, address, &cache, log);
                let behind: [u64; NEIGHBOR_WORDS] =
                    words(memory, address + LISTS_BYTES).unwrap_or([0; NEIGHBOR_WORDS]);
                open.extend(behind.into_iter().filter(|it| range_of(anonymous, *it).is_some()));
            }
        }
        lists.add_transfer_caches(memory, spans, log);
        lists.slots.sort_unstable();
        Some(lists)
    }

    fn add_cache(
        &mut self,
        memory: &dyn Memory,
        address: u64,
        cache: &ThreadCacheLists,
        log: &mut CorruptionLog,
    ) {
        for (class, list) in cache.chunks_exact(LIST_WORDS).enumerate().skip(1) {
            let length = list[1] & u64::from(u32::MAX);
            let found = self.add_chain(memory, list[0], class, true);
            if found != length {
                let at = address + (class * LIST_WORDS * 8) as u64;
                let expected = format!("the number {found} of cached slots");
                log.add(at, at + 8, &expected, length);
            }
        }
    }

    /// Adds the slots of a chain, and returns their number.
    fn add_chain(&mut self, memory: &dyn Memory, first: u64, class: usize, is_cached: bool) -> u64 {
        let (mut slot, mut count) = (first, 0);
        while slot != 0 && count < MAX_CHAIN && self.slots.len() < MAX_SLOTS {
            let Some(next) = memory.word(slot) else { break };
            self.slots.push(ListedSlot { address: slot, class, is_cached });
            slot = next;
            count += 1;
        }
        count
    }

    fn add_transfer_caches(
        &mut self,
        memory: &dyn Memory,
        spans: &[Span],
        log: &mut CorruptionLog,
    ) {
        let Some(first) = central_lists(memory, spans) else { return };
        for class in 1..CLASSES {
            let central = first + CENTRAL_BYTES * class as u64;
            if self.sizes.get(class).is_none_or(|size| *size == 0) {
                return;
            }
            let count = memory.word(central + CHAIN_COUNT).map(|word| word & u64::from(u32::MAX));
            let (Some(own), Some(count)) = (memory.word(central + 8), count) else { continue };
            if own != class as u64 || count > MAX_CHAINS {
                log.add(central, central + 8, "a central list of free slots", own);
                continue;
            }
            for chain in 0..count {
                let head = memory.word(central + CHAINS + 16 * chain).unwrap_or(0);
                self.add_chain(memory, head, class, false);
            }
        }
    }
}

/// Returns the addresses of thread caches to which static variables point.
fn first_caches(memory: &dyn Memory, anonymous: &[AddrRange]) -> Vec<u64> {
    let mut found = Vec::new();
    for data in written_data(memory.mappings()) {
        memory.visit(data, &mut |_, bytes| {
            for word in bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)) {
                let is_candidate = word != 0 && range_of(anonymous, word).is_some();
                if is_candidate
                    && found.len() < MAX_VARIABLES
                    && thread_cache(memory, word).is_some()
                {
                    found.push(word);
                }
            }
        });
    }
    found
}

/// Address of the central list of class 0, derived from the address to which most span lists link.
fn central_lists(memory: &dyn Memory, spans: &[Span]) -> Option<u64> {
    let mut votes: HashMap<u64, u64> = HashMap::new();
    let slabs = spans.iter().filter(|it| it.location == SpanLocation::InUse && it.class > 0);
    for span in slabs {
        for list in CENTRAL_LISTS {
            let central = span.next.checked_sub(list);
            let class = span.class as u64;
            let own = central.and_then(|central| memory.word(central.checked_add(8)?));
            let central = central.filter(|_| own == Some(class));
            let first = central.and_then(|it| it.checked_sub(CENTRAL_BYTES * class));
            if let Some(first) = first {
                *votes.entry(first).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(first, votes)| (*votes, *first)).map(|it| it.0)
}

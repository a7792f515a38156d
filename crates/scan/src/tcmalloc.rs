//! Heap walk of gperftools' tcmalloc in the memory of a process: spans, central lists and thread
//! caches.
//!
//! ```text
//!  page_map    the map from pages to spans, found and checked by structure
//!  free_lists  thread caches and transfer caches
//! ```
//!
//! The layout is that of gperftools 2.8 to 2.18 on x86-64, with pages of 8 KiB. A slot of a span is
//! live unless it is in the span's own list, a thread cache or a transfer cache. Each span is
//! checked against its count of slots in use.

mod free_lists;
mod page_map;
#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::slice;

use pagewise_model::heap_scan::{HeapGap, WalkedArena};
use pagewise_model::{Absent, AddrRange, PageSize};

use crate::ScanError;
use crate::blocks::LiveBlock;
use crate::corruption::CorruptionLog;
use crate::graph::range_without;
use crate::jemalloc::extent_tree::anonymous_memory;
use crate::memory::Memory;
use crate::span_tally::{FreePages, SlotUse, SpanTally, joined, resident_runs};
use crate::walk::{AllocatorWalk, maps_library};
use free_lists::{FreeLists, ListedSlot};
use page_map::{Span, SpanLocation, page_map_root, spans};

const NAME: &str = "tcmalloc";
/// Maximum number of slots of a span: the count of slots in use has 16 bits.
const MAX_SLOTS: u64 = 1 << 16;
const UNKNOWN_USE: &str = "the data of its span contradicts itself";

/// Walks the heap of tcmalloc. Returns `None` if the process does not use tcmalloc.
///
/// # Errors
/// [`ScanError::NotWalked`] if the process maps a library of tcmalloc with an unsupported layout.
///
/// # Complexity
/// O(n log n) in the number of free slots in caches, O(n) in the number of all other slots.
pub fn walk(memory: &dyn Memory, page_size: PageSize) -> Result<Option<AllocatorWalk>, ScanError> {
    let anonymous = anonymous_memory(memory.mappings());
    let mut log = CorruptionLog::default();
    let root = page_map_root(memory, &anonymous);
    let spans = root.map_or_else(Vec::new, |root| spans(memory, &anonymous, root, &mut log));
    let lists = FreeLists::read(memory, &anonymous, &spans, &mut log);
    match (root, lists) {
        (Some(root), Some(lists)) if !spans.is_empty() => {
            Ok(Some(walked(memory, page_size, root, &spans, &lists, log)))
        }
        (root, _) if maps_library(memory.mappings(), b"libtcmalloc") => {
            let missing = if root.is_none() { "map of pages of 8 KiB" } else { "thread cache" };
            let why = format!("no {missing} of gperftools 2.8 to 2.18 was found in its data");
            Err(ScanError::NotWalked { allocator: NAME, why })
        }
        _ => Ok(None),
    }
}

fn walked(
    memory: &dyn Memory,
    page_size: PageSize,
    root: AddrRange,
    spans: &[Span],
    lists: &FreeLists,
    mut log: CorruptionLog,
) -> AllocatorWalk {
    let pages = joined(spans.iter().map(|span| span.pages));
    let runs = resident_runs(memory, &pages);
    let arena = WalkedArena {
        state: root.start,
        is_main: true,
        threads: lists.caches,
        threads_seen: true,
        ..WalkedArena::default()
    };
    let mut walk = SpanWalk {
        memory,
        sizes: &lists.sizes,
        listed: lists.slots.iter().peekable(),
        tally: SpanTally::new(page_size, &runs, vec![arena]),
        gaps: Vec::new(),
        log: &mut log,
    };
    spans.iter().for_each(|span| walk.add(span));
    walk.report_strays(u64::MAX);
    let SpanWalk { tally, gaps, .. } = walk;
    let sums = tally.finish();
    let gap_ranges: Vec<AddrRange> = gaps
        .iter()
        .map(|gap| AddrRange { start: gap.start, end: gap.start + gap.bytes.0 })
        .collect();
    let managed = pages.into_iter().flat_map(|range| range_without(range, &gap_ranges)).collect();
    sums.into_walk(NAME, "gperftools 2.8 to 2.18", log, gaps, managed)
}

/// State of the walk over all spans, in order of address.
struct SpanWalk<'a, 'r> {
    memory: &'a dyn Memory,
    /// Slot size in bytes of each size class.
    sizes: &'a [u64],
    listed: Peekable<slice::Iter<'a, ListedSlot>>,
    tally: SpanTally<'r>,
    gaps: Vec<HeapGap>,
    log: &'a mut CorruptionLog,
}

impl SpanWalk<'_, '_> {
    fn add(&mut self, span: &Span) {
        self.report_strays(span.pages.start);
        match span.location {
            SpanLocation::Free => self.tally.add_free(0, span.pages, FreePages::Kept),
            SpanLocation::Returned => self.tally.add_free(0, span.pages, FreePages::Released),
            SpanLocation::InUse if span.class == 0 => {
                let block = LiveBlock { start: span.pages.start, size: span.pages.len().0 };
                self.tally.add_block(0, span.pages, block, SlotUse::Live);
            }
            SpanLocation::InUse => self.add_slots(span),
        }
        self.report_strays(span.pages.end);
    }

    fn add_slots(&mut self, span: &Span) {
        let size = self.sizes.get(span.class).copied().unwrap_or(0);
        let count = span.pages.len().0.checked_div(size).unwrap_or(0);
        if count == 0 || count > MAX_SLOTS {
            let class = span.class as u64;
            self.log.add(span.pages.start, span.data + 40, "the size class of a span", class);
            self.tally.add_own(0, span.pages);
            let why = Absent::NotCollected(UNKNOWN_USE.into());
            self.gaps.push(HeapGap { start: span.pages.start, bytes: span.pages.len(), why });
            return;
        }
        let mut slots = vec![SlotUse::Live; usize::try_from(count).unwrap_or(0)];
        self.mark_own_list(span, size, &mut slots);
        self.mark_listed(span, size, &mut slots);
        self.tally.add_slots(0, span.pages, size, slots);
    }

    /// Marks the slots in the span's own free list.
    fn mark_own_list(&mut self, span: &Span, size: u64, slots: &mut [SlotUse]) {
        let mut free = 0;
        let mut slot = span.objects;
        while slot != 0 {
            match slot_at(span, size, slot, slots) {
                Some(entry) if *entry == SlotUse::Live => *entry = SlotUse::Free,
                _ => {
                    let expected = "a slot of the span, which its list has once";
                    self.log.add(slot, span.data + 32, expected, slot);
                    break;
                }
            }
            free += 1;
            slot = self.memory.word(slot).unwrap_or(0);
        }
        let in_use = (slots.len() as u64).saturating_sub(free);
        if in_use != span.in_use {
            let expected = format!("the number {in_use} of slots in use");
            self.log.add(span.pages.start, span.data + 40, &expected, span.in_use);
        }
    }

    /// Marks the slots of the span that are in thread caches and transfer caches.
    fn mark_listed(&mut self, span: &Span, size: u64, slots: &mut [SlotUse]) {
        while let Some(listed) = self.listed.next_if(|it| it.address < span.pages.end) {
            let slot = slot_at(span, size, listed.address, slots);
            match slot.filter(|slot| listed.class == span.class && **slot == SlotUse::Live) {
                Some(slot) if listed.is_cached => *slot = SlotUse::Cached,
                Some(slot) => *slot = SlotUse::Free,
                None => self.log_stray(listed),
            }
        }
    }

    /// Reports the slots in `listed` that are below `end` and in no span of slots.
    fn report_strays(&mut self, end: u64) {
        while let Some(listed) = self.listed.next_if(|it| it.address < end) {
            self.log_stray(listed);
        }
    }

    fn log_stray(&mut self, listed: &ListedSlot) {
        let size = self.sizes.get(listed.class).copied().unwrap_or(0);
        let expected = format!("a slot of {size} bytes that one free list has");
        self.log.add(listed.address, listed.address, &expected, listed.address);
    }
}

/// Element of `slots` for the slot that begins at `address` in a span; `None` if no slot begins
/// there.
fn slot_at<'s>(
    span: &Span,
    size: u64,
    address: u64,
    slots: &'s mut [SlotUse],
) -> Option<&'s mut SlotUse> {
    let offset = address.checked_sub(span.pages.start)?;
    let index = usize::try_from(offset / size).ok()?;
    slots.get_mut(index).filter(|_| offset.is_multiple_of(size))
}

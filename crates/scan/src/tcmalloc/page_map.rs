//! The map from pages to spans (`TCMalloc_PageMap2`), and spans.
//!
//! ```text
//!  root: 2^17 pointers to leaves, in the data of the library or program
//!  leaf: 2^18 pointers to spans, one for each page of 8 KiB
//!
//!  Span: runs of pages
//!    0  number of the first page
//!    8  number of pages
//!   16  next, previous
//!   32  first free slot
//!   40  bits 0..16 slots that are in use, 16..24 size class (0: one large block),
//!       24..26 location (0: in use, 1: free, 2: free and returned to the system)
//! ```

use pagewise_model::AddrRange;

use crate::corruption::CorruptionLog;
use crate::jemalloc::extent_tree::{range_of, written_data};
use crate::memory::{Memory, first_word, words};
use crate::span_tally::DisjointRanges;

/// Binary logarithm of the page size that is compiled into tcmalloc.
const PAGE_SHIFT: u32 = 13;
const LEAF_BITS: u32 = 18;
const LEAF_BYTES: u64 = 8 << LEAF_BITS;
const ROOT_BYTES: u64 = 8 << 17;
/// Upper bound of page numbers: addresses have 48 bits.
const MAX_PAGES: u64 = 1 << 35;
/// Maximum number of zero bytes that are read, in total, behind pointers that turn out not to point
/// to leaves.
const MAX_SEARCH: u64 = 1 << 30;

/// State of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanLocation {
    InUse,
    Free,
    /// Free, and released to the kernel.
    Returned,
}

/// A span of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Address of the `Span`.
    pub(super) data: u64,
    pub(super) pages: AddrRange,
    pub(super) next: u64,
    /// Address of the first free slot.
    pub(super) objects: u64,
    /// Number of slots that are in use or in caches.
    pub(super) in_use: u64,
    pub(super) class: usize,
    pub(super) location: SpanLocation,
}

impl Span {
    fn read(memory: &dyn Memory, data: u64) -> Option<Span> {
        if !data.is_multiple_of(8) {
            return None;
        }
        let [start, length, next, _, objects, bits] = words(memory, data)?;
        let end = start.checked_add(length).filter(|end| *end <= MAX_PAGES && length > 0)?;
        let location = match bits >> 24 & 3 {
            0 => SpanLocation::InUse,
            1 => SpanLocation::Free,
            2 => SpanLocation::Returned,
            _ => return None,
        };
        Some(Span {
            data,
            pages: AddrRange { start: start << PAGE_SHIFT, end: end << PAGE_SHIFT },
            next,
            objects,
            in_use: bits & 0xffff,
            class: usize::try_from(bits >> 16 & 0xff).unwrap_or(0),
            location,
        })
    }
}

/// Finds the root of the map. A pointer in data counts as an entry of the root under one condition:
/// the page number of the first span in the leaf agrees with the position of the span's pointer in
/// the leaf.
pub(super) fn page_map_root(memory: &dyn Memory, anonymous: &[AddrRange]) -> Option<AddrRange> {
    let mut found = None;
    let mut budget = MAX_SEARCH;
    for data in written_data(memory.mappings()) {
        memory.visit(data, &mut |address, bytes| {
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            for (entry, leaf) in (address..).step_by(8).zip(words) {
                if found.is_some() || leaf == 0 || !leaf.is_multiple_of(8) {
                    continue;
                }
                let Some(region) = range_of(anonymous, leaf) else { continue };
                if region.end - leaf >= LEAF_BYTES {
                    found = root_with_entry(memory, anonymous, entry, leaf, data, &mut budget);
                }
            }
        });
    }
    found
}

fn root_with_entry(
    memory: &dyn Memory,
    anonymous: &[AddrRange],
    entry: u64,
    leaf: u64,
    data: AddrRange,
    budget: &mut u64,
) -> Option<AddrRange> {
    let range = AddrRange { start: leaf, end: leaf + LEAF_BYTES };
    let (index, span) = first_word(memory, range, 8, budget, &|word| word != 0)?;
    range_of(anonymous, span)?;
    let page = Span::read(memory, span)?.pages.start >> PAGE_SHIFT;
    let start = entry.checked_sub((page >> LEAF_BITS) * 8)?;
    let root = AddrRange { start, end: start.checked_add(ROOT_BYTES)? };
    let is_root =
        page & ((1 << LEAF_BITS) - 1) == index && data.start <= start && root.end <= data.end;
    is_root.then_some(root)
}

/// Reads all spans in order of address. The map keeps stale pointers for the inner pages of a span,
/// so the walk uses only the pointer of its first page.
pub(super) fn spans(
    memory: &dyn Memory,
    anonymous: &[AddrRange],
    root: AddrRange,
    log: &mut CorruptionLog,
) -> Vec<Span> {
    let mut leaves = DisjointRanges::default();
    let mut spans: Vec<Span> = Vec::new();
    memory.visit(root, &mut |address, bytes| {
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        for (entry, leaf) in (address..).step_by(8).zip(words).filter(|(_, leaf)| *leaf != 0) {
            let first = ((entry - root.start) / 8) << LEAF_BITS;
            let range = AddrRange { start: leaf, end: leaf.saturating_add(LEAF_BYTES) };
            if leaf.is_multiple_of(8) && leaves.insert(range) {
                memory.visit(range, &mut |at, bytes| {
                    let page = first + (at - leaf) / 8;
                    add_spans(memory, anonymous, page, bytes, &mut spans, log);
                });
            } else {
                log.add(entry, entry, "the address of a leaf of the page map", leaf);
            }
        }
    });
    spans
}

fn add_spans(
    memory: &dyn Memory,
    anonymous: &[AddrRange],
    first: u64,
    leaf: &[u8],
    spans: &mut Vec<Span>,
    log: &mut CorruptionLog,
) {
    let pointers = leaf.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    for (page, data) in (first..).zip(pointers).filter(|(_, data)| *data != 0) {
        let start = page << PAGE_SHIFT;
        if spans.last().is_some_and(|last| start < last.pages.end) {
            continue;
        }
        let is_whole = |span: &Span| {
            let ends = [start, span.pages.end - 1];
            span.pages.start == start && ends.iter().all(|&it| range_of(anonymous, it).is_some())
        };
        match Span::read(memory, data).filter(is_whole) {
            Some(span) => spans.push(span),
            None => log.add(start, data, "a span that begins on this page", page),
        }
    }
}

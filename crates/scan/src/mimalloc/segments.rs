//! Segments: found by their alignment, and checked by their tables of slices.

use std::collections::HashMap;

use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping};

use super::layout::{
    CAPACITY, HUGE_BLOCK, RESERVED, SLICE, SLICE_COUNT, SLICE_DISTANCE, SegmentLayout,
};
use crate::corruption::CorruptionLog;
use crate::memory::{Memory, half, read_sparse, word};
use crate::slot_heap::MAX_ADDRESS;

/// Maximum number of slices for the segment's own table and guard pages.
const MAX_INFO_SLICES: u64 = 16;
/// Minimum size of a block in bytes.
const MIN_BLOCK: u64 = 8;
/// Value of the block size field in a free run of slices that is in no queue. A reserved segment
/// without an owner contains only such runs.
const TAKEN_FROM_QUEUE: u64 = 1;

/// A segment of mimalloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) range: AddrRange,
    pub(super) is_huge: bool,
    /// Thread pointer of the owning thread; 0 without an owner.
    pub(super) thread: u64,
    secret: u64,
    /// Number of bytes in runs of free slices.
    pub(super) free_bytes: u64,
    /// Range of the slices after a contradiction in the table.
    pub(super) gap: Option<AddrRange>,
    /// Pages with blocks.
    pub(super) pages: Vec<PageSpan>,
}

/// A page, according to the table of its segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageSpan {
    /// Address range of the slices of the page.
    pub(super) slices: AddrRange,
    /// Address of the page's table entry.
    pub(super) address: u64,
    /// Bytes of the table entry.
    pub(super) entry: Vec<u8>,
}

/// Use of a run of slices, according to its table entry.
enum SliceSpan {
    Free,
    Page,
    Broken { offset: u64, expected: &'static str },
}

/// Finds the segments of a process in order of address, and the layout with which most of their
/// pages agree.
pub(super) fn segments(
    memory: &dyn Memory,
    log: &mut CorruptionLog,
) -> Option<(&'static SegmentLayout, Vec<Segment>)> {
    const LAYOUTS: &[SegmentLayout] = &SegmentLayout::ALL;
    let starts = starts(memory.mappings());
    let mut best: Option<(usize, &SegmentLayout, u64)> = None;
    for layout in LAYOUTS {
        let mut votes: HashMap<u64, usize> = HashMap::new();
        for segment in starts.iter().filter_map(|at| Segment::read(memory, layout, *at, None)) {
            *votes.entry(segment.secret).or_default() += segment.pages.len() + 1;
        }
        let most = votes.into_iter().max_by_key(|(secret, votes)| (*votes, *secret));
        let Some((secret, votes)) = most else { continue };
        if best.is_none_or(|(most, ..)| votes > most) {
            best = Some((votes, layout, secret));
        }
    }
    let (_, layout, secret) = best?;
    let mut segments: Vec<Segment> = Vec::new();
    for start in starts {
        // A segment-aligned address inside of another segment belongs to data of the program.
        if segments.last().is_some_and(|last| start < last.range.end) {
            continue;
        }
        let mut contradictions = CorruptionLog::default();
        let segment = Segment::read(memory, layout, start, Some(&mut contradictions));
        let Some(segment) = segment.filter(|it| it.secret == secret) else { continue };
        for it in contradictions.entries {
            log.add(it.block, it.address, &it.expected, it.found);
        }
        segments.push(segment);
    }
    Some((layout, segments))
}

/// Returns the addresses at which a segment can begin, in ascending order.
fn starts(mappings: &[Mapping]) -> Vec<u64> {
    const ALIGNMENT: u64 = SegmentLayout::MIN_ALIGNMENT;
    let may_hold = |it: &&Mapping| {
        it.sharing != Sharing::Shared
            && it.prot.write
            && it.backing() == Backing::Anonymous
            && it.range.end <= MAX_ADDRESS
    };
    let aligned = |it: &Mapping| {
        let first = it.range.start.max(ALIGNMENT).next_multiple_of(ALIGNMENT);
        (first..it.range.end).step_by(usize::try_from(ALIGNMENT).unwrap_or(usize::MAX))
    };
    mappings.iter().filter(may_hold).flat_map(aligned).collect()
}

impl Segment {
    /// Reads the segment at `start`. Without `log`, any contradiction to the layout returns `None`;
    /// with `log`, contradictions in the table are added to it.
    fn read(
        memory: &dyn Memory,
        layout: &SegmentLayout,
        start: u64,
        mut log: Option<&mut CorruptionLog>,
    ) -> Option<Segment> {
        let mut header = vec![0; usize::try_from(layout.slices).ok()?];
        if !start.is_multiple_of(layout.bytes) || !memory.read(start, &mut header) {
            return None;
        }
        let [cookie, count, info, entries, thread] =
            [layout.cookie, layout.slice_count, layout.info_slices, layout.entries, layout.thread]
                .map(|at| word(&header, at));
        let kind = half(&header, layout.is_huge);
        let is_huge = kind == 1;
        // In builds with guard pages, `entries` does not include the last slice.
        let full = count.min(layout.max_entries());
        let makes_sense = kind <= 1
            && cookie != 0
            && (1..=MAX_INFO_SLICES).contains(&info)
            && info < count
            && count < MAX_ADDRESS / SLICE
            && (full - 1..=full).contains(&entries)
            && (is_huge || count == layout.max_entries());
        if !makes_sense {
            return None;
        }
        let range = AddrRange { start, end: start + count * SLICE };
        let mut segment = Segment {
            range,
            is_huge,
            thread,
            secret: cookie ^ start,
            free_bytes: 0,
            gap: None,
            pages: Vec::new(),
        };
        let table = start + layout.slices;
        let table = AddrRange { start: table, end: table + entries * layout.page.bytes };
        let bytes = read_sparse(memory, table);
        let mut index = 0;
        while index < entries {
            let slice = SliceEntry { layout, segment: &segment, bytes: &bytes, index };
            let address = table.start + index * layout.page.bytes;
            let slices = slice.slices();
            match slice.span(info) {
                SliceSpan::Broken { offset, expected } => {
                    let log = log.as_mut()?;
                    log.add(start, address + offset, expected, slice.word(offset));
                    let first = start + index * SLICE;
                    segment.gap = Some(AddrRange { start: first, end: range.end });
                    break;
                }
                SliceSpan::Free => segment.free_bytes += slices.len().0,
                SliceSpan::Page if index > 0 => {
                    let entry = slice.entry().to_vec();
                    segment.pages.push(PageSpan { slices, address, entry });
                }
                SliceSpan::Page => {}
            }
            index += slices.len().0 / SLICE;
        }
        Some(segment)
    }
}

/// A table entry of a segment.
struct SliceEntry<'a> {
    layout: &'a SegmentLayout,
    segment: &'a Segment,
    bytes: &'a [u8],
    index: u64,
}

impl SliceEntry<'_> {
    fn entry(&self) -> &[u8] {
        let at = |index: u64| usize::try_from(index * self.layout.page.bytes).unwrap_or(usize::MAX);
        self.bytes.get(at(self.index)..at(self.index + 1)).unwrap_or_default()
    }

    fn word(&self, offset: u64) -> u64 {
        word(self.entry(), offset)
    }

    /// Address range of the page or free run that begins with this entry.
    fn slices(&self) -> AddrRange {
        let start = self.segment.range.start + self.index * SLICE;
        let count = u64::from(half(self.entry(), SLICE_COUNT));
        AddrRange { start, end: start + count * SLICE }
    }

    fn span(&self, info_slices: u64) -> SliceSpan {
        let (entry, slices) = (self.entry(), self.slices());
        let broken = |offset, expected| SliceSpan::Broken { offset, expected };
        if half(entry, SLICE_DISTANCE) != 0 {
            return broken(SLICE_DISTANCE, "the first slice of a page");
        }
        let is_info = self.index == 0;
        let fits = slices.end <= self.segment.range.end
            && !slices.is_empty()
            && (!is_info || slices.len().0 == info_slices * SLICE);
        if !fits {
            return broken(SLICE_COUNT, "a number of slices in the segment");
        }
        let page = PageEntry { layout: self.layout, entry, slices };
        match page.block_size() {
            _ if is_info => SliceSpan::Page,
            0 => SliceSpan::Free,
            TAKEN_FROM_QUEUE if page.capacity() == 0 => SliceSpan::Free,
            _ if page.capacity() == 0 || page.is_sound() => SliceSpan::Page,
            _ => broken(CAPACITY, "a page whose blocks fit into its slices"),
        }
    }
}

/// A table entry that begins a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageEntry<'a> {
    pub(super) layout: &'a SegmentLayout,
    pub(super) entry: &'a [u8],
    pub(super) slices: AddrRange,
}

impl PageEntry<'_> {
    pub(super) fn word(&self, offset: u64) -> u64 {
        word(self.entry, offset)
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::from(half(self.entry, CAPACITY) & 0xffff)
    }

    pub(super) fn reserved(&self) -> u64 {
        u64::from(half(self.entry, RESERVED) & 0xffff)
    }

    pub(super) fn used(&self) -> u64 {
        let page = &self.layout.page;
        let mask = if page.has_halves { u32::MAX } else { 0xffff };
        u64::from(half(self.entry, page.used) & mask)
    }

    pub(super) fn block_size(&self) -> u64 {
        let page = &self.layout.page;
        if !page.has_halves {
            return self.word(page.block_size);
        }
        let size = u64::from(half(self.entry, page.block_size));
        if size >= HUGE_BLOCK { self.slices.len().0 } else { size }
    }

    fn is_sound(&self) -> bool {
        let size = self.block_size();
        let first = self.layout.page.first_block.map(|at| self.word(at));
        let start = first.unwrap_or(self.slices.start);
        let bytes = size.checked_mul(self.reserved());
        size >= MIN_BLOCK
            && self.capacity() <= self.reserved()
            && self.used() <= self.capacity()
            && (self.slices.start..self.slices.end).contains(&start)
            && bytes.is_some_and(|bytes| bytes <= self.slices.end - start)
    }
}

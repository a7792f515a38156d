//! Memory of the allocator outside of its heaps: blocks with mappings of their own, and parts of
//! the main arena that were mapped because the brk heap could not grow.
//!
//! No list leads to either, so every known page of anonymous memory is examined. The kernel merges
//! neighbouring mappings, so a block may begin at any page of one.

use pagewise_heaplog::glibc_chunk::{
    self, FLAGS, HEADER, MAPPED, MIN_CHUNK, PREVIOUS_IN_USE, UNIT,
};
use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping, PageSize};

use super::arena::HeapSegment;
use crate::blocks::LiveBlock;
use crate::memory::Memory;

/// Size of the chunk before the end of a part, and of the one behind it (fenceposts).
pub(super) const FENCEPOST: u64 = 16;
/// No part of an arena has more chunks than this.
const MAX_CHUNKS: u64 = 1 << 32;

/// A block with a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedChunk {
    /// Its pages.
    pub(super) pages: AddrRange,
    pub(super) block: LiveBlock,
}

/// The memory that was found.
#[derive(Debug, Default)]
pub(super) struct OutsideMemory {
    /// In order of address.
    pub(super) blocks: Vec<MappedChunk>,
    /// Parts of the main arena, in order of address.
    pub(super) main: Vec<AddrRange>,
}

/// Searches anonymous memory outside of `segments`, which are in order of address. `top` is the
/// last chunk of a main arena that has parts outside of the brk heap.
pub(super) fn outside(
    memory: &dyn Memory,
    segments: &[HeapSegment],
    page_size: PageSize,
    top: Option<u64>,
) -> OutsideMemory {
    let page = page_size.bytes();
    let mut found = OutsideMemory::default();
    let mut behind = 0;
    for mapping in memory.mappings().iter().filter(|mapping| may_hold_blocks(mapping)) {
        memory.visit(mapping.range, &mut |address, bytes| {
            let end = address.saturating_add(bytes.len() as u64);
            let mut at = address.max(behind).next_multiple_of(page);
            while at < end {
                if let Some(segment_end) = segment_end(segments, at) {
                    at = segment_end.next_multiple_of(page);
                    continue;
                }
                let offset = usize::try_from(at - address).unwrap_or(usize::MAX);
                let header = bytes.get(offset..).and_then(|rest| rest.first_chunk());
                let Some(header) = header else { break };
                let limit = AddrRange { start: at, end: mapping.range.end };
                at = found.add(memory, header, limit, page, top).unwrap_or(at + page);
            }
            behind = at;
        });
    }
    found
}

fn may_hold_blocks(mapping: &Mapping) -> bool {
    let name = mapping.name.as_bytes();
    mapping.sharing == Sharing::Private
        && mapping.prot.write
        && mapping.backing() == Backing::Anonymous
        && name != b"[heap]"
        && name != b"[stack]"
}

fn segment_end(segments: &[HeapSegment], at: u64) -> Option<u64> {
    let index = segments.partition_point(|it| it.chunks.end <= at);
    segments.get(index).filter(|it| it.start <= at).map(|it| it.chunks.end)
}

impl OutsideMemory {
    /// Adds what begins at the start of `limit`, and returns its end.
    fn add(
        &mut self,
        memory: &dyn Memory,
        header: &[u8; 16],
        limit: AddrRange,
        page: u64,
        top: Option<u64>,
    ) -> Option<u64> {
        let [before, head] =
            [0, 8].map(|at| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        let size = glibc_chunk::size(head);
        if before != 0 || size < MIN_CHUNK {
            return None;
        }
        if head & FLAGS == MAPPED && size.is_multiple_of(page) && size <= limit.len().0 {
            let pages = AddrRange { start: limit.start, end: limit.start + size };
            self.blocks.push(MappedChunk { pages, block: block(memory, pages) });
            return Some(pages.end);
        }
        let top = top.filter(|_| head & FLAGS == PREVIOUS_IN_USE)?;
        let end = part_end(memory, limit, top)?;
        self.main.push(AddrRange { start: limit.start, end });
        Some(end)
    }
}

/// The block in a mapping. If it was requested with an alignment, its chunk begins further behind,
/// and the header at the start of the mapping is left over.
fn block(memory: &dyn Memory, pages: AddrRange) -> LiveBlock {
    let size = pages.len().0;
    let aligned = (5..u64::BITS).map(|power| 1_u64 << power).take_while(|it| *it < size);
    let chunks = aligned.filter_map(|alignment| {
        let block = (pages.start + HEADER).checked_next_multiple_of(alignment)?;
        let chunk = block - HEADER;
        let is_near = chunk - pages.start < MIN_CHUNK;
        Some(if is_near { chunk.checked_add(alignment)? } else { chunk })
    });
    let is_chunk = |chunk: &u64| {
        let lead = chunk - pages.start;
        *chunk < pages.end
            && memory.word(*chunk) == Some(lead)
            && memory.word(chunk + 8) == Some((size - lead) | MAPPED)
    };
    let chunk = chunks.into_iter().find(is_chunk).unwrap_or(pages.start);
    LiveBlock { start: chunk + HEADER, size: pages.end - chunk - HEADER }
}

/// The end of the part of a main arena that begins at the start of `limit`: behind its last chunk
/// or its fenceposts.
fn part_end(memory: &dyn Memory, limit: AddrRange, top: u64) -> Option<u64> {
    let mut chunk = limit.start;
    for _ in 0..MAX_CHUNKS {
        let head = memory.word(chunk.checked_add(8)?)?;
        let size = glibc_chunk::size(head);
        let end = chunk.checked_add(size).filter(|end| *end <= limit.end)?;
        if chunk == top {
            return Some(end);
        }
        if size == FENCEPOST {
            return (memory.word(end + 8)? == FENCEPOST | PREVIOUS_IN_USE)
                .then_some(end + FENCEPOST);
        }
        if size < MIN_CHUNK || !size.is_multiple_of(UNIT) || head & (FLAGS - PREVIOUS_IN_USE) != 0 {
            return None;
        }
        chunk = end;
    }
    None
}

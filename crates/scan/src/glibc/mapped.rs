//! Memory of the allocator outside of its heaps: blocks with their own mappings, and parts of the
//! main arena that were mapped because the brk heap could not grow.
//!
//! No list of the allocator refers to this memory, so every known page of anonymous memory is
//! examined. The kernel merges neighboring mappings, so a block may begin at any page of a mapping.

use pagewise_heaplog::glibc_chunk::{
    self, FLAGS, HEADER, MAPPED, MIN_CHUNK, PREVIOUS_IN_USE, UNIT,
};
use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping};

use super::arena::{HeapSegment, MAX_ADDRESS};
use crate::blocks::LiveBlock;
use crate::memory::Memory;

/// Size in bytes of each of the two fenceposts: the last two chunks of a part of a main arena.
pub(super) const FENCEPOST: u64 = 16;
/// Maximum number of headers that are examined without result before the search ends. In hostile
/// memory every page can begin a chain of headers through all other pages.
const MAX_TRIES: u64 = 8 << 20;

/// A block with its own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedChunk {
    /// Address range of the mapping.
    pub(super) pages: AddrRange,
    pub(super) block: LiveBlock,
}

impl MappedChunk {
    /// Address of the chunk header of the block.
    pub(super) fn chunk(&self) -> u64 {
        self.block.start - HEADER
    }
}

/// Results of the search.
#[derive(Debug, Default)]
pub(super) struct OutsideMemory {
    /// Blocks with their own mappings, in order of address.
    pub(super) blocks: Vec<MappedChunk>,
    /// Parts of the main arena, in order of address.
    pub(super) main: Vec<AddrRange>,
    /// Address of the page at which the search ended early; `None` if the search examined all
    /// memory.
    pub(super) ended_at: Option<u64>,
}

/// Properties of the memory in which the search takes place.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutsideLayout {
    /// Page size in bytes.
    pub(super) page: u64,
    /// Number of bytes between the end of a chunk and the end of its mapping.
    pub(super) mapped_end: u64,
    /// Address of the last chunk of a main arena; `None` if the arena is only in the brk heap.
    pub(super) top: Option<u64>,
}

/// Searches the anonymous memory outside of `segments`, which are in order of address.
pub(super) fn outside(
    memory: &dyn Memory,
    segments: &[HeapSegment],
    layout: OutsideLayout,
) -> OutsideMemory {
    let page = layout.page;
    let found = OutsideMemory::default();
    let mut search = PageSearch { memory, layout, found, tries: MAX_TRIES };
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
                at = search.add(header, limit).unwrap_or(at + page);
            }
            behind = at;
        });
    }
    search.found
}

fn may_hold_blocks(mapping: &Mapping) -> bool {
    let name = mapping.name.as_bytes();
    mapping.sharing == Sharing::Private
        && mapping.prot.write
        && mapping.backing() == Backing::Anonymous
        && mapping.range.end <= MAX_ADDRESS
        && name != b"[heap]"
        && name != b"[stack]"
}

fn segment_end(segments: &[HeapSegment], at: u64) -> Option<u64> {
    let index = segments.partition_point(|it| it.chunks.end <= at);
    segments.get(index).filter(|it| it.start <= at).map(|it| it.chunks.end)
}

/// State of the search for blocks and parts of the main arena.
struct PageSearch<'a> {
    memory: &'a dyn Memory,
    layout: OutsideLayout,
    found: OutsideMemory,
    /// Number of headers that the search may still examine without result.
    tries: u64,
}

impl PageSearch<'_> {
    /// Adds the block or part that begins at the start of `limit` and returns its end; `None` if
    /// neither begins there.
    fn add(&mut self, header: &[u8; 16], limit: AddrRange) -> Option<u64> {
        let layout = self.layout;
        let [before, head] =
            [0, 8].map(|at| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        let size = glibc_chunk::size(head);
        if before != 0 || size < MIN_CHUNK || self.tries == 0 {
            return None;
        }
        let pages = size.checked_add(layout.mapped_end)?;
        if head & FLAGS == MAPPED && pages.is_multiple_of(layout.page) {
            let chunk = mapped_chunk(self.memory, limit, pages, layout);
            let Some(chunk) = chunk else {
                self.add_failure(limit, limit.len().0.min(pages) / layout.page);
                return None;
            };
            self.found.blocks.push(chunk);
            return Some(chunk.pages.end);
        }
        let top = layout.top.filter(|_| head & FLAGS == PREVIOUS_IN_USE)?;
        match part_end(self.memory, limit, top) {
            Ok(end) => {
                let end = end.next_multiple_of(layout.page);
                self.found.main.push(AddrRange { start: limit.start, end });
                Some(end)
            }
            Err(headers) => {
                self.add_failure(limit, headers);
                None
            }
        }
    }

    fn add_failure(&mut self, limit: AddrRange, headers: u64) {
        self.tries = self.tries.saturating_sub(headers);
        if self.tries == 0 {
            self.found.ended_at = Some(limit.start);
        }
    }
}

/// Returns the block in the mapping that begins at the start of `limit` and has `bytes` bytes
/// according to its first header.
fn mapped_chunk(
    memory: &dyn Memory,
    limit: AddrRange,
    bytes: u64,
    layout: OutsideLayout,
) -> Option<MappedChunk> {
    let unaligned = (limit.start, limit.start.checked_add(bytes)?);
    let (chunk, end) = aligned_chunk(memory, limit, bytes, layout).unwrap_or(unaligned);
    // If the mapping extends beyond the chunk, the block includes the first word after the chunk.
    let block_end = end - layout.mapped_end / 2;
    (end <= limit.end).then_some(MappedChunk {
        pages: AddrRange { start: limit.start, end },
        block: LiveBlock { start: chunk + HEADER, size: block_end.checked_sub(chunk + HEADER)? },
    })
}

/// Returns the chunk and its end if the block was requested with an alignment. Such a chunk begins
/// later in the mapping, and its first word is the distance from the start of the mapping.
///
/// The header at the start of the mapping is obsolete. A later `realloc` can have changed the size,
/// and moved the mapping to an address with a smaller alignment, so the block can begin at any
/// page.
fn aligned_chunk(
    memory: &dyn Memory,
    limit: AddrRange,
    bytes: u64,
    layout: OutsideLayout,
) -> Option<(u64, u64)> {
    let page = layout.page;
    let end_of = |chunk: u64, lead: u64, head: u64| {
        let size = glibc_chunk::size(head).checked_add(layout.mapped_end)?;
        let end = chunk.checked_add(size)?;
        let is_chunk = lead == chunk - limit.start
            && head & FLAGS == MAPPED
            && end.is_multiple_of(page)
            && (chunk + MIN_CHUNK..=limit.end).contains(&end);
        is_chunk.then_some((chunk, end))
    };
    let small = (5..).map(|power| 1_u64 << power).take_while(|alignment| *alignment < page);
    let small = small.filter_map(|alignment| {
        let chunk = limit.start + alignment - HEADER;
        // Until glibc 2.42 there had to be space for a minimum chunk before the aligned chunk.
        let is_too_near = alignment < HEADER + MIN_CHUNK && layout.mapped_end == 0;
        let chunk = if is_too_near { chunk + alignment } else { chunk };
        end_of(chunk, memory.word(chunk)?, memory.word(chunk + 8)?)
    });
    let mut found = small.into_iter().next();
    let within = AddrRange { start: limit.start, end: limit.start.checked_add(bytes)? };
    memory.visit(within, &mut |address, bytes| {
        let word = |at: usize| {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        let mut boundary = (address + HEADER).next_multiple_of(page);
        while found.is_none() && boundary <= address + bytes.len() as u64 {
            let chunk = boundary - HEADER;
            let at = usize::try_from(chunk - address).unwrap_or(usize::MAX);
            found = end_of(chunk, word(at), word(at.saturating_add(8)));
            boundary += page;
        }
    });
    found
}

/// Returns the end of the part of a main arena that begins at the start of `limit`: the end of its
/// last chunk or of its fenceposts. The error is the number of headers that were examined.
fn part_end(memory: &dyn Memory, limit: AddrRange, top: u64) -> Result<u64, u64> {
    let mut chunk = limit.start;
    for headers in 1.. {
        match PartStep::at(memory, limit, top, chunk) {
            Some(PartStep::Chunk(end)) => chunk = end,
            Some(PartStep::Last(end)) => return Ok(end),
            None => return Err(headers),
        }
    }
    Err(u64::MAX)
}

/// A chunk in a part of a main arena, with the end address of the chunk.
enum PartStep {
    Chunk(u64),
    Last(u64),
}

impl PartStep {
    fn at(memory: &dyn Memory, limit: AddrRange, top: u64, chunk: u64) -> Option<PartStep> {
        let head = memory.word(chunk.checked_add(8)?)?;
        let size = glibc_chunk::size(head);
        let end = chunk.checked_add(size).filter(|end| *end <= limit.end)?;
        if chunk == top {
            return (end > chunk).then_some(PartStep::Last(end));
        }
        if size == FENCEPOST {
            let is_last = memory.word(end + 8)? == FENCEPOST | PREVIOUS_IN_USE;
            return is_last.then_some(PartStep::Last(end + FENCEPOST));
        }
        let is_chunk =
            size >= MIN_CHUNK && size.is_multiple_of(UNIT) && head & (FLAGS - PREVIOUS_IN_USE) == 0;
        is_chunk.then_some(PartStep::Chunk(end))
    }
}

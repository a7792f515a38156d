//! Heap walk of mimalloc 2 in the memory of a process.
//!
//! ```text
//!  layout    the layouts of all supported versions
//!  segments  segments, found and checked by structure
//!  pages     pages with blocks of one size, and their free lists
//! ```
//!
//! A segment is aligned to its size, and begins with a table of its slices of 64 KiB. A page is a
//! run of slices that contains blocks of one size. A free block is in one of four lists. Three
//! lists belong to its page: two for the owner of the page, and one for blocks freed by other
//! threads. The fourth list belongs to the heap that owns the page. All other blocks are in use.
//! Each thread owns segments; the segments of an ended thread have no owner.
//!
//! mimalloc does not guarantee these layouts, so all data is checked, and each contradiction is
//! reported. The number of blocks that fit into the pages bounds every loop.

mod layout;
mod pages;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pagewise_model::heap_scan::{HeapAllocator, WalkedArena};
use pagewise_model::{AddrRange, PageSize};

use crate::ScanError;
use crate::memory::{Memory, file_name};
use crate::slot_heap::{SlotHeap, SlotOwner};
use crate::walk::AllocatorWalk;
use pages::{BlockPage, PageReader};
use segments::Segment;

/// Prefix of the library's file name.
pub(crate) const LIBRARY: &[u8] = b"libmimalloc";

const NO_SEGMENT: &str =
    "it has no segment of mimalloc 2.0.6 to 2.3, and other versions have other layouts";

/// Walks the heap of mimalloc. Returns `None` if the process has no segment of mimalloc.
///
/// # Errors
/// [`ScanError::NotWalked`] if the process maps the library of mimalloc, and no supported layout
/// matches its data.
///
/// # Complexity
/// O(n log n) in the number of blocks.
pub(crate) fn walk(
    memory: &dyn Memory,
    page_size: PageSize,
) -> Result<Option<AllocatorWalk>, ScanError> {
    let mut heap = SlotHeap::default();
    let Some((layout, segments)) = segments::segments(memory, &mut heap.log) else {
        return match has_library(memory) {
            true => Err(ScanError::NotWalked { allocator: "mimalloc", why: NO_SEGMENT.to_owned() }),
            false => Ok(None),
        };
    };
    let owners = add_arenas(&mut heap, memory, &segments);
    let mut reader = PageReader::new(memory, layout, &segments);
    reader.read_lists(&mut heap.log);
    for segment in &segments {
        add_segment(&mut heap, segment, segment_owner(segment, &owners), &owners);
    }
    for page in reader.pages() {
        let segment = &segments[page.segment];
        let owner = segment_owner(segment, &owners);
        add_page(&mut heap, &reader, page, owner, owners[&segment.thread]);
    }
    let allocator = HeapAllocator {
        name: "mimalloc".to_owned(),
        thread_caches: layout.name.to_owned(),
        ..HeapAllocator::default()
    };
    Ok(Some(heap.finish(memory, page_size, allocator)))
}

/// True if the process maps the library of mimalloc. A program that is linked statically with
/// mimalloc maps no such file.
fn has_library(memory: &dyn Memory) -> bool {
    memory.mappings().iter().any(|mapping| file_name(mapping.path()).starts_with(LIBRARY))
}

/// Arena numbers by thread pointer: one arena for each thread that owns segments, and one for all
/// segments without an owner.
type ArenaNumbers = BTreeMap<u64, usize>;

fn add_arenas(heap: &mut SlotHeap, memory: &dyn Memory, segments: &[Segment]) -> ArenaNumbers {
    let threads = memory.threads();
    let main = threads.iter().min_by_key(|thread| thread.tid).map(|it| it.thread_pointer);
    let mut pointers: Vec<u64> = segments.iter().map(|segment| segment.thread).collect();
    pointers.sort_unstable_by_key(|pointer| (Some(*pointer) != main, *pointer));
    pointers.dedup();
    let mut numbers = ArenaNumbers::new();
    for pointer in pointers {
        numbers.insert(pointer, heap.arenas.len());
        heap.arenas.push(WalkedArena {
            state: pointer,
            is_main: Some(pointer) == main,
            threads: threads.iter().filter(|it| it.thread_pointer == pointer).count() as u64,
            threads_seen: true,
            ..WalkedArena::default()
        });
    }
    numbers
}

fn segment_owner(segment: &Segment, owners: &ArenaNumbers) -> SlotOwner {
    if segment.is_huge { SlotOwner::Mapped } else { SlotOwner::Arena(owners[&segment.thread]) }
}

fn add_segment(heap: &mut SlotHeap, segment: &Segment, owner: SlotOwner, owners: &ArenaNumbers) {
    heap.add_range(segment.range, owner);
    if !segment.is_huge {
        heap.arenas[owners[&segment.thread]].free.pages += segment.free_bytes;
    }
    if let Some(gap) = segment.gap {
        heap.add_gap(gap, "the table of its segment contradicts itself");
    }
}

fn add_page(
    heap: &mut SlotHeap,
    reader: &PageReader<'_>,
    page: &BlockPage,
    owner: SlotOwner,
    arena: usize,
) {
    let mut live = 0;
    let blocks = reader.live_blocks(page, &mut heap.log);
    for block in blocks {
        let end = page.blocks.start + page.block_size * (block.index + 1);
        let slot = AddrRange { start: end - page.block_size, end };
        heap.add_block(block.block, slot, owner);
        live += 1;
    }
    if page.is_in_change {
        heap.arenas[arena].is_locked = true;
    }
    if matches!(owner, SlotOwner::Arena(_)) {
        let free = (page.reserved - live) * page.block_size;
        let sum = &mut heap.arenas[arena].free;
        let bytes = if live == 0 { &mut sum.pages } else { &mut sum.slots };
        *bytes += free;
    }
}

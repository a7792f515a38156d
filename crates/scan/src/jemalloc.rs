//! Heap walk of jemalloc 5.2 and 5.3 in the memory of a process: extents, slabs and thread caches.
//!
//! ```text
//!  extent_tree   the radix tree of all extents, found and checked by structure
//!  extent        extents, and their layouts by version
//!  metadata      base blocks of the allocator's own data, and arenas
//!  thread_cache  free blocks in thread caches
//!  size_classes  sizes of blocks
//! ```
//!
//! Libraries are usually stripped, so all data is found by its structure. Each extent is checked
//! against the tree, each slab against its count of free slots, and each cached block against its
//! slab. The walk reports each contradiction and continues. Builds whose page size or quantum
//! differs from the default of x86-64 have another structure; the walk rejects them.

mod extent;
pub(crate) mod extent_tree;
mod metadata;
mod size_classes;
#[cfg(test)]
mod tests;
mod thread_cache;

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::slice;

use pagewise_model::heap_scan::{HeapGap, WalkedArena};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize};

use crate::ScanError;
use crate::blocks::LiveBlock;
use crate::corruption::CorruptionLog;
use crate::graph::range_without;
use crate::memory::Memory;
use crate::span_tally::{FreePages, SlotUse, SpanTally, joined, resident_runs};
use crate::walk::{AllocatorWalk, maps_library};
use extent::{Extent, ExtentLayout, ExtentState, tree_extents};
use extent_tree::{anonymous_memory, find_extent_trees};
use metadata::BaseBlocks;
use size_classes::{CLASSES, MAX_SLOTS, PAGE, class_size};
use thread_cache::{CachedBlock, ThreadCaches, thread_caches};

const NAME: &str = "jemalloc";
const NO_TREE: &str = "no tree of extents of jemalloc 5.2 or 5.3, with pages of 4 KiB and addresses of 48 or 57 bits, was found in the data of the program and its libraries";
const UNKNOWN_PAGES: &str = "its pages are in swap or could not be read";
const UNKNOWN_USE: &str = "the data of its extent contradicts itself";

/// Walks the heaps of jemalloc. Returns `None` if the process does not use jemalloc.
///
/// # Errors
/// [`ScanError::NotWalked`] if the process maps a library of jemalloc with an unsupported layout.
///
/// # Complexity
/// O(n log n) in the number of cached blocks, O(n) in the number of all other blocks.
pub fn walk(memory: &dyn Memory, page_size: PageSize) -> Result<Option<AllocatorWalk>, ScanError> {
    let anonymous = anonymous_memory(memory.mappings());
    let mut log = CorruptionLog::default();
    let structure = HeapStructure::read(memory, &anonymous, &mut log);
    let Some(layout) = ExtentLayout::detect(&structure.extents, memory) else {
        return match maps_library(memory.mappings(), b"libjemalloc") {
            false => Ok(None),
            true => Err(ScanError::NotWalked { allocator: NAME, why: NO_TREE.to_owned() }),
        };
    };
    Ok(Some(structure.walked(memory, page_size, layout, log)))
}

/// Sorts extents by address, and removes extents of unmapped pages and those that overlap another
/// extent.
fn retain_valid(extents: &mut Vec<Extent>, memory: &dyn Memory, log: &mut CorruptionLog) {
    let mappings = memory.mappings();
    extents.retain(|extent| {
        let start = extent.pages.start;
        let next = mappings.partition_point(|mapping| mapping.range.end <= start);
        let is_mapped = mappings.get(next).is_some_and(|it| it.range.contains(start));
        if !is_mapped {
            log.add(start, extent.edata, "an extent of mapped pages", start);
        }
        is_mapped
    });
    extents.sort_by_key(|extent| extent.pages.start);
    let mut end = 0;
    extents.retain(|extent| {
        let is_apart = extent.pages.start >= end;
        if is_apart {
            end = extent.pages.end;
        } else {
            log.add(extent.pages.start, extent.edata, "an extent behind the last one", end);
        }
        is_apart
    });
}

/// Extents, base blocks and thread caches of a process.
struct HeapStructure<'a> {
    /// Extents in order of address, without overlaps.
    extents: Vec<Extent>,
    /// Pages whose extents could not be read.
    unread: Vec<u64>,
    roots: Vec<AddrRange>,
    base: BaseBlocks<'a>,
    caches: ThreadCaches,
}

impl<'a> HeapStructure<'a> {
    fn read(
        memory: &'a dyn Memory,
        anonymous: &'a [AddrRange],
        log: &mut CorruptionLog,
    ) -> HeapStructure<'a> {
        let mut base = BaseBlocks::new(memory, anonymous);
        let mut extents: Vec<Extent> = Vec::new();
        let (mut unread, mut roots) = (Vec::new(), Vec::new());
        find_extent_trees(memory, anonymous, &mut |tree| {
            let mut own_log = CorruptionLog::default();
            let found = tree_extents(memory, tree, &mut own_log);
            // A structure that looks like a tree by chance has no consistent extents.
            if ExtentLayout::detect(&found.extents, memory).is_none() {
                return false;
            }
            log.count += own_log.count;
            log.entries.extend(own_log.entries);
            roots.push(tree.root_range());
            found.nodes.iter().for_each(|node| {
                base.find(node.start);
            });
            extents.extend(found.extents);
            unread.extend(found.unread);
            true
        });
        retain_valid(&mut extents, memory, log);
        extents.iter().for_each(|extent| {
            base.find(extent.edata);
        });
        for block in base.blocks().to_vec() {
            base.arena_of(block);
        }
        let caches = thread_caches(memory, &base, log);
        HeapStructure { extents, unread, roots, base, caches }
    }

    fn walked(
        mut self,
        memory: &dyn Memory,
        page_size: PageSize,
        layout: ExtentLayout,
        mut log: CorruptionLog,
    ) -> AllocatorWalk {
        let arenas = ArenaRows::read(&mut self);
        let spans = joined(self.extents.iter().map(|extent| extent.pages));
        let runs = resident_runs(memory, &spans);
        let mut walk = ExtentWalk {
            memory,
            layout,
            tally: SpanTally::new(page_size, &runs, arenas.rows.clone()),
            cached: self.caches.blocks.iter().peekable(),
            internal: self.caches.internal.iter().peekable(),
            gaps: Vec::new(),
            log: &mut log,
        };
        self.extents.iter().for_each(|extent| walk.add(arenas.row(extent.arena()), extent));
        walk.report_strays(u64::MAX);
        let ExtentWalk { mut tally, mut gaps, .. } = walk;
        for (range, row) in &arenas.metadata {
            let resident = resident_runs(memory, &[*range]).iter().map(|run| run.len().0).sum();
            tally.add_metadata(*row, *range, resident);
        }
        let why = || Absent::NotCollected(UNKNOWN_PAGES.into());
        gaps.extend(self.unread.iter().map(|page| HeapGap {
            start: *page,
            bytes: Bytes(PAGE),
            why: why(),
        }));
        gaps.sort_by_key(|gap| gap.start);
        let managed = self.managed(&gaps);
        tally.finish().into_walk(NAME, layout.name, log, gaps, managed)
    }

    /// Returns the ranges of extents, base blocks and roots of trees, without gaps, whose blocks
    /// are unknown.
    fn managed(&self, gaps: &[HeapGap]) -> Vec<AddrRange> {
        let mut ranges: Vec<AddrRange> = self.extents.iter().map(|extent| extent.pages).collect();
        ranges.extend(self.base.ranges());
        ranges.extend(&self.roots);
        ranges.sort_unstable();
        let gaps: Vec<AddrRange> = gaps
            .iter()
            .map(|gap| AddrRange { start: gap.start, end: gap.start.saturating_add(gap.bytes.0) })
            .collect();
        joined(ranges).into_iter().flat_map(|range| range_without(range, &gaps)).collect()
    }
}

/// The arenas of a process as rows of the report, with the row of each arena number.
struct ArenaRows {
    rows: Vec<WalkedArena>,
    numbers: BTreeMap<u64, usize>,
    /// Range of each base block, and the row of its arena.
    metadata: Vec<(AddrRange, usize)>,
}

impl ArenaRows {
    fn read(structure: &mut HeapStructure<'_>) -> ArenaRows {
        let mut arenas =
            ArenaRows { rows: Vec::new(), numbers: BTreeMap::new(), metadata: Vec::new() };
        for extent in &structure.extents {
            arenas.insert(extent.arena());
        }
        for block in structure.base.blocks().to_vec() {
            let owner = structure.base.arena_of(block);
            let row = arenas.insert(owner.map_or(0, |(number, _)| number));
            arenas.metadata.push((block.range, row));
            if let Some((_, base)) = owner {
                arenas.rows[row].state = base;
            }
        }
        for arena in &structure.caches.arenas {
            let block = structure.base.find(*arena);
            if let Some((number, _)) = block.and_then(|block| structure.base.arena_of(block)) {
                let row = arenas.insert(number);
                arenas.rows[row].threads += 1;
            }
        }
        arenas
    }

    fn insert(&mut self, number: u64) -> usize {
        let next = self.rows.len();
        let row = *self.numbers.entry(number).or_insert(next);
        if row == next {
            let is_main = number == 0;
            self.rows.push(WalkedArena { is_main, threads_seen: true, ..WalkedArena::default() });
        }
        row
    }

    fn row(&self, number: u64) -> usize {
        self.numbers.get(&number).copied().unwrap_or(0)
    }
}

/// State of the walk over all extents, in order of address.
struct ExtentWalk<'a, 'r> {
    memory: &'a dyn Memory,
    layout: ExtentLayout,
    tally: SpanTally<'r>,
    cached: Peekable<slice::Iter<'a, CachedBlock>>,
    internal: Peekable<slice::Iter<'a, u64>>,
    gaps: Vec<HeapGap>,
    log: &'a mut CorruptionLog,
}

impl ExtentWalk<'_, '_> {
    fn add(&mut self, arena: usize, extent: &Extent) {
        self.report_strays(extent.pages.start);
        match self.layout.state(extent) {
            // These pages are in a cache of extents for later slabs (`sec_t`).
            ExtentState::Active if self.layout.class(extent) == CLASSES => {
                self.tally.add_free(arena, extent.pages, FreePages::Kept);
            }
            ExtentState::Active if extent.is_slab() => self.add_slab(arena, extent),
            ExtentState::Active => self.add_large(arena, extent),
            ExtentState::Dirty | ExtentState::Muzzy => {
                self.tally.add_free(arena, extent.pages, FreePages::Kept);
            }
            ExtentState::Retained => {
                self.tally.add_free(arena, extent.pages, FreePages::Released);
            }
            ExtentState::Changing => self.tally.add_own(arena, extent.pages),
        }
        self.report_strays(extent.pages.end);
    }

    fn add_slab(&mut self, arena: usize, extent: &Extent) {
        let class = self.layout.class(extent);
        let Some((size, count)) = self.layout.slots(extent) else {
            self.log.add(extent.pages.start, extent.edata, "the size class of a slab", class);
            return self.add_gap(arena, extent, UNKNOWN_USE);
        };
        if self.layout.leaf_class(extent) != class {
            let leaf = self.layout.leaf_class(extent);
            let expected = format!("the size class {class} in the tree of extents");
            self.log.add(extent.pages.start, extent.edata, &expected, leaf);
        }
        let Some(free) = extent.free_slots(self.memory, count) else {
            return self.add_gap(arena, extent, UNKNOWN_PAGES);
        };
        let free_count = self.layout.free_count(extent);
        if free.count() != free_count {
            let expected = format!("the number {} of free slots", free.count());
            self.log.add(extent.pages.start, extent.edata, &expected, free_count);
        }
        let mut slots = [SlotUse::Live; MAX_SLOTS];
        for (index, slot) in slots.iter_mut().enumerate() {
            if free.contains(index) {
                *slot = SlotUse::Free;
            }
        }
        self.mark_cached(extent, class, size, &mut slots);
        self.mark_internal(extent, size, &mut slots);
        let slots = slots.into_iter().take(usize::try_from(count).unwrap_or(0));
        self.tally.add_slots(arena, extent.pages, size, slots);
    }

    /// Marks the slots of a slab that are in thread caches.
    fn mark_cached(&mut self, extent: &Extent, class: u64, size: u64, slots: &mut [SlotUse]) {
        while let Some(block) = self.cached.next_if(|it| it.address < extent.pages.end) {
            let offset = block.address - extent.pages.start;
            let index = usize::try_from(offset / size).unwrap_or(usize::MAX);
            let is_slot = offset.is_multiple_of(size) && block.class == class;
            match slots.get_mut(index).filter(|_| is_slot) {
                Some(slot) if *slot == SlotUse::Live => *slot = SlotUse::Cached,
                Some(_) => self.log.add(
                    block.address,
                    block.pointer,
                    "a cached block that is neither free nor in another thread cache",
                    block.address,
                ),
                None => self.log_stray(block),
            }
        }
    }

    /// Marks the slots that contain data of the allocator itself.
    fn mark_internal(&mut self, extent: &Extent, size: u64, slots: &mut [SlotUse]) {
        self.skip_internal(extent.pages.start);
        while let Some(address) = self.internal.next_if(|it| **it < extent.pages.end) {
            let index = usize::try_from((address - extent.pages.start) / size);
            if let Some(slot) = index.ok().and_then(|index| slots.get_mut(index)) {
                *slot = SlotUse::Internal;
            }
        }
    }

    fn skip_internal(&mut self, start: u64) {
        while self.internal.next_if(|it| **it < start).is_some() {}
    }

    fn add_large(&mut self, arena: usize, extent: &Extent) {
        let class = self.layout.class(extent);
        let Some(size) = self.layout.block_size(extent) else {
            let word = self.memory.word(extent.edata).unwrap_or(class);
            self.log.add(extent.address, extent.edata, "a size class that fits the extent", word);
            return self.add_gap(arena, extent, UNKNOWN_USE);
        };
        let mut slot = SlotUse::Live;
        while let Some(block) = self.cached.next_if(|it| it.address < extent.pages.end) {
            if block.address != extent.address || block.class != class {
                self.log_stray(block);
            } else if slot == SlotUse::Cached {
                let expected = "a block in one thread cache only";
                self.log.add(block.address, block.pointer, expected, block.address);
            } else {
                slot = SlotUse::Cached;
            }
        }
        self.skip_internal(extent.pages.start);
        while self.internal.next_if(|it| **it < extent.pages.end).is_some() {
            slot = SlotUse::Internal;
        }
        self.tally.add_block(arena, extent.pages, LiveBlock { start: extent.address, size }, slot);
    }

    /// Reports cached blocks below `end` that are neither in a slab nor large blocks.
    fn report_strays(&mut self, end: u64) {
        while let Some(block) = self.cached.next_if(|it| it.address < end) {
            self.log_stray(block);
        }
    }

    fn log_stray(&mut self, block: &CachedBlock) {
        let size = class_size(block.class).unwrap_or(0);
        let expected = format!("a block of {size} bytes where a thread cache has one");
        self.log.add(block.address, block.pointer, &expected, block.address);
    }

    fn add_gap(&mut self, arena: usize, extent: &Extent, why: &'static str) {
        let pages = extent.pages;
        self.tally.add_own(arena, pages);
        let why = Absent::NotCollected(why.into());
        self.gaps.push(HeapGap { start: pages.start, bytes: pages.len(), why });
    }
}

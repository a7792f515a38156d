//! Sums of an allocator whose pages contain slots of one size. Its walker may add memory and blocks
//! in any order.

use pagewise_model::heap_scan::{
    HeapAllocator, HeapGap, LiveAmount, MappedBlocks, WalkedArena, WalkedHeap,
};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize};

use crate::blocks::{BlockTable, LiveBlock};
use crate::corruption::CorruptionLog;
use crate::density::{CELLS, PageDensityCounter, resident_in};
use crate::graph::range_without;
use crate::memory::Memory;
use crate::size_tally::SizeTally;
use crate::walk::AllocatorWalk;

/// Upper bound of accepted addresses. No program has memory above it, so sums of addresses and
/// sizes cannot overflow.
pub(crate) const MAX_ADDRESS: u64 = 1 << 62;
/// Maximum number of gaps that are stored.
const MAX_GAPS: usize = 100;
pub(crate) const NOT_RESIDENT: &str = "its pages are in swap or could not be read";

/// Owner of a memory range or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOwner {
    /// The arena with this index.
    Arena(usize),
    /// A block with its own mapping, which belongs to no arena.
    Mapped,
}

/// A live block and its slot.
#[derive(Clone, Copy, Debug)]
struct SlotBlock {
    block: LiveBlock,
    slot: AddrRange,
    owner: SlotOwner,
}

/// Collected memory ranges and blocks of an allocator.
#[derive(Debug, Default)]
pub(crate) struct SlotHeap {
    /// Arenas. `finish` computes their sizes, resident bytes and live blocks.
    pub(crate) arenas: Vec<WalkedArena>,
    pub(crate) log: CorruptionLog,
    ranges: Vec<(AddrRange, SlotOwner)>,
    blocks: Vec<SlotBlock>,
    gaps: Vec<HeapGap>,
}

impl SlotHeap {
    /// Adds a memory range of the allocator.
    pub(crate) fn add_range(&mut self, range: AddrRange, owner: SlotOwner) {
        self.ranges.push((range, owner));
    }

    /// Adds a live block.
    pub(crate) fn add_block(&mut self, block: LiveBlock, slot: AddrRange, owner: SlotOwner) {
        self.blocks.push(SlotBlock { block, slot, owner });
    }

    /// Adds memory whose use is unknown.
    pub(crate) fn add_gap(&mut self, range: AddrRange, why: &'static str) {
        let is_next = |last: &&mut HeapGap| last.start + last.bytes.0 == range.start;
        if let Some(last) = self.gaps.last_mut().filter(is_next) {
            last.bytes += range.len();
        } else if self.gaps.len() < MAX_GAPS {
            let (start, bytes) = (range.start, range.len());
            self.gaps.push(HeapGap { start, bytes, why: Absent::NotCollected(why.into()) });
        }
    }

    /// Computes the sums.
    ///
    /// # Complexity
    /// O(n log n) in the number of blocks.
    pub(crate) fn finish(
        mut self,
        memory: &dyn Memory,
        page_size: PageSize,
        allocator: HeapAllocator,
    ) -> AllocatorWalk {
        self.ranges.sort_unstable_by_key(|(range, _)| *range);
        self.blocks.sort_unstable_by_key(|it| (it.block.start, it.slot.start));
        let mut mapped = MappedBlocks::default();
        let runs = self.add_memory(memory, &mut mapped);
        let mut counter = PageDensityCounter::new(page_size.bytes(), &runs);
        let (mut blocks, mut sizes) = (BlockTable::default(), SizeTally::default());
        let mut gap = BlockGap::default();
        for SlotBlock { block, slot, owner } in std::mem::take(&mut self.blocks) {
            if !blocks.push(block) {
                let expected = "a block that overlaps no other";
                self.log.add(block.start, block.start, expected, block.size);
                continue;
            }
            sizes.add(block.size);
            let amount = LiveAmount { blocks: 1, bytes: block.size };
            let SlotOwner::Arena(arena) = owner else {
                mapped.live.add(amount);
                continue;
            };
            counter.add(slot);
            let between = gap.before(slot, &self.ranges);
            let sum = &mut self.arenas[arena];
            sum.live.add(amount);
            sum.live_chunks += slot.len();
            sum.largest_gap = sum.largest_gap.max(between);
        }
        let resident: Bytes = self.arenas.iter().map(|arena| arena.resident).sum();
        let density: [u64; CELLS] = counter.finish(resident.0 / page_size.bytes());
        for arena in &mut self.arenas {
            arena.system = arena.held;
            arena.own = arena.held.saturating_sub(arena.live_chunks + Bytes(arena.free.total()));
        }
        self.gaps.sort_by_key(|gap| gap.start);
        let managed = self.managed();
        let mut heap = WalkedHeap {
            allocators: vec![allocator],
            arenas: self.arenas,
            mapped,
            sizes: sizes.finish(),
            density: density.to_vec(),
            corruption: self.log.entries,
            corrupted: self.log.count,
            gaps: self.gaps,
            ..WalkedHeap::default()
        };
        heap.allocators[0].live = heap.live();
        AllocatorWalk { heap, blocks, managed }
    }

    /// Sums the memory ranges. Returns the resident parts of the ranges that belong to arenas.
    fn add_memory(&mut self, memory: &dyn Memory, mapped: &mut MappedBlocks) -> Vec<AddrRange> {
        let mut runs: Vec<AddrRange> = Vec::new();
        for &(range, owner) in &self.ranges {
            let mut own = Vec::new();
            memory.visit(range, &mut |start, bytes| {
                own.push(AddrRange { start, end: start + bytes.len() as u64 });
            });
            let resident = Bytes(resident_in(&own, range));
            let SlotOwner::Arena(arena) = owner else {
                mapped.held += range.len();
                mapped.resident += resident;
                continue;
            };
            let sum = &mut self.arenas[arena];
            if sum.parts == 0 {
                sum.start = range.start;
            }
            sum.parts += 1;
            sum.held += range.len();
            sum.resident += resident;
            for run in own {
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            }
        }
        runs
    }

    /// Returns all memory ranges without gaps. Gaps may contain unknown live blocks, so pointers in
    /// gaps count as roots.
    fn managed(&self) -> Vec<AddrRange> {
        let gaps = self
            .gaps
            .iter()
            .map(|gap| AddrRange { start: gap.start, end: gap.start.saturating_add(gap.bytes.0) });
        let gaps: Vec<AddrRange> = gaps.collect();
        self.ranges.iter().flat_map(|(range, _)| range_without(*range, &gaps)).collect()
    }
}

/// State for the gaps between consecutive live blocks.
#[derive(Debug, Default)]
struct BlockGap {
    /// Index of the memory range of the last block.
    range: usize,
    /// End of the slot of the last block.
    end: Option<u64>,
}

impl BlockGap {
    /// Number of bytes between `slot` and the slot of the last block; 0 if they are in different
    /// memory ranges.
    fn before(&mut self, slot: AddrRange, ranges: &[(AddrRange, SlotOwner)]) -> Bytes {
        while ranges.get(self.range).is_some_and(|(range, _)| range.end <= slot.start) {
            self.range += 1;
            self.end = None;
        }
        let end = self.end.replace(slot.end);
        Bytes(end.map_or(0, |end| slot.start.saturating_sub(end)))
    }
}

//! Walk of the pools of pagewise's own allocators (crate `alloc`, feature `stats`): each process
//! has a table with the memory of its pools.
//!
//! The blocks of a TLSF pool have headers, which are walked. All memory of another pool counts as
//! live: nothing in it divides live from free bytes.

mod tlsf;

use pagewise_model::heap_scan::{HeapAllocator, LiveAmount, WalkedArena, WalkedHeap};
use pagewise_model::name::escape;
use pagewise_model::pagewise_pools::RegisteredPool;
use pagewise_model::{AddrRange, Bytes, Name, PageSize};
use pagewise_proc::pagewise_pools::{parse_table, table_of};

use crate::ScanError;
use crate::blocks::{BlockTable, LiveBlock};
use crate::corruption::CorruptionLog;
use crate::memory::Memory;
use crate::size_tally::SizeTally;
use crate::walk::AllocatorWalk;

const NAME: &str = "pagewise pools";
const OTHER_VERSION: &str = "its table of pools is of another version of pagewise";
/// Maximum bytes of a table that are read; a table has 4 MiB.
const MAX_TABLE: u64 = 16 << 20;

/// Walks the pools of a process. Returns `None` if it has none with memory.
///
/// # Errors
/// [`ScanError::NotWalked`] if its table of pools is of another version.
///
/// # Complexity
/// O(n log n) in the number of ranges of memory, and linear in the blocks of TLSF pools.
pub(crate) fn walk(memory: &dyn Memory, _: PageSize) -> Result<Option<AllocatorWalk>, ScanError> {
    let Some(table) = table_of(memory.mappings()) else { return Ok(None) };
    let Some(pools) = parse_table(&bytes_of(memory, table.range)) else {
        return Err(ScanError::NotWalked { allocator: NAME, why: OTHER_VERSION.to_owned() });
    };
    let parts = parts(memory, &pools);
    if parts.is_empty() {
        return Ok(None);
    }
    let mut walk = PoolsWalk::new(memory, &pools);
    parts.iter().for_each(|part| walk.add_part(part));
    Ok(Some(walk.finish(&parts)))
}

fn bytes_of(memory: &dyn Memory, table: AddrRange) -> Vec<u8> {
    let range = AddrRange { end: table.end.min(table.start.saturating_add(MAX_TABLE)), ..table };
    let mut bytes = vec![0; usize::try_from(range.len().0).unwrap_or(0)];
    memory.visit(range, &mut |start, piece| {
        let offset = usize::try_from(start - range.start).unwrap_or(usize::MAX);
        let into = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..piece.len()));
        if let Some(into) = into {
            into.copy_from_slice(piece);
        }
    });
    bytes
}

/// Memory of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolPart {
    range: AddrRange,
    /// Number of the pool.
    pool: usize,
    is_tlsf: bool,
}

/// The memory of all pools that live, in order of address, without overlaps: a pool can have its
/// memory from another one.
fn parts(memory: &dyn Memory, pools: &[RegisteredPool]) -> Vec<PoolPart> {
    let living = pools.iter().enumerate().filter(|(_, pool)| pool.lives);
    let mut parts: Vec<PoolPart> = living
        .flat_map(|(number, pool)| {
            let is_tlsf = pool.kind.as_bytes() == b"tlsf";
            pool.ranges.iter().map(move |&range| PoolPart { range, pool: number, is_tlsf })
        })
        .filter(|part| is_mapped(memory, part.range))
        .collect();
    parts.sort_by_key(|part| (part.range.start, std::cmp::Reverse(part.range.end)));
    let mut end = 0;
    parts.retain(|part| {
        let is_behind = part.range.start >= end;
        end = end.max(part.range.end);
        is_behind
    });
    parts
}

fn is_mapped(memory: &dyn Memory, range: AddrRange) -> bool {
    let mappings = memory.mappings();
    let first = mappings.partition_point(|mapping| mapping.range.end <= range.start);
    let mut end = range.start;
    for mapping in &mappings[first..] {
        if mapping.range.start > end || end >= range.end {
            break;
        }
        end = mapping.range.end;
    }
    end >= range.end && range.start.is_multiple_of(8)
}

/// Sums of the walk.
struct PoolsWalk<'a> {
    memory: &'a dyn Memory,
    /// By pool.
    sums: Vec<WalkedArena>,
    blocks: BlockTable,
    sizes: SizeTally,
    log: CorruptionLog,
}

impl<'a> PoolsWalk<'a> {
    fn new(memory: &'a dyn Memory, pools: &[RegisteredPool]) -> PoolsWalk<'a> {
        let sums = pools.iter().map(|pool| WalkedArena {
            label: label(pool),
            is_main: true,
            ..WalkedArena::default()
        });
        PoolsWalk {
            memory,
            sums: sums.collect(),
            blocks: BlockTable::default(),
            sizes: SizeTally::default(),
            log: CorruptionLog::default(),
        }
    }

    fn add_part(&mut self, part: &PoolPart) {
        let is_tlsf = part.is_tlsf && self.add_tlsf(part);
        let sum = &mut self.sums[part.pool];
        if sum.parts == 0 {
            sum.start = part.range.start;
        }
        sum.parts += 1;
        sum.held += part.range.len();
        sum.system += part.range.len();
        let resident = &mut sum.resident.0;
        self.memory.visit(part.range, &mut |_, bytes| *resident += bytes.len() as u64);
        if !is_tlsf {
            let block = LiveBlock { start: part.range.start, size: part.range.len().0 };
            self.add_block(part.pool, block);
        }
    }

    /// Adds the blocks of a TLSF pool. Returns false if its headers contradict themselves.
    fn add_tlsf(&mut self, part: &PoolPart) -> bool {
        let Some(blocks) = tlsf::blocks(self.memory, part.range, &mut self.log) else {
            return false;
        };
        for (block, is_free) in blocks {
            if is_free {
                self.sums[part.pool].free.slots += block.size;
            } else {
                self.add_block(part.pool, block);
            }
        }
        true
    }

    fn add_block(&mut self, pool: usize, block: LiveBlock) {
        if self.blocks.push(block) {
            self.sizes.add(block.size);
            let sum = &mut self.sums[pool];
            sum.live.add(LiveAmount { blocks: 1, bytes: block.size });
            sum.live_chunks += Bytes(block.size);
        }
    }

    fn finish(self, parts: &[PoolPart]) -> AllocatorWalk {
        let PoolsWalk { mut sums, blocks, sizes, log, .. } = self;
        sums.retain(|sum| sum.parts > 0);
        for sum in &mut sums {
            sum.own = sum.held.saturating_sub(sum.live_chunks + Bytes(sum.free.total()));
        }
        sums.sort_by_key(|sum| sum.start);
        let mut heap = WalkedHeap {
            allocators: vec![HeapAllocator { name: NAME.to_owned(), ..HeapAllocator::default() }],
            arenas: sums,
            sizes: sizes.finish(),
            corruption: log.entries,
            corrupted: log.count,
            ..WalkedHeap::default()
        };
        heap.allocators[0].live = heap.live();
        let managed = parts.iter().map(|part| part.range).collect();
        AllocatorWalk { heap, blocks, managed }
    }
}

/// The kind of a pool, and the name that the program gave to it.
fn label(pool: &RegisteredPool) -> String {
    let text = |name: &Name| escape(name.as_bytes()).into_owned();
    [text(&pool.kind), text(&pool.name)].join(" ").trim_end().to_owned()
}

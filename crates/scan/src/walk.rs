//! The heap walks of all allocators of a process, combined into one heap.

use pagewise_model::heap_scan::{LiveAmount, LiveSize, RefusedAllocator, WalkedHeap};
use pagewise_model::{AddrRange, Mapping, PageSize};

use crate::blocks::{BlockTable, LiveBlock};
use crate::graph::range_without;
use crate::memory::{MaskedMemory, Memory, file_name};
use crate::{ScanError, cpython, glibc, jemalloc, mimalloc, musl, pagewise_pools, tcmalloc};

/// A walked heap and its live blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorWalk {
    /// Sums of the heap.
    pub heap: WalkedHeap,
    /// All live blocks.
    pub blocks: BlockTable,
    /// Memory that the allocators manage, in order of address, without the parts that could not be
    /// walked.
    pub managed: Vec<AddrRange>,
}

/// Walks the heap of one allocator. Returns `None` if the process does not use the allocator, and
/// [`ScanError::NotWalked`] if its layout is unknown.
type AllocatorWalker = fn(&dyn Memory, PageSize) -> Result<Option<AllocatorWalk>, ScanError>;

/// Walkers of allocators that get their memory from the kernel, in the order of their arenas in
/// reports.
const WALKERS: &[AllocatorWalker] = &[
    |memory, page_size| Ok(glibc::walk(memory, page_size)),
    jemalloc::walk,
    tcmalloc::walk,
    musl::walk,
    mimalloc::walk,
];

/// Walkers of allocators whose memory can be in blocks of the allocators of [`WALKERS`].
const NESTED_WALKERS: &[AllocatorWalker] = &[cpython::walk, pagewise_pools::walk];

/// Walks the heaps of all allocators of a process.
///
/// # Errors
/// - [`ScanError::NoHeap`] if the process uses no allocator that can be walked.
/// - [`ScanError::NotWalked`] if no allocator could be walked, and the layout of at least one
///   allocator is unsupported.
pub fn walk_heap(memory: &dyn Memory, page_size: PageSize) -> Result<AllocatorWalk, ScanError> {
    let mut refusals = Vec::new();
    let mut nested = walks(NESTED_WALKERS, memory, page_size, &mut refusals)?;
    let mut hidden: Vec<AddrRange> =
        nested.iter().flat_map(|walk| walk.managed.iter().copied()).collect();
    hidden.sort_unstable();
    // Blocks of a nested allocator can look like headers of another allocator, and the pages of a
    // nested allocator must count only once.
    let rest = MaskedMemory::new(memory, &hidden);
    let mut outer = walks(WALKERS, &rest, page_size, &mut refusals)?;
    for inner in &mut nested {
        outer.iter_mut().for_each(|outer| outer.replace_holders(inner));
    }
    let merged = outer.into_iter().chain(nested).reduce(|whole, walk| whole.with(&walk));
    let Some(mut whole) = merged else {
        return Err(refusals.pop().unwrap_or(ScanError::NoHeap(
            "no allocator that pagewise can walk was found: the program uses another one, or has not allocated yet",
        )));
    };
    whole.heap.refused.extend(refusals.into_iter().filter_map(refused_allocator));
    if whole.heap.allocators.iter().any(|allocator| allocator.name == cpython::NAME) {
        whole.heap.objects = cpython::live_types(memory, &whole.blocks);
    }
    Ok(whole)
}

fn walks(
    walkers: &[AllocatorWalker],
    memory: &dyn Memory,
    page_size: PageSize,
    refusals: &mut Vec<ScanError>,
) -> Result<Vec<AllocatorWalk>, ScanError> {
    let mut walks = Vec::new();
    for walker in walkers {
        match walker(memory, page_size) {
            Ok(walk) => walks.extend(walk),
            Err(refusal @ ScanError::NotWalked { .. }) => refusals.push(refusal),
            Err(other) => return Err(other),
        }
    }
    Ok(walks)
}

fn refused_allocator(refusal: ScanError) -> Option<RefusedAllocator> {
    let ScanError::NotWalked { allocator, why } = refusal else { return None };
    Some(RefusedAllocator { name: allocator.to_owned(), why })
}

impl AllocatorWalk {
    /// Removes the blocks that contain memory of a nested allocator, because the blocks of the
    /// nested allocator replace them. The other bytes of such a block can contain pointers of the
    /// program.
    fn replace_holders(&mut self, inner: &mut AllocatorWalk) {
        let ranges = inner.managed.iter();
        let mut holders: Vec<usize> =
            ranges.filter_map(|range| self.blocks.containing(range.start)).collect();
        holders.dedup();
        if holders.is_empty() {
            return;
        }
        let blocks: Vec<LiveBlock> =
            holders.iter().filter_map(|holder| self.blocks.get(*holder)).collect();
        let held: Vec<AddrRange> = blocks
            .iter()
            .map(|block| AddrRange { start: block.start, end: block.start + block.size })
            .collect();
        let parts = self.managed.iter().flat_map(|range| range_without(*range, &held));
        self.managed = parts.collect();
        self.blocks = self.blocks.without(&holders);
        for block in blocks {
            let amount = LiveAmount { blocks: 1, bytes: block.size };
            let own = self.heap.allocators.iter_mut();
            own.for_each(|allocator| allocator.live = allocator.live.without(amount));
            let others = inner.heap.allocators.iter_mut().take(1);
            others.for_each(|allocator| allocator.nested.add(amount));
            remove_size(&mut self.heap.sizes, block.size);
        }
    }

    /// Combines this heap with the heap of another allocator.
    fn with(mut self, other: &AllocatorWalk) -> AllocatorWalk {
        self.blocks = self.blocks.merged(&other.blocks);
        self.managed.extend_from_slice(&other.managed);
        self.managed.sort_unstable();
        self.heap.merge(other.heap.clone());
        self
    }
}

fn remove_size(sizes: &mut Vec<LiveSize>, size: u64) {
    let Ok(at) = sizes.binary_search_by_key(&size, |entry| entry.size) else { return };
    sizes[at].blocks = sizes[at].blocks.saturating_sub(1);
    if sizes[at].blocks == 0 {
        sizes.remove(at);
    }
}

/// True if a mapped file has a name that begins with `name`.
pub(crate) fn maps_library(mappings: &[Mapping], name: &[u8]) -> bool {
    let is_it = |mapping: &Mapping| file_name(mapping.path()).starts_with(name);
    mappings.iter().any(|mapping| mapping.inode != 0 && is_it(mapping))
}

#[cfg(test)]
mod tests {
    use pagewise_model::heap_scan::{HeapAllocator, WalkedArena};

    use super::*;
    use crate::graph::image::table;

    fn walk(name: &str, blocks: &[(u64, u64)], managed: &[(u64, u64)]) -> AllocatorWalk {
        let bytes = blocks.iter().map(|block| block.1).sum();
        let live = LiveAmount { blocks: blocks.len() as u64, bytes };
        let sizes = blocks.iter().map(|&(_, size)| LiveSize { size, blocks: 1 });
        let mut sizes: Vec<LiveSize> = sizes.collect();
        sizes.sort_by_key(|entry| entry.size);
        AllocatorWalk {
            heap: WalkedHeap {
                allocators: vec![HeapAllocator {
                    name: name.to_owned(),
                    live,
                    ..HeapAllocator::default()
                }],
                arenas: vec![WalkedArena { live, ..WalkedArena::default() }],
                sizes,
                ..WalkedHeap::default()
            },
            blocks: table(blocks.iter().copied()),
            managed: managed.iter().map(|&(start, end)| AddrRange { start, end }).collect(),
        }
    }

    #[test]
    fn blocks_of_a_nested_allocator_replace_the_block_that_holds_them() {
        let mut outer =
            walk("malloc", &[(0x1000, 32), (0x2000, 0x1000), (0x8000, 48)], &[(0x1000, 0x9000)]);
        let inner = &[(0x2110, 16), (0x2120, 24)];
        // A pool has two ranges in one block of the outer heap.
        let mut inner = walk("pool", inner, &[(0x2100, 0x2200), (0x2400, 0x2800)]);
        outer.replace_holders(&mut inner);
        let whole = outer.with(&inner);
        assert_eq!(whole.heap.live(), LiveAmount { blocks: 4, bytes: 32 + 48 + 16 + 24 });
        let all = [(0x1000, 32), (0x2110, 16), (0x2120, 24), (0x8000, 48)];
        assert_eq!(whole.blocks, table(all));
        let [malloc, pool] = &whole.heap.allocators[..] else { panic!() };
        assert_eq!(malloc.live, LiveAmount { blocks: 2, bytes: 80 });
        assert_eq!(pool.nested, LiveAmount { blocks: 1, bytes: 0x1000 });
        let sizes: Vec<u64> = whole.heap.sizes.iter().map(|entry| entry.size).collect();
        assert_eq!(sizes, [16, 24, 32, 48]);
        // The other bytes of the block can contain pointers of the program.
        let range = |start, end| AddrRange { start, end };
        let managed = [
            range(0x1000, 0x2000),
            range(0x2100, 0x2200),
            range(0x2400, 0x2800),
            range(0x3000, 0x9000),
        ];
        assert_eq!(whole.managed, managed);
    }
}

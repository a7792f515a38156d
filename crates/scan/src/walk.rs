//! The walks of all allocators of a process, as one heap.

use pagewise_model::heap_scan::{RefusedAllocator, WalkedHeap};
use pagewise_model::{AddrRange, Mapping, PageSize};

use crate::blocks::BlockTable;
use crate::memory::Memory;
use crate::{ScanError, glibc, jemalloc, tcmalloc};

/// A walked heap, and its live blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocatorWalk {
    /// Sums.
    pub heap: WalkedHeap,
    /// All live blocks.
    pub blocks: BlockTable,
    /// Memory that the allocators manage, in order of address, without parts that could not be
    /// walked.
    pub managed: Vec<AddrRange>,
}

/// Walks the heap of one allocator. Returns `None` if the process does not use the allocator, and
/// [`ScanError::NotWalked`] if its layout is unknown.
type AllocatorWalker = fn(&dyn Memory, PageSize) -> Result<Option<AllocatorWalk>, ScanError>;

/// All walkers, in the order of their arenas in reports.
const WALKERS: &[AllocatorWalker] =
    &[|memory, page_size| Ok(glibc::walk(memory, page_size)), jemalloc::walk, tcmalloc::walk];

/// Walks the heaps of all allocators of a process.
///
/// # Errors
/// - [`ScanError::NoHeap`] if the process uses no allocator of [`WALKERS`].
/// - [`ScanError::NotWalked`] if no allocator could be walked, and the layout of one is unknown.
pub fn walk_heap(memory: &dyn Memory, page_size: PageSize) -> Result<AllocatorWalk, ScanError> {
    let mut whole: Option<AllocatorWalk> = None;
    let mut refusals = Vec::new();
    for walker in WALKERS {
        match walker(memory, page_size) {
            Ok(Some(walk)) => whole = Some(whole.map_or_else(|| walk.clone(), |it| it.with(&walk))),
            Ok(None) => {}
            Err(refusal @ ScanError::NotWalked { .. }) => refusals.push(refusal),
            Err(other) => return Err(other),
        }
    }
    let Some(mut whole) = whole else {
        return Err(refusals.pop().unwrap_or(ScanError::NoHeap(
            "no allocator that pagewise can walk was found: the program uses another one, or has not allocated yet",
        )));
    };
    whole.heap.refused.extend(refusals.into_iter().filter_map(refused_allocator));
    Ok(whole)
}

fn refused_allocator(refusal: ScanError) -> Option<RefusedAllocator> {
    let ScanError::NotWalked { allocator, why } = refusal else { return None };
    Some(RefusedAllocator { name: allocator.to_owned(), why })
}

impl AllocatorWalk {
    /// This heap with that of another allocator.
    fn with(mut self, other: &AllocatorWalk) -> AllocatorWalk {
        self.blocks = self.blocks.merged(&other.blocks);
        self.managed.extend_from_slice(&other.managed);
        self.managed.sort_unstable();
        self.heap.merge(other.heap.clone());
        self
    }
}

/// True if a file with a name that begins with `name` is mapped.
pub(crate) fn maps_library(mappings: &[Mapping], name: &[u8]) -> bool {
    mappings.iter().any(|mapping| {
        let path = mapping.path();
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        mapping.inode != 0 && path[start..].starts_with(name)
    })
}

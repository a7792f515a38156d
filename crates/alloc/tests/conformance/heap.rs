//! A source for tests. It fills blocks with a pattern or with zeros, and checks that each block is
//! returned with the size with which it was taken.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewise_alloc::{Source, SourceBlock};

const RUBBISH: u8 = 0xa5;
/// Number of bytes by which some blocks are larger than requested.
const MORE: usize = 48;

/// A source of memory of the global allocator. Clones share one list of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestHeap(Arc<Mutex<TestHeapBlocks>>);

#[derive(Debug, Default)]
struct TestHeapBlocks {
    blocks: Vec<(usize, usize, Layout)>,
    taken: usize,
}

impl TestHeap {
    /// Locks the list of blocks. Ignores a poisoned lock, since the test that panicked is reported
    /// anyway.
    fn given(&self) -> MutexGuard<'_, TestHeapBlocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of blocks that were not freed.
    pub(crate) fn missing(&self) -> usize {
        self.given().blocks.len()
    }
}

// SAFETY: the memory comes from the global allocator, is zero-filled if `zeroed`, and stays until
// it is returned.
unsafe impl Source for TestHeap {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let mut given = self.given();
        given.taken += 1;
        let more = if given.taken.is_multiple_of(3) { MORE } else { 0 };
        let size = layout.size().max(1) + more;
        let own = Layout::from_size_align(size, layout.align()).ok()?;
        // SAFETY: the size is at least 1.
        let start = NonNull::new(unsafe { alloc(own) })?;
        let zeroed = given.taken.is_multiple_of(2);
        // SAFETY: the allocator returned `size` bytes.
        unsafe { start.write_bytes(if zeroed { 0 } else { RUBBISH }, size) };
        given.blocks.push((start.addr().get(), size, own));
        Some(SourceBlock { start, size, zeroed })
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        let mut given = self.given();
        let at = given
            .blocks
            .iter()
            .position(|(start, size, _)| (*start, *size) == (block.start.addr().get(), block.size));
        let (_, _, own) = given.blocks.swap_remove(at.expect("a block comes back as it was given"));
        // SAFETY: the list contained the block, so it came from `alloc` with this layout.
        unsafe { dealloc(block.start.as_ptr(), own) };
    }
}

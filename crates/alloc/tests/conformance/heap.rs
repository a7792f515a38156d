//! A source for tests: blocks are filled with a pattern or with zeros, and each must be returned as
//! it was taken.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewise_alloc::{Source, SourceBlock};

const RUBBISH: u8 = 0xa5;
/// Bytes by which some blocks are larger than requested.
const MORE: usize = 48;

/// Memory of the test's own allocator. Clones are one heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestHeap(Arc<Mutex<TestHeapBlocks>>);

#[derive(Debug, Default)]
struct TestHeapBlocks {
    blocks: Vec<(usize, usize, Layout)>,
    taken: usize,
}

impl TestHeap {
    /// Ignores a poisoned lock: the test that failed is reported elsewhere.
    fn given(&self) -> MutexGuard<'_, TestHeapBlocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of blocks that were not freed.
    pub(crate) fn missing(&self) -> usize {
        self.given().blocks.len()
    }
}

// SAFETY: the memory is the global allocator's, filled as is said, and stays until it comes back.
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
        // SAFETY: the allocator gave that many bytes.
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
        // SAFETY: it came from `alloc` with this layout, since it was in the list.
        unsafe { dealloc(block.start.as_ptr(), own) };
    }
}

//! A source for tests: it gives blocks full of rubbish, and wants every one back as it was.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewise_alloc::{Block, Source};

const RUBBISH: u8 = 0xa5;
/// By how much some blocks are larger than what was asked for.
const MORE: usize = 48;

/// Memory of the test's own allocator. Clones are one heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heap(Arc<Mutex<Given>>);

#[derive(Debug, Default)]
struct Given {
    blocks: Vec<(usize, usize, Layout)>,
    taken: usize,
}

impl Heap {
    /// A test that failed elsewhere is told of there.
    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many blocks did not come back.
    pub(crate) fn missing(&self) -> usize {
        self.given().blocks.len()
    }
}

// SAFETY: the memory is the global allocator's, filled as is said, and stays until it comes back.
unsafe impl Source for Heap {
    fn take(&self, layout: Layout) -> Option<Block> {
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
        Some(Block { start, size, zeroed })
    }

    unsafe fn give_back(&self, block: Block) {
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

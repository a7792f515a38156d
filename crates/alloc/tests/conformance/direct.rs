//! The simplest pool, in which each block is a block of the source. The tests of the suite itself
//! use it.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use pagewise_alloc::{Discipline, DisciplinedAllocator, Source, SourceBlock};

#[derive(Debug)]
pub(crate) struct Direct<S: Source> {
    source: S,
    blocks: BTreeMap<NonNull<u8>, SourceBlock>,
}

impl<S: Source> Direct<S> {
    pub(crate) fn new(source: S) -> Direct<S> {
        Direct { source, blocks: BTreeMap::new() }
    }
}

// SAFETY: each block is a block of the source, which belongs to one caller until it is released.
unsafe impl<S: Source> DisciplinedAllocator for Direct<S> {
    const NAME: &'static str = "direct";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // A block of size 0 gets a byte, because this pool identifies blocks by their address.
        let own = Layout::from_size_align(layout.size().max(1), layout.align()).ok()?;
        let block = self.source.take(own)?;
        self.blocks.insert(block.start, block);
        Some(block.start)
    }

    unsafe fn free(&mut self, start: NonNull<u8>, _layout: Layout) {
        let block = self.blocks.remove(&start).expect("a block is freed once");
        // SAFETY: the block came from this source, and the caller does not use it any more.
        unsafe { self.source.give_back(block) };
    }

    fn check(&self) {
        let pairs = self.blocks.values().zip(self.blocks.values().skip(1));
        pairs.for_each(|(a, b)| assert!(a.start.addr().get() + a.size <= b.start.addr().get()));
    }
}

impl<S: Source> Drop for Direct<S> {
    fn drop(&mut self) {
        for block in self.blocks.values() {
            // SAFETY: the block came from this source, and is not used after the end of the pool.
            unsafe { self.source.give_back(*block) };
        }
    }
}

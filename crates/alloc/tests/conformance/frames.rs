//! A ring as a pool of single blocks, each in a frame of its own.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use pagewise_alloc::ring::Sealed;
use pagewise_alloc::{Discipline, DisciplinedAllocator, Ring, Source};

#[derive(Debug)]
pub(crate) struct RingFrames<S: Source + Send + 'static> {
    ring: Ring<S>,
    frames: BTreeMap<NonNull<u8>, Sealed>,
}

impl<S: Source + Send + 'static> RingFrames<S> {
    pub(crate) fn new(ring: Ring<S>) -> RingFrames<S> {
        RingFrames { ring, frames: BTreeMap::new() }
    }
}

// SAFETY: blocks of frames have the requested alignment, do not overlap, and stay until the frame
// is released.
unsafe impl<S: Source + Send + 'static> DisciplinedAllocator for RingFrames<S> {
    const NAME: &'static str = "ring";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // A block of size 0 gets a byte, because this pool uses the address of each block as a key.
        let layout = Layout::from_size_align(layout.size().max(1), layout.align()).ok()?;
        let frame = self.ring.open()?;
        let start = frame.allocate(layout)?;
        self.frames.insert(start, frame.seal());
        Some(start)
    }

    unsafe fn free(&mut self, start: NonNull<u8>, _layout: Layout) {
        drop(self.frames.remove(&start).expect("a block is freed once"));
    }

    fn check(&self) {
        self.ring.check();
    }
}

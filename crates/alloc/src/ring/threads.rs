//! Every order in which threads may fill, release and reuse: `cargo test -p pagewise-alloc --lib
//! --features loom ring::threads`.
//!
//! Blocks have 512 bytes here, so that two frames of 200 fill one. Errors that must not occur in
//! any order: a block that is used again before all readers have released it (`TouchCheck`), or a
//! block that is not returned to the source.

extern crate std;

use core::alloc::Layout;
use core::ptr::NonNull;
use std::alloc::{alloc, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::{Ring, Sealed};
use crate::source::{Source, SourceBlock};

/// A source that counts its blocks.
#[derive(Clone, Default)]
struct CountingSource(Arc<AtomicUsize>);

// SAFETY: the memory is the global allocator's, and stays until it is returned.
unsafe impl Source for CountingSource {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: no layout here is empty.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        Some(SourceBlock { start, size: layout.size(), zeroed: false })
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        let layout = Layout::from_size_align(block.size, 64).expect("it was one");
        // SAFETY: it came from there; all layouts here are aligned to 64.
        unsafe { dealloc(block.start.as_ptr(), layout) };
    }
}

/// A frame of this number of blocks of 150 bytes.
fn frame(ring: &mut Ring<CountingSource>, blocks: usize) -> Sealed {
    let frame = ring.open().expect("there is memory");
    for _ in 0..blocks {
        frame.alloc([7_u8; 150]);
    }
    frame.seal()
}

/// Runs `body` in every order in which a thread is interrupted up to two times. All blocks must be
/// returned to the source.
fn model(body: impl Fn(Ring<CountingSource>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let heap = CountingSource::default();
        body(Ring::unguarded(heap.clone()).expect("there is memory"));
        assert_eq!(heap.0.load(Ordering::Relaxed), 0, "a block did not come back");
    });
}

#[test]
fn a_block_is_used_again_only_after_both_of_its_frames() {
    model(|mut ring| {
        let (one, two) = (frame(&mut ring, 1), frame(&mut ring, 1));
        let threads = [one, two].map(|sealed| thread::spawn(move || drop(sealed)));
        let more = [(); 2].map(|()| frame(&mut ring, 2));
        drop(more);
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    });
}

#[test]
fn a_frame_of_many_blocks_comes_back_whole_while_others_are_filled() {
    model(|mut ring| {
        let (long, short) = (frame(&mut ring, 7), frame(&mut ring, 1));
        let threads = [long, short].map(|sealed| thread::spawn(move || drop(sealed)));
        drop(frame(&mut ring, 4));
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    });
}

#[test]
fn the_last_frame_takes_a_dropped_ring_down_whoever_releases_it() {
    model(|mut ring| {
        let frames = [frame(&mut ring, 1), frame(&mut ring, 3)];
        let threads = frames.map(|sealed| thread::spawn(move || drop(sealed)));
        drop(ring);
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    });
}

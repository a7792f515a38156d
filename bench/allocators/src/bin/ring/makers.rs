//! Allocators in the benchmark: each builds lists of nodes, which another thread walks and
//! releases.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{NonNull, null_mut};

use bumpalo::Bump;
use mimalloc::MiMalloc;
use pagewise_alloc::ring::Sealed;
use pagewise_alloc::{Os, Ring};
use pagewise_bench_allocators::black_box;
use pagewise_bench_allocators::malloc::Tcmalloc;
use snmalloc_rs::SnMalloc;
use tikv_jemallocator::Jemalloc;

use crate::queue::{Item, SpscQueue};

/// Makes lists of nodes of `WORDS` words: the first says where the next is, the last is a number.
pub(crate) trait Maker<const WORDS: usize> {
    /// A list of `nodes`, ready to be sent.
    fn make(&mut self, nodes: usize) -> Item;

    /// Walks a list on the other thread, and releases it.
    ///
    /// # Safety
    /// It came from a maker of this type, and is not used any more.
    unsafe fn consume(item: Item, back: &SpscQueue);

    /// Takes what came back of the other thread.
    fn take_back(&mut self, _back: &SpscQueue) {}
}

/// The layout of a node.
const fn node<const WORDS: usize>() -> Layout {
    // SAFETY: 8 is a power of two, and sizes here are small.
    unsafe { Layout::from_size_align_unchecked(8 * WORDS, 8) }
}

/// Writes a list to where `next` says.
#[inline(always)]
fn write<const WORDS: usize>(nodes: usize, mut next: impl FnMut() -> *mut u8) -> *mut u8 {
    let mut head = null_mut::<u8>();
    for at in 0..nodes {
        let node = black_box(next());
        if WORDS > 1 {
            // SAFETY: the node has this number of words.
            let last = unsafe { node.cast::<usize>().add(WORDS - 1) };
            // SAFETY: the node has this number of words.
            unsafe { last.write(at) };
        }
        // SAFETY: the node is of a word at least.
        unsafe { node.cast::<*mut u8>().write(head) };
        head = node;
    }
    head
}

/// Walks a list, and calls `each` with every node when it is done with it.
#[inline(always)]
fn walk(head: *mut u8, mut each: impl FnMut(*mut u8)) {
    let mut at = head;
    while !at.is_null() {
        // SAFETY: the list holds nodes that are written and not released.
        let next = unsafe { at.cast::<*mut u8>().read() };
        each(at);
        at = next;
    }
}

/// Memory that is there, written again and again: what the rest of a round costs.
pub(crate) struct RingFloor {
    memory: Vec<u64>,
    at: usize,
}

impl RingFloor {
    pub(crate) fn new(bytes: usize) -> RingFloor {
        RingFloor { memory: vec![0; bytes / 8], at: 0 }
    }
}

impl<const WORDS: usize> Maker<WORDS> for RingFloor {
    fn make(&mut self, nodes: usize) -> Item {
        if self.at + nodes * WORDS > self.memory.len() {
            self.at = 0;
        }
        let mut next = self.memory[self.at..].as_mut_ptr();
        self.at += (nodes * WORDS).next_multiple_of(8);
        let head = write::<WORDS>(nodes, || {
            let node = next;
            next = next.wrapping_add(WORDS);
            node.cast()
        });
        (head, null_mut())
    }

    unsafe fn consume((head, _): Item, _back: &SpscQueue) {
        walk(head, |node| _ = black_box(node));
    }
}

impl<const WORDS: usize> Maker<WORDS> for Ring<Os> {
    fn make(&mut self, nodes: usize) -> Item {
        let frame = self.open().expect("there is memory");
        let next = || frame.allocate(node::<WORDS>()).map_or(null_mut(), NonNull::as_ptr);
        let head = write::<WORDS>(nodes, next);
        (head, frame.seal().into_raw().as_ptr())
    }

    unsafe fn consume((head, frame): Item, _back: &SpscQueue) {
        walk(head, |node| _ = black_box(node));
        let frame = NonNull::new(frame).expect("a frame has an address");
        // SAFETY: the caller passes a sealed frame that was not released.
        drop(unsafe { Sealed::from_raw(frame) });
    }
}

/// A `Bump` for each list; those that were walked are reset, come back, and are used again.
#[derive(Default)]
pub(crate) struct Bumps {
    /// As `Box` gave them up.
    free: Vec<*mut Bump>,
}

impl<const WORDS: usize> Maker<WORDS> for Bumps {
    fn make(&mut self, nodes: usize) -> Item {
        let raw = self.free.pop().unwrap_or_else(|| Box::into_raw(Box::default()));
        // SAFETY: no other thread has it until it is sent.
        let bump = unsafe { &*raw };
        let head = write::<WORDS>(nodes, || bump.alloc_layout(node::<WORDS>()).as_ptr());
        (head, raw.cast())
    }

    unsafe fn consume((head, bump): Item, back: &SpscQueue) {
        walk(head, |node| _ = black_box(node));
        // SAFETY: it was sent back, so no other thread has it.
        unsafe { &mut *bump.cast::<Bump>() }.reset();
        back.push((null_mut(), bump));
    }

    fn take_back(&mut self, back: &SpscQueue) {
        while self.free.is_empty() && back.has_some() {
            self.free.push(back.pop().1.cast());
        }
    }
}

/// A general allocator that needs no more than its type.
pub(crate) trait General: GlobalAlloc {
    const THIS: Self;
}

impl General for System {
    const THIS: System = System;
}

impl General for Jemalloc {
    const THIS: Jemalloc = Jemalloc;
}

impl General for MiMalloc {
    const THIS: MiMalloc = MiMalloc;
}

impl General for SnMalloc {
    const THIS: SnMalloc = SnMalloc;
}

impl General for Tcmalloc {
    const THIS: Tcmalloc = Tcmalloc;
}

/// A general allocator, where each node is freed by itself.
pub(crate) struct RingMalloc<M>(pub(crate) M);

impl<M: General, const WORDS: usize> Maker<WORDS> for RingMalloc<M> {
    fn make(&mut self, nodes: usize) -> Item {
        // SAFETY: nodes have a size.
        let head = write::<WORDS>(nodes, || unsafe { self.0.alloc(node::<WORDS>()) });
        (head, null_mut())
    }

    unsafe fn consume((head, _): Item, _back: &SpscQueue) {
        walk(head, |at| {
            // SAFETY: the caller passes a node of this allocator, which was walked past.
            unsafe { M::THIS.dealloc(at, node::<WORDS>()) };
        });
    }
}

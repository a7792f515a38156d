//! TLSF, two-level segregated fit: any sizes, freed in any order, in a time that does not depend on the heap.
//!
//! ```
//! use core::alloc::Layout;
//! use pagewise_alloc::{Tlsf, source::Os};
//!
//! let mut pool: Tlsf<Os> = Tlsf::new(Os);
//! let layout = Layout::new::<[u64; 12]>();
//! let block = pool.allocate(layout).expect("the system has memory");
//! // SAFETY: it was allocated there with this layout, and nobody uses it any more.
//! unsafe { pool.free(block, layout) };
//! ```
//!
//! ```text
//!   allocate              free
//!      ▲                    │
//!  ┌───┴────────────────────▼───┐  freed blocks of small sizes, at most N of each: no block is touched
//!  │ Front                      │
//!  └───▲────────────────────┬───┘  one block at a time: its neighbours were fetched while others were freed
//!  ┌───┴────────────────────▼───┐  two levels of bits lead to a free block that fits; what is freed becomes one block
//!  │ Heap                       │  with its free neighbours
//!  └───▲────────────────────────┘
//!      └── regions from a Source, each as large as all before, up to 16 MiB
//! ```
//!
//! Worst cases: `free` merges one block. `allocate` takes one block from the lists; where none fits, it first merges what is
//! at hand (at most 32 N + 1 blocks), then asks the source. With N = 0 nothing is kept at hand: the usual case is slower, the
//! worst is shortest.
//!
//! Each block costs a word, and what its size is short of a multiple of 16. A pool does not return regions to its source
//! until [`Tlsf::trim`] or its end.

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::discipline::{Allocator, Discipline};
use crate::source::Source;
use crate::watch;
use block::{Block, GRANULE, size_for};

mod block;
mod front;
mod heap;
mod lists;
mod locked;

pub use front::{CLASSES, Front};
pub use heap::Heap;
pub use locked::LockedTlsf;

/// A pool of blocks of any size. N blocks of each small size are kept at hand.
#[derive(Debug)]
pub struct Tlsf<S: Source, const N: usize = 16> {
    front: Front<N>,
    heap: Heap<S>,
}

impl<S: Source, const N: usize> Tlsf<S, N> {
    /// An empty pool. It takes nothing from the source before something is allocated.
    pub const fn new(source: S) -> Tlsf<S, N> {
        Tlsf { front: Front::EMPTY, heap: Heap::new(source) }
    }

    /// Memory of this size and alignment, for which the pool and then the source is asked. A size of 0 is a block like any
    /// other.
    #[inline]
    pub fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        allocate(&mut self.front, &mut self.heap, layout)
    }

    /// As [`Tlsf::allocate`], with every byte 0.
    pub fn allocate_zeroed(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.allocate(layout)?;
        // SAFETY: the block has this size and is the caller's alone.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from this pool with `layout`, as it was allocated or last reallocated, and is not used any more.
    ///
    /// # Panics
    /// In debug builds, where it did not or was freed before.
    #[inline]
    pub unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller promises the same.
        unsafe { free(&mut self.front, &mut self.heap, block, layout.size()) };
    }

    /// Gives a block another size: where it is, if it shrinks or its right neighbour is free and large enough; else elsewhere,
    /// with its contents. `None` leaves it as it is.
    ///
    /// # Safety
    /// As for [`Tlsf::free`]. From then on the block has the layout of `size` and the old alignment.
    pub unsafe fn reallocate(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller promises the same.
        unsafe { reallocate(&mut self.front, &mut self.heap, block, layout, size) }
    }

    /// Forgets all blocks and keeps the memory. Takes time for each region, not for each block.
    ///
    /// # Safety
    /// Nobody uses a block of this pool any more.
    pub unsafe fn reset(&mut self) {
        self.front.reset();
        self.heap.reset();
    }

    /// Gives the source what is not needed: regions without a block in use.
    pub fn trim(&mut self) {
        trim(&mut self.front, &mut self.heap);
    }

    /// Bytes held of the source.
    pub const fn held(&self) -> usize {
        self.heap.held()
    }

    /// Where the memory comes from.
    pub const fn source(&self) -> &S {
        self.heap.source()
    }

    /// Walks all blocks, lists and bits, in debug builds also the marks of each block.
    ///
    /// # Panics
    /// Where something does not hold.
    pub fn check(&self) {
        let at_hand = self.heap.check(|block| self.front.holds(block));
        assert_eq!(at_hand, self.front.len(), "blocks at hand are blocks in use");
    }
}

#[inline]
fn allocate<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    layout: Layout,
) -> Option<NonNull<u8>> {
    let at_hand = if layout.align() <= GRANULE { front.pop(layout.size()) } else { None };
    let block = at_hand.or_else(|| fetch(front, heap, layout))?;
    watch::counted(&heap.watch, layout.size());
    Some(block)
}

/// A block from the heap.
#[inline(never)]
fn fetch<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    layout: Layout,
) -> Option<NonNull<u8>> {
    let (size, align) = (size_for(layout.size())?, layout.align());
    if align > GRANULE {
        return fetch_with(front, heap, |heap| heap.take_aligned(size, align), size, align);
    }
    match heap.take(size) {
        Some(block) => Some(block.payload()),
        None => fetch_with(front, heap, |heap| heap.take(size), size, align),
    }
}

/// A block from the heap, with what is at hand merged and the heap grown as far as needed.
#[cold]
fn fetch_with<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    take: impl Fn(&mut Heap<S>) -> Option<Block>,
    size: usize,
    align: usize,
) -> Option<NonNull<u8>> {
    loop {
        if let Some(block) = take(heap) {
            return Some(block.payload());
        }
        if !front.give_back(heap) && !heap.grow(size, align) {
            return None;
        }
    }
}

/// # Safety
/// `block` came from this front and heap with this size, and is not used any more.
#[inline]
unsafe fn free<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    block: NonNull<u8>,
    size: usize,
) {
    front::check_free(front, heap, block, size);
    watch::uncounted(&heap.watch, size);
    if !front.push(block, size) {
        retire(front, heap, block, size);
    }
}

/// Frees a block for which there is no room at hand.
#[inline(never)]
fn retire<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    block: NonNull<u8>,
    size: usize,
) {
    front.leave(heap, block, size);
}

/// # Safety
/// `payload` came from this front and heap with this layout, and is not used any more where another is returned.
unsafe fn reallocate<S: Source, const N: usize>(
    front: &mut Front<N>,
    heap: &mut Heap<S>,
    payload: NonNull<u8>,
    layout: Layout,
    size: usize,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller passes the payload of a block.
    let block = unsafe { Block::of(payload) };
    if heap.resize(block, size_for(size)?) {
        watch::recounted(&heap.watch, layout.size(), size);
        return Some(payload);
    }
    let moved = allocate(front, heap, Layout::from_size_align(size, layout.align()).ok()?)?;
    // SAFETY: a block that could not be resized is smaller than `size`; both are as long as it, and apart.
    unsafe { moved.copy_from_nonoverlapping(payload, layout.size()) };
    // SAFETY: the caller promises it, and what it held has moved.
    unsafe { free(front, heap, payload, layout.size()) };
    Some(moved)
}

fn trim<S: Source, const N: usize>(front: &mut Front<N>, heap: &mut Heap<S>) {
    while front.give_back(heap) {}
    heap.trim();
}

// SAFETY: blocks are cut from regions without overlap, their payloads aligned, and stay in use until freed.
unsafe impl<S: Source, const N: usize> Allocator for Tlsf<S, N> {
    const NAME: &'static str = "tlsf";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Tlsf::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller promises the same.
        unsafe { Tlsf::free(self, block, layout) };
    }

    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller promises the same.
        unsafe { self.reallocate(block, layout, new.size()) }
    }

    fn check(&self) {
        Tlsf::check(self);
    }
}

//! TLSF, two-level segregated fit: any sizes, freed in any order, in a time that does not depend on
//! the heap.
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
//! Worst cases: `free` merges one block. `allocate` removes one block from the lists; if none fits,
//! it first merges the cached blocks (at most 32 N + 1), then asks the source. With N = 0 no block
//! is cached: the usual case is slower, the worst case is shortest.
//!
//! Each block costs a word, and what its size is short of a multiple of 16. A pool does not return
//! regions to its source until [`Tlsf::trim`] or its end.

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::discipline::{Discipline, DisciplinedAllocator};
use crate::source::Source;
use crate::watch;
use block::{TlsfBlock, WORD, size_for};

#[cfg(feature = "allocator-api2")]
mod api;
mod block;
mod front;
mod heap;
mod lists;
mod locked;

pub use block::GRANULE;
pub use front::CLASSES;
use front::DeferredFrees;
use heap::TlsfHeap;
pub use locked::LockedTlsf;

/// A pool of blocks of any size. N blocks of each small size class are cached. In C programs,
/// `pw_tlsf` is the start of one with N = 32.
#[derive(Debug)]
#[repr(C)]
pub struct Tlsf<S: Source, const N: usize = 32> {
    /// Comes first: C programs know it.
    front: DeferredFrees<N>,
    heap: TlsfHeap<S>,
}

impl<S: Source, const N: usize> Tlsf<S, N> {
    /// An empty pool. It takes nothing from the source before something is allocated. Debug builds
    /// look for misuse.
    pub const fn new(source: S) -> Tlsf<S, N> {
        Tlsf { front: DeferredFrees::EMPTY, heap: TlsfHeap::new(source, true) }
    }

    /// As [`Tlsf::new`], and debug builds do not look for misuse either.
    pub const fn unguarded(source: S) -> Tlsf<S, N> {
        Tlsf { front: DeferredFrees::EMPTY, heap: TlsfHeap::new(source, false) }
    }

    /// Memory of this size and alignment, for which the pool and then the source is asked. A size
    /// of 0 is a block like any other.
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
    /// `block` came from this pool with `layout`, as it was allocated or last reallocated, and is
    /// not used any more.
    ///
    /// # Panics
    /// In debug builds, where it did not or was freed before.
    #[inline]
    pub unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { free(&mut self.front, &mut self.heap, block, layout.size()) };
    }

    /// Gives a block another size: where it is, if it shrinks or its right neighbour is free and
    /// large enough; else elsewhere, with its contents. `None` leaves it as it is.
    ///
    /// # Safety
    /// As for [`Tlsf::free`]. From then on the block has the layout of `size` and the old
    /// alignment.
    pub unsafe fn reallocate(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { reallocate(&mut self.front, &mut self.heap, block, layout, size) }
    }

    /// The size of a block in use: the requested size, rounded up by up to [`GRANULE`] bytes, or
    /// exact if accesses are checked. It is valid wherever the requested size is needed, and all of
    /// it may be used.
    ///
    /// # Safety
    /// `block` is a block of this pool in use.
    #[inline]
    pub unsafe fn size_of(&self, block: NonNull<u8>) -> usize {
        // SAFETY: the caller passes the payload of a block.
        let block = unsafe { TlsfBlock::from_payload(block) };
        if watch::checked() {
            let _quiet = watch::quiet();
            return block.asked();
        }
        block.rounded_asked()
    }

    /// Forgets all blocks and keeps the memory. Takes time for each region, not for each block.
    ///
    /// # Safety
    /// No block of this pool is used any more.
    pub unsafe fn reset(&mut self) {
        let _quiet = watch::quiet();
        self.front.tell_now(&mut self.heap, 0);
        self.front.reset();
        self.heap.reset();
    }

    /// Gives the pool a name, by which those who watch it know it.
    pub fn set_name(&self, name: &str) {
        watch::named(&self.heap.watch, name);
    }

    /// Gives the source what is not needed: regions without a block in use.
    pub fn trim(&mut self) {
        trim(&mut self.front, &mut self.heap);
    }

    /// Bytes held of the source.
    pub const fn held(&self) -> usize {
        self.heap.held()
    }

    /// Source of the memory.
    pub const fn source(&self) -> &S {
        self.heap.source()
    }

    /// Walks all blocks, lists and bits, in debug builds also the marks of each block.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        let _quiet = watch::quiet();
        let at_hand = self.heap.check(|block| self.front.holds(block));
        assert_eq!(at_hand, self.front.len(), "blocks at hand are blocks in use");
    }
}

#[inline]
fn allocate<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    layout: Layout,
) -> Option<NonNull<u8>> {
    if layout.align() <= GRANULE
        && let Some(block) = front.pop(layout.size())
    {
        front::check_poison(heap, block);
        return Some(block);
    }
    fetch(front, heap, layout)
}

/// A block from the heap.
#[inline(never)]
fn fetch<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    layout: Layout,
) -> Option<NonNull<u8>> {
    if watch::checked() {
        return fetch_checked(front, heap, layout);
    }
    let size = size_for(layout.size())?;
    let block = fetch_size(front, heap, size, layout.align())?;
    front.count(size - WORD);
    front.tell(heap, layout.size());
    Some(block)
}

fn fetch_size<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    size: usize,
    align: usize,
) -> Option<NonNull<u8>> {
    if align > GRANULE {
        return fetch_with(front, heap, |heap| heap.take_aligned(size, align), size, align);
    }
    match heap.remove_free(size) {
        Some(block) => Some(block.payload()),
        None => fetch_with(front, heap, |heap| heap.remove_free(size), size, align),
    }
}

/// A block for a program whose accesses are checked: with a red zone after it, and reported. Every
/// call is reported from then on.
#[cold]
fn fetch_checked<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    layout: Layout,
) -> Option<NonNull<u8>> {
    let _quiet = watch::quiet();
    front.close();
    let size = size_for(layout.size().checked_add(watch::GAP)?)?;
    let payload = fetch_size(front, heap, size, layout.align())?;
    // SAFETY: the block was handed out just now.
    unsafe { TlsfBlock::from_payload(payload) }.set_asked(layout.size());
    watch::allocated(&heap.watch, payload, layout.size());
    front.count(size - WORD);
    front.tell(heap, layout.size());
    Some(payload)
}

/// A block from the heap; merges the cached blocks and grows the heap as needed.
#[cold]
fn fetch_with<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    take: impl Fn(&mut TlsfHeap<S>) -> Option<TlsfBlock>,
    size: usize,
    align: usize,
) -> Option<NonNull<u8>> {
    watch::slow(&heap.watch);
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
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    block: NonNull<u8>,
    size: usize,
) {
    front::check_free(front, heap, block, size);
    if !front.push(block, size) {
        retire(front, heap, block, size);
    }
}

/// Frees a block that does not fit into the cache.
#[inline(never)]
fn retire<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    block: NonNull<u8>,
    size: usize,
) {
    front.tell(heap, size);
    if watch::checked() {
        return retire_checked(heap, block);
    }
    front.leave(heap, block, size);
}

/// Frees a block of a program whose accesses are checked: a double free is reported, and has no
/// other effect.
#[cold]
fn retire_checked<S: Source>(heap: &mut TlsfHeap<S>, payload: NonNull<u8>) {
    // SAFETY: the caller passes a block of the heap.
    let block = unsafe { TlsfBlock::from_payload(payload) };
    watch::freed(&heap.watch, payload, with_quiet(|| block.asked()));
    with_quiet(|| {
        if !block.is_free() {
            heap.put(block);
        }
    });
}

/// Reads memory that is marked as inaccessible.
fn with_quiet<T>(look: impl FnOnce() -> T) -> T {
    let _quiet = watch::quiet();
    look()
}

/// # Safety
/// `payload` came from this front and heap with this layout, and is not used any more where another
/// is returned.
unsafe fn reallocate<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    payload: NonNull<u8>,
    layout: Layout,
    size: usize,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller passes the payload of a block.
    let block = unsafe { TlsfBlock::from_payload(payload) };
    if resize(heap, block, size)? {
        return Some(payload);
    }
    let moved = allocate(front, heap, Layout::from_size_align(size, layout.align()).ok()?)?;
    // SAFETY: a block that could not be resized is smaller than `size`; both are as long as it, and
    // apart.
    unsafe { moved.copy_from_nonoverlapping(payload, layout.size()) };
    // SAFETY: the caller passes a block of this front and heap; its contents were copied to
    // `moved`.
    unsafe { free(front, heap, payload, layout.size()) };
    Some(moved)
}

/// Gives a block another size where it is, if that can be; `None` where no block can have it.
fn resize<S: Source>(heap: &mut TlsfHeap<S>, block: TlsfBlock, size: usize) -> Option<bool> {
    if !watch::checked() {
        return Some(heap.resize(block, size_for(size)?));
    }
    let _quiet = watch::quiet();
    let old = block.asked();
    let done = heap.resize(block, size_for(size.checked_add(watch::GAP)?)?);
    if done {
        block.set_asked(size);
        watch::resized(&heap.watch, block.payload(), old, size);
    }
    Some(done)
}

fn trim<S: Source, const N: usize>(front: &mut DeferredFrees<N>, heap: &mut TlsfHeap<S>) {
    let _quiet = watch::quiet();
    front.tell_now(heap, 0);
    while front.give_back(heap) {}
    heap.trim();
}

// SAFETY: blocks are cut from regions without overlap, their payloads aligned, and stay in use
// until freed.
unsafe impl<S: Source, const N: usize> DisciplinedAllocator for Tlsf<S, N> {
    const NAME: &'static str = "tlsf";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Tlsf::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Tlsf::free(self, block, layout) };
    }

    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.reallocate(block, layout, new.size()) }
    }

    fn check(&self) {
        Tlsf::check(self);
    }
}

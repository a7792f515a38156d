//! TLSF (two-level segregated fit): blocks of any size, freed in any order, in a time that does not
//! depend on the size of the heap.
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
//!  └───▲────────────────────┬───┘  one block at a time: its neighbors were fetched while others were freed
//!  ┌───┴────────────────────▼───┐  two levels of bits lead to a free block that fits; what is freed becomes one block
//!  │ Heap                       │  with its free neighbors
//!  └───▲────────────────────────┘
//!      └── regions from a Source, each as large as all before, up to 16 MiB
//! ```
//!
//! The front caches freed blocks that are not merged with their neighbors yet. The heap contains
//! the lists of free blocks, which are merged.
//!
//! In the worst case, `free` merges one block with its neighbors, and `allocate` removes one block
//! from the lists. If no block of the lists fits, `allocate` takes a region from the source.
//! Instead of this it merges cached blocks, at most 160 N + 2, in two cases: if the source is
//! exhausted, or if more than 512 KiB and more than a quarter of the footprint are cached. If N is
//! 0, no block is cached: the usual case is slower, but the worst case is shortest.
//!
//! The overhead of a block is one word, and the padding of its size to a multiple of 16 bytes. If N
//! is not 0, a size above 520 bytes is also padded to a size class: by at most an eighth and a
//! word. A pool returns regions to its source only in [`Tlsf::trim`] and when it is dropped.

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::discipline::{Discipline, DisciplinedAllocator};
use crate::misuse::{CallSite, Misuse};
use crate::source::Source;
use crate::watch;
use block::{TlsfBlock, WORD, size_for};

#[cfg(feature = "allocator-api2")]
mod api;
mod bins;
mod block;
mod front;
mod guard;
mod heap;
mod lists;
mod locked;

pub use block::GRANULE;
pub use front::CLASSES;
use front::DeferredFrees;
use heap::TlsfHeap;
pub use locked::LockedTlsf;

/// Size classes of a pool, for a cache in front of the pool: each block of a size class is large
/// enough for every request of that class.
#[doc(hidden)]
pub mod size_class {
    use super::bins::SizeBin;

    /// Returns the size class of a request of `size` bytes; `None` if the size exceeds all classes.
    #[inline]
    pub fn of(size: usize) -> Option<usize> {
        SizeBin::of(size).map(SizeBin::index)
    }

    /// Returns the usable bytes of a block of a size class.
    #[inline]
    pub fn capacity(class: usize) -> usize {
        SizeBin::at(class).capacity()
    }
}

/// Maximum alignment up to which the size of a block is rounded up to a multiple of the alignment.
const PADDED: usize = 128;

/// A pool of blocks of any size. It caches N freed blocks of each small size class. In C, `struct
/// pw_tlsf` declares the first fields of a pool with N = 32.
#[derive(Debug)]
#[repr(C)]
pub struct Tlsf<S: Source, const N: usize = 32> {
    /// First field, because C programs access it.
    front: DeferredFrees<N>,
    heap: TlsfHeap<S>,
}

impl<S: Source, const N: usize> Tlsf<S, N> {
    /// Creates an empty pool, which takes nothing from the source before the first allocation. The
    /// pool is guarded in debug builds.
    pub const fn new(source: S) -> Tlsf<S, N> {
        Tlsf::create(source, cfg!(debug_assertions))
    }

    /// Creates a pool with a canary behind each block, which is checked when the block is freed.
    /// Freed blocks are filled and stay in a quarantine. The pool panics on a double free, a wrong
    /// size, an address at which no block begins, and a write beyond a block or after its free. In
    /// debug builds the message names the source locations that allocated and freed the block.
    pub const fn guarded(source: S) -> Tlsf<S, N> {
        Tlsf::create(source, true)
    }

    /// Creates a pool without guards, also in debug builds.
    pub const fn unguarded(source: S) -> Tlsf<S, N> {
        Tlsf::create(source, false)
    }

    const fn create(source: S, guarded: bool) -> Tlsf<S, N> {
        let front = if guarded { DeferredFrees::CLOSED } else { DeferredFrees::EMPTY };
        Tlsf { front, heap: TlsfHeap::new(source, guarded) }
    }

    /// Adds guards, as [`Tlsf::guarded`] does, to a pool that has not allocated anything yet.
    /// Returns true if the pool is guarded now.
    pub fn guard(&mut self) -> bool {
        let guarded = self.heap.guard();
        if guarded {
            self.front.close();
        }
        guarded
    }

    /// Allocates memory of this size and alignment; `None` if the source is exhausted. A block of
    /// size 0 has an address of its own.
    ///
    /// # Panics
    /// Panics if the pool is guarded and a freed block was written to.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        self.try_allocate(layout).unwrap_or_else(|misuse| misuse.panic())
    }

    /// As [`Tlsf::allocate`], but returns the memory error instead of panicking.
    ///
    /// # Errors
    /// Returns the error if the pool is guarded and a freed block was written to.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_allocate(&mut self, layout: Layout) -> Result<Option<NonNull<u8>>, Misuse> {
        allocate(&mut self.front, &mut self.heap, layout, CallSite::caller())
    }

    /// Like [`Tlsf::try_allocate`], but with an explicit call site: `track_caller` cannot record
    /// callers in C.
    ///
    /// # Errors
    /// As [`Tlsf::try_allocate`].
    #[doc(hidden)]
    pub fn try_allocate_at(
        &mut self,
        layout: Layout,
        site: CallSite,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        allocate(&mut self.front, &mut self.heap, layout, site)
    }

    /// As [`Tlsf::allocate`], with every byte 0.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.allocate(layout)?;
        // SAFETY: the block has this size, and no other code uses it.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    /// Frees a block.
    ///
    /// # Safety
    /// This pool allocated `block`, or last reallocated it, with `layout`, and the block is not
    /// used any more.
    ///
    /// # Panics
    /// Panics if the pool is guarded and finds a memory error.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        let freed = unsafe { self.try_free(block, layout) };
        freed.unwrap_or_else(|misuse| misuse.panic());
    }

    /// As [`Tlsf::free`], but returns the memory error instead of a panic.
    ///
    /// # Safety
    /// As for [`Tlsf::free`].
    ///
    /// # Errors
    /// Returns the error if the pool is guarded and detects that a requirement of `# Safety` is
    /// violated.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn try_free(&mut self, block: NonNull<u8>, layout: Layout) -> Result<(), Misuse> {
        let (size, site) = (layout.size(), CallSite::caller());
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { free(&mut self.front, &mut self.heap, block, (size, site)) }
    }

    /// Like [`Tlsf::try_free`], but without the size, and with an explicit call site:
    /// `track_caller` cannot record callers in C.
    ///
    /// # Safety
    /// As for [`Tlsf::free`].
    ///
    /// # Errors
    /// As [`Tlsf::try_free`].
    #[doc(hidden)]
    #[inline]
    pub unsafe fn try_free_unsized(
        &mut self,
        block: NonNull<u8>,
        site: CallSite,
    ) -> Result<(), Misuse> {
        // SAFETY: the caller passes a block of this pool that is in use.
        let size = unsafe { self.try_size_of(block) }?;
        let size = if self.front.is_closed() { size } else { DeferredFrees::<N>::within(size) };
        // SAFETY: the caller passes a block of this pool, and `size` is a valid size of it.
        unsafe { free(&mut self.front, &mut self.heap, block, (size, site)) }
    }

    /// Resizes a block: in place if it shrinks or if the next block is free and large enough, else
    /// by moving its contents. Returns `None`, and leaves the block unchanged, if memory is
    /// exhausted.
    ///
    /// # Safety
    /// As for [`Tlsf::free`]. After a successful call the block has the size `size` and the old
    /// alignment.
    ///
    /// # Panics
    /// As [`Tlsf::free`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn reallocate(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a block of this pool with this layout.
        let resized = unsafe { self.try_reallocate(block, layout, size) };
        resized.unwrap_or_else(|misuse| misuse.panic())
    }

    /// As [`Tlsf::reallocate`], but returns the memory error instead of a panic.
    ///
    /// # Safety
    /// As for [`Tlsf::reallocate`].
    ///
    /// # Errors
    /// As [`Tlsf::try_free`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn try_reallocate(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.try_reallocate_at((block, layout), size, CallSite::caller()) }
    }

    /// Like [`Tlsf::try_reallocate`], but with an explicit call site: `track_caller` cannot record
    /// callers in C.
    ///
    /// # Safety
    /// As for [`Tlsf::reallocate`].
    ///
    /// # Errors
    /// As [`Tlsf::try_free`].
    #[doc(hidden)]
    pub unsafe fn try_reallocate_at(
        &mut self,
        (block, layout): (NonNull<u8>, Layout),
        size: usize,
        site: CallSite,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { reallocate(&mut self.front, &mut self.heap, (block, layout), (size, site)) }
    }

    /// Returns the usable size of a block in use: the requested size, rounded up to a size class,
    /// or exactly the requested size if the pool is guarded. Calls that require the requested size
    /// also accept this size.
    ///
    /// # Safety
    /// `block` is a block of this pool that is in use.
    ///
    /// # Panics
    /// Panics if the pool is guarded and detects that no live block begins at the address.
    #[inline]
    pub unsafe fn size_of(&self, block: NonNull<u8>) -> usize {
        // SAFETY: the caller passes a block of this pool that is in use.
        unsafe { self.try_size_of(block) }.unwrap_or_else(|misuse| misuse.panic())
    }

    /// As [`Tlsf::size_of`], but returns the memory error instead of a panic.
    ///
    /// # Safety
    /// As for [`Tlsf::size_of`].
    ///
    /// # Errors
    /// Returns the error if the pool is guarded and no live block begins at the address.
    #[inline]
    pub unsafe fn try_size_of(&self, block: NonNull<u8>) -> Result<usize, Misuse> {
        if self.heap.is_guarded() {
            let found =
                with_quiet(|| guard::find(&self.heap, block).map(|block| guard::of(block).0));
            return found.inspect_err(|_| watch::misused(&self.heap.watch, block));
        }
        // SAFETY: the caller passes the payload of a block.
        Ok(unsafe { TlsfBlock::from_payload(block) }.rounded_asked())
    }

    /// Frees all blocks at once, and keeps the memory. The time is proportional to the number of
    /// regions.
    ///
    /// # Safety
    /// No block of this pool is used any more.
    pub unsafe fn reset(&mut self) {
        let _quiet = watch::quiet();
        self.front.tell_now(&mut self.heap, 0);
        self.front.reset();
        self.heap.reset();
    }

    /// Sets the name of the pool in statistics.
    pub fn set_name(&self, name: &str) {
        watch::named(&self.heap.watch, name);
    }

    /// Returns regions without a block in use to the source.
    pub fn trim(&mut self) {
        trim(&mut self.front, &mut self.heap);
    }

    /// Number of bytes that the pool has taken from its source and not returned.
    pub const fn held(&self) -> usize {
        self.heap.held()
    }

    /// Returns the source of the memory.
    pub const fn source(&self) -> &S {
        self.heap.source()
    }

    /// Checks all blocks, lists and bits; in debug builds also the tag of each block.
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
    site: CallSite,
) -> Result<Option<NonNull<u8>>, Misuse> {
    if let Some(block) = front.pop(layout.size(), layout.align()) {
        return Ok(Some(block));
    }
    if front.is_closed() {
        return fetch_guarded(front, heap, layout, site);
    }
    Ok(fetch(front, heap, layout, site))
}

/// Allocates a block from the bins or from the heap.
#[inline(never)]
fn fetch<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    layout: Layout,
    site: CallSite,
) -> Option<NonNull<u8>> {
    let block = match front.pop_slow(layout.size(), layout.align()) {
        Some(block) => block,
        // The first allocation of this pool has detected a memory checker: `fetch_guarded` closes
        // the front.
        None if heap.is_guarded() => return fetch_guarded(front, heap, layout, site).ok()?,
        None => {
            let size = size_for(DeferredFrees::<N>::rounded(layout.size()))?;
            let block = fetch_size(front, heap, size, layout.align())?;
            front.count(size - WORD);
            block
        }
    };
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
        // With this size, the free block behind the new block has the same alignment, so that an
        // aligned allocation can use all of it.
        let size = if align <= PADDED { size.next_multiple_of(align) } else { size };
        return fetch_with(front, heap, |heap| heap.take_aligned(size, align), size, align);
    }
    match heap.remove_free(size) {
        Some(block) => Some(block.payload()),
        None => fetch_with(front, heap, |heap| heap.remove_free(size), size, align),
    }
}

/// Allocates a block with a guard, and reports it to memory checkers. Closes the front, so that
/// every later allocation takes this path.
#[cold]
fn fetch_guarded<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    layout: Layout,
    site: CallSite,
) -> Result<Option<NonNull<u8>>, Misuse> {
    let _quiet = watch::quiet();
    front.close();
    heap.quarantine.check_last()?;
    let mut fetch = || {
        let size = size_for(layout.size().checked_add(guard::GUARD)?)?;
        let payload = fetch_size(front, heap, size, layout.align())?;
        // SAFETY: `payload` is the payload of a block that was allocated just now.
        guard::set(unsafe { TlsfBlock::from_payload(payload) }, layout.size(), site);
        watch::allocated(&heap.watch, payload, layout.size());
        heap.count_guarded(layout.size(), 0);
        front.count(layout.size());
        front.tell(heap, layout.size());
        Some(payload)
    };
    Ok(fetch())
}

/// Allocates a block from the heap. If no free block fits, merges cached blocks or grows the heap.
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
        if !front.has_much(heap.held()) && heap.grow(size, align) {
            continue;
        }
        if !front.give_back(heap) && !heap.release_waiting() && !heap.grow(size, align) {
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
    (size, site): (usize, CallSite),
) -> Result<(), Misuse> {
    if front.push(block, size) {
        return Ok(());
    }
    if front.is_closed() {
        return retire_guarded(front, heap, block, (size, site));
    }
    retire(front, heap, block, size);
    Ok(())
}

/// Frees a block for which the arrays of cached blocks have no free entry.
#[inline(never)]
fn retire<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    block: NonNull<u8>,
    size: usize,
) {
    front.tell(heap, size);
    front.put(heap, block, size);
}

/// Frees a guarded block: moves it into the quarantine. Valgrind itself reports a double free.
#[cold]
fn retire_guarded<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    payload: NonNull<u8>,
    (size, site): (usize, CallSite),
) -> Result<(), Misuse> {
    let found = with_quiet(|| guard::find_sized(heap, payload, size));
    let block = found.inspect_err(|_| watch::misused(&heap.watch, payload))?;
    watch::freed(&heap.watch, payload, size);
    let _quiet = watch::quiet();
    heap.count_guarded(0, size);
    front.tell(heap, size);
    if let Some(waited) = heap.quarantine.push(block, site)? {
        heap.put(waited);
    }
    Ok(())
}

/// Calls `look`, which may read memory that is marked as inaccessible, with reports of checkers
/// disabled.
fn with_quiet<T>(look: impl FnOnce() -> T) -> T {
    let _quiet = watch::quiet();
    look()
}

/// # Safety
/// `payload` came from this front and heap with this layout, and is not used any more if the
/// function returns another block.
unsafe fn reallocate<S: Source, const N: usize>(
    front: &mut DeferredFrees<N>,
    heap: &mut TlsfHeap<S>,
    (payload, layout): (NonNull<u8>, Layout),
    (size, site): (usize, CallSite),
) -> Result<Option<NonNull<u8>>, Misuse> {
    if heap.is_guarded() {
        let found = with_quiet(|| guard::find_sized(heap, payload, layout.size()));
        found.inspect_err(|_| watch::misused(&heap.watch, payload))?;
    }
    // SAFETY: the caller passes the payload of a block.
    let block = unsafe { TlsfBlock::from_payload(payload) };
    match resize::<S, N>(heap, block, size) {
        None => return Ok(None),
        Some(true) => return Ok(Some(payload)),
        Some(false) => {}
    }
    let Ok(new) = Layout::from_size_align(size, layout.align()) else { return Ok(None) };
    let Some(moved) = allocate(front, heap, new, site)? else { return Ok(None) };
    // SAFETY: a block that cannot be resized in place grows, so both blocks have at least the old
    // size; they do not overlap.
    unsafe { moved.copy_from_nonoverlapping(payload, layout.size()) };
    // For calls from C, `layout` has the usable size of the block, so the requested size is read
    // from the block's header word. Memory checkers forbid this read, but with a checker the front
    // is closed.
    let size = match front.is_closed() {
        true => layout.size(),
        false => DeferredFrees::<N>::within(block.rounded_asked()),
    };
    // SAFETY: the caller passes a block of this front and heap; its contents were copied to
    // `moved`.
    unsafe { free(front, heap, payload, (size, site)) }?;
    Ok(Some(moved))
}

/// Resizes a block in place; `Some(false)` if that is impossible, `None` if no block can have this
/// size.
fn resize<S: Source, const N: usize>(
    heap: &mut TlsfHeap<S>,
    block: TlsfBlock,
    size: usize,
) -> Option<bool> {
    if !heap.is_guarded() {
        return Some(heap.resize(block, size_for(DeferredFrees::<N>::rounded(size))?));
    }
    let _quiet = watch::quiet();
    let (old, site) = guard::of(block);
    let done = heap.resize(block, size_for(size.checked_add(guard::GUARD)?)?);
    if done {
        guard::set(block, size, site);
        heap.count_guarded(size, old);
        watch::resized(&heap.watch, block.payload(), old, size);
    }
    Some(done)
}

fn trim<S: Source, const N: usize>(front: &mut DeferredFrees<N>, heap: &mut TlsfHeap<S>) {
    let _quiet = watch::quiet();
    front.tell_now(heap, 0);
    while front.give_back(heap) || heap.release_waiting() {}
    heap.trim();
}

// SAFETY: blocks are cut from regions without overlap, their payloads have the requested alignment,
// and blocks stay allocated until freed.
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

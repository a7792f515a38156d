//! A pool for blocks that are freed in about the order of their allocation: messages, jobs, queues.
//!
//! Blocks follow one another in pages, without headers of their own. A page without a live block is
//! used again, or released.
//!
//! ```
//! use pagewise_alloc::{Fifo, Os};
//! use std::collections::VecDeque;
//!
//! let pool = Fifo::new(Os).expect("a page of memory");
//! let mut queue = VecDeque::new();
//! for job in 0..100_000_u64 {
//!     queue.push_back(pool.boxed([job; 4]).expect("memory"));
//!     if queue.len() > 1000 {
//!         queue.pop_front(); // What it held is used again.
//!     }
//! }
//! assert!(pool.held() < 300_000);
//! drop(pool); // The pool goes with the last of its blocks.
//! assert_eq!(queue[0][0], 99_000);
//! ```
//!
//! The fast paths of `allocate`, `allocate_zeroed` and `free`, each of a few instructions, do
//! nearly all of the work:
//!
//! ```text
//!             FifoHot                 page, 64 KiB, found by masking the block's address
//!   next ------------------.         [ live | hole ... | marks | dead dead | block block block | room ]
//!   end  ---------------.   \                  |                 ^--------^                    ^      ^
//!                        \   `----------------------------------- recorded hole ---------------´      |
//!                         `---------------------------------------------------------------------------´
//! ```
//!
//! - An allocation moves `next` in the current page, the page in which the pool allocates. The
//!   unused bytes of the current page count as live.
//! - Freeing extends the recorded hole over the block, which also reduces the live bytes of the
//!   page. A hole is a freed range of a page. The page header records one of the holes, and a
//!   bitmap, the marks, contains the others.
//! - The slow path runs if a block does not fit at `next`, if the last live block of a page is
//!   freed, or if a freed block does not begin at the end of the recorded hole: see `pool` and
//!   `page`.
//!
//! The overhead is 2 KiB of each page of 64 KiB, and the padding of each block to a multiple of 8
//! bytes. A block whose alignment is above 8 leaves a hole before it, unless the sizes of all
//! blocks are multiples of this alignment. In a pool for values of one Rust type they are.

#[cfg(feature = "allocator-api2")]
mod api;
mod boxed;
mod canary;
mod page;
mod policy;
mod pool;
mod queue;
mod shelf;

use core::alloc::Layout;
use core::ptr::NonNull;

pub use boxed::Boxed;
#[cfg(feature = "ablation")]
pub use policy::FifoPolicy;

use crate::misuse::CallSite;
use crate::{Discipline, DisciplinedAllocator, Source};
use page::{FifoPageRef, GRAIN, rounded};
use pool::{FifoCore, FifoHot, free_slow};

/// A pool for blocks that are freed in about the order of their allocation. The pool and its blocks
/// belong to one thread.
///
/// Blocks may be freed in any order: holes are filled if that saves memory. Live blocks stay valid
/// when the pool is dropped; each page is released with its last live block.
#[derive(Debug)]
pub struct Fifo<S: Source> {
    pool: NonNull<FifoCore<S>>,
}

impl<S: Source> Fifo<S> {
    /// Creates a pool whose memory comes from `source`; `None` if the source has too little memory
    /// for the pool itself. The pool is guarded in debug builds.
    pub fn new(source: S) -> Option<Fifo<S>> {
        Fifo::create(source, cfg!(debug_assertions), policy::FifoPolicy::default())
    }

    /// Creates a pool with canaries around each block. A free panics if a canary was overwritten or
    /// if the block was freed before, and fills the freed block with a pattern.
    pub fn guarded(source: S) -> Option<Fifo<S>> {
        Fifo::create(source, true, policy::FifoPolicy::default())
    }

    /// Creates a pool without guards, also in debug builds.
    pub fn unguarded(source: S) -> Option<Fifo<S>> {
        Fifo::create(source, false, policy::FifoPolicy::default())
    }

    /// Creates a pool with other policies, for measurements of their effect.
    #[cfg(feature = "ablation")]
    pub fn with_policy(source: S, policy: FifoPolicy) -> Option<Fifo<S>> {
        Fifo::create(source, false, policy)
    }

    fn create(source: S, guarded: bool, policy: policy::FifoPolicy) -> Option<Fifo<S>> {
        Some(Fifo { pool: FifoCore::create(source, guarded, policy)? })
    }

    /// Allocates uninitialized memory of this size and alignment; `None` if the source is
    /// exhausted.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let last = last_byte(layout);
        if self.hot().is_aligned(layout.align()) && last < self.hot().room() {
            // SAFETY: the free space has more than `last` bytes, and its size and `last + 1` are
            // multiples of `GRAIN`, so it has at least `last + 1` bytes.
            return Some(unsafe { self.hot().bump(last + 1) });
        }
        self.allocate_slow(layout)
    }

    /// As [`Fifo::allocate`], with every byte 0.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let last = last_byte(layout);
        if self.hot().is_aligned(layout.align()) && last < self.hot().room() {
            // SAFETY: the free space has `last + 1` bytes, as was checked.
            let block = unsafe { self.hot().bump(last + 1) };
            if !self.hot().is_zeroed() {
                // SAFETY: the block is new and has `last + 1` bytes.
                unsafe { block.write_bytes(0, last + 1) };
            }
            return Some(block);
        }
        self.allocate_zeroed_slow(layout)
    }

    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_slow(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.allocate_at(layout, CallSite::caller())
    }

    /// Like [`Fifo::allocate`], but with an explicit call site: `track_caller` cannot record
    /// callers in C.
    #[doc(hidden)]
    pub fn allocate_at(&self, layout: Layout, site: CallSite) -> Option<NonNull<u8>> {
        let whole = rounded(layout.size());
        if let Some(shelf) = self.hot().shelf.get()
            && let Some(block) = shelf.pop_aligned(whole, layout.align())
        {
            return Some(block);
        }
        self.pool().allocate(self.pool.cast(), layout, (whole, site))
    }

    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_zeroed_slow(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.allocate_zeroed_at(layout, CallSite::caller())
    }

    /// As [`Fifo::allocate_at`], with every byte 0.
    #[doc(hidden)]
    pub fn allocate_zeroed_at(&self, layout: Layout, site: CallSite) -> Option<NonNull<u8>> {
        let block = self.allocate_at(layout, site)?;
        if !self.pool().is_zeroed(block) {
            let size = layout.size();
            // The fast path clears the block up to its rounded size, so the slow path does too.
            let size = if self.hot().is_guarded() { size } else { rounded(size) };
            // SAFETY: the block is new and has `size` bytes.
            unsafe { block.write_bytes(0, size) };
        }
        Some(block)
    }

    /// Frees a block, in any order. A block that may outlive its pool is freed by the function
    /// [`free`].
    ///
    /// # Safety
    /// `block` came from this pool, with this layout, and was not freed since.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn free(&self, block: NonNull<u8>, layout: Layout) {
        if cfg!(debug_assertions) {
            self.pool().assert_ours(block);
        }
        // SAFETY: the caller passes a live block.
        if !unsafe { is_next_hole(block, layout) } {
            // SAFETY: the caller passes a live block of this pool; the memory of a pool begins with
            // its hot fields.
            unsafe { free_slow(self.pool.cast(), block, layout, CallSite::caller()) }
        }
    }

    /// Slow path of a free. The inlined fast paths, including those in C, call it if they cannot
    /// extend the recorded hole of the page over the block.
    ///
    /// # Safety
    /// The requirements of [`free`] hold for the block, and `pool` is the address of the pool that
    /// allocated it, even if that pool was dropped.
    #[doc(hidden)]
    pub unsafe fn free_slow(pool: NonNull<u8>, block: NonNull<u8>, size: usize, site: CallSite) {
        // SAFETY: 1 is a power of two, and the size of a live block fits into a layout.
        let layout = unsafe { Layout::from_size_align_unchecked(size, 1) };
        // SAFETY: the caller passes a live block of this pool; the memory of a pool begins with its
        // hot fields.
        unsafe { free_slow(pool.cast(), block, layout, site) }
    }

    /// Resizes a block: in place if it shrinks or if enough free space follows it, else by moving
    /// it. A guarded pool always moves the block. The alignment of the block stays. Returns `None`,
    /// and leaves the block unchanged, if the source is exhausted.
    ///
    /// # Safety
    /// `block` came from this pool, with this layout, and was not freed since.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn reallocate(
        &self,
        block: NonNull<u8>,
        old: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        let new = Layout::from_size_align(size, old.align()).ok()?;
        let (was, now) = (rounded(old.size()), rounded(size));
        let is_last = !self.hot().is_guarded() && self.hot().is_last(block, was);
        if is_last && now <= was + self.hot().room() {
            // SAFETY: the block ends at `next`, where the free space begins, so the new end is in
            // the page.
            self.hot().move_last(unsafe { block.add(now) });
            return Some(block);
        }
        // SAFETY: the caller passes a live block.
        let page = unsafe { FifoPageRef::containing(block) };
        if !self.hot().is_guarded() && page.resize(block, was, now) {
            return Some(block);
        }
        let moved = self.allocate(new)?;
        // SAFETY: the pool owns both blocks; they are at least as large as the smaller of the two
        // sizes, and do not overlap.
        unsafe { moved.copy_from_nonoverlapping(block, old.size().min(size)) };
        // SAFETY: the caller gives up the old block, whose contents were copied.
        unsafe { self.free(block, old) };
        Some(moved)
    }

    /// Moves a value into a block of the pool.
    ///
    /// # Errors
    /// Returns the value if the source is exhausted.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn boxed<T>(&self, value: T) -> Result<Boxed<T>, T>
    where
        S: 'static,
    {
        match self.allocate(Layout::new::<T>()) {
            // SAFETY: the block is new and has the type's layout; the source is `'static`, so it
            // outlives the box.
            Some(block) => Ok(unsafe { Boxed::new(block.cast(), value) }),
            None => Err(value),
        }
    }

    /// Adds canaries, as [`Fifo::guarded`] does, to a pool that has not allocated anything yet.
    /// Returns true if the pool is guarded now.
    pub fn guard(&self) -> bool {
        self.pool().guard()
    }

    /// Returns the address of the pool, for code that does not know its type: `pw_fifo` in C. Does
    /// not drop the pool.
    pub const fn into_raw(self) -> NonNull<u8> {
        let pool = self.pool.cast();
        core::mem::forget(self);
        pool
    }

    /// Returns the pool at an address.
    ///
    /// # Safety
    /// [`Fifo::into_raw`] of a pool of this type returned the address, and at most one of the pools
    /// that this function returns for the address is dropped.
    pub const unsafe fn from_raw(raw: NonNull<u8>) -> Fifo<S> {
        Fifo { pool: raw.cast() }
    }

    /// Sets the name of the pool in statistics.
    pub fn set_name(&self, name: &str) {
        self.pool().set_name(name);
    }

    /// Number of bytes that the pool has taken from its source and not returned.
    pub fn held(&self) -> usize {
        self.pool().held()
    }

    /// Checks all invariants.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        self.pool().check();
    }

    #[inline(always)]
    fn pool(&self) -> &FifoCore<S> {
        // SAFETY: the memory of a pool stays at least until the pool is dropped.
        unsafe { self.pool.as_ref() }
    }

    #[inline(always)]
    fn hot(&self) -> &FifoHot {
        &self.pool().hot
    }
}

impl<S: Source> Drop for Fifo<S> {
    fn drop(&mut self) {
        // SAFETY: `drop` has the only reference to the pool, so no allocation can follow.
        unsafe { FifoCore::close(self.pool) };
    }
}

/// Returns the index of the last byte of a block of this layout. For a size of 0 it returns
/// `usize::MAX`, which exceeds any free space, so that the slow paths handle this size.
#[inline(always)]
const fn last_byte(layout: Layout) -> usize {
    layout.size().wrapping_sub(1) | (GRAIN - 1)
}

/// Frees a block whose pool may have been dropped since.
///
/// # Safety
/// `block` came from a [`Fifo`] of this thread, with this layout, and was not freed since.
#[inline(always)]
#[cfg_attr(debug_assertions, track_caller)]
pub unsafe fn free(block: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller passes a live block.
    if !unsafe { is_next_hole(block, layout) } {
        // SAFETY: the caller passes a live block.
        let page = unsafe { FifoPageRef::containing(block) };
        // SAFETY: the caller passes a live block of this page's pool.
        unsafe { free_slow(page.pool, block, layout, CallSite::caller()) }
    }
}

/// Frees a block by extending the recorded hole of its page over it. Returns false, and frees
/// nothing, if the block does not begin at the end of the hole, has the size 0, or is the last live
/// block of its page.
///
/// # Safety
/// `block` is a live block with this layout, and is not used any more if the function returns true.
#[inline(always)]
unsafe fn is_next_hole(block: NonNull<u8>, layout: Layout) -> bool {
    // SAFETY: the caller passes a live block of this layout.
    let page = unsafe { FifoPageRef::containing(block) };
    layout.size() != 0 && page.extend_hole(block, last_byte(layout))
}

// SAFETY: a block is part of a page's free space, or of a separate block of the source. It counts
// as live until it is freed, so no other allocation returns it.
unsafe impl<S: Source> DisciplinedAllocator for Fifo<S> {
    const NAME: &'static str = "fifo";
    const FREES: Discipline = Discipline::Fifo;
    const DEFERS: bool = true;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Fifo::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { Fifo::free(self, block, layout) }
    }

    fn check(&self) {
        Fifo::check(self);
    }
}

//! A ring: one thread fills and seals frames, one after the other, and any thread releases them.
//!
//! ```
//! use pagewise_alloc::{Os, Ring};
//! use std::sync::mpsc::channel;
//! use std::thread;
//!
//! let (jobs, queue) = channel();
//! let worker = thread::spawn(move || queue.iter().map(|job: pagewise_alloc::ring::Message<str>| job.len()).sum::<usize>());
//! let mut ring = Ring::new(Os).expect("a page of memory");
//! for line in ["a job", "and another"] {
//!     let job = ring.message(|frame| frame.alloc_str(line));
//!     jobs.send(job).expect("the worker waits"); // Its memory is used again when the worker has dropped it.
//! }
//! drop(jobs);
//! assert_eq!(worker.join().expect("it did not panic"), 16);
//! ```
//!
//! ```text
//!    one thread, here                          any threads
//!
//!    open ─> allocate ... ─> seal ───────────> read ─> release
//!     │  RingHot: next, end                              │ the frame's blocks have one user less;
//!     │                                                  │ the last user returns the block
//!     │   free blocks  <── taken all at once ── shared <─´
//!     `──────´
//! ```
//!
//! - A frame is a group of allocations that are released together. One frame is open at a time.
//!   Allocating moves `next`, as in a stack.
//! - A sealed frame does not change until it is released. Any thread may release it, at any time
//!   and in any order. A release is one atomic subtraction; for a frame with several blocks, at
//!   most three subtractions and one exchange, independent of the number of blocks. The release of
//!   the last frame in a block also returns the block.
//! - A block is used again when all frames in it were released. See `block` for the counting.
//!
//! The overhead of a frame is its alignment to a cache line, and 24 bytes if it has several blocks.
//! The overhead of a block is 64 bytes of its 64 KiB to 1 MiB.

#[cfg(feature = "allocator-api2")]
mod api;
mod atomic;
mod block;
mod canary;
mod core;
mod policy;
mod sealed;
mod shared;
#[cfg(all(feature = "loom", test))]
mod threads;

use ::core::alloc::Layout;
use ::core::mem::needs_drop;
use ::core::ptr::NonNull;

use self::core::Core;
use crate::source::Source;
use crate::values;
#[cfg(feature = "ablation")]
pub use policy::RingPolicy;
pub use sealed::{Message, Sealed};

/// Allocates frames that other threads may release. See [the module](self).
///
/// A ring may be sent to another thread, but not shared: allocating takes no lock. Frames may
/// outlive the ring on any thread, so its source is `Send` and `'static`.
#[derive(Debug)]
pub struct Ring<S: Source + Send + 'static> {
    core: NonNull<Core<S>>,
}

// SAFETY: the memory of a ring is accessed only through the ring, except for the fields shared with
// frames, which are atomic; its source is `Send`.
unsafe impl<S: Source + Send + 'static> Send for Ring<S> {}

impl<S: Source + Send + 'static> Ring<S> {
    /// Creates a ring whose memory comes from `source`; `None` if the source has too little memory
    /// for the ring itself. The ring is guarded in debug builds.
    pub fn new(source: S) -> Option<Ring<S>> {
        Ring::create(source, cfg!(debug_assertions), policy::RingPolicy::default())
    }

    /// Creates a ring with a canary behind each allocation. Releasing a frame panics if a canary
    /// was overwritten, and fills the frame with a pattern.
    pub fn guarded(source: S) -> Option<Ring<S>> {
        Ring::create(source, true, policy::RingPolicy::default())
    }

    /// Creates a ring without guards, also in debug builds.
    pub fn unguarded(source: S) -> Option<Ring<S>> {
        Ring::create(source, false, policy::RingPolicy::default())
    }

    /// Creates a ring with other policies, for measurements of their effect.
    #[cfg(feature = "ablation")]
    pub fn with_policy(source: S, policy: RingPolicy) -> Option<Ring<S>> {
        Ring::create(source, false, policy)
    }

    fn create(source: S, guarded: bool, policy: policy::RingPolicy) -> Option<Ring<S>> {
        Some(Ring { core: Core::create(source, guarded, policy)? })
    }

    /// Opens a frame; `None` if the source is exhausted.
    #[inline]
    pub fn open(&mut self) -> Option<OpenRingFrame<'_, S>> {
        self.core().open()?;
        Some(OpenRingFrame { ring: self })
    }

    /// Opens a frame, builds a value in it with `build`, and seals the frame.
    ///
    /// # Panics
    /// Panics if memory is exhausted.
    #[inline]
    pub fn message<T: ?Sized>(
        &mut self,
        build: impl for<'f> FnOnce(&'f OpenRingFrame<'_, S>) -> &'f mut T,
    ) -> Message<T> {
        let frame = self.open().unwrap_or_else(|| no_memory());
        let value = NonNull::from(build(&frame));
        // SAFETY: `build` must work for every lifetime of the frame, so the value lies in the frame
        // or is static. The borrow of the value has ended.
        unsafe { Message::new(value, frame.seal()) }
    }

    /// Returns blocks without frames to the source.
    pub fn trim(&mut self) {
        self.core().trim();
    }

    /// Number of bytes that the ring has taken from its source and not returned.
    pub fn held(&self) -> usize {
        self.core().held()
    }

    /// Adds canaries, as [`Ring::guarded`] does, to a ring that has not allocated anything yet.
    /// Returns true if the ring is guarded now.
    pub fn guard(&self) -> bool {
        self.core().guard()
    }

    /// True if a frame is open: for C code, which has no [`OpenRingFrame`].
    pub fn is_open(&self) -> bool {
        self.core().is_open()
    }

    /// Returns the address of the ring, for code that does not know its type: `pw_ring` in C. Does
    /// not drop the ring.
    pub const fn into_raw(self) -> NonNull<u8> {
        let core = self.core.cast();
        ::core::mem::forget(self);
        core
    }

    /// Returns the ring at an address.
    ///
    /// # Safety
    /// [`Ring::into_raw`] of a ring of this type returned the address, and at most one of the rings
    /// that this function returns for the address is dropped.
    pub const unsafe fn from_raw(raw: NonNull<u8>) -> Ring<S> {
        Ring { core: raw.cast() }
    }

    /// Sets the name of the ring in statistics.
    pub fn set_name(&self, name: &str) {
        self.core().set_name(name);
    }

    /// Checks all invariants.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        self.core().check();
    }

    #[inline(always)]
    fn core(&self) -> &Core<S> {
        // SAFETY: the memory of the ring stays at least until the ring is dropped.
        unsafe { self.core.as_ref() }
    }
}

impl<S: Source + Send + 'static> Drop for Ring<S> {
    fn drop(&mut self) {
        // SAFETY: `drop` has the only reference to the ring, so no allocation can follow.
        unsafe { Core::close(self.core) };
    }
}

/// An open frame. Dropping it frees all of its allocations.
///
/// References to its allocations are valid while the frame is open; pointers to them are valid
/// until the frame is released:
///
/// ```compile_fail
/// # use pagewise_alloc::{Ring, Os};
/// let mut ring = Ring::new(Os).unwrap();
/// let frame = ring.open().unwrap();
/// let lost = frame.alloc(7);
/// drop(frame.seal());
/// *lost = 8;
/// ```
///
/// Releasing a frame takes the same time for any content, because it runs no destructor. A value
/// with a destructor does not compile:
///
/// ```compile_fail
/// # use pagewise_alloc::{Ring, Os};
/// Ring::new(Os).unwrap().open().unwrap().alloc(String::from("lost"));
/// ```
#[derive(Debug)]
pub struct OpenRingFrame<'r, S: Source + Send + 'static> {
    ring: &'r Ring<S>,
}

impl<'r, S: Source + Send + 'static> OpenRingFrame<'r, S> {
    /// Returns the open frame of a ring whose [`OpenRingFrame`] was forgotten: neither dropped nor
    /// sealed.
    ///
    /// # Safety
    /// The ring has an open frame, and for each opened frame exactly one value of this type is
    /// dropped or sealed.
    pub const unsafe fn resume(ring: &'r Ring<S>) -> OpenRingFrame<'r, S> {
        OpenRingFrame { ring }
    }

    /// Allocates memory in the frame; `None` if the source is exhausted. Allocations of size 0 may
    /// share an address.
    ///
    /// Consecutive allocations are adjacent, except for alignment and at the end of a block.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.ring.core().allocate(layout)
    }

    /// As [`OpenRingFrame::allocate`], with every byte 0.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let start = self.allocate(layout)?;
        // SAFETY: the memory is new and has the size of `layout`.
        unsafe { start.write_bytes(0, layout.size()) };
        Some(start)
    }

    /// Resizes an allocation, and keeps its contents up to the smaller size: in place if it is the
    /// last allocation or does not grow. Returns `None`, and leaves the allocation unchanged, if
    /// memory is exhausted.
    ///
    /// # Safety
    /// The block was allocated in this frame with `layout`. After a successful call it is used only
    /// through the returned pointer. `new` has the same alignment.
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn resize(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        if self.ring.core().resize_last(block, layout.size(), new.size())
            || new.size() <= layout.size()
        {
            return Some(block);
        }
        let moved = self.allocate(new)?;
        // SAFETY: both allocations have at least the old size, and allocations do not overlap.
        unsafe { block.copy_to_nonoverlapping(moved, layout.size()) };
        Some(moved)
    }

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn place<T>(&self, layout: Layout) -> Option<NonNull<T>> {
        Some(self.allocate(layout)?.cast())
    }

    /// Moves a value into the frame; `None` if memory is exhausted.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_alloc<T>(&self, value: T) -> Option<&mut T> {
        const { assert!(!needs_drop::<T>(), "a frame runs no destructors") };
        let place = self.place::<T>(Layout::new::<T>())?;
        // SAFETY: the memory has the layout of a `T`, stays valid while the frame is open, and is
        // not used by other code.
        Some(unsafe { values::put(place, value) })
    }

    /// Moves a value into the frame.
    ///
    /// # Panics
    /// Panics if memory is exhausted, as do the functions below.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc<T>(&self, value: T) -> &mut T {
        self.try_alloc(value).unwrap_or_else(|| no_memory())
    }

    /// Allocates a slice of `len` values; `value` returns the value for each index.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_slice_with<T>(&self, len: usize, value: impl FnMut(usize) -> T) -> &mut [T] {
        const { assert!(!needs_drop::<T>(), "a frame runs no destructors") };
        let layout = Layout::array::<T>(len).ok();
        let start = layout.and_then(|layout| self.place::<T>(layout));
        let start = start.unwrap_or_else(|| no_memory());
        // SAFETY: the memory has the layout of `len` values, stays valid while the frame is open,
        // and is not used by other code.
        unsafe { values::make(start, len, value) }
    }

    /// Copies a slice into the frame.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_slice<T: Copy>(&self, values: &[T]) -> &mut [T] {
        let start = self.place::<T>(Layout::for_value(values)).unwrap_or_else(|| no_memory());
        // SAFETY: the memory is new, has the right layout, stays valid while the frame is open, and
        // is not used by other code.
        unsafe { values::copy(start, values) }
    }

    /// Copies a string into the frame.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_str(&self, text: &str) -> &mut str {
        let bytes = self.alloc_slice(text.as_bytes());
        // SAFETY: the bytes are a copy of a `str`.
        unsafe { str::from_utf8_unchecked_mut(bytes) }
    }

    /// Ends the frame. Its contents stay until the returned value is dropped.
    #[inline]
    pub fn seal(self) -> Sealed {
        let ring = self.ring;
        ::core::mem::forget(self);
        ring.core().seal()
    }
}

impl<S: Source + Send + 'static> Drop for OpenRingFrame<'_, S> {
    fn drop(&mut self) {
        self.ring.core().cancel();
    }
}

#[cold]
#[inline(never)]
fn no_memory() -> ! {
    panic!("ring: the source has no more memory")
}

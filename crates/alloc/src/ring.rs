//! A ring: frames that one thread fills one after the other and seals, and that any thread
//! releases.
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
//! - One frame is open at a time. Allocating moves `next`, as in a stack.
//! - A sealed frame does not change until it is released. Any thread may release it, at any time
//!   and in any order. A release is an atomic subtraction, or two and an exchange if the frame has
//!   several blocks, however many.
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

/// Frames for others to release. See [the module](self).
///
/// It may be sent to another thread, but not shared: allocating takes no lock. Frames may outlive
/// it on any thread, so its source is `Send` and `'static`.
#[derive(Debug)]
pub struct Ring<S: Source + Send + 'static> {
    core: NonNull<Core<S>>,
}

// SAFETY: its memory is accessed through it alone, except for the fields shared with frames, which
// are atomic; its source may be sent.
unsafe impl<S: Source + Send + 'static> Send for Ring<S> {}

impl<S: Source + Send + 'static> Ring<S> {
    /// A ring whose memory comes from `source`; `None` if the source has too little memory for the
    /// ring itself. Guarded in debug builds.
    pub fn new(source: S) -> Option<Ring<S>> {
        Ring::create(source, cfg!(debug_assertions), policy::RingPolicy::default())
    }

    /// A ring with a canary behind each allocation. Releasing a frame panics if a canary was
    /// overwritten, and fills the frame with a pattern.
    pub fn guarded(source: S) -> Option<Ring<S>> {
        Ring::create(source, true, policy::RingPolicy::default())
    }

    /// A ring without guards, also in debug builds.
    pub fn unguarded(source: S) -> Option<Ring<S>> {
        Ring::create(source, false, policy::RingPolicy::default())
    }

    /// A ring with other policies, to measure their effect.
    #[cfg(feature = "ablation")]
    pub fn with_policy(source: S, policy: RingPolicy) -> Option<Ring<S>> {
        Ring::create(source, false, policy)
    }

    fn create(source: S, guarded: bool, policy: policy::RingPolicy) -> Option<Ring<S>> {
        Some(Ring { core: Core::create(source, guarded, policy)? })
    }

    /// Opens a frame; `None` where the source has no more memory.
    #[inline]
    pub fn open(&mut self) -> Option<OpenRingFrame<'_, S>> {
        self.core().open()?;
        Some(OpenRingFrame { ring: self })
    }

    /// Builds a value in a frame of its own.
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
        // SAFETY: `build` borrows the value for any lifetime of the frame, so the value lies in the
        // frame or is static, and its borrow has ended.
        unsafe { Message::new(value, frame.seal()) }
    }

    /// Returns empty blocks to the source.
    pub fn trim(&mut self) {
        self.core().trim();
    }

    /// Bytes that the ring has taken from its source.
    pub fn held(&self) -> usize {
        self.core().held()
    }

    /// Adds canaries to a ring in which nothing was allocated yet, as [`Ring::guarded`] does.
    /// Returns true if the ring is guarded now.
    pub fn guard(&self) -> bool {
        self.core().guard()
    }

    /// True if a frame is open: for code that knows the ring only by its address.
    pub fn is_open(&self) -> bool {
        self.core().is_open()
    }

    /// The address of the ring, for code that does not know its type: `pw_ring` in C. The ring is
    /// not dropped.
    pub const fn into_raw(self) -> NonNull<u8> {
        let core = self.core.cast();
        ::core::mem::forget(self);
        core
    }

    /// The ring of an address.
    ///
    /// # Safety
    /// The address came from [`Ring::into_raw`] of a ring of this type, and what this returns is
    /// dropped once.
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
        // SAFETY: it stays at least until the ring is dropped.
        unsafe { self.core.as_ref() }
    }
}

impl<S: Source + Send + 'static> Drop for Ring<S> {
    fn drop(&mut self) {
        // SAFETY: no other code allocates in it.
        unsafe { Core::close(self.core) };
    }
}

/// An open frame. Dropping it frees all that was allocated in it.
///
/// Its allocations can be used while it is open, and through pointers until it is released:
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
/// Releasing takes the same time for any content, so it runs no destructor. A type with a
/// destructor does not compile here:
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
    /// The open frame of a ring that was forgotten: not dropped, and not sealed.
    ///
    /// # Safety
    /// The ring has an open frame, and for each opened frame exactly one value of this type is
    /// dropped or sealed.
    pub const unsafe fn resume(ring: &'r Ring<S>) -> OpenRingFrame<'r, S> {
        OpenRingFrame { ring }
    }

    /// Memory in the frame; `None` if the source has no more. Blocks of size 0 may share an
    /// address.
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

    /// Resizes an allocation, and keeps its contents as far as they fit: in place if it is the last
    /// one or does not grow. Returns `None` if memory is exhausted: then the allocation is
    /// unchanged.
    ///
    /// # Safety
    /// The block was allocated in this frame with `layout`, and is used through the returned
    /// pointer only from now on. `new` has the same alignment.
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
        // SAFETY: both are at least that long, and what is handed out does not overlap.
        unsafe { block.copy_to_nonoverlapping(moved, layout.size()) };
        Some(moved)
    }

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn place<T>(&self, layout: Layout) -> Option<NonNull<T>> {
        Some(self.allocate(layout)?.cast())
    }

    /// Moves a value into the frame; `None` without memory.
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

    /// A slice of `len` values: `value` returns the value of each index.
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

    /// A copy of a slice.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_slice<T: Copy>(&self, values: &[T]) -> &mut [T] {
        let start = self.place::<T>(Layout::for_value(values)).unwrap_or_else(|| no_memory());
        // SAFETY: the memory is new, has the right layout, stays valid while the frame is open, and
        // is not used by other code.
        unsafe { values::copy(start, values) }
    }

    /// A copy of a string.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "each call hands out memory of its own")]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_str(&self, text: &str) -> &mut str {
        let bytes = self.alloc_slice(text.as_bytes());
        // SAFETY: the bytes are a copy of a `str`.
        unsafe { str::from_utf8_unchecked_mut(bytes) }
    }

    /// Ends the frame: its contents stay until it is released.
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

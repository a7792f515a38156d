//! A stack allocator: memory is allocated from the front to the back of blocks, and whole frames
//! are popped at once, whatever was allocated in them.
//!
//! ```
//! use pagewise_alloc::{Stack, source::Os};
//!
//! let mut stack = Stack::new(Os);
//! let longest = stack.scope(|scope| {
//!     let words = scope.alloc_slice(&["a", "stack", "of", "frames"]);
//!     scope.scope(|inner| inner.alloc_str("gone when this frame is popped").len());
//!     words.iter().map(|word| word.len()).max()
//! });
//! assert_eq!(longest, Some(6));
//! ```
//!
//! ```text
//!            used by frames that are open     current block         free, in the order in which they are tried
//!          ┌────────┬────────────────────┐  ┌────────┬──────┬─────┐  ┌────────┬───────────┐
//!  first ─>│ header │ ...               .│─>│ header │ .... │     │─>│ header │           │─> none
//!          └────────┴────────────────────┘  └────────┴──────┴─────┘  └────────┴───────────┘
//!                      ^ mark of a frame    ^ block         ^ next ^ end
//! ```
//!
//! Invariants between two calls:
//! - `next` and `end` are in `block`, and `next < end`; without a block, both are NULL. Bytes from
//!   `next` on are free, and so are all blocks after `block` in the list.
//! - A frame's mark contains the values of `next` and `block` from when the frame was pushed. The
//!   block of the mark is in the list, at or before the block of any later mark, since a block in
//!   use is never moved. Popping the frame restores both values.
//! - An allocation ends before `end`, never at `end`. If the stack has no block, `next` and `end`
//!   are NULL. With this rule, the one comparison of the fast path then fails for every size, even
//!   for 0.
//! - A guarded stack has `next == end`, so that every call takes the slow path: see `canary`.
//!   `next` and `end` are also NULL while a guarded stack has blocks but no allocation. The fast
//!   paths, which are also inlined into C programs, do not handle canaries.
//!
//! `pw_stack` in `pagewise/stack.h` has the same layout, and its inline functions have the same
//! effect, byte for byte.

use core::alloc::Layout;
use core::cell::Cell;
use core::marker::PhantomData;
#[cfg(feature = "os")]
use core::mem::offset_of;
use core::ptr::{self, NonNull};

use crate::discipline::{Discipline, DisciplinedAllocator};
use crate::misuse::CallSite;
use crate::source::Source;
use crate::watch;

#[cfg(feature = "allocator-api2")]
mod api;
mod block;
mod canary;
mod link;
mod policy;
mod scope;
#[cfg(feature = "thread")]
pub mod thread;

use block::{Cold, StackBlockHeader};
pub use link::FrameLink;
pub use policy::{LinkedPolicy, StackPolicy, Usual};
pub use scope::{Owned, Scope, StackFrame};

#[cfg(feature = "ablation")]
pub mod old {
    //! Policies that are worse than `Usual`, so that benchmarks can measure the difference.
    pub use super::policy::old::{Greedy, NoFollow, NotInPlace, Rounded, SmallBlocks};
}

/// A stack of frames in blocks of `S`.
///
/// Dropping the stack, or [`Stack::trim`], returns memory to the source. A stack may be sent to
/// another thread, but not shared: an allocation takes no lock.
///
/// # Complexity
/// An allocation and a pop take a constant number of instructions, independent of the content of
/// the frame. An allocation that does not fit into the current block searches the free blocks, as
/// [`StackPolicy`] describes.
#[repr(C)]
#[derive(Debug)]
pub struct Stack<S: Source, P: StackPolicy = Usual> {
    /// Address of the first free byte.
    next: Cell<*mut u8>,
    /// End of the part of the block that allocations may use.
    end: Cell<*mut u8>,
    /// The current block; if the stack is guarded, the last canary.
    block: Cell<*mut StackBlockHeader>,
    /// Fields that fast paths do not use. They lie in the first block; NULL without a block.
    cold: Cell<*mut Cold>,
    /// The innermost linked frame, see `link`. If this field were adjacent to `block`, compilers
    /// would load both with one instruction when a frame is pushed. This load would wait for a
    /// recent store to this field.
    frame: Cell<*const FrameLink>,
    /// Not 0 if the stack has canaries.
    guarded: Cell<usize>,
    source: S,
    policy: PhantomData<P>,
}

// SAFETY: the blocks of a stack are accessed only through the stack, so they may move with it to
// another thread; its source is `Send`.
unsafe impl<S: Source + Send, P: StackPolicy> Send for Stack<S, P> {}

/// Position of a stack when a frame was pushed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    next: *mut u8,
    block: *mut StackBlockHeader,
}

#[cfg(feature = "os")]
const _: () = {
    use crate::source::SystemOrBuffer;
    type StackInC = Stack<SystemOrBuffer, LinkedPolicy>;
    assert!(
        offset_of!(StackInC, next) == 0
            && offset_of!(StackInC, end) == 8
            && offset_of!(StackInC, block) == 16
    );
    assert!(
        offset_of!(StackInC, cold) == 24
            && offset_of!(StackInC, frame) == 32
            && offset_of!(StackInC, guarded) == 40
    );
    assert!(offset_of!(StackInC, source) == 48 && size_of::<StackInC>() == 64);
    assert!(
        offset_of!(Mark, block) == 8
            && offset_of!(FrameLink, outer) == 16
            && size_of::<FrameLink>() == 24
    );
};

impl<S: Source> Stack<S> {
    /// Creates a stack without memory, which takes its first block at the first allocation. The
    /// stack is guarded in debug builds.
    pub const fn new(source: S) -> Stack<S> {
        Stack::with_policy(source, cfg!(debug_assertions))
    }

    /// Creates a stack with a canary behind each allocation. Popping a frame panics if a canary was
    /// overwritten, and fills the popped memory with a pattern.
    pub const fn guarded(source: S) -> Stack<S> {
        Stack::with_policy(source, true)
    }

    /// Creates a stack without guards, also in debug builds.
    pub const fn unguarded(source: S) -> Stack<S> {
        Stack::with_policy(source, false)
    }
}

impl<S: Source, P: StackPolicy> Stack<S, P> {
    /// Creates a stack with policy `P`, guarded or not.
    pub const fn with_policy(source: S, guarded: bool) -> Stack<S, P> {
        Stack {
            next: Cell::new(ptr::null_mut()),
            end: Cell::new(ptr::null_mut()),
            block: Cell::new(ptr::null_mut()),
            frame: Cell::new(ptr::null()),
            cold: Cell::new(ptr::null_mut()),
            guarded: Cell::new(guarded as usize),
            source,
            policy: PhantomData,
        }
    }

    /// Adds canaries to a stack that has no memory yet. Returns true if the stack is guarded now.
    pub fn guard(&self) -> bool {
        if self.cold().is_none() {
            self.guarded.set(1);
        }
        self.is_guarded()
    }

    fn is_guarded(&self) -> bool {
        self.guarded.get() != 0
    }

    /// Allocates memory in the innermost frame; `None` if the source is exhausted. Blocks of size 0
    /// may share an address.
    ///
    /// Consecutive allocations in a block are adjacent, except for alignment.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.bump(P::shape(layout)) {
            Some(start) => Some(start),
            None => self.allocate_slow(layout),
        }
    }

    /// As [`Stack::allocate`], for values and arrays. Requires that the size of `layout` is a
    /// multiple of its alignment.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_array(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.bump_array(P::shape(layout)) {
            Some(start) => Some(start),
            None => self.allocate_slow(layout),
        }
    }

    /// The fast path: allocates in the current block; `None` if the layout does not fit into it.
    #[inline(always)]
    fn bump(&self, layout: Layout) -> Option<NonNull<u8>> {
        let start = self.start(layout);
        self.hand_out(start, start.wrapping_add(layout.size()))
    }

    /// As `bump`, but aligns the sum of `next` and the size instead of the start. The dependency
    /// chain from `next` to its new value, for which a following allocation waits, is one
    /// instruction shorter. Requires that the size is a multiple of the alignment.
    #[inline(always)]
    fn bump_array(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mask = layout.align() - 1;
        let after = self.next.get().addr().wrapping_add(layout.size() + mask) & !mask;
        self.hand_out(self.start(layout), after)
    }

    /// Returns the address of the next allocation. The sum cannot overflow: memory ends below 2^63,
    /// and a layout is smaller than 2^63, also when rounded up to its alignment.
    #[inline(always)]
    fn start(&self, layout: Layout) -> usize {
        self.next.get().addr().wrapping_add(layout.align() - 1) & !(layout.align() - 1)
    }

    #[inline(always)]
    fn hand_out(&self, start: usize, after: usize) -> Option<NonNull<u8>> {
        if after >= self.end.get().addr() {
            return None;
        }
        let next = self.next.get();
        self.next.set(next.with_addr(after));
        // SAFETY: `after` is below `end`, so there is a block, and `start` is in it.
        Some(unsafe { NonNull::new_unchecked(next.with_addr(start)) })
    }

    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_slow(&self, layout: Layout) -> Option<NonNull<u8>> {
        if watch::checked() {
            self.guard();
        }
        if self.is_guarded() {
            return self.allocate_guarded(layout, CallSite::caller());
        }
        let layout = P::shape(layout);
        self.enter_block_for(layout)?;
        self.bump(layout)
    }

    /// Returns the present position of the stack, for [`Stack::rewind`].
    #[inline(always)]
    pub fn mark(&self) -> Mark {
        Mark { next: self.next.get(), block: self.block.get() }
    }

    /// Pops all that was allocated since `mark`.
    ///
    /// # Safety
    /// The mark is of this stack, and the stack was not rewound to an earlier mark since.
    /// Allocations after the mark are not used any more.
    #[inline(always)]
    pub unsafe fn rewind(&self, mark: Mark) {
        if self.block.get() == mark.block {
            self.next.set(mark.next);
        } else {
            self.rewind_slow(mark);
        }
    }

    /// Resizes an allocation, and keeps its contents up to the smaller size: in place if it is the
    /// last allocation or does not grow. Returns `None`, and leaves the allocation unchanged, if
    /// memory is exhausted. The returned allocation belongs to the innermost frame.
    ///
    /// # Safety
    /// The block was allocated in this stack with `layout` and was not popped. After a successful
    /// call it is used only through the returned pointer.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn resize(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        let after = block.addr().get().wrapping_add(P::shape(new).size());
        let is_aligned = block.addr().get().is_multiple_of(new.align());
        let fits = after < self.end.get().addr();
        if P::IN_PLACE && self.is_last(block, layout) && is_aligned && fits {
            let next = self.next.get();
            self.next.set(next.with_addr(after));
            // The returned pointer is derived from `next`, since the provenance of `block` may
            // cover only the old bytes.
            return NonNull::new(next.with_addr(block.addr().get()));
        }
        // SAFETY: the caller passes a block of this stack with this layout.
        unsafe { self.resize_slow(block, layout, new) }
    }

    /// # Safety
    /// As for [`Stack::resize`].
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn resize_slow(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        if self.is_guarded() {
            return self.move_guarded(block, layout.size(), new);
        }
        let is_aligned = block.addr().get().is_multiple_of(new.align());
        if P::IN_PLACE && new.size() <= layout.size() && is_aligned {
            return Some(block);
        }
        let moved = self.allocate(new)?;
        // SAFETY: both allocations have at least the smaller of the two sizes, and allocations do
        // not overlap.
        unsafe { block.copy_to_nonoverlapping(moved, layout.size().min(new.size())) };
        Some(moved)
    }

    /// Frees the block if it is the last allocation. Any other block stays until its frame is
    /// popped.
    ///
    /// # Safety
    /// The block was allocated in this stack with `layout`, was not popped, and is not used any
    /// more.
    #[inline]
    pub unsafe fn free_last(&self, block: NonNull<u8>, layout: Layout) {
        if self.is_last(block, layout) {
            self.next.set(self.next.get().with_addr(block.addr().get()));
        } else if self.is_guarded() {
            self.free_guarded(block, layout.size());
        }
    }

    /// True if a block ends at the address of the next allocation. Always false with canaries,
    /// because a canary lies behind the block.
    #[inline(always)]
    fn is_last(&self, block: NonNull<u8>, layout: Layout) -> bool {
        block.addr().get() + P::shape(layout).size() == self.next.get().addr()
    }

    /// Prepares a single block for the next `size` bytes of allocations, including alignment, so
    /// that none of these allocations crosses the end of a block. If the stack has no memory yet,
    /// all of them are then contiguous. Returns `false` without any change if the source is
    /// exhausted. The block stays until [`Stack::trim`].
    #[must_use]
    pub fn reserve(&self, size: usize) -> bool {
        if watch::checked() {
            self.guard();
        }
        Layout::from_size_align(size, 1).is_ok_and(|layout| self.make_room(layout))
    }

    /// Returns the free blocks behind the current block to the source.
    pub fn trim(&self) {
        if let Some(current) = self.current() {
            while let Some(free) = current.take_next() {
                self.give_back(free);
            }
        }
    }

    /// Returns all memory to the source. The stack is then as it was when it was created.
    ///
    /// # Panics
    /// Panics if a canary was overwritten, or if a frame of the C API is open.
    pub fn wipe(&mut self) {
        assert!(self.frame.get().is_null(), "stack: it is wiped while a frame is open");
        self.destroy();
    }

    /// Bytes that the stack has taken from its source and not returned.
    pub fn held(&self) -> usize {
        self.cold().map_or(0, |cold| cold.held.get())
    }

    /// Bytes that the stack has ever taken from its source.
    pub fn taken(&self) -> u64 {
        self.cold().map_or(0, |cold| cold.taken.get())
    }

    /// Returns the source of the memory.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Sets the name of the stack in statistics. Allocates the first block for this, and does
    /// nothing if the source is exhausted.
    pub fn set_name(&self, name: &str) {
        let none = self.allocate(Layout::new::<()>());
        if let Some(cold) = self.cold().filter(|_| none.is_some()) {
            watch::named(&cold.pool, name);
        }
    }

    /// Checks all invariants.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub fn check(&self) {
        let Some(cold) = self.cold() else {
            assert!(self.next.get().is_null() && self.end.get().is_null());
            return;
        };
        let current = self.current().expect("who has memory has a block");
        let (next, end) = (self.next.get(), self.end.get());
        let is_empty = self.is_guarded() && self.last_guard().is_none();
        let fits =
            if is_empty { next.is_null() && end.is_null() } else { current.holds(next, end) };
        assert!(fits, "next and end are in the block");
        assert!(self.blocks().any(|block| ptr::eq(block, current)), "the block is in the list");
        assert_eq!(self.blocks().map(StackBlockHeader::size).sum::<usize>(), cold.held.get());
        self.check_guards();
    }
}

impl<S: Source, P: StackPolicy> Drop for Stack<S, P> {
    fn drop(&mut self) {
        self.destroy();
    }
}

// SAFETY: `bump` moves `next` over each allocation, and `next` moves back only when a caller frees
// or pops the memory. Blocks with allocations stay until the stack is dropped.
unsafe impl<S: Source, P: StackPolicy> DisciplinedAllocator for Stack<S, P> {
    const NAME: &'static str = "stack";
    const FREES: Discipline = Discipline::Lifo;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Stack::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this stack with this layout.
        unsafe { self.free_last(block, layout) };
    }

    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a block of this stack with this layout.
        unsafe { Stack::resize(self, block, layout, new) }
    }

    fn check(&self) {
        Stack::check(self);
    }
}

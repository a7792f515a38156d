//! A stack: blocks of memory, filled from front to back, and emptied by whole frames, whatever was allocated in them.
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
//!            used by frames that are open     here are we           free, in the order in which they are tried
//!          ┌────────┬────────────────────┐  ┌────────┬──────┬─────┐  ┌────────┬───────────┐
//!  first ─>│ header │ ...               .│─>│ header │ .... │     │─>│ header │           │─> none
//!          └────────┴────────────────────┘  └────────┴──────┴─────┘  └────────┴───────────┘
//!                      ^ mark of a frame    ^ block         ^ next ^ end
//! ```
//!
//! What holds between two calls:
//! - `next` and `end` lie in `block`, `next < end`, both are NULL while there is no block. Bytes from `next` on are free,
//!   and so are all blocks behind `block` in the list.
//! - A frame's mark is what `next` and `block` were when it was pushed: that block is in the list, at or before the one of
//!   any later mark, since a block in use is never moved. Popping is setting both back.
//! - An allocation ends before `end`, never at it: then one comparison sends to the slow path also who has no block and
//!   asks for nothing.
//! - A guarded stack has `next == end`, so that every call takes the slow path: see `guard`; both are NULL also while there
//!   are blocks and nothing is in them. The fast paths, of which there are copies in C programs that were compiled long ago,
//!   know nothing of guards.
//!
//! The same memory is `pw_stack` in `pagewise/stack.h`, and its inline functions do what those here do, to the byte.

use core::alloc::Layout;
use core::cell::Cell;
use core::marker::PhantomData;
#[cfg(feature = "os")]
use core::mem::offset_of;
use core::ptr::{self, NonNull};

use crate::discipline::{Allocator, Discipline};
use crate::source::Source;
use crate::watch;

#[cfg(feature = "allocator-api2")]
mod api;
mod block;
mod guard;
mod link;
mod policy;
mod scope;
#[cfg(feature = "thread")]
pub mod thread;

use block::{Cold, Header};
pub use link::Link;
pub use policy::{Linked, Policy, Usual};
pub use scope::{Frame, Owned, Scope};

#[cfg(feature = "ablation")]
pub mod old {
    //! Policies that are worse, so that benchmarks can show by how much.
    pub use super::policy::old::{Greedy, NoFollow, NotInPlace, Rounded, SmallBlocks};
}

/// A stack of frames in blocks of `S`.
///
/// Its memory goes back to the source when it is dropped, or with [`Stack::trim`]. It may be sent to another thread, but
/// not shared: an allocation takes no lock.
///
/// # Complexity
/// Allocating and popping take the same few instructions, whatever is in a frame. An allocation that does not fit into the
/// block looks through free ones, which [`Policy`] tells of.
#[repr(C)]
#[derive(Debug)]
pub struct Stack<S: Source, P: Policy = Usual> {
    /// The first free byte.
    next: Cell<*mut u8>,
    /// Behind which nothing of the block is handed out.
    end: Cell<*mut u8>,
    /// The block; where the stack is guarded, the last guard.
    block: Cell<*mut Header>,
    /// What fast paths do not touch; lies in the first block, NULL while there is none.
    cold: Cell<*mut Cold>,
    /// The innermost frame that is linked, see `link`. Not beside `block`: compilers would read both at once where
    /// a frame is pushed, which waits for the store to this one when the last was.
    frame: Cell<*const Link>,
    /// Whether it is guarded: not 0 where it is.
    guarded: Cell<usize>,
    source: S,
    policy: PhantomData<P>,
}

// SAFETY: blocks are reached through one stack alone, so they go where it goes; its source says whether it may.
unsafe impl<S: Source + Send, P: Policy> Send for Stack<S, P> {}

/// How a stack was when a frame was pushed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    next: *mut u8,
    block: *mut Header,
}

#[cfg(feature = "os")]
const _: () = {
    use crate::source::Memory;
    type InC = Stack<Memory, Linked>;
    assert!(
        offset_of!(InC, next) == 0 && offset_of!(InC, end) == 8 && offset_of!(InC, block) == 16
    );
    assert!(
        offset_of!(InC, cold) == 24
            && offset_of!(InC, frame) == 32
            && offset_of!(InC, guarded) == 40
    );
    assert!(offset_of!(InC, source) == 48 && size_of::<InC>() == 64);
    assert!(
        offset_of!(Mark, block) == 8 && offset_of!(Link, outer) == 16 && size_of::<Link>() == 24
    );
};

impl<S: Source> Stack<S> {
    /// A stack without memory: it takes its first block when it must. Guarded in debug builds.
    pub const fn new(source: S) -> Stack<S> {
        Stack::with_policy(source, cfg!(debug_assertions))
    }

    /// A stack that writes a guard behind each allocation, looks at it when its frame is popped, and fills what was popped
    /// with rubbish. It panics where a guard was written over.
    pub const fn guarded(source: S) -> Stack<S> {
        Stack::with_policy(source, true)
    }

    /// A stack without guards, also in debug builds.
    pub const fn unguarded(source: S) -> Stack<S> {
        Stack::with_policy(source, false)
    }
}

impl<S: Source, P: Policy> Stack<S, P> {
    /// A stack of any policy, guarded or not.
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

    /// Guards a stack that has no memory yet; says whether it is guarded now.
    pub fn guard(&self) -> bool {
        if self.cold().is_none() {
            self.guarded.set(1);
        }
        self.is_guarded()
    }

    fn is_guarded(&self) -> bool {
        self.guarded.get() != 0
    }

    /// Memory in the innermost frame; `None` where the source has no more. A block of no size may share its address.
    ///
    /// Two that follow each other are adjacent, but for what aligns the second.
    #[inline]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.bump(P::shape(layout)) {
            Some(start) => Some(start),
            None => self.allocate_slow(layout),
        }
    }

    /// As [`Stack::allocate`], for values and arrays: layouts whose size is a multiple of their alignment.
    #[inline(always)]
    fn allocate_array(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.bump_array(P::shape(layout)) {
            Some(start) => Some(start),
            None => self.allocate_slow(layout),
        }
    }

    /// The fast path: memory of this block.
    #[inline(always)]
    fn bump(&self, layout: Layout) -> Option<NonNull<u8>> {
        let start = self.start(layout);
        self.hand_out(start, start.wrapping_add(layout.size()))
    }

    /// The same with a step fewer between `next` and the one after it, which is what an allocation waits for that follows
    /// at once: the sum is aligned, not a summand.
    #[inline(always)]
    fn bump_array(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mask = layout.align() - 1;
        let after = self.next.get().addr().wrapping_add(layout.size() + mask) & !mask;
        self.hand_out(self.start(layout), after)
    }

    /// Where the next allocation begins. No overflow: memory ends below 2^63, and a layout is smaller, also when it is
    /// rounded up to its alignment.
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
        // SAFETY: an address is below `end`, so there is a block, and `start` is in it.
        Some(unsafe { NonNull::new_unchecked(next.with_addr(start)) })
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&self, layout: Layout) -> Option<NonNull<u8>> {
        if watch::checked() {
            self.guard();
        }
        if self.is_guarded() {
            return self.allocate_guarded(layout);
        }
        let layout = P::shape(layout);
        self.enter_block_for(layout)?;
        self.bump(layout)
    }

    /// Where the stack is now: what [`Stack::rewind`] takes it back to.
    #[inline(always)]
    pub fn mark(&self) -> Mark {
        Mark { next: self.next.get(), block: self.block.get() }
    }

    /// Pops all that was allocated since `mark`.
    ///
    /// # Safety
    /// The mark is of this stack, which was not taken back to an earlier one since; nobody uses what was allocated after it.
    #[inline(always)]
    pub unsafe fn rewind(&self, mark: Mark) {
        if self.block.get() == mark.block {
            self.next.set(mark.next);
        } else {
            self.rewind_slow(mark);
        }
    }

    /// Gives a block another size, and its old contents as far as they fit: in place where it is the last or does not grow.
    /// `None` where there is no memory: then the block is as it was. What it returns belongs to the innermost frame.
    ///
    /// # Safety
    /// The block came from this stack with `layout` and was not popped; nobody uses it but by what this returns.
    #[inline]
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
            // Not what the caller has: that may be for the bytes alone that there were.
            return NonNull::new(next.with_addr(block.addr().get()));
        }
        // SAFETY: as the caller promises.
        unsafe { self.resize_slow(block, layout, new) }
    }

    /// # Safety
    /// As for [`Stack::resize`].
    #[cold]
    #[inline(never)]
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
        // SAFETY: both are at least that long, and what is handed out does not overlap.
        unsafe { block.copy_to_nonoverlapping(moved, layout.size().min(new.size())) };
        Some(moved)
    }

    /// Takes the last allocation back; what is not the last stays until its frame is popped.
    ///
    /// # Safety
    /// The block came from this stack with `layout`, was not popped, and nobody uses it any more.
    #[inline]
    pub unsafe fn free_last(&self, block: NonNull<u8>, layout: Layout) {
        if self.is_last(block, layout) {
            self.next.set(self.next.get().with_addr(block.addr().get()));
        } else if self.is_guarded() {
            self.free_guarded(block, layout.size());
        }
    }

    /// Whether a block ends where the next would begin. Where the stack is guarded none does: its guard is between.
    #[inline(always)]
    fn is_last(&self, block: NonNull<u8>, layout: Layout) -> bool {
        block.addr().get() + P::shape(layout).size() == self.next.get().addr()
    }

    /// Has a single block ready for the next `size` bytes, what aligns them included, so that no request until then meets the
    /// end of one: best in a stack that has no memory yet, where all of them then follow each other. `false`, and nothing is
    /// changed, where the source has no more. What is ready stays until [`Stack::trim`].
    #[must_use]
    pub fn reserve(&self, size: usize) -> bool {
        if watch::checked() {
            self.guard();
        }
        Layout::from_size_align(size, 1).is_ok_and(|layout| self.make_room(layout))
    }

    /// Gives the source back the blocks that nothing lies in.
    pub fn trim(&self) {
        if let Some(current) = self.current() {
            while let Some(free) = current.take_next() {
                self.give_back(free);
            }
        }
    }

    /// Gives all memory back: the stack is as it was when it was made.
    ///
    /// # Panics
    /// Where a guard was written over, or a frame of C is open.
    pub fn wipe(&mut self) {
        assert!(self.frame.get().is_null(), "stack: it is wiped while a frame is open");
        self.destroy();
    }

    /// Bytes that the stack has of its source.
    pub fn held(&self) -> usize {
        self.cold().map_or(0, |cold| cold.held.get())
    }

    /// Bytes that the stack ever took of its source.
    pub fn taken(&self) -> u64 {
        self.cold().map_or(0, |cold| cold.taken.get())
    }

    /// Where the memory comes from.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Names the stack for who looks at its statistics; takes its first block for that, and does nothing where there is none.
    pub fn set_name(&self, name: &str) {
        let none = self.allocate(Layout::new::<()>());
        if let Some(cold) = self.cold().filter(|_| none.is_some()) {
            watch::named(&cold.pool, name);
        }
    }

    /// Walks everything that must hold inside.
    ///
    /// # Panics
    /// Where it does not hold.
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
        assert_eq!(self.blocks().map(Header::size).sum::<usize>(), cold.held.get());
        self.check_guards();
    }
}

impl<S: Source, P: Policy> Drop for Stack<S, P> {
    fn drop(&mut self) {
        self.destroy();
    }
}

// SAFETY: `bump` moves `next` over what it hands out and never back but by the caller's leave; blocks stay until the drop.
unsafe impl<S: Source, P: Policy> Allocator for Stack<S, P> {
    const NAME: &'static str = "stack";
    const FREES: Discipline = Discipline::Lifo;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        Stack::allocate(self, layout)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { self.free_last(block, layout) };
    }

    unsafe fn resize(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        // SAFETY: as the caller promises.
        unsafe { Stack::resize(self, block, layout, new) }
    }

    fn check(&self) {
        Stack::check(self);
    }
}

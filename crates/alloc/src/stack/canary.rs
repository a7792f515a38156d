//! Canaries: bytes that a stack in debug builds writes behind each allocation, and checks when its
//! frame is popped.
//!
//! ```text
//!  ┌───────────────┬──────┬───────┬───────────────┬──────┬───────┬ ─ ─
//!  │ an allocation │ EDGE │ guard │ an allocation │ EDGE │ guard │ free
//!  └───────────────┴──────┴───────┴───────────────┴──────┴───────┴ ─ ─
//!  ^ start                ^ block of a frame's mark      ^ block ^ next = end
//! ```
//!
//! A *guard* is a [`StackCanary`], the canary behind the canary bytes of an allocation. Canaries
//! are linked from the last to the first. In a stack with canaries, `block` is the last canary or
//! NULL, and a frame's mark contains the canary down to which the frame is popped. An allocation in
//! such a stack moves whenever its size changes, so that a use of its old address is detected.

use core::alloc::{Layout, LayoutError};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::slice;

use super::block::{ALIGN, StackBlockHeader};
use super::{Mark, Stack, StackPolicy};
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::Source;
use crate::watch;

/// Value of the canary bytes between an allocation and its guard.
const EDGE: u8 = 0xca;
/// Fill bytes of new memory and of popped memory.
const NEW: u8 = 0xa5;
const POPPED: u8 = 0xdb;
/// Initial value of the checksum of a guard, which is its `seal`.
const SEAL: usize = 0x5ca1_ab1e;

/// Canary after an allocation.
#[repr(C)]
#[derive(Debug)]
pub(super) struct StackCanary {
    seal: usize,
    previous: *mut StackCanary,
    /// Header of the block in which the canary lies.
    pub(super) block: NonNull<StackBlockHeader>,
    start: NonNull<u8>,
    size: usize,
    allocated: CallSite,
    /// False once the allocation was freed or moved. Its memory stays until the frame is popped.
    is_live: Cell<bool>,
}

impl StackCanary {
    /// Returns the checksum of the canary's address and of its fields, except `is_live`. After a
    /// stray write, and in a copy of a canary, `seal` differs from this checksum.
    fn seal(&self) -> usize {
        let says = [
            ptr::from_ref(self).addr(),
            self.previous.addr(),
            self.block.addr().get(),
            self.start.addr().get(),
            self.size,
            self.allocated.word(),
        ];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    /// True if the canary and the canary bytes before it are intact. A write past the end of an
    /// allocation first reaches the canary bytes, then the canary. If a memory checker is present,
    /// it reports these writes itself.
    fn is_intact(&self) -> bool {
        self.seal == self.seal()
            && (watch::checked() || self.edge().iter().all(|byte| *byte == EDGE))
    }

    /// Returns the error of a canary that is not intact. The error contains data of the canary only
    /// if the seal is right.
    fn broken(&self) -> Broken {
        if self.seal != self.seal() {
            return Broken::Guard(ptr::from_ref(self).addr());
        }
        Broken::Edge(Misuse {
            pool: "stack",
            block: self.start.addr().get(),
            error: MemoryError::Overwritten,
            size: Some(self.size),
            sites: [self.allocated, CallSite::NONE],
        })
    }

    /// Returns the canary bytes between the allocation and the canary. Requires that the seal is
    /// right.
    fn edge(&self) -> &[u8] {
        let end = self.start.as_ptr().wrapping_add(self.size);
        let size = ptr::from_ref(self).addr() - end.addr();
        // SAFETY: these bytes lie between the allocation and its canary, and were written together
        // with the canary.
        unsafe { slice::from_raw_parts(end, size) }
    }
}

/// Reason why a frame cannot be popped.
#[derive(Debug)]
pub(super) enum Broken {
    /// The canary at this address, behind an allocation, was overwritten.
    Guard(usize),
    /// The canary bytes behind an allocation were overwritten.
    Edge(Misuse),
    /// The mark belongs to a frame that was popped before.
    Order,
}

/// Layout of an allocation with its canaries, and the offsets of the allocation and of its guard.
#[derive(Debug)]
struct GuardedShape {
    whole: Layout,
    start: usize,
    guard: usize,
}

impl GuardedShape {
    /// Computes the layout. Under a memory checker, it contains a red zone before and behind the
    /// allocation.
    fn around(layout: Layout) -> Result<GuardedShape, LayoutError> {
        let gap = Layout::from_size_align(if watch::checked() { watch::GAP } else { 0 }, 1)?;
        let (before, start) = gap.extend(layout)?;
        let (behind, _) = before.extend(gap)?;
        let (whole, guard) = behind.extend(Layout::new::<StackCanary>())?;
        Ok(GuardedShape { whole: whole.align_to(ALIGN)?.pad_to_align(), start, guard })
    }
}

impl<S: Source, P: StackPolicy> Stack<S, P> {
    /// Returns the last guard; `None` if the stack has no allocation.
    pub(super) fn last_guard(&self) -> Option<&StackCanary> {
        // SAFETY: in a guarded stack, `block` is NULL or the address of a guard that
        // `allocate_guarded` wrote.
        unsafe { self.block.get().cast::<StackCanary>().as_ref() }
    }

    /// Allocates memory with a guard behind it.
    pub(super) fn allocate_guarded(
        &self,
        layout: Layout,
        allocated: CallSite,
    ) -> Option<NonNull<u8>> {
        let shape = GuardedShape::around(layout).ok()?;
        let previous = self.block.get().cast();
        let placed = self.place(shape.whole);
        self.end.set(self.next.get());
        let (whole, block) = placed?;
        // SAFETY: the offset is inside the memory that `place` returned.
        let start = unsafe { whole.add(shape.start) };
        self.fill(start, layout.size(), NEW);
        // SAFETY: the block has the size of the whole layout, so the offset is inside.
        let edge = unsafe { start.add(layout.size()) };
        self.fill(edge, shape.guard - shape.start - layout.size(), EDGE);
        // SAFETY: the offset of the guard is inside the block.
        let guard = unsafe { whole.add(shape.guard) }.cast::<StackCanary>();
        watch::ours(guard.cast(), size_of::<StackCanary>());
        // SAFETY: the guard is inside the block, and aligned.
        unsafe {
            guard.write(StackCanary {
                seal: 0,
                previous,
                block,
                start,
                size: layout.size(),
                allocated,
                is_live: Cell::new(true),
            });
        }
        // SAFETY: the guard is initialized, and no other reference to it exists.
        let written = unsafe { &mut *guard.as_ptr() };
        written.seal = written.seal();
        self.block.set(guard.as_ptr().cast());
        self.note_block();
        if let Some(cold) = self.cold() {
            watch::allocated(&cold.pool, start, layout.size());
            watch::counted(&cold.pool, layout.size());
        }
        Some(start)
    }

    /// Allocates memory in the current block or in another one, and returns it with the header of
    /// the block.
    fn place(&self, whole: Layout) -> Option<(NonNull<u8>, NonNull<StackBlockHeader>)> {
        if let Some(current) = self.current() {
            if self.last_guard().is_none() {
                self.next.set(current.begin());
            }
            // The fast paths see this `end` only during this call: `allocate_guarded` sets it back.
            self.end.set(current.end());
            if let Some(start) = self.bump(whole) {
                return Some((start, current.place()));
            }
        }
        let entered = self.enter_block_for(whole)?.place();
        Some((self.bump(whole)?, entered))
    }

    /// Fills new or freed memory of this stack. Does nothing under a memory checker, which tracks
    /// the contents itself.
    fn fill(&self, start: NonNull<u8>, size: usize, byte: u8) {
        if !watch::checked() {
            // SAFETY: callers are in this module, and pass parts of memory that `place` returned.
            unsafe { start.write_bytes(byte, size) };
        }
    }

    pub(super) fn rewind_guarded(&self, mark: Mark) {
        let popped = self.pop_guards(mark.block.cast());
        if let Err(Broken::Order) = popped {
            return report(popped);
        }
        // The frame ends even if a canary is broken.
        self.block.set(mark.block);
        // A mark without a canary may have been made before the first block existed: `next` is NULL
        // then.
        let next = if mark.block.is_null() { ptr::null_mut() } else { mark.next };
        self.next.set(next);
        self.end.set(next);
        self.note_block();
        report(popped);
    }

    /// Pops all canaries behind `last`, and fills their allocations.
    fn pop_guards(&self, last: *mut StackCanary) -> Result<(), Broken> {
        while !ptr::eq(self.block.get(), last.cast()) {
            let guard = self.last_guard().ok_or(Broken::Order)?;
            let at = ptr::from_ref(guard).addr();
            guard.is_intact().then_some(()).ok_or_else(|| guard.broken())?;
            self.release(guard);
            let (start, end) = (guard.start, at + size_of::<StackCanary>());
            self.block.set(guard.previous.cast());
            let place = NonNull::from(guard).cast();
            self.fill(start, end - start.addr().get(), POPPED);
            watch::hidden(place, size_of::<StackCanary>());
        }
        Ok(())
    }

    /// Fills the allocation of a canary and reports its free, unless it was freed before.
    fn release(&self, guard: &StackCanary) {
        if guard.is_live.replace(false) {
            self.fill(guard.start, guard.size, POPPED);
            if let Some(cold) = self.cold() {
                watch::freed(&cold.pool, guard.start, guard.size);
                watch::uncounted(&cold.pool, guard.size);
            }
        }
    }

    /// Frees an allocation. Its memory stays until the frame is popped.
    ///
    /// # Panics
    /// Panics if the address is not that of a live allocation, or if the allocation has another
    /// size.
    pub(super) fn free_guarded(&self, start: NonNull<u8>, size: usize) {
        self.release(self.guard_of(start, size));
    }

    /// Resizes an allocation by moving it, so that a use of its old address is detected.
    ///
    /// # Panics
    /// As [`Stack::free_guarded`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn move_guarded(
        &self,
        start: NonNull<u8>,
        size: usize,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        let old = self.guard_of(start, size);
        let moved = self.allocate_guarded(new, CallSite::caller())?;
        // SAFETY: both allocations have at least the smaller of the two sizes, and allocations do
        // not overlap.
        unsafe { start.copy_to_nonoverlapping(moved, size.min(new.size())) };
        self.release(old);
        Some(moved)
    }

    /// Returns the guard of a live allocation. The search starts with the last guard.
    fn guard_of(&self, start: NonNull<u8>, size: usize) -> &StackCanary {
        for guard in self.guards() {
            match guard {
                Ok(guard) if guard.start == start && guard.is_live.get() => {
                    assert_eq!(guard.size, size, "stack: an allocation is freed with another size");
                    return guard;
                }
                Ok(_) => {}
                Err(broken) => report(Err(broken)),
            }
        }
        panic!("stack: {start:p} is freed or moved, but is not a live allocation")
    }

    /// Iterates over all guards, from the last to the first. Ends with an error at a guard that is
    /// not intact.
    fn guards(&self) -> impl Iterator<Item = Result<&StackCanary, Broken>> {
        let mut next = self.last_guard().filter(|_| self.is_guarded());
        core::iter::from_fn(move || {
            let guard = next.take()?;
            if !guard.is_intact() {
                return Some(Err(guard.broken()));
            }
            // SAFETY: the guard is intact, so `previous` is the address of the guard before it, or
            // NULL.
            next = unsafe { guard.previous.as_ref() };
            Some(Ok(guard))
        })
    }

    /// Checks all canaries.
    ///
    /// # Panics
    /// Panics if a canary was overwritten.
    pub(super) fn check_guards(&self) {
        report(self.all_intact());
    }

    pub(super) fn all_intact(&self) -> Result<(), Broken> {
        self.guards().try_for_each(|guard| guard.map(|_| ()))
    }
}

/// Panics with the message of an error.
///
/// # Panics
/// Panics if `found` is an error.
pub(super) fn report(found: Result<(), Broken>) {
    match found {
        Ok(()) => {}
        Err(Broken::Guard(at)) => {
            panic!("stack: the canary after the allocation before {at:#x} was overwritten")
        }
        Err(Broken::Edge(misuse)) => misuse.panic(),
        Err(Broken::Order) => panic!("stack: a frame is popped twice, or after one around it"),
    }
}

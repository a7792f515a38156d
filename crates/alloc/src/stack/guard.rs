//! Guards: what a stack in debug builds writes behind each allocation, and looks at when its frame is popped.
//!
//! ```text
//!  ┌───────────────┬──────┬───────┬───────────────┬──────┬───────┬ ─ ─
//!  │ an allocation │ EDGE │ Guard │ an allocation │ EDGE │ Guard │ free
//!  └───────────────┴──────┴───────┴───────────────┴──────┴───────┴ ─ ─
//!  ^ start                ^ block of a frame's mark      ^ block ^ next = end
//! ```
//!
//! Guards are linked, the last first. In a guarded stack `block` is the last of them or NULL, and a frame's mark tells down
//! to which it is popped. An allocation in a guarded stack moves whenever its size changes, so who kept its old address finds
//! out.

use core::alloc::{Layout, LayoutError};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::slice;

use super::block::{ALIGN, Header};
use super::{Mark, Policy, Stack};
use crate::source::Source;
use crate::watch;

/// What lies between an allocation and its guard.
const EDGE: u8 = 0xca;
/// What new memory holds, and what popped memory does.
const NEW: u8 = 0xa5;
const POPPED: u8 = 0xdb;
/// What the seal of a guard begins from.
const SEAL: usize = 0x5ca1_ab1e;

/// What lies behind an allocation.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Guard {
    seal: usize,
    previous: *mut Guard,
    /// The block where it lies.
    pub(super) block: NonNull<Header>,
    start: NonNull<u8>,
    size: usize,
    /// Not once its allocation was freed or moved: then its place waits for its frame to be popped.
    is_live: Cell<bool>,
}

impl Guard {
    /// A sum of where it lies and all that it says: neither a stray write nor a copy of a guard has the right one.
    fn seal(&self) -> usize {
        let says = [
            ptr::from_ref(self).addr(),
            self.previous.addr(),
            self.block.addr().get(),
            self.start.addr().get(),
            self.size,
        ];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    /// Whether nobody wrote over it. What is written past an end comes to the edge first, then to the guard. A checker knows
    /// of the edge by itself.
    fn is_intact(&self) -> bool {
        self.seal == self.seal()
            && (watch::checked() || self.edge().iter().all(|byte| *byte == EDGE))
    }

    /// The bytes between the allocation and the guard, once the seal is known to be right.
    fn edge(&self) -> &[u8] {
        let end = self.start.as_ptr().wrapping_add(self.size);
        let size = ptr::from_ref(self).addr() - end.addr();
        // SAFETY: these bytes were written when the guard was, and lie between it and its allocation.
        unsafe { slice::from_raw_parts(end, size) }
    }
}

/// Why a frame cannot be popped as it should.
#[derive(Debug)]
pub(super) enum Broken {
    /// Somebody wrote past the end of the allocation before the guard at this address.
    Guard(usize),
    /// The mark is of a frame that was popped.
    Order,
}

/// What is placed for an allocation: where in it that begins, and where its guard does.
#[derive(Debug)]
struct Shape {
    whole: Layout,
    start: usize,
    guard: usize,
}

impl Shape {
    /// Checkers want a gap on either side.
    fn around(layout: Layout) -> Result<Shape, LayoutError> {
        let gap = Layout::from_size_align(if watch::checked() { watch::GAP } else { 0 }, 1)?;
        let (before, start) = gap.extend(layout)?;
        let (behind, _) = before.extend(gap)?;
        let (whole, guard) = behind.extend(Layout::new::<Guard>())?;
        Ok(Shape { whole: whole.align_to(ALIGN)?.pad_to_align(), start, guard })
    }
}

impl<S: Source, P: Policy> Stack<S, P> {
    /// The last guard; none where nothing was allocated.
    pub(super) fn last_guard(&self) -> Option<&Guard> {
        // SAFETY: a guarded stack has a guard that was written here, or NULL.
        unsafe { self.block.get().cast::<Guard>().as_ref() }
    }

    /// Memory with a guard behind it.
    pub(super) fn allocate_guarded(&self, layout: Layout) -> Option<NonNull<u8>> {
        let shape = Shape::around(layout).ok()?;
        let previous = self.block.get().cast();
        let placed = self.place(shape.whole);
        self.end.set(self.next.get());
        let (whole, block) = placed?;
        // SAFETY: the offset is within what was placed.
        let start = unsafe { whole.add(shape.start) };
        self.fill(start, layout.size(), NEW);
        // SAFETY: as above.
        let edge = unsafe { start.add(layout.size()) };
        self.fill(edge, shape.guard - shape.start - layout.size(), EDGE);
        // SAFETY: as above.
        let guard = unsafe { whole.add(shape.guard) }.cast::<Guard>();
        watch::ours(guard.cast(), size_of::<Guard>());
        // SAFETY: as above, and it is aligned.
        unsafe {
            guard.write(Guard {
                seal: 0,
                previous,
                block,
                start,
                size: layout.size(),
                is_live: Cell::new(true),
            });
        }
        // SAFETY: as above, it is written, and nobody else knows it.
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

    /// A place in the current block, or in another, and the block.
    fn place(&self, whole: Layout) -> Option<(NonNull<u8>, NonNull<Header>)> {
        if let Some(current) = self.current() {
            if self.last_guard().is_none() {
                self.next.set(current.begin());
            }
            // For one allocation only.
            self.end.set(current.end());
            if let Some(start) = self.bump(whole) {
                return Some((start, current.place()));
            }
        }
        let entered = self.enter_block_for(whole)?.place();
        Some((self.bump(whole)?, entered))
    }

    /// Fills memory of this stack that is handed out to nobody yet, or no more. Checkers say what is in there themselves.
    fn fill(&self, start: NonNull<u8>, size: usize, byte: u8) {
        if !watch::checked() {
            // SAFETY: callers are in this file, and pass parts of what was placed.
            unsafe { start.write_bytes(byte, size) };
        }
    }

    pub(super) fn rewind_guarded(&self, mark: Mark) {
        let popped = self.pop_guards(mark.block.cast());
        if let Err(Broken::Order) = popped {
            return report(popped);
        }
        // Also where a guard is broken: the frame ends here, whether or not what was in it was used well.
        self.block.set(mark.block);
        // A mark of when there was no guard may be of when there was no memory: both are NULL.
        let next = if mark.block.is_null() { ptr::null_mut() } else { mark.next };
        self.next.set(next);
        self.end.set(next);
        self.note_block();
        report(popped);
    }

    /// Pops guards until `last` is the last, and fills what they guarded with rubbish.
    fn pop_guards(&self, last: *mut Guard) -> Result<(), Broken> {
        while !ptr::eq(self.block.get(), last.cast()) {
            let guard = self.last_guard().ok_or(Broken::Order)?;
            let at = ptr::from_ref(guard).addr();
            guard.is_intact().then_some(()).ok_or(Broken::Guard(at))?;
            self.release(guard);
            let (start, end) = (guard.start, at + size_of::<Guard>());
            self.block.set(guard.previous.cast());
            let place = NonNull::from(guard).cast();
            self.fill(start, end - start.addr().get(), POPPED);
            watch::hidden(place, size_of::<Guard>());
        }
        Ok(())
    }

    /// Nobody may touch the allocation any more.
    fn release(&self, guard: &Guard) {
        if guard.is_live.replace(false) {
            self.fill(guard.start, guard.size, POPPED);
            if let Some(cold) = self.cold() {
                watch::freed(&cold.pool, guard.start, guard.size);
                watch::uncounted(&cold.pool, guard.size);
            }
        }
    }

    /// Frees an allocation, but for its place.
    ///
    /// # Panics
    /// Where it is none, or of another size.
    pub(super) fn free_guarded(&self, start: NonNull<u8>, size: usize) {
        self.release(self.guard_of(start, size));
    }

    /// Moves an allocation, so that who kept its old address finds out.
    ///
    /// # Panics
    /// As above.
    pub(super) fn move_guarded(
        &self,
        start: NonNull<u8>,
        size: usize,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        let old = self.guard_of(start, size);
        let moved = self.allocate_guarded(new)?;
        // SAFETY: both are at least that long, and what is handed out does not overlap.
        unsafe { start.copy_to_nonoverlapping(moved, size.min(new.size())) };
        self.release(old);
        Some(moved)
    }

    /// The guard of a live allocation, looked for from the last.
    fn guard_of(&self, start: NonNull<u8>, size: usize) -> &Guard {
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
        panic!("stack: what is freed or moved at {start:p} is no live allocation")
    }

    /// All guards, the last first, up to one that is not intact.
    fn guards(&self) -> impl Iterator<Item = Result<&Guard, Broken>> {
        let mut next = self.last_guard().filter(|_| self.is_guarded());
        core::iter::from_fn(move || {
            let guard = next.take()?;
            if !guard.is_intact() {
                return Some(Err(Broken::Guard(ptr::from_ref(guard).addr())));
            }
            // SAFETY: the guard is intact, so it has the one before it, or NULL.
            next = unsafe { guard.previous.as_ref() };
            Some(Ok(guard))
        })
    }

    /// Looks at every guard.
    ///
    /// # Panics
    /// Where somebody wrote over one.
    pub(super) fn check_guards(&self) {
        report(self.all_intact());
    }

    pub(super) fn all_intact(&self) -> Result<(), Broken> {
        self.guards().try_for_each(|guard| guard.map(|_| ()))
    }
}

/// # Panics
/// Where something is broken.
pub(super) fn report(found: Result<(), Broken>) {
    match found {
        Ok(()) => {}
        Err(Broken::Guard(at)) => {
            panic!("stack: somebody wrote past the end of the allocation before {at:#x}")
        }
        Err(Broken::Order) => panic!("stack: a frame is popped twice, or after one around it"),
    }
}

//! Canaries: bytes that a ring in debug builds, or under a checker, writes behind each block, and
//! checks when the frame is released.
//!
//! ```text
//!  ┌────────┬───────┬─────────┬──────┬───────┬─────────┬──────┬───────┐
//!  │ record │ guard │ a block │ EDGE │ guard │ a block │ EDGE │ guard │
//!  └────────┴───────┴─────────┴──────┴───────┴─────────┴──────┴───────┘
//!                                                                 record.guards ^
//! ```
//!
//! Canaries are linked, the last first, also from one block of a ring to the one before it.

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::slice;

use super::block::BlockRef;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::watch;

/// Canary byte after a block.
const EDGE: u8 = 0xca;
/// Fill bytes of new memory and of released memory.
const NEW: u8 = 0xa5;
const RELEASED: u8 = 0xdb;
/// Initial value of the seal of a canary.
const SEAL: usize = 0x0b5e_55ed;

/// Canary after a block, and after the record of a frame.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RingCanary {
    seal: usize,
    previous: *mut RingCanary,
    start: *mut u8,
    size: usize,
    allocated: CallSite,
}

/// Layout that also holds the canary bytes and the canary of `layout`; and the offset of the canary
/// in it.
pub(super) fn with_guard(layout: Layout) -> Option<(Layout, usize)> {
    let edge = Layout::from_size_align(layout.size().checked_add(watch::GAP)?, layout.align());
    let (whole, at) = edge.ok()?.extend(Layout::new::<RingCanary>()).ok()?;
    Some((whole, at))
}

/// Writes the canary bytes and the canary of a block of this size, and fills the block.
///
/// # Safety
/// `start` has the layout that `with_guard` returned for the block, whose canary is at `at`.
pub(super) unsafe fn place(
    start: *mut u8,
    (size, allocated): (usize, CallSite),
    at: usize,
    previous: *mut RingCanary,
) -> *mut RingCanary {
    let _quiet = watch::quiet();
    // SAFETY: the caller passes a block of `size` bytes.
    unsafe { fill(start, size, NEW) };
    // SAFETY: the caller guarantees that the canary bytes are between the block and `at`.
    unsafe { fill(start.wrapping_add(size), at - size, EDGE) };
    let guard = start.wrapping_add(at).cast::<RingCanary>();
    // SAFETY: the caller guarantees space for it; `with_guard` has aligned it.
    unsafe { guard.write(RingCanary { seal: 0, previous, start, size, allocated }) };
    // SAFETY: it was written just now.
    let written = unsafe { &mut *guard };
    written.seal = written.seal();
    guard
}

/// Fills memory of the ring, unless a memory checker tracks its contents.
///
/// # Safety
/// `start` is the address of `size` writable bytes.
unsafe fn fill(start: *mut u8, size: usize, byte: u8) {
    if !watch::checked() {
        // SAFETY: the caller passes `size` writable bytes.
        unsafe { start.write_bytes(byte, size) };
    }
}

impl RingCanary {
    /// Checksum of the canary's address and of its fields.
    fn seal(&self) -> usize {
        let at = ptr::from_ref(self).addr();
        let says = [at, self.previous.addr(), self.start.addr(), self.size, self.allocated.word()];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    /// The error of a block whose edge was overwritten, while the guard behind it is intact.
    fn overwritten(&self) -> Misuse {
        Misuse {
            pool: "ring",
            block: self.start.addr(),
            error: MemoryError::Overwritten,
            size: Some(self.size),
            sites: [self.allocated, CallSite::NONE],
        }
    }

    fn is_intact(&self) -> bool {
        let is_edge_whole = || watch::checked() || self.edge().iter().all(|byte| *byte == EDGE);
        self.seal == self.seal() && is_edge_whole()
    }

    /// The bytes between the block and the guard, once the seal is known to be right.
    fn edge(&self) -> &[u8] {
        let end = self.start.wrapping_add(self.size);
        // SAFETY: these bytes were written together with the canary, and lie between it and its
        // block.
        unsafe { slice::from_raw_parts(end, ptr::from_ref(self).addr() - end.addr()) }
    }
}

/// Checks all canaries of a frame that is released, reports its blocks, and overwrites them.
///
/// # Panics
/// Panics if a canary was overwritten, or if the frame was released before.
pub(super) fn released(first: BlockRef, guards: *mut RingCanary) {
    let _quiet = watch::quiet();
    // SAFETY: the ring stays while the frame does.
    let shared = unsafe { first.shared.as_ref() };
    let mut at = guards;
    // SAFETY: the guards of a frame are linked, and end with that of the record.
    while let Some(guard) = unsafe { at.as_mut() } {
        if guard.seal == guard.seal() && !guard.is_intact() {
            guard.overwritten().panic();
        }
        assert!(
            guard.is_intact(),
            "ring: the end of the block before {at:p} was overwritten, or the frame was released twice"
        );
        guard.seal = 0;
        if let Some(start) = NonNull::new(guard.start).filter(|_| !guard.previous.is_null()) {
            // SAFETY: the block has this size, and is not used any more.
            unsafe { fill(guard.start, guard.size, RELEASED) };
            watch::freed(&shared.watch, start, guard.size);
        }
        at = guard.previous;
    }
}

/// True if all canaries are intact.
pub(super) fn all_intact(mut at: *mut RingCanary) -> bool {
    let _quiet = watch::quiet();
    // SAFETY: the guards of a frame are linked, and end with NULL.
    while let Some(guard) = unsafe { at.as_ref() } {
        if !guard.is_intact() {
            return false;
        }
        at = guard.previous;
    }
    true
}

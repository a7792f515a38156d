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
//! Canaries of a frame are linked from the last to the first, also across the blocks of the ring.
//! In this file, unlike in the other files of `ring`, a *block* is an allocation in a frame.

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::slice;

use super::block::BlockRef;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::watch;

/// Value of the canary bytes after a block.
const EDGE: u8 = 0xca;
/// Fill bytes of new memory and of released memory.
const NEW: u8 = 0xa5;
const RELEASED: u8 = 0xdb;
/// Initial value of the checksum of a canary, which is its `seal`.
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

/// Returns a layout with space for an allocation of `layout`, its canary bytes and its canary, and
/// the offset of the canary in it.
pub(super) fn with_guard(layout: Layout) -> Option<(Layout, usize)> {
    let edge = Layout::from_size_align(layout.size().checked_add(watch::GAP)?, layout.align());
    let (whole, at) = edge.ok()?.extend(Layout::new::<RingCanary>()).ok()?;
    Some((whole, at))
}

/// Writes the canary bytes and the canary of a block of this size, and fills the block.
///
/// # Safety
/// The memory at `start` has the layout that `with_guard` returned for the block, and `at` is the
/// offset that it returned.
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
    // SAFETY: the caller guarantees space for the canary, and `with_guard` has aligned its offset.
    unsafe { guard.write(RingCanary { seal: 0, previous, start, size, allocated }) };
    // SAFETY: the canary was written just now, and no other reference to it exists.
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
    /// Returns the checksum of the canary's address and of its fields.
    fn seal(&self) -> usize {
        let at = ptr::from_ref(self).addr();
        let says = [at, self.previous.addr(), self.start.addr(), self.size, self.allocated.word()];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    /// Returns the error of a block whose canary bytes were overwritten. Requires that the seal of
    /// this canary is right.
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

    /// Returns the bytes between the block and the canary. Requires that the seal of this canary is
    /// right.
    fn edge(&self) -> &[u8] {
        let end = self.start.wrapping_add(self.size);
        // SAFETY: these bytes lie between the block and its canary, and were written together with
        // the canary.
        unsafe { slice::from_raw_parts(end, ptr::from_ref(self).addr() - end.addr()) }
    }
}

/// Checks all canaries of a frame that is released, reports its blocks, and overwrites them.
///
/// # Panics
/// Panics if a canary was overwritten, or if the frame was released before.
pub(super) fn released(first: BlockRef, guards: *mut RingCanary) {
    let _quiet = watch::quiet();
    // SAFETY: a ring lives at least as long as its frames.
    let shared = unsafe { first.shared.as_ref() };
    let mut at = guards;
    // SAFETY: the canaries of a frame are linked, and the list ends with the canary of the record.
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

/// True if all canaries of a frame are intact.
pub(super) fn all_intact(mut at: *mut RingCanary) -> bool {
    let _quiet = watch::quiet();
    // SAFETY: the canaries of a frame are linked, and the list ends with NULL.
    while let Some(guard) = unsafe { at.as_ref() } {
        if !guard.is_intact() {
            return false;
        }
        at = guard.previous;
    }
    true
}

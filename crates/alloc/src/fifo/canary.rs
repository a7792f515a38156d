//! Canaries: bytes that a pool in debug builds, or under a checker, writes around each block, and
//! checks when the block is freed.
//!
//! ```text
//!  region                                      region + whole
//!  v                                           v
//!  ┌─────────┬───────┬─────────────────┬──────┐
//!  │ padding │ guard │ block, as asked │ EDGE │
//!  └─────────┴───────┴─────────────────┴──────┘
//! ```
//!
//! A region is a block with its padding and canary bytes. Holes consist of whole regions, so the
//! recorded hole ends where a region begins, never where a block begins. The fast path of a free
//! requires that the block begins there, so every free takes the slow path.

use core::ptr::NonNull;
use core::slice;

use super::page::rounded;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::watch;

/// Value of the canary bytes after a block.
const EDGE: u8 = 0xca;
/// Fill bytes of new memory and of freed memory.
const NEW: u8 = 0xa5;
const FREED: u8 = 0xdf;
/// Initial value of `seal`, the checksum of a canary. A free inverts the seal.
const SEAL: usize = 0xf1f0_5ea1;

/// Canary before a block.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FifoCanary {
    seal: usize,
    pub(super) region: NonNull<u8>,
    pub(super) whole: usize,
    size: usize,
    allocated: CallSite,
    freed: CallSite,
}

/// Returns the number of bytes before a block with this alignment, and the total size of its
/// region, in bytes.
pub(super) const fn around(size: usize, align: usize) -> (usize, usize) {
    let before = size_of::<FifoCanary>().next_multiple_of(align);
    (before, before.saturating_add(rounded(size.saturating_add(watch::GAP))))
}

/// Fills memory of the pool, unless a memory checker tracks its contents.
///
/// # Safety
/// `start` is the address of `size` writable bytes.
unsafe fn fill(start: *mut u8, size: usize, byte: u8) {
    if !watch::checked() {
        // SAFETY: the caller passes `size` writable bytes.
        unsafe { start.write_bytes(byte, size) };
    }
}

impl FifoCanary {
    /// Returns the checksum of the canary's address and of its fields, except `freed`.
    fn seal(&self) -> usize {
        let at = core::ptr::from_ref(self).addr();
        let says = [at, self.region.addr().get(), self.whole, self.size, self.allocated.word()];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    /// Writes the canary before a block and the bytes after it, and fills the block.
    ///
    /// # Safety
    /// No other code uses the region. It has at least `size_of::<FifoCanary>()` bytes before the
    /// block, and more than `size` bytes from the block on.
    pub(super) unsafe fn place(
        block: NonNull<u8>,
        size: usize,
        (region, whole): (NonNull<u8>, usize),
        allocated: CallSite,
    ) {
        let at = block.as_ptr().wrapping_sub(size_of::<FifoCanary>()).cast::<FifoCanary>();
        let guard = FifoCanary { seal: 0, region, whole, size, allocated, freed: CallSite::NONE };
        // SAFETY: the caller guarantees space for a canary before the block; blocks are aligned to
        // 8.
        unsafe { at.write(guard) };
        // SAFETY: the canary was written just now, and no other reference to it exists.
        let guard = unsafe { &mut *at };
        guard.seal = guard.seal();
        // SAFETY: the caller passes a block of `size` bytes.
        unsafe { fill(block.as_ptr(), size, NEW) };
        let (end, edge) = guard.edge();
        // SAFETY: the caller guarantees that the region has these bytes after the block.
        unsafe { fill(end, edge, EDGE) };
    }

    /// Checks the canaries of a block that is freed, and fills the block. Returns the region of the
    /// block.
    ///
    /// # Panics
    /// Panics if no block begins at the address, if the block was freed before or has another size,
    /// or if memory around it was overwritten.
    ///
    /// # Safety
    /// The bytes before the address are readable. If they are a canary, its pool still exists.
    pub(super) unsafe fn release_guarded(
        block: NonNull<u8>,
        size: usize,
        freed: CallSite,
    ) -> (NonNull<u8>, usize) {
        let at = block.as_ptr().wrapping_sub(size_of::<FifoCanary>()).cast::<FifoCanary>();
        // SAFETY: the caller passes a block with a canary before it; blocks are aligned to 8.
        let guard = unsafe { &mut *at };
        if let Some(error) = guard.error(size) {
            guard.misuse(block, error).panic();
        }
        guard.seal = !guard.seal;
        guard.freed = freed;
        // SAFETY: the block has `size` bytes, and is not used any more.
        unsafe { fill(block.as_ptr(), size, FREED) };
        (guard.region, guard.whole)
    }

    /// Returns the memory error if the block is freed with this size; `None` if the free is
    /// correct.
    fn error(&self, size: usize) -> Option<MemoryError> {
        let seal = self.seal();
        match self.seal {
            found if found == !seal => return Some(MemoryError::FreedBefore),
            found if found != seal => return Some(MemoryError::NotABlock),
            _ if self.size != size => return Some(MemoryError::WrongSize(size)),
            _ => {}
        }
        let (end, edge) = self.edge();
        // SAFETY: these bytes were written together with the canary, whose seal is right.
        let edge = unsafe { slice::from_raw_parts(end, edge) };
        let is_intact = watch::checked() || edge.iter().all(|byte| *byte == EDGE);
        (!is_intact).then_some(MemoryError::Overwritten)
    }

    fn misuse(&self, block: NonNull<u8>, error: MemoryError) -> Misuse {
        let none = Misuse::not_a_block("fifo", block.addr().get());
        if error == MemoryError::NotABlock {
            return none;
        }
        Misuse { error, size: Some(self.size), sites: [self.allocated, self.freed], ..none }
    }

    /// Returns the address and the number of the canary bytes after the block.
    fn edge(&self) -> (*mut u8, usize) {
        let block = core::ptr::from_ref(self).addr() + size_of::<FifoCanary>();
        let end = block + self.size;
        let region_end = self.region.addr().get() + self.whole;
        (self.region.as_ptr().with_addr(end), region_end - end)
    }
}

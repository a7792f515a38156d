//! Guards. In a guarded pool, and under a memory checker, each block ends with a canary and a
//! trailer, and freed blocks stay in a quarantine before they are used again.
//!
//! ```text
//!  ┌──────┬──────────────────┬────────────┬─────────┐
//!  │ word │ payload, as asked│ canary     │ trailer │ word of the next ..
//!  └──────┴──────────────────┴────────────┴─────────┘
//!                             ^ 16 bytes or more
//! ```
//!
//! - The payload of a freed block is filled with a pattern while the block is in the quarantine.
//! - A block that leaves the quarantine may coalesce with a free neighbor. Its header word is then
//!   erased, so that a second free is detected.

use core::ptr::NonNull;
use core::slice;

use super::block::{GRANULE, TlsfBlock};
use super::heap::TlsfHeap;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::Source;
use crate::watch;

/// Value of the canary bytes behind a payload, and fill byte of freed payloads.
const CANARY: u8 = 0xca;
const FREED: u8 = 0xdd;
/// Initial value of the checksum of a trailer, which is its `seal`.
const SEAL: usize = 0x715f_5ea1;
/// Maximum number of blocks in the quarantine.
const WAITING: usize = 32;
/// Value of `freed` in a freed block whose free has an unknown call site.
const UNKNOWN: usize = 1;

/// Last bytes of a guarded block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct GuardTrailer {
    seal: usize,
    asked: usize,
    allocated: CallSite,
    /// Call site of the free, as a word; 0 while the block is live.
    freed: usize,
}

/// Minimum number of bytes of a guarded block behind its payload.
pub(super) const GUARD: usize = size_of::<GuardTrailer>() + watch::GAP;

impl GuardTrailer {
    fn seal(&self, block: TlsfBlock) -> usize {
        let says = [block.addr(), self.asked, self.allocated.word()];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    fn sites(&self) -> [CallSite; 2] {
        [self.allocated, CallSite::from_word(self.freed & !UNKNOWN)]
    }

    fn error(&self, block: TlsfBlock, error: MemoryError) -> Misuse {
        let address = block.payload().addr().get();
        Misuse { pool: "tlsf", block: address, error, size: Some(self.asked), sites: self.sites() }
    }
}

/// Returns the address of the trailer of a block.
fn place(block: TlsfBlock) -> NonNull<GuardTrailer> {
    let from_payload = block.capacity() - size_of::<GuardTrailer>();
    // SAFETY: a guarded block is longer than its trailer.
    unsafe { block.payload().add(from_payload) }.cast()
}

fn trailer(block: TlsfBlock) -> GuardTrailer {
    // SAFETY: the trailer is inside the block and aligned to a word, and every bit pattern is a
    // valid trailer.
    unsafe { place(block).read() }
}

fn set_trailer(block: TlsfBlock, trailer: GuardTrailer) {
    // SAFETY: the trailer is inside the block and aligned to a word.
    unsafe { place(block).write(trailer) }
}

/// Returns the canary bytes between the payload and the trailer.
fn canary<'a>(block: TlsfBlock, asked: usize) -> &'a mut [u8] {
    let len = block.capacity() - size_of::<GuardTrailer>() - asked;
    // SAFETY: the payload and the canary are inside the block.
    let start = unsafe { block.payload().add(asked) };
    // SAFETY: these bytes belong to the pool, and were initialized when the block was allocated.
    unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
}

/// Writes the canary and the trailer of a block in use for which `asked` bytes were requested.
pub(super) fn set(block: TlsfBlock, asked: usize, allocated: CallSite) {
    let mut new = GuardTrailer { seal: 0, asked, allocated, freed: 0 };
    new.seal = new.seal(block);
    set_trailer(block, new);
    if !watch::checked() {
        canary(block, asked).fill(CANARY);
    }
}

/// Returns the requested size and the call site of the allocation of a guarded block in use.
pub(super) fn of(block: TlsfBlock) -> (usize, CallSite) {
    let GuardTrailer { asked, allocated, .. } = trailer(block);
    (asked, allocated)
}

/// Returns the block of a payload, after a check that it is live and that its guard is intact.
///
/// # Errors
/// Returns the error if no live block begins at the address, or if memory behind the payload was
/// overwritten.
pub(super) fn find<S: Source>(
    heap: &TlsfHeap<S>,
    payload: NonNull<u8>,
) -> Result<TlsfBlock, Misuse> {
    let none = Misuse::not_a_block("tlsf", payload.addr().get());
    let block = heap.block_at(payload).ok_or(none)?;
    if block.is_free() {
        return Err(Misuse { error: MemoryError::FreedBefore, ..none });
    }
    let guard = trailer(block);
    if guard.seal != guard.seal(block) || guard.asked > block.capacity() - GUARD {
        // If words have a tag, the header word is that of a block, so its trailer was overwritten.
        let error = if block.has_tag() { MemoryError::Overwritten } else { MemoryError::NotABlock };
        return Err(Misuse { error, ..none });
    }
    if guard.freed != 0 {
        return Err(guard.error(block, MemoryError::FreedBefore));
    }
    let intact = watch::checked() || canary(block, guard.asked).iter().all(|byte| *byte == CANARY);
    if intact { Ok(block) } else { Err(guard.error(block, MemoryError::Overwritten)) }
}

/// As [`find`], for a block that is freed or resized with this requested size.
///
/// # Errors
/// As [`find`], and the error of a size that differs from the requested size.
pub(super) fn find_sized<S: Source>(
    heap: &TlsfHeap<S>,
    payload: NonNull<u8>,
    size: usize,
) -> Result<TlsfBlock, Misuse> {
    let block = find(heap, payload)?;
    let guard = trailer(block);
    if guard.asked != size {
        return Err(guard.error(block, MemoryError::WrongSize(size)));
    }
    Ok(block)
}

/// Freed blocks that are not used again yet. They count as in use in the heap.
#[derive(Debug)]
pub(super) struct Quarantine {
    blocks: [Option<TlsfBlock>; WAITING],
    next: usize,
}

impl Quarantine {
    pub(super) const EMPTY: Quarantine = Quarantine { blocks: [None; WAITING], next: 0 };

    /// Adds a block that [`find_sized`] has returned. If the quarantine was full, returns the block
    /// that it has contained longest.
    ///
    /// # Errors
    /// Returns the error if the returned block was written to after its free.
    pub(super) fn push(
        &mut self,
        block: TlsfBlock,
        freed: CallSite,
    ) -> Result<Option<TlsfBlock>, Misuse> {
        let freed = freed.word() | if freed == CallSite::NONE { UNKNOWN } else { 0 };
        set_trailer(block, GuardTrailer { freed, ..trailer(block) });
        fill(block);
        let left = self.blocks[self.next].replace(block);
        self.next = (self.next + 1) % WAITING;
        left.map(assert_filled).transpose()
    }

    /// Removes and returns any block.
    pub(super) fn pop(&mut self) -> Option<TlsfBlock> {
        self.blocks.iter_mut().find_map(Option::take)
    }

    /// Checks the block that was added last.
    ///
    /// # Errors
    /// Returns the error if the block was written to after its free.
    pub(super) fn check_last(&self) -> Result<(), Misuse> {
        let last = self.blocks[(self.next + WAITING - 1) % WAITING];
        last.map_or(Ok(()), |block| assert_filled(block).map(|_| ()))
    }

    /// Checks all blocks.
    ///
    /// # Errors
    /// Returns the error of the first block that was written to after its free.
    pub(super) fn check(&self) -> Result<(), Misuse> {
        self.blocks.iter().flatten().try_for_each(|block| assert_filled(*block).map(|_| ()))
    }

    pub(super) fn clear(&mut self) {
        *self = Quarantine::EMPTY;
    }
}

fn fill(block: TlsfBlock) {
    if !watch::checked() {
        // SAFETY: the user has freed the payload, which has the requested size.
        unsafe { block.payload().write_bytes(FREED, trailer(block).asked) };
    }
}

/// Returns a block of the quarantine, after a check that its payload and its canary are unchanged.
fn assert_filled(block: TlsfBlock) -> Result<TlsfBlock, Misuse> {
    let guard = trailer(block);
    if watch::checked() {
        return Ok(block);
    }
    if guard.seal != guard.seal(block) {
        return Err(guard.error(block, MemoryError::WrittenAfterFree));
    }
    // SAFETY: the payload was filled when the block was freed.
    let bytes = unsafe { slice::from_raw_parts(block.payload().as_ptr(), guard.asked) };
    let filled = bytes.iter().all(|byte| *byte == FREED);
    if filled { Ok(block) } else { Err(guard.error(block, MemoryError::WrittenAfterFree)) }
}

const _: () = assert!(GUARD.is_multiple_of(GRANULE));

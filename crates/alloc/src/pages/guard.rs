//! Guards of a pool of pages. Behind each run lies a guard page, which the user must not write to.
//! Freed pages are filled.
//!
//! ```text
//!  ├── run, whole pages ──┤ canary ................ trailer ├── next run
//!                         ├──────── one page ──────────────┤
//! ```
//!
//! Only pages that are backed by memory are filled, so that pages that were never written stay
//! unbacked.

use core::ptr::NonNull;

use super::PAGE;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::Source;

/// Value of the canary bytes behind a run, and of the bytes in filled pages.
const CANARY: u8 = 0xca;
const FREED: u8 = 0xdd;
/// Initial value of the checksum of a guard, which is its `seal`.
const SEAL: usize = 0x9a6e_5ea1;
/// Maximum number of pages in one query of the resident pages.
const ASKED: usize = 64;

/// A guard page.
#[repr(C)]
pub(super) struct PageGuard {
    canary: [u8; CANARIES],
    seal: usize,
    asked: usize,
    allocated: CallSite,
    is_freed: usize,
    freed: CallSite,
}

const CANARIES: usize = PAGE - 5 * size_of::<usize>();
const _: () = assert!(size_of::<PageGuard>() == PAGE);

impl PageGuard {
    /// Makes a page the guard of a run for which `asked` bytes were requested.
    ///
    /// # Safety
    /// No other code uses the page.
    pub(super) unsafe fn place(page: NonNull<u8>, asked: usize, allocated: CallSite) {
        // SAFETY: the caller passes a page, which is longer than the canary.
        unsafe { page.write_bytes(CANARY, CANARIES) };
        // SAFETY: the canary was written, every bit pattern is valid for the words behind it, and
        // they are written next.
        let guard = unsafe { page.cast::<PageGuard>().as_mut() };
        (guard.asked, guard.allocated) = (asked, allocated);
        (guard.is_freed, guard.freed) = (0, CallSite::NONE);
        guard.seal = guard.seal();
    }

    /// Returns the guard that a page contains, of a live or a freed run; `None` if the seal is
    /// wrong.
    ///
    /// # Safety
    /// The page lies in a region, and no other reference to it exists.
    pub(super) unsafe fn at<'a>(page: NonNull<u8>) -> Option<&'a mut PageGuard> {
        // SAFETY: pages of regions are mapped and aligned, and every bit pattern is a valid guard.
        let guard = unsafe { page.cast::<PageGuard>().as_mut() };
        (guard.seal == guard.seal()).then_some(guard)
    }

    fn seal(&self) -> usize {
        let says = [core::ptr::from_ref(self).addr(), self.asked, self.allocated.word()];
        says.iter().fold(SEAL, |sum, said| sum.rotate_left(9) ^ said)
    }

    pub(super) const fn asked(&self) -> usize {
        self.asked
    }

    pub(super) const fn allocated(&self) -> CallSite {
        self.allocated
    }

    pub(super) const fn is_live(&self) -> bool {
        self.is_freed == 0
    }

    /// Records that the run was freed.
    pub(super) fn set_freed(&mut self, freed: CallSite) {
        (self.is_freed, self.freed) = (1, freed);
    }

    /// Returns an error for the run that starts at an address, with the data of this guard.
    pub(super) fn misuse(&self, run: NonNull<u8>, error: MemoryError) -> Misuse {
        let none = Misuse::not_a_block("pages", run.addr().get());
        Misuse { error, size: Some(self.asked), sites: [self.allocated, self.freed], ..none }
    }

    /// Checks the canary.
    ///
    /// # Errors
    /// Returns the error if the canary was overwritten.
    pub(super) fn check(&self, run: NonNull<u8>) -> Result<(), Misuse> {
        let intact = self.canary.iter().all(|byte| *byte == CANARY);
        if intact { Ok(()) } else { Err(self.misuse(run, MemoryError::Overwritten)) }
    }
}

/// Fills those freed pages that are backed by memory.
///
/// # Safety
/// The pages belong to the pool, and are not in use.
pub(super) unsafe fn fill(source: &impl Source, start: NonNull<u8>, pages: usize) {
    for first in (0..pages).step_by(ASKED) {
        let count = ASKED.min(pages - first);
        // SAFETY: `first` is below the number of pages.
        let part = unsafe { start.add(first * PAGE) };
        let resident = source.resident(part, count * PAGE);
        for page in (0..count).filter(|_| resident > 0) {
            // SAFETY: `page` is less than the number of pages of this part.
            let page = unsafe { part.add(page * PAGE) };
            if resident >= count * PAGE || source.resident(page, PAGE) > 0 {
                // SAFETY: the caller passes pages that are not in use.
                unsafe { page.write_bytes(FREED, PAGE) };
            }
        }
    }
}

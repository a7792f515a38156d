//! Guards of a pool of pages: behind each run lies a page that its user may not write to, and freed
//! pages are filled.
//!
//! ```text
//!  ├── run, whole pages ──┤ canary ................ trailer ├── next run
//!                         ├──────── one page ──────────────┤
//! ```
//!
//! Only pages that are backed by memory are filled, so that an untouched run stays untouched.

use core::ptr::NonNull;

use super::PAGE;
use crate::misuse::{CallSite, MemoryError, Misuse};
use crate::source::Source;

/// Canary byte behind a run, and fill byte of freed pages.
const CANARY: u8 = 0xca;
const FREED: u8 = 0xdd;
/// Initial value of a seal.
const SEAL: usize = 0x9a6e_5ea1;
/// Pages whose residency is asked for at once.
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
    /// The page is not used by other code.
    pub(super) unsafe fn place(page: NonNull<u8>, asked: usize, allocated: CallSite) {
        // SAFETY: the caller passes a page.
        unsafe { page.write_bytes(CANARY, CANARIES) };
        // SAFETY: the page is initialized up to its last words, which are written next.
        let guard = unsafe { page.cast::<PageGuard>().as_mut() };
        (guard.asked, guard.allocated) = (asked, allocated);
        (guard.is_freed, guard.freed) = (0, CallSite::NONE);
        guard.seal = guard.seal();
    }

    /// The guard at a page, if there is one of a live or a freed run.
    ///
    /// # Safety
    /// The page is one of a region, and no other reference to it exists.
    pub(super) unsafe fn at<'a>(page: NonNull<u8>) -> Option<&'a mut PageGuard> {
        // SAFETY: pages of regions are mapped, aligned, and any bits are valid for a guard.
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

    /// An error in the use of the run that starts at an address.
    pub(super) fn misuse(&self, run: NonNull<u8>, error: MemoryError) -> Misuse {
        let none = Misuse::not_a_block("pages", run.addr().get());
        Misuse { error, size: Some(self.asked), sites: [self.allocated, self.freed], ..none }
    }

    /// Compares the canary.
    ///
    /// # Errors
    /// Returns the error if it was overwritten.
    pub(super) fn check(&self, run: NonNull<u8>) -> Result<(), Misuse> {
        let intact = self.canary.iter().all(|byte| *byte == CANARY);
        if intact { Ok(()) } else { Err(self.misuse(run, MemoryError::Overwritten)) }
    }
}

/// Fills freed pages, as far as they are backed by memory.
///
/// # Safety
/// The pages are the pool's, and not in use.
pub(super) unsafe fn fill(source: &impl Source, start: NonNull<u8>, pages: usize) {
    for first in (0..pages).step_by(ASKED) {
        let count = ASKED.min(pages - first);
        // SAFETY: `first` is below the number of pages.
        let part = unsafe { start.add(first * PAGE) };
        let resident = source.resident(part, count * PAGE);
        for page in (0..count).filter(|_| resident > 0) {
            // SAFETY: the page is one of this part.
            let page = unsafe { part.add(page * PAGE) };
            if resident >= count * PAGE || source.resident(page, PAGE) > 0 {
                // SAFETY: the caller passes pages that are not in use.
                unsafe { page.write_bytes(FREED, PAGE) };
            }
        }
    }
}

//! Linked frames: the frames of C, and the scopes of a thread's stack. Each frame points to the
//! frame around it.
//!
//! ```text
//!   stack.frame ──> ┌──────┬───────┬───────┐ ──> ┌──────┬───────┬───────┐ ──> NULL
//!                   │ next │ block │ outer │     │ next │ block │ outer │
//!                   └──────┴───────┴───────┘     └──────┴───────┴───────┘
//! ```
//!
//! A pointer to a frame is odd if the stack has left the block of that frame's mark. So popping a
//! frame needs one comparison. If `stack.frame` equals the address of the frame, the frame is the
//! innermost and its block is the current one. It then suffices to restore `next`.

use core::ptr;

use super::{Mark, Stack, StackPolicy};
use crate::source::Source;

/// A frame with a link to the frame around it: `pw_frame` in C.
#[repr(C)]
#[derive(Debug)]
pub struct FrameLink {
    pub(super) mark: Mark,
    pub(super) outer: *const FrameLink,
}

/// Tag bit of a pointer to a frame whose block the stack has left.
const ELSEWHERE: usize = 1;

impl<S: Source, P: StackPolicy> Stack<S, P> {
    /// Returns the innermost frame; NULL if no frame is open.
    #[inline(always)]
    pub(super) fn innermost(&self) -> *const FrameLink {
        self.frame.get().map_addr(|address| address & !ELSEWHERE)
    }

    /// Pops a frame that was pushed on this stack.
    ///
    /// # Safety
    /// Allocations since the frame was pushed are not used any more.
    #[inline(always)]
    pub(super) unsafe fn pop(&self, link: &FrameLink) {
        if ptr::eq(self.frame.get(), link) {
            self.frame.set(link.outer);
            self.next.set(link.mark.next);
        } else {
            // SAFETY: the caller guarantees that the frame's allocations are not used any more.
            unsafe { self.pop_slow(link) };
        }
    }

    /// As `pop`, if the stack has left the frame's block, or if the frame is not the innermost.
    ///
    /// # Safety
    /// As for `pop`.
    ///
    /// # Panics
    /// Panics if the frame is not the innermost frame.
    #[cold]
    #[inline(never)]
    pub unsafe fn pop_slow(&self, link: &FrameLink) {
        assert!(
            ptr::eq(self.innermost(), link),
            "stack: a frame is popped that is not the innermost"
        );
        self.frame.set(link.outer);
        // SAFETY: the mark was made when the frame was pushed, and no frame that was pushed later
        // is open.
        unsafe { self.rewind(link.mark) };
    }

    /// Sets the tag of the pointer to the innermost frame, if the stack has left the block of that
    /// frame.
    pub(super) fn note_block(&self) {
        let innermost = self.innermost();
        // SAFETY: the pointer is NULL, or the address of an open frame, which does not move.
        let link = unsafe { innermost.as_ref() }.filter(|_| P::LINKED);
        if link.is_some_and(|link| link.mark.block != self.block.get()) {
            self.frame.set(innermost.map_addr(|address| address | ELSEWHERE));
        }
    }
}

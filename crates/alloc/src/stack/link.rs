//! Frames that are linked: those of C, and the scopes of a thread's stack. Each knows the one around it.
//!
//! ```text
//!   stack.frame ──> ┌──────┬───────┬───────┐ ──> ┌──────┬───────┬───────┐ ──> NULL
//!                   │ next │ block │ outer │     │ next │ block │ outer │
//!                   └──────┴───────┴───────┘     └──────┴───────┴───────┘
//! ```
//!
//! A pointer to a frame is odd where the stack is not in the block of that frame's mark any more. Who pops a frame compares
//! once: where the pointer is that of the frame, the frame is the innermost, and to set `next` back is all there is to do.

use core::ptr;

use super::{Mark, Policy, Stack};
use crate::source::Source;

/// A frame that is linked to the one around it: `pw_frame` in C.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    pub(super) mark: Mark,
    pub(super) outer: *const Link,
}

/// What makes a pointer to a frame odd.
const ELSEWHERE: usize = 1;

impl<S: Source, P: Policy> Stack<S, P> {
    /// The innermost frame, NULL where there is none.
    #[inline(always)]
    pub(super) fn innermost(&self) -> *const Link {
        self.frame.get().map_addr(|address| address & !ELSEWHERE)
    }

    /// Pops a frame that was pushed on this stack.
    ///
    /// # Safety
    /// Nobody uses what was allocated since.
    #[inline(always)]
    pub(super) unsafe fn pop(&self, link: &Link) {
        if ptr::eq(self.frame.get(), link) {
            self.frame.set(link.outer);
            self.next.set(link.mark.next);
        } else {
            // SAFETY: as the caller says.
            unsafe { self.pop_slow(link) };
        }
    }

    /// As above, for a frame whose block the stack has left, or that is not the innermost.
    ///
    /// # Safety
    /// As above.
    ///
    /// # Panics
    /// Where it is not the innermost.
    #[cold]
    #[inline(never)]
    pub unsafe fn pop_slow(&self, link: &Link) {
        assert!(
            ptr::eq(self.innermost(), link),
            "stack: a frame is popped that is not the innermost"
        );
        self.frame.set(link.outer);
        // SAFETY: the mark was made when the frame was pushed, and is not older than any that is left.
        unsafe { self.rewind(link.mark) };
    }

    /// Notes in which block the stack is, for who pops the innermost frame.
    pub(super) fn note_block(&self) {
        let innermost = self.innermost();
        // SAFETY: NULL, or a frame that was pushed and not popped, so that it is where it was.
        let link = unsafe { innermost.as_ref() }.filter(|_| P::LINKED);
        if link.is_some_and(|link| link.mark.block != self.block.get()) {
            self.frame.set(innermost.map_addr(|address| address | ELSEWHERE));
        }
    }
}

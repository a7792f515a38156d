//! What those share who allocate in a ring and who release its frames: the blocks that came back.
//!
//! Whoever releases the last frame of a block puts it here, and the ring takes all at once: so no block is compared with
//! one that went and came again. When the ring is dropped while there are frames, the last that is released takes all down.

use core::ptr::{self, NonNull};

use super::atomic::{AtomicPtr, AtomicUsize, Ordering, Touched};
use super::block::{BlockRef, Header};
use crate::watch;

/// More than blocks ever come back.
const MANY: usize = 1 << (usize::BITS - 2);

/// A line of its own: the ring seldom looks here.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Shared {
    /// The block, or the list of them, that came back last.
    returned: AtomicPtr<Header>,
    /// How often blocks will come back, and [`MANY`] while the ring may send out more.
    expected: AtomicUsize,
    /// The ring, and what takes it down once nobody uses it any more.
    ring: NonNull<u8>,
    destroy: unsafe fn(NonNull<u8>),
    /// The ring itself, and this part of it, for loom.
    owned: Touched,
    used: Touched,
    pub(super) watch: watch::Pool,
}

impl Shared {
    pub(super) fn new(ring: NonNull<u8>, destroy: unsafe fn(NonNull<u8>)) -> Shared {
        Shared {
            returned: AtomicPtr::new(ptr::null_mut()),
            expected: AtomicUsize::new(MANY),
            ring,
            destroy,
            owned: Touched::new(),
            used: Touched::new(),
            watch: watch::created("ring"),
        }
    }

    /// Puts blocks here that are linked from `first` to `last`, and takes the ring down if nobody waits for more.
    ///
    /// # Safety
    /// The blocks are the caller's, and of this ring, which counts this as once.
    pub(super) unsafe fn put(this: NonNull<Shared>, first: BlockRef, last: BlockRef) {
        // SAFETY: a ring stays at least while blocks are to come back.
        let shared = unsafe { this.as_ref() };
        let mut head = shared.returned.load(Ordering::Relaxed);
        loop {
            last.next.set(head);
            let put = shared.returned.compare_exchange_weak(
                head,
                first.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let (ring, destroy) = (shared.ring, shared.destroy);
        shared.used.read();
        if shared.expected.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.taken_down();
            // SAFETY: the ring was dropped, and this was the last that it waited for.
            unsafe { destroy(ring) };
        }
    }

    /// Takes what came back: the first of a list.
    pub(super) fn take(&self) -> Option<BlockRef> {
        BlockRef::new(self.returned.swap(ptr::null_mut(), Ordering::Acquire))
    }

    /// The ring sends out no more, and says how often blocks come back in all. Whether all did.
    pub(super) fn close(&self, times: usize) -> bool {
        self.owned.write();
        let rest = MANY - times;
        let all = self.expected.fetch_sub(rest, Ordering::AcqRel) == rest;
        if all {
            self.taken_down();
        }
        all
    }

    /// For loom: nobody else is here.
    fn taken_down(&self) {
        self.owned.write();
        self.used.write();
    }
}

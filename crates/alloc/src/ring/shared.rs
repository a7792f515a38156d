//! State shared by the allocating thread of a ring and the threads that release its frames: the
//! returned blocks.
//!
//! The thread that releases the last frame of a block puts the block here, and the ring takes all
//! blocks at once: so the list has no ABA problem. If the ring is dropped while frames exist, the
//! release of the last one destroys it.

use core::ptr::{self, NonNull};

use super::atomic::{AtomicPtr, AtomicUsize, Ordering, TouchCheck};
use super::block::{BlockRef, RingBlockHeader};
use crate::watch;

/// More than the number of returns of any ring.
const MANY: usize = 1 << (usize::BITS - 2);

/// In a cache line of its own, which the ring seldom reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct RingShared {
    /// List of the returned blocks, the last first.
    returned: AtomicPtr<RingBlockHeader>,
    /// Number of block returns to come, plus [`MANY`] while the ring may send more.
    expected: AtomicUsize,
    /// The ring, and the function that destroys it after its last use.
    ring: NonNull<u8>,
    destroy: unsafe fn(NonNull<u8>),
    /// The ring itself, and this part of it, for loom.
    owned: TouchCheck,
    used: TouchCheck,
    pub(super) watch: watch::WatchedPool,
}

impl RingShared {
    pub(super) fn new(ring: NonNull<u8>, destroy: unsafe fn(NonNull<u8>)) -> RingShared {
        RingShared {
            returned: AtomicPtr::new(ptr::null_mut()),
            expected: AtomicUsize::new(MANY),
            ring,
            destroy,
            owned: TouchCheck::new(),
            used: TouchCheck::new(),
            watch: watch::created("ring"),
        }
    }

    /// Adds blocks that are linked from `first` to `last`, and destroys the ring if no more are
    /// expected.
    ///
    /// # Safety
    /// The blocks are the caller's, and of this ring, which counted them as one return.
    pub(super) unsafe fn put(this: NonNull<RingShared>, first: BlockRef, last: BlockRef) {
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

    /// Takes all returned blocks: the first of a list.
    pub(super) fn pop_released(&self) -> Option<BlockRef> {
        BlockRef::new(self.returned.swap(ptr::null_mut(), Ordering::Acquire))
    }

    /// Called when the ring sends no more blocks, with the total number of returns. Returns true if
    /// all blocks were returned.
    pub(super) fn close(&self, times: usize) -> bool {
        self.owned.write();
        let rest = MANY - times;
        let all = self.expected.fetch_sub(rest, Ordering::AcqRel) == rest;
        if all {
            self.taken_down();
        }
        all
    }

    /// For loom: no other thread accesses the ring.
    fn taken_down(&self) {
        self.owned.write();
        self.used.write();
    }
}

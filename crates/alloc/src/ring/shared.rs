//! Fields of a ring that the allocating thread shares with the threads that release frames: the
//! list of returned blocks.
//!
//! The thread that releases the last frame of a block adds the block to the list. The ring always
//! takes the whole list at once, so the list has no ABA problem. If the ring is dropped while
//! frames exist, the release of the last frame destroys the ring.

use core::ptr::{self, NonNull};

use super::atomic::{AtomicPtr, AtomicUsize, Ordering, TouchCheck};
use super::block::{BlockRef, RingBlockHeader};
use crate::watch;

/// Upper bound of the number of returns of blocks to a ring.
const MANY: usize = 1 << (usize::BITS - 2);

/// Fields in a cache line of their own, which the ring seldom reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct RingShared {
    /// List of the returned blocks, from the last to the first.
    returned: AtomicPtr<RingBlockHeader>,
    /// Number of expected returns of blocks. While the ring may still count more: [`MANY`] minus
    /// the number of past returns.
    expected: AtomicUsize,
    /// The ring, and the function that destroys it after its last return of blocks.
    ring: NonNull<u8>,
    destroy: unsafe fn(NonNull<u8>),
    /// For loom: accesses to the ring itself, and accesses to these fields.
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

    /// Adds the blocks that are linked from `first` to `last` to the list. Destroys the ring if it
    /// expects no further return.
    ///
    /// # Safety
    /// The caller owns the blocks, which belong to this ring, and the ring counted them as one
    /// return.
    pub(super) unsafe fn put(this: NonNull<RingShared>, first: BlockRef, last: BlockRef) {
        // SAFETY: the ring is not destroyed while it expects a return.
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
            // SAFETY: the ring was dropped, and this was the last return that it expected.
            unsafe { destroy(ring) };
        }
    }

    /// Removes all returned blocks, and returns the first block of their list.
    pub(super) fn pop_released(&self) -> Option<BlockRef> {
        BlockRef::new(self.returned.swap(ptr::null_mut(), Ordering::Acquire))
    }

    /// Called when the ring counts no more returns; `times` is their total number. Returns true if
    /// all of these returns have happened.
    pub(super) fn close(&self, times: usize) -> bool {
        self.owned.write();
        let rest = MANY - times;
        let all = self.expected.fetch_sub(rest, Ordering::AcqRel) == rest;
        if all {
            self.taken_down();
        }
        all
    }

    /// For loom: checks that no other thread accesses the ring.
    fn taken_down(&self) {
        self.owned.write();
        self.used.write();
    }
}

//! A lock that waits by a futex and allocates nothing. A child of `fork` resets it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel;

const OPEN: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// A lock. The thread that holds it is marked as recording, so a signal handler that allocates on
/// it does not wait here.
#[derive(Debug)]
pub(crate) struct Lock(AtomicU32);

/// Opens the lock on drop.
#[derive(Debug)]
pub(crate) struct LockGuard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(OPEN))
    }

    pub(crate) fn hold(&self) -> LockGuard<'_> {
        if self.0.compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        LockGuard(self)
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.0.load(Ordering::Relaxed) == OPEN
                && self.0.compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != OPEN {
            kernel::wait(&self.0, AWAITED);
        }
    }

    /// Opens it where a [`LockGuard`] was forgotten.
    ///
    /// # Safety
    /// This thread holds it, and nothing will open it again.
    pub(crate) unsafe fn open(&self) {
        drop(LockGuard(self));
    }

    /// Opens it in a child of `fork`, where the thread that held it does not exist.
    pub(crate) fn reset(&self) {
        self.0.store(OPEN, Ordering::Relaxed);
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(OPEN, Ordering::Release) == AWAITED {
            kernel::wake(&self.0.0);
        }
    }
}

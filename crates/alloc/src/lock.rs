//! A lock of one byte, for pools that several threads share: waiting threads spin, and with the
//! feature `os` they also yield.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// Number of spins on a taken lock before the thread yields, with the feature `os`.
const LOOKS: u32 = 64;

/// A value that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    taken: AtomicBool,
    /// True if [`Locked::survive_fork`] has run: it registers the lock if that is possible.
    #[cfg(feature = "os")]
    forks: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only by the thread that holds the lock, and `T: Send` permits
// accesses from different threads one after the other.
unsafe impl<T: Send> Sync for Locked<T> {}

/// A held lock; dropping this guard releases the lock.
struct SpinGuard<'a>(&'a AtomicBool);

impl Drop for SpinGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Locked<T> {
        Locked {
            taken: AtomicBool::new(false),
            #[cfg(feature = "os")]
            forks: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Makes each fork take the lock, if the value is in static memory, so that the lock is free in
    /// the child. Requires that the caller does not hold the lock.
    #[cfg(feature = "os")]
    #[inline]
    pub(crate) fn survive_fork(&self, order: crate::fork::ForkOrder) {
        if !self.forks.load(Ordering::Relaxed) && !self.forks.swap(true, Ordering::Relaxed) {
            crate::fork::register(&self.taken, order);
        }
    }

    /// Calls `body` with the value while the lock is held. `body` must not call `with` on the same
    /// value: the call would wait forever.
    #[inline]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.lock();
        // SAFETY: the lock is held, so no other reference to the value exists.
        body(unsafe { &mut *self.value.get() })
    }

    #[inline]
    fn lock(&self) -> SpinGuard<'_> {
        take(&self.taken);
        SpinGuard(&self.taken)
    }
}

/// Waits until a lock is free, and takes it.
#[inline]
pub(crate) fn take(lock: &AtomicBool) {
    while lock.swap(true, Ordering::Acquire) {
        wait(lock);
    }
}

/// Waits until the lock is free. Another thread may take the lock before the caller does.
#[cold]
fn wait(lock: &AtomicBool) {
    let mut looks = 0_u32;
    while lock.load(Ordering::Relaxed) {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) {
            let_others_run();
        }
        core::hint::spin_loop();
    }
}

#[cfg(feature = "os")]
fn let_others_run() {
    // SAFETY: the call takes no arguments and accesses no memory of this process.
    unsafe { libc::sched_yield() };
}

#[cfg(not(feature = "os"))]
fn let_others_run() {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn values_added_under_the_lock_are_complete() {
        let sum = Locked::new(0_u32);
        let times = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..times).for_each(|_| sum.with(|sum| *sum += 1)));
            }
        });
        assert_eq!(sum.with(|sum| *sum), 4 * times);
    }
}

//! A lock of one byte, for pools that several threads share: waiting threads spin, and yield if the
//! operating system is available.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// Number of spins on a taken lock before the thread yields, if the operating system is available.
const LOOKS: u32 = 64;

/// Something that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    taken: AtomicBool,
    /// True once [`Locked::survive_fork`] has registered it, or has found that it cannot.
    #[cfg(feature = "os")]
    forks: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached with the lock taken, by one thread at a time, and may go from
// one to another.
unsafe impl<T: Send> Sync for Locked<T> {}

/// A held lock. Dropping this releases the lock.
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

    /// Makes a fork take the lock, so that the child finds it free, if the value is in static
    /// memory. The caller does not hold the lock.
    #[cfg(feature = "os")]
    #[inline]
    pub(crate) fn survive_fork(&self, order: crate::fork::ForkOrder) {
        if !self.forks.load(Ordering::Relaxed) && !self.forks.swap(true, Ordering::Relaxed) {
            crate::fork::register(&self.taken, order);
        }
    }

    /// Calls `body` with the value and the lock held. `body` must not use this value: it would wait
    /// forever.
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

/// Takes a lock, once it is free.
#[inline]
pub(crate) fn take(lock: &AtomicBool) {
    while lock.swap(true, Ordering::Acquire) {
        wait(lock);
    }
}

/// Waits until the lock looks free.
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
    // SAFETY: the call touches no memory of ours.
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

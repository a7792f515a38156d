//! Atomic numbers and pointers: those of `core`, or in tests those of loom, which tries every order
//! in which threads may run.

#[cfg(not(all(feature = "loom", test)))]
pub(super) use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[cfg(all(feature = "loom", test))]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// With loom, detects concurrent reads and writes of the memory that this value represents. Without
/// loom, does nothing.
#[derive(Debug)]
pub(super) struct TouchCheck {
    #[cfg(all(feature = "loom", test))]
    cell: loom::cell::UnsafeCell<()>,
}

impl TouchCheck {
    pub(super) fn new() -> TouchCheck {
        TouchCheck {
            #[cfg(all(feature = "loom", test))]
            cell: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Records a read.
    #[inline(always)]
    pub(super) fn read(&self) {
        #[cfg(all(feature = "loom", test))]
        self.cell.with(|_| ());
    }

    /// Records a write.
    #[inline(always)]
    pub(super) fn write(&self) {
        #[cfg(all(feature = "loom", test))]
        self.cell.with_mut(|_| ());
    }
}

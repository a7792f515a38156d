//! Atomic numbers and pointers: those of `core`, or those of loom, which tries every order in which threads may run.

#[cfg(not(all(loom, test)))]
pub(super) use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[cfg(all(loom, test))]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// For loom: nobody reads what another writes at the same time. Nothing in programs.
#[derive(Debug)]
pub(super) struct Touched {
    #[cfg(all(loom, test))]
    cell: loom::cell::UnsafeCell<()>,
}

impl Touched {
    pub(super) fn new() -> Touched {
        Touched {
            #[cfg(all(loom, test))]
            cell: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Somebody reads what this stands for.
    #[inline(always)]
    pub(super) fn read(&self) {
        #[cfg(all(loom, test))]
        self.cell.with(|_| ());
    }

    /// Somebody writes what this stands for.
    #[inline(always)]
    pub(super) fn write(&self) {
        #[cfg(all(loom, test))]
        self.cell.with_mut(|_| ());
    }
}

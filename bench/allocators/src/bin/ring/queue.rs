//! A queue from one thread to another, of pairs of words: what a message costs must not hide what
//! its memory does.

use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::yield_now;

/// Item of the queue: the start of a message, and the value that releases it.
pub(crate) type Item = (*mut u8, *mut u8);

/// An index of one side, and what it knows of the other's.
#[repr(align(128))]
struct QueueSide {
    own: AtomicUsize,
    seen: Cell<usize>,
}

/// One thread calls `push`, and one `pop`.
pub(crate) struct SpscQueue {
    pushed: QueueSide,
    popped: QueueSide,
    slots: Box<[UnsafeCell<Item>]>,
    most: usize,
}

// SAFETY: a slot is the pusher's until its index is published, then the popper's until that one is.
unsafe impl Sync for SpscQueue {}

/// Waits until a number that another thread counts is not `at` any more.
fn wait_past(at: usize, other: &AtomicUsize) -> usize {
    let mut looks = 0_u32;
    loop {
        let now = other.load(Ordering::Acquire);
        if now != at {
            return now;
        }
        looks += 1;
        if looks.is_multiple_of(1 << 12) { yield_now() } else { spin_loop() }
    }
}

impl SpscQueue {
    /// A queue of at most `most` items.
    pub(crate) fn new(most: usize) -> SpscQueue {
        let side = || QueueSide { own: AtomicUsize::new(0), seen: Cell::new(0) };
        let slots = (0..most).map(|_| UnsafeCell::new((null_mut(), null_mut()))).collect();
        SpscQueue { pushed: side(), popped: side(), slots, most }
    }

    #[inline]
    pub(crate) fn push(&self, item: Item) {
        let at = self.pushed.own.load(Ordering::Relaxed);
        if at - self.pushed.seen.get() == self.most {
            self.pushed.seen.set(wait_past(at - self.most, &self.popped.own));
        }
        // SAFETY: the popper is past it.
        unsafe { self.slots[at % self.most].get().write(item) };
        self.pushed.own.store(at + 1, Ordering::Release);
    }

    /// Waits until all is popped, and done with but for the last.
    pub(crate) fn wait_empty(&self) {
        let pushed = self.pushed.own.load(Ordering::Relaxed);
        let mut popped = self.popped.own.load(Ordering::Acquire);
        while popped != pushed {
            popped = wait_past(popped, &self.popped.own);
        }
    }

    /// True if there is something to pop.
    pub(crate) fn has_some(&self) -> bool {
        self.popped.own.load(Ordering::Relaxed) != self.pushed.own.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn pop(&self) -> Item {
        let at = self.popped.own.load(Ordering::Relaxed);
        if at == self.popped.seen.get() {
            self.popped.seen.set(wait_past(at, &self.pushed.own));
        }
        // SAFETY: the pusher is past it.
        let item = unsafe { self.slots[at % self.most].get().read() };
        self.popped.own.store(at + 1, Ordering::Release);
        item
    }
}

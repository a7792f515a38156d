//! Blocks at hand: some freed blocks of each small size, not yet merged with their neighbours.
//!
//! ```text
//!  counts  3 0 8 ..       one a size of block: LEAST, LEAST + GRANULE, ..; all CLOSED where every call is to be seen. The
//!                         upper bits count what was taken, for statistics: adding 255 is to take one away and count it
//!  blocks  │a b c│     │d e f g h i j k│ ..      the last in is the first out
//!  leaving m l            found no room: l is merged when the next finds none, m when the one after does; by then what
//!                         lies around them has come near
//! ```
//!
//! - For the heap these blocks are in use. A block of a class has its size, or GRANULE bytes more.
//! - No more than `counts` of a row mean anything; that is at most N.

use core::ptr::NonNull;

use super::block::{Block, GRANULE, LEAST, POISON, WORD, size_for};
use super::heap::{Heap, poison};
use crate::source::Source;

/// Sizes of blocks that are kept at hand: up to 528 bytes, for 520 of payload, where addresses have 64 bits.
pub const CLASSES: usize = 32;

/// As many at hand as are neither blocks nor room for one.
const CLOSED: u8 = u8::MAX;

/// A block that was taken, in a count; below it is how many are at hand.
const TAKEN: u32 = 1 << 8;

/// Slow paths in which statistics are told of together at most.
const TOLD: u32 = 16;

/// Up to N freed blocks of each small size. C programs see what is before `leaving` as `pw_tlsf`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Front<const N: usize> {
    counts: [u32; CLASSES],
    blocks: [[Option<NonNull<u8>>; N]; CLASSES],
    leaving: [Option<Block>; 2],
    /// For statistics: blocks of the heap that were asked for since they were told of the last time, and their bytes.
    requests: usize,
    requested: usize,
    /// Slow paths until it is time to tell, and how many there were the last time: the fewer, the younger the pool.
    untold: u32,
    interval: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(Front<32>, blocks) == 128);
    assert!(core::mem::offset_of!(Front<32>, leaving) == 8320);
};

// SAFETY: its pointers lead to memory that its pool alone has.
unsafe impl<const N: usize> Send for Front<N> {}

/// The class of the block for a payload; CLASSES or more where it is too large.
#[inline]
const fn class(payload: usize) -> usize {
    let payload = if payload < LEAST - WORD { LEAST - WORD } else { payload };
    (payload - WORD - 1) / GRANULE
}

/// Bytes that can be used of a block of a class.
#[inline]
const fn capacity(class: usize) -> usize {
    LEAST - WORD + class * GRANULE
}

/// How many blocks of a class are at hand.
#[inline]
const fn at_hand(count: u32) -> u8 {
    count.to_le_bytes()[0]
}

impl<const N: usize> Front<N> {
    /// Nothing at hand.
    pub(super) const EMPTY: Front<N> = {
        assert!(N < CLOSED as usize);
        Front {
            counts: [0; CLASSES],
            blocks: [[None; N]; CLASSES],
            leaving: [None; 2],
            requests: 0,
            requested: 0,
            untold: 0,
            interval: 0,
        }
    };

    /// Keeps nothing at hand, so that every call comes to a slow path. Nothing was at hand before.
    pub(super) fn close(&mut self) {
        self.counts = [CLOSED.into(); CLASSES];
    }

    fn is_closed(&self) -> bool {
        at_hand(self.counts[0]) == CLOSED
    }

    /// A block for this many bytes, if one is at hand.
    #[inline]
    pub(super) fn pop(&mut self, payload: usize) -> Option<NonNull<u8>> {
        self.pop_class(class(payload), TAKEN)
    }

    #[inline]
    fn pop_class(&mut self, class: usize, taken: u32) -> Option<NonNull<u8>> {
        let count = *self.counts.get(class)?;
        let last = at_hand(count).wrapping_sub(1);
        let block = *self.blocks[class].get(usize::from(last))?;
        // There is one at hand, so that the lower byte does not borrow.
        self.counts[class] = count.wrapping_add(taken).wrapping_sub(1);
        block
    }

    /// Keeps a block of this many bytes, if there is room.
    #[inline]
    pub(super) fn push(&mut self, block: NonNull<u8>, payload: usize) -> bool {
        let class = class(payload);
        let Some(count) = self.counts.get_mut(class) else { return false };
        let place = self.blocks[class].get_mut(usize::from(at_hand(*count)));
        let Some(place) = place else { return false };
        *place = Some(block);
        *count += 1;
        true
    }

    /// For statistics: somebody asked for a block of the heap, of which so many bytes can be used.
    #[inline]
    pub(super) const fn count(&mut self, capacity: usize) {
        if cfg!(feature = "stats") {
            self.requests += 1;
            self.requested = self.requested.wrapping_add(capacity);
        }
    }

    /// Tells statistics what was asked for since the last time, where it is time. In slow paths.
    #[inline]
    pub(super) fn tell<S: Source>(&mut self, heap: &mut Heap<S>, size: usize) {
        if cfg!(feature = "stats") {
            match self.untold.checked_sub(1) {
                Some(untold) => self.untold = untold,
                None => self.tell_now(heap, size),
            }
        }
    }

    /// As [`Front::tell`], at once.
    #[cold]
    pub(super) fn tell_now<S: Source>(&mut self, heap: &mut Heap<S>, size: usize) {
        self.interval = (self.interval + 1).min(TOLD);
        self.untold = self.interval;
        let (mut requests, mut requested) = (self.requests, self.requested);
        (self.requests, self.requested) = (0, 0);
        for (class, count) in self.counts.iter_mut().enumerate() {
            let taken = (*count / TAKEN) as usize;
            *count %= TAKEN;
            requests += taken;
            requested += taken * capacity(class);
        }
        heap.tell(requests, requested, self.bytes(), size);
    }

    /// How many blocks of each class are at hand.
    fn at_hand(&self) -> impl Iterator<Item = (usize, usize)> {
        let counts = self.counts.iter().map(|count| usize::from(at_hand(*count)));
        counts.enumerate().filter(|_| !self.is_closed())
    }

    /// Bytes of the blocks at hand.
    fn bytes(&self) -> usize {
        let counted: usize = self.at_hand().map(|(class, count)| capacity(class) * count).sum();
        counted + self.leaving.iter().flatten().map(|block| block.capacity()).sum::<usize>()
    }

    /// Has a block leave, and merges the one that left before the last. By then its word and its neighbours are near: nobody
    /// waited for them. Blocks that are not small are merged at once, and all are where none are kept at hand.
    pub(super) fn leave<S: Source>(
        &mut self,
        heap: &mut Heap<S>,
        block: NonNull<u8>,
        payload: usize,
    ) {
        // SAFETY: the caller frees a block of the heap.
        let block = unsafe { Block::of(block) };
        let Some(size) = size_for(payload).filter(|_| N > 0 && class(payload) < CLASSES) else {
            return heap.put(block);
        };
        block.prefetch();
        block.split_at(size).prefetch();
        let [last, first] = self.leaving;
        self.leaving = [Some(block), last];
        if let Some(last) = last.filter(|last| last.is_after_free()) {
            last.before().prefetch();
        }
        if let Some(first) = first {
            heap.put(first);
        }
    }

    /// Gives one block back to the heap; `false` where none is at hand.
    pub(super) fn give_back<S: Source>(&mut self, heap: &mut Heap<S>) -> bool {
        let leaving = self.leaving.iter_mut().find_map(Option::take);
        // SAFETY: what is at hand is a block of the heap.
        let at_hand =
            || self.pop_class(self.some_class(), 0).map(|block| unsafe { Block::of(block) });
        let block = leaving.or_else(at_hand);
        block.inspect(|block| heap.put(*block)).is_some()
    }

    /// A class of which blocks are at hand; CLASSES where none are.
    fn some_class(&self) -> usize {
        self.counts.iter().rposition(|count| at_hand(*count) > 0).unwrap_or(CLASSES)
    }

    /// Forgets all blocks at hand.
    pub(super) fn reset(&mut self) {
        if !self.is_closed() {
            self.counts = [0; CLASSES];
        }
        self.leaving = [None; 2];
    }

    /// How many blocks are at hand.
    pub(super) fn len(&self) -> usize {
        let counted: usize = self.at_hand().map(|(_, count)| count).sum();
        counted + self.leaving.iter().flatten().count()
    }

    /// Whether this block is at hand.
    pub(super) fn holds(&self, block: Block) -> bool {
        let class = class(block.capacity());
        let payload = Some(block.payload());
        let rows = [class, class.wrapping_sub(1)].into_iter().filter_map(|class| self.row(class));
        self.leaving.contains(&Some(block)) || rows.flatten().any(|kept| *kept == payload)
    }

    fn row(&self, class: usize) -> Option<&[Option<NonNull<u8>>]> {
        self.blocks.get(class)?.get(..usize::from(at_hand(self.counts[class])))
    }
}

/// Where a pool is guarded: whether nobody has written to a freed block.
#[inline]
pub(super) fn check_poison<S: Source>(heap: &Heap<S>, payload: NonNull<u8>) {
    if heap.is_guarded() {
        // SAFETY: what is at hand is a block of the heap.
        let block = unsafe { Block::of(payload) };
        // SAFETY: a payload is as long as its block says; it was filled when it was freed.
        let bytes = unsafe { core::slice::from_raw_parts(payload.as_ptr(), block.capacity()) };
        assert!(
            bytes.iter().all(|byte| *byte == POISON),
            "{payload:p} was written to after it was freed"
        );
    }
}

/// Where a pool is guarded: whether a block may be freed, and with this layout. Fills it then.
#[inline]
pub(super) fn check_free<S: Source, const N: usize>(
    front: &Front<N>,
    heap: &Heap<S>,
    payload: NonNull<u8>,
    size: usize,
) {
    if heap.is_guarded() {
        let block = heap.find(payload);
        assert!(!front.holds(block), "{payload:p} was freed before");
        let spare = size_for(size).and_then(|size| block.size().checked_sub(size));
        assert!(
            spare.is_some_and(|spare| spare < LEAST),
            "{payload:p} was not allocated with {size} bytes"
        );
        poison(block);
    }
}

//! Blocks at hand: some freed blocks of each small size, not yet merged with their neighbours.
//!
//! ```text
//!  counts  3 0 8 ..       one a size of block: LEAST, LEAST + GRANULE, ..; all CLOSED where every call is to be seen
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

/// As many counts as are neither blocks nor room for one.
const CLOSED: u8 = u8::MAX;

/// Up to N freed blocks of each small size. C programs see what is before `leaving` as `pw_tlsf`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Front<const N: usize> {
    counts: [u8; CLASSES],
    told: Told,
    blocks: [[Option<NonNull<u8>>; N]; CLASSES],
    leaving: [Option<Block>; 2],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(Front<16>, told) == 32);
    assert!(core::mem::offset_of!(Front<16>, blocks) == 56);
    assert!(core::mem::offset_of!(Front<16>, leaving) == 4152);
};

/// What happened since it was told the last time, for statistics.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Told {
    pub(super) requests: usize,
    /// Bytes.
    pub(super) requested: usize,
    pub(super) returned: usize,
}

// SAFETY: its pointers lead to memory that its pool alone has.
unsafe impl<const N: usize> Send for Front<N> {}

/// The class of the block for a payload; CLASSES or more where it is too large.
#[inline]
const fn class(payload: usize) -> usize {
    let payload = if payload < LEAST - WORD { LEAST - WORD } else { payload };
    (payload - WORD - 1) / GRANULE
}

impl<const N: usize> Front<N> {
    /// Nothing at hand.
    pub(super) const EMPTY: Front<N> = {
        assert!(N < CLOSED as usize);
        let told = Told { requests: 0, requested: 0, returned: 0 };
        Front { counts: [0; CLASSES], told, blocks: [[None; N]; CLASSES], leaving: [None; 2] }
    };

    /// Keeps nothing at hand, so that every call comes to a slow path. Nothing was at hand before.
    pub(super) const fn close(&mut self) {
        self.counts = [CLOSED; CLASSES];
    }

    /// A block for this many bytes, if one is at hand.
    #[inline]
    pub(super) fn pop(&mut self, payload: usize) -> Option<NonNull<u8>> {
        let block = self.pop_class(class(payload))?;
        self.count_request(payload);
        Some(block)
    }

    #[inline]
    fn pop_class(&mut self, class: usize) -> Option<NonNull<u8>> {
        let last = self.counts.get(class)?.wrapping_sub(1);
        let block = *self.blocks[class].get(usize::from(last))?;
        self.counts[class] = last;
        block
    }

    /// Keeps a block of this many bytes, if there is room.
    #[inline]
    pub(super) fn push(&mut self, block: NonNull<u8>, payload: usize) -> bool {
        let class = class(payload);
        let Some(count) = self.counts.get_mut(class) else { return false };
        let Some(place) = self.blocks[class].get_mut(usize::from(*count)) else { return false };
        *place = Some(block);
        *count += 1;
        self.count_return(payload);
        true
    }

    /// Somebody asks for a block.
    #[inline]
    pub(super) const fn count_request(&mut self, payload: usize) {
        if cfg!(feature = "stats") {
            self.told.requests += 1;
            self.told.requested = self.told.requested.wrapping_add(payload);
        }
    }

    /// A block comes back.
    #[inline]
    pub(super) const fn count_return(&mut self, payload: usize) {
        if cfg!(feature = "stats") {
            self.told.returned = self.told.returned.wrapping_add(payload);
        }
    }

    /// What happened since the last time.
    pub(super) fn told(&mut self) -> Told {
        core::mem::take(&mut self.told)
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
        let at_hand = || self.pop_class(self.some_class()).map(|block| unsafe { Block::of(block) });
        let block = leaving.or_else(at_hand);
        block.inspect(|block| heap.put(*block)).is_some()
    }

    /// A class of which blocks are at hand; CLASSES where none are.
    fn some_class(&self) -> usize {
        self.counts.iter().rposition(|count| *count > 0).unwrap_or(CLASSES)
    }

    /// Forgets all blocks at hand.
    pub(super) fn reset(&mut self) {
        if self.counts[0] != CLOSED {
            self.counts = [0; CLASSES];
        }
        self.leaving = [None; 2];
    }

    /// How many blocks are at hand.
    pub(super) fn len(&self) -> usize {
        let counts = self.counts.iter().filter(|count| **count != CLOSED);
        let counted: usize = counts.map(|count| usize::from(*count)).sum();
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
        self.blocks.get(class)?.get(..usize::from(self.counts[class]))
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

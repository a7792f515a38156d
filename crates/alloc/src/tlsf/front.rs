//! Deferred frees: some freed blocks of each small size class, not yet merged with their neighbors.
//!
//! ```text
//!  counts  3 0 8 ..       one per block size: MIN_BLOCK, + GRANULE, ..; all CLOSED if every call takes a slow path. The
//!                         upper bits count allocations, for statistics: adding 255 removes a block and counts it
//!  blocks  │a b c│     │d e f g h i j k│ ..      the last in is the first out
//!  bins                   the others, and larger blocks: see `bins`
//!  leaving m l            left the bins: l is merged when the next block leaves, m when the one after does; by then
//!                         their neighbors are prefetched
//! ```
//!
//! - For the heap these blocks are in use. A block of a class has its size, or GRANULE bytes more.
//! - Only the first `counts` entries of a row are valid: at most N.

use core::ptr::NonNull;

use super::bins::{self, SizeBin, SizeBins};
use super::block::{GRANULE, MIN_BLOCK, TlsfBlock, WORD};
use super::heap::TlsfHeap;
use crate::source::Source;

/// Size classes with a cache: blocks up to 528 bytes, for 520 bytes of payload, on 64-bit machines.
pub const CLASSES: usize = 32;

/// Count that stands for a closed class: no blocks, and no capacity.
const CLOSED: u8 = u8::MAX;

/// Unit of allocated blocks in a count; the bits below it are the number of cached blocks.
const TAKEN: u32 = 1 << 8;

/// Maximum number of blocks in bins, for each of the N cached blocks of a size.
const BINNED: usize = 128;
/// Bytes that may always be in bins. Beyond, an eighth of what the pool holds may be.
const ALWAYS: usize = 256 << 10;
/// Cached bytes from which on they are merged before the heap grows, if they are also a quarter of
/// what the pool holds.
const MUCH: usize = 2 * ALWAYS;
/// Cached blocks of a class among which one with a larger alignment is searched.
const LOOKED_AT: usize = 8;

/// Maximum number of slow paths between two reports of statistics.
const TOLD: u32 = 16;

/// Up to N freed blocks of each small size. C programs see what is before `leaving` as `pw_tlsf`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct DeferredFrees<const N: usize> {
    counts: [u32; CLASSES],
    blocks: [[Option<NonNull<u8>>; N]; CLASSES],
    leaving: [Option<TlsfBlock>; 2],
    bins: SizeBins,
    /// For statistics: blocks of the heap that were requested since the last report, and their
    /// bytes.
    requests: usize,
    requested: usize,
    /// Slow paths until the next report, and their number at the last one: the younger the pool,
    /// the fewer.
    untold: u32,
    interval: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(DeferredFrees<32>, blocks) == 128);
    assert!(core::mem::offset_of!(DeferredFrees<32>, leaving) == 8320);
};

// SAFETY: its pointers lead to memory that its pool alone has.
unsafe impl<const N: usize> Send for DeferredFrees<N> {}

/// The class of the block for a payload; CLASSES or more where it is too large.
#[inline]
pub(super) const fn class(payload: usize) -> usize {
    let payload = if payload < MIN_BLOCK - WORD { MIN_BLOCK - WORD } else { payload };
    (payload - WORD - 1) / GRANULE
}

/// Bytes that can be used of a block of a class.
#[inline]
pub(super) const fn capacity(class: usize) -> usize {
    MIN_BLOCK - WORD + class * GRANULE
}

/// Number of cached blocks of a class.
#[inline]
const fn at_hand(count: u32) -> u8 {
    count.to_le_bytes()[0]
}

impl<const N: usize> DeferredFrees<N> {
    /// An empty cache.
    pub(super) const EMPTY: DeferredFrees<N> = {
        assert!(N < CLOSED as usize);
        DeferredFrees {
            counts: [0; CLASSES],
            blocks: [[None; N]; CLASSES],
            leaving: [None; 2],
            bins: SizeBins::EMPTY,
            requests: 0,
            requested: 0,
            untold: 0,
            interval: 0,
        }
    };

    /// A cache that is closed from the start.
    pub(super) const CLOSED: DeferredFrees<N> =
        DeferredFrees { counts: [CLOSED as u32; CLASSES], ..DeferredFrees::EMPTY };

    /// Closes the cache, so that every call takes a slow path. It was empty before.
    pub(super) fn close(&mut self) {
        self.counts = [CLOSED.into(); CLASSES];
    }

    /// True if every call takes a slow path: blocks have guards.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        at_hand(self.counts[0]) == CLOSED
    }

    /// A cached block for this number of bytes: the one that came last, if it has the alignment.
    #[inline]
    pub(super) fn pop(&mut self, payload: usize, align: usize) -> Option<NonNull<u8>> {
        let class = class(payload);
        let count = *self.counts.get(class)?;
        let last = at_hand(count).wrapping_sub(1);
        let block = (*self.blocks[class].get(usize::from(last))?)?;
        if align > GRANULE && block.addr().get() & (align - 1) != 0 {
            return None;
        }
        self.counts[class] = count.wrapping_add(TAKEN).wrapping_sub(1);
        Some(block)
    }

    #[inline]
    fn pop_class(&mut self, class: usize, taken: u32) -> Option<NonNull<u8>> {
        let count = *self.counts.get(class)?;
        let last = at_hand(count).wrapping_sub(1);
        let block = *self.blocks[class].get(usize::from(last))?;
        // The cache is not empty, so the lower byte does not borrow.
        self.counts[class] = count.wrapping_add(taken).wrapping_sub(1);
        block
    }

    /// A cached block for this number of bytes whose address has an alignment: one of those that
    /// came last.
    fn pop_aligned(&mut self, payload: usize, align: usize) -> Option<NonNull<u8>> {
        let class = class(payload);
        let count = *self.counts.get(class)?;
        let cached = self.blocks[class].get_mut(..usize::from(at_hand(count)))?;
        let few = cached.len().saturating_sub(LOOKED_AT);
        let fits = |block: &Option<NonNull<u8>>| {
            block.is_some_and(|block| block.addr().get() & (align - 1) == 0)
        };
        let at = few + cached[few..].iter().rposition(fits)?;
        cached.swap(at, cached.len() - 1);
        self.pop_class(class, TAKEN)
    }

    /// A freed block for this number of bytes, for which the arrays have none.
    #[inline]
    pub(super) fn pop_slow(&mut self, payload: usize, align: usize) -> Option<NonNull<u8>> {
        if N == 0 {
            return None;
        }
        let bin = SizeBin::of(payload)?;
        let block = if align <= GRANULE {
            self.bins.pop(bin)?
        } else if let Some(block) = self.pop_aligned(payload, align) {
            return Some(block);
        } else {
            self.bins.pop_aligned(bin, align)?
        };
        self.count(bin.capacity());
        Some(block.payload())
    }

    /// Bytes of a block for a request: freed blocks of a class suit all requests of it.
    #[inline]
    pub(super) const fn rounded(payload: usize) -> usize {
        if N == 0 { payload } else { bins::rounded(payload) }
    }

    /// The size with which a block is freed whose requested size is not known.
    #[inline]
    pub(super) fn within(usable: usize) -> usize {
        if N == 0 { usable } else { bins::within(usable) }
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

    /// For statistics: counts an allocation from the heap with this usable size.
    #[inline]
    pub(super) const fn count(&mut self, capacity: usize) {
        if cfg!(feature = "stats") {
            self.requests += 1;
            self.requested = self.requested.wrapping_add(capacity);
        }
    }

    /// Reports the requests since the last report, if it is due. In slow paths.
    #[inline]
    pub(super) fn tell<S: Source>(&mut self, heap: &mut TlsfHeap<S>, size: usize) {
        if cfg!(feature = "stats") {
            match self.untold.checked_sub(1) {
                Some(untold) => self.untold = untold,
                None => self.tell_now(heap, size),
            }
        }
    }

    /// As [`DeferredFrees::tell`], at once.
    #[cold]
    pub(super) fn tell_now<S: Source>(&mut self, heap: &mut TlsfHeap<S>, size: usize) {
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

    /// Number of cached blocks of each class.
    fn at_hand(&self) -> impl Iterator<Item = (usize, usize)> {
        let counts = self.counts.iter().map(|count| usize::from(at_hand(*count)));
        counts.enumerate().filter(|_| !self.is_closed())
    }

    /// Bytes of the cached blocks.
    fn bytes(&self) -> usize {
        let counted: usize = self.at_hand().map(|(class, count)| capacity(class) * count).sum();
        let leaving: usize = self.leaving.iter().flatten().map(|block| block.capacity()).sum();
        counted + leaving + self.bins.bytes()
    }

    /// True if the cached blocks should be merged before a heap grows that holds a number of bytes:
    /// if they are a quarter of it, and more than [`MUCH`].
    pub(super) fn has_much(&self, held: usize) -> bool {
        self.bytes() > (held / 4).max(MUCH)
    }

    /// Puts a block into its bin. For each block beyond the limits another leaves a bin. Without a
    /// cache, and if it is larger than those of all bins, it is merged at once.
    pub(super) fn put<S: Source>(
        &mut self,
        heap: &mut TlsfHeap<S>,
        block: NonNull<u8>,
        payload: usize,
    ) {
        // SAFETY: the caller frees a block of the heap.
        let block = unsafe { TlsfBlock::from_payload(block) };
        let Some(bin) = SizeBin::of(payload).filter(|_| N > 0) else { return heap.put(block) };
        let most = ALWAYS + heap.held() / 8;
        if self.bins.bytes() > 2 * most {
            return self.leave(heap, block);
        }
        self.bins.push(bin, block);
        if (self.bins.bytes() > most || self.bins.count() > BINNED * N)
            && let Some(other) = self.bins.evict()
        {
            self.leave(heap, other);
        }
    }

    /// Adds a block to the queue of leaving blocks, and merges the one that was added before the
    /// last. By then its header and its neighbors are in the CPU cache, without a stall.
    fn leave<S: Source>(&mut self, heap: &mut TlsfHeap<S>, block: TlsfBlock) {
        block.next().prefetch();
        let [last, first] = self.leaving;
        self.leaving = [Some(block), last];
        if let Some(last) = last.filter(|last| last.is_after_free()) {
            last.before().prefetch();
        }
        if let Some(first) = first {
            heap.put(first);
        }
    }

    /// Returns one block to the heap; `false` if the cache is empty.
    pub(super) fn give_back<S: Source>(&mut self, heap: &mut TlsfHeap<S>) -> bool {
        let leaving = self.leaving.iter_mut().find_map(Option::take).or_else(|| self.bins.evict());
        let at_hand = || {
            let block = self.pop_class(self.some_class(), 0)?;
            // SAFETY: every deferred free is of a block of the heap.
            Some(unsafe { TlsfBlock::from_payload(block) })
        };
        let block = leaving.or_else(at_hand);
        block.inspect(|block| heap.put(*block)).is_some()
    }

    /// A class with cached blocks; CLASSES without one.
    fn some_class(&self) -> usize {
        self.counts.iter().rposition(|count| at_hand(*count) > 0).unwrap_or(CLASSES)
    }

    /// Forgets all cached blocks.
    pub(super) fn reset(&mut self) {
        if !self.is_closed() {
            self.counts = [0; CLASSES];
        }
        self.leaving = [None; 2];
        self.bins = SizeBins::EMPTY;
    }

    /// Number of cached blocks.
    pub(super) fn len(&self) -> usize {
        let counted: usize = self.at_hand().map(|(_, count)| count).sum();
        counted + self.leaving.iter().flatten().count() + self.bins.count()
    }

    /// True if this block is cached.
    pub(super) fn holds(&self, block: TlsfBlock) -> bool {
        let payload = Some(block.payload());
        // A block with a larger alignment may be longer than its class.
        let rows = (0..CLASSES).filter_map(|class| self.row(class));
        self.leaving.contains(&Some(block))
            || rows.flatten().any(|kept| *kept == payload)
            || self.bins.holds(block)
    }

    fn row(&self, class: usize) -> Option<&[Option<NonNull<u8>>]> {
        self.blocks.get(class)?.get(..usize::from(at_hand(self.counts[class])))
    }
}

//! Deferred frees: some freed blocks of each small size class that were not merged with their
//! neighbors yet.
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
//! - Cached blocks count as in use in the heap. A block of a size class has the size of the class,
//!   or GRANULE bytes more.
//! - Each row of `blocks` begins with its valid entries. Their number, at most N, is in `counts`.

use core::ptr::NonNull;

use super::bins::{self, SizeBin, SizeBins};
use super::block::{GRANULE, MIN_BLOCK, TlsfBlock, WORD};
use super::heap::TlsfHeap;
use crate::source::Source;

/// Number of size classes with a cache: on 64-bit machines, blocks of up to 528 bytes, with
/// payloads of up to 520 bytes.
pub const CLASSES: usize = 32;

/// Count of a closed size class: it has no blocks, and none can be added.
const CLOSED: u8 = u8::MAX;

/// Unit of the number of allocations in a count. The bits below the unit are the number of cached
/// blocks.
const TAKEN: u32 = 1 << 8;

/// Maximum number of blocks in all bins, divided by N.
const BINNED: usize = 128;
/// Number of bytes that the bins may contain in every pool. An eighth of the pool's footprint is
/// permitted in addition.
const ALWAYS: usize = 256 << 10;
/// Number of cached bytes above which cached blocks are merged before the heap grows, if they are
/// also more than a quarter of the pool's footprint.
const MUCH: usize = 2 * ALWAYS;
/// Maximum number of cached blocks of a size class that are searched for one with a larger
/// alignment.
const LOOKED_AT: usize = 8;

/// Maximum number of slow paths between two reports of statistics.
const TOLD: u32 = 16;

/// At most N freed blocks of each small size class. C programs access the fields before `leaving`
/// as `struct pw_tlsf`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct DeferredFrees<const N: usize> {
    counts: [u32; CLASSES],
    blocks: [[Option<NonNull<u8>>; N]; CLASSES],
    leaving: [Option<TlsfBlock>; 2],
    bins: SizeBins,
    /// For statistics: number of blocks that were requested from the bins and the heap since the
    /// last report, and number of their bytes.
    requests: usize,
    requested: usize,
    /// Number of slow paths before the next report, and number of slow paths between the last two
    /// reports, which grows with the age of the pool.
    untold: u32,
    interval: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(DeferredFrees<32>, blocks) == 128);
    assert!(core::mem::offset_of!(DeferredFrees<32>, leaving) == 8320);
};

// SAFETY: the pointers refer to memory that belongs to this pool alone.
unsafe impl<const N: usize> Send for DeferredFrees<N> {}

/// Returns the size class of a block for a payload; CLASSES or more if the payload is too large for
/// the cache.
#[inline]
pub(super) const fn class(payload: usize) -> usize {
    let payload = if payload < MIN_BLOCK - WORD { MIN_BLOCK - WORD } else { payload };
    (payload - WORD - 1) / GRANULE
}

/// Minimum number of usable bytes of a block of a size class.
#[inline]
pub(super) const fn capacity(class: usize) -> usize {
    MIN_BLOCK - WORD + class * GRANULE
}

/// Number of cached blocks in a count.
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

    /// Closes the cache, so that every call takes a slow path. Requires that the cache is empty.
    pub(super) fn close(&mut self) {
        self.counts = [CLOSED.into(); CLASSES];
    }

    /// True if every call takes a slow path, because blocks have guards.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        at_hand(self.counts[0]) == CLOSED
    }

    /// Removes and returns the cached block for `payload` bytes that was added last, if it has the
    /// alignment.
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
        // The number of cached blocks in the lower byte is not 0, so subtracting 1 does not borrow.
        self.counts[class] = count.wrapping_add(taken).wrapping_sub(1);
        block
    }

    /// Removes and returns a cached block for `payload` bytes whose address has an alignment.
    /// Searches only the blocks that were added last.
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

    /// Removes and returns a freed block for `payload` bytes from the bins, or from the arrays if
    /// it needs a larger alignment. Called only if `pop` has found no block.
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

    /// Returns the number of usable bytes of a block for a request, so that the freed block is long
    /// enough for all requests of its size class.
    #[inline]
    pub(super) const fn rounded(payload: usize) -> usize {
        if N == 0 { payload } else { bins::rounded(payload) }
    }

    /// Returns the size with which a block of this usable size is freed if its requested size is
    /// unknown.
    #[inline]
    pub(super) fn within(usable: usize) -> usize {
        if N == 0 { usable } else { bins::within(usable) }
    }

    /// Adds a block for `payload` bytes to the arrays. Returns false if they have no free entry for
    /// it.
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

    /// For statistics: counts an allocation from the bins or the heap with this number of usable
    /// bytes.
    #[inline]
    pub(super) const fn count(&mut self, capacity: usize) {
        if cfg!(feature = "stats") {
            self.requests += 1;
            self.requested = self.requested.wrapping_add(capacity);
        }
    }

    /// Called in slow paths. Reports the requests since the last report, if the report is due.
    #[inline]
    pub(super) fn tell<S: Source>(&mut self, heap: &mut TlsfHeap<S>, size: usize) {
        if cfg!(feature = "stats") {
            match self.untold.checked_sub(1) {
                Some(untold) => self.untold = untold,
                None => self.tell_now(heap, size),
            }
        }
    }

    /// Reports the requests since the last report.
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

    /// Returns each size class with its number of cached blocks in the arrays.
    fn at_hand(&self) -> impl Iterator<Item = (usize, usize)> {
        let counts = self.counts.iter().map(|count| usize::from(at_hand(*count)));
        counts.enumerate().filter(|_| !self.is_closed())
    }

    /// Number of usable bytes of all cached blocks.
    fn bytes(&self) -> usize {
        let counted: usize = self.at_hand().map(|(class, count)| capacity(class) * count).sum();
        let leaving: usize = self.leaving.iter().flatten().map(|block| block.capacity()).sum();
        counted + leaving + self.bins.bytes()
    }

    /// True if cached blocks should be merged before a heap with a footprint of `held` bytes grows:
    /// if they are more than a quarter of it, and more than [`MUCH`].
    pub(super) fn has_much(&self, held: usize) -> bool {
        self.bytes() > (held / 4).max(MUCH)
    }

    /// Puts a freed block into its bin. While the bins exceed a limit, each added block evicts one
    /// block, which is merged later. If they exceed twice the limit in bytes, the freed block
    /// itself is merged later. A block that is larger than those of all bins, or any block if N is
    /// 0, is merged at once.
    pub(super) fn put<S: Source>(
        &mut self,
        heap: &mut TlsfHeap<S>,
        block: NonNull<u8>,
        payload: usize,
    ) {
        // SAFETY: the caller passes a block of the heap.
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

    /// Adds a block to the queue of leaving blocks, and merges the block that was added two calls
    /// before. The header words of that block's neighbors were prefetched meanwhile, so that the
    /// merge does not wait for memory.
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

    /// Returns a cached block to the heap, which merges it; `false` if the cache is empty.
    pub(super) fn give_back<S: Source>(&mut self, heap: &mut TlsfHeap<S>) -> bool {
        let leaving = self.leaving.iter_mut().find_map(Option::take).or_else(|| self.bins.evict());
        let at_hand = || {
            let block = self.pop_class(self.some_class(), 0)?;
            // SAFETY: every cached block is a block of the heap.
            Some(unsafe { TlsfBlock::from_payload(block) })
        };
        let block = leaving.or_else(at_hand);
        block.inspect(|block| heap.put(*block)).is_some()
    }

    /// Returns a size class with cached blocks; CLASSES if no block is cached.
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

    /// True if a block is cached.
    pub(super) fn holds(&self, block: TlsfBlock) -> bool {
        let payload = Some(block.payload());
        // A block with a larger alignment may be longer than its size class, so all size classes
        // are searched.
        let rows = (0..CLASSES).filter_map(|class| self.row(class));
        self.leaving.contains(&Some(block))
            || rows.flatten().any(|kept| *kept == payload)
            || self.bins.holds(block)
    }

    fn row(&self, class: usize) -> Option<&[Option<NonNull<u8>>]> {
        self.blocks.get(class)?.get(..usize::from(at_hand(self.counts[class])))
    }
}

//! Bins: lists of freed blocks of each size class that were not merged with their neighbors yet.
//! Unlike the arrays of the deferred frees, bins contain any number of blocks, and also larger
//! blocks.
//!
//! ```text
//!  bins   24  40  56 ..  520 │ 584  648  712 ..  1032 │ 1160  1288 ..  1 MiB      usable bytes
//!               │                 8 for each power of two, to which requests are rounded up
//!               └─> block ─> block ─> block        through the blocks: the last in is the first out
//! ```
//!
//! - Blocks in bins count as in use in the heap. Each block is long enough for every request of its
//!   bin.
//! - A pool that is emptied of blocks of one size and filled with blocks of another must not keep
//!   the blocks of the first size. So while the bins exceed a limit, each freed block evicts one
//!   block from a bin. The bins take turns.

use super::block::{TlsfBlock, WORD};
use super::front::{CLASSES, capacity, class};

/// Number of bins per power of two, above the bins of the small size classes.
const STEPS: usize = 8;
/// Number of powers of two above the small size classes; the bins reach 1 MiB on 64-bit machines.
const POWERS: usize = 11;
/// Capacity of the largest small size class minus a word: a power of two.
const FINE: usize = capacity(CLASSES - 1) - WORD;
const BINS: usize = CLASSES + STEPS * POWERS;
/// Maximum number of blocks of a bin that are searched for one with a larger alignment.
const LOOKED_AT: usize = 4;

/// Number of words of a bitmap of all bins.
const WORDS: usize = BINS.div_ceil(u64::BITS as usize);

const _: () = assert!(FINE.is_power_of_two() && BINS <= u8::MAX as usize);

/// Minimum number of usable bytes of the blocks in each bin.
#[expect(clippy::cast_possible_truncation, reason = "the largest is 1 MiB")]
static CAPACITIES: [u32; BINS] = {
    let mut capacities = [0; BINS];
    let mut bin = 0;
    while bin < BINS {
        capacities[bin] = match bin.checked_sub(CLASSES) {
            None => capacity(bin) as u32,
            Some(above) => {
                let steps = (above % STEPS + STEPS + 1) << (above / STEPS);
                (steps * (FINE / STEPS) + WORD) as u32
            }
        };
        bin += 1;
    }
    capacities
};

/// Index of a bin, which is the size class of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeBin(u8);

impl SizeBin {
    /// Returns the bin of a request of `payload` bytes; `None` if the request exceeds all bins.
    #[inline]
    pub(super) const fn of(payload: usize) -> Option<SizeBin> {
        let index = if payload <= FINE + WORD {
            class(payload)
        } else {
            let above = payload - WORD - 1;
            let power = above.ilog2() - FINE.ilog2();
            let step = above >> (power + (FINE / STEPS).ilog2());
            CLASSES + power as usize * STEPS + step - STEPS
        };
        #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 128 bins")]
        if index < BINS { Some(SizeBin(index as u8)) } else { None }
    }

    /// Returns the index of the bin; bins are in the order of their block sizes.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the bin with an index.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 256 bins")]
    pub(super) const fn at(index: usize) -> SizeBin {
        SizeBin(index as u8)
    }

    /// Minimum number of usable bytes of the blocks in the bin.
    #[inline]
    pub(super) const fn capacity(self) -> usize {
        CAPACITIES[self.0 as usize] as usize
    }
}

/// Lists of freed blocks by size class.
#[derive(Debug)]
pub(super) struct SizeBins {
    heads: [Option<TlsfBlock>; BINS],
    /// Bitmap of the bins that are not empty.
    filled: [u64; WORDS],
    /// Total number of blocks in the bins, and of their usable bytes.
    count: usize,
    bytes: usize,
    /// Index of the bin from which the next block is evicted, if the bin is not empty.
    hand: u8,
}

impl SizeBins {
    pub(super) const EMPTY: SizeBins =
        SizeBins { heads: [None; BINS], filled: [0; WORDS], count: 0, bytes: 0, hand: 0 };

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a block. Requires that the block is long enough for the bin.
    #[inline]
    pub(super) fn push(&mut self, SizeBin(bin): SizeBin, block: TlsfBlock) {
        debug_assert!(block.capacity() >= SizeBin(bin).capacity(), "a block is too short");
        block.set_waiting();
        block.set_next_in_list(self.heads[usize::from(bin)].replace(block));
        self.filled[usize::from(bin / 64)] |= 1 << (bin % 64);
        self.count += 1;
        self.bytes += SizeBin(bin).capacity();
    }

    /// Removes and returns the block that was added last to a bin.
    #[inline]
    pub(super) fn pop(&mut self, SizeBin(bin): SizeBin) -> Option<TlsfBlock> {
        let block = self.heads[usize::from(bin)]?;
        self.set_head(bin, block.next_in_list());
        self.note_taken(bin);
        block.set_not_waiting();
        Some(block)
    }

    /// Removes and returns a block of a bin whose payload has this alignment. Searches only the
    /// blocks that were added last.
    pub(super) fn pop_aligned(&mut self, SizeBin(bin): SizeBin, align: usize) -> Option<TlsfBlock> {
        let mut before: Option<TlsfBlock> = None;
        let mut at = self.heads[usize::from(bin)];
        for _ in 0..LOOKED_AT {
            let block = at?;
            let next = block.next_in_list();
            if block.payload().addr().get() & (align - 1) == 0 {
                match before {
                    Some(before) => before.set_next_in_list(next),
                    None => self.set_head(bin, next),
                }
                self.note_taken(bin);
                block.set_not_waiting();
                return Some(block);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// Removes and returns a block of the next bin that is not empty.
    pub(super) fn evict(&mut self) -> Option<TlsfBlock> {
        let bin = self.first_from(self.hand).or_else(|| self.first_from(0))?;
        self.hand = bin + 1;
        self.pop(SizeBin(bin))
    }

    /// Returns the first bin, from `bin` on, that is not empty.
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 256 bins")]
    fn first_from(&self, bin: u8) -> Option<u8> {
        let first = usize::from(bin / 64);
        let mut above = u64::MAX << (bin % 64);
        for (word, filled) in self.filled.iter().enumerate().skip(first) {
            let bits = filled & above;
            if bits != 0 {
                return Some((word * 64) as u8 + bits.trailing_zeros() as u8);
            }
            above = u64::MAX;
        }
        None
    }

    #[inline]
    fn set_head(&mut self, bin: u8, head: Option<TlsfBlock>) {
        self.heads[usize::from(bin)] = head;
        if head.is_none() {
            self.filled[usize::from(bin / 64)] &= !(1 << (bin % 64));
        }
    }

    #[inline]
    fn note_taken(&mut self, bin: u8) {
        self.count -= 1;
        self.bytes -= SizeBin(bin).capacity();
    }

    /// True if a block is in a bin. The time is proportional to the number of blocks.
    pub(super) fn holds(&self, block: TlsfBlock) -> bool {
        self.heads.iter().any(|head| {
            core::iter::successors(*head, |at| at.next_in_list()).any(|found| found == block)
        })
    }
}

/// Returns the number of usable bytes that a block for a request must have, so that it is long
/// enough for its bin when it is freed.
#[inline]
pub(super) const fn rounded(payload: usize) -> usize {
    match SizeBin::of(payload) {
        Some(bin) => bin.capacity(),
        None => payload,
    }
}

/// Returns the size with which a block of this usable size is freed if its requested size is
/// unknown. A block with a larger alignment may be longer than the capacity of a bin, but shorter
/// than that of the next bin.
#[inline]
pub(super) fn within(usable: usize) -> usize {
    match SizeBin::of(usable) {
        Some(bin) if bin.capacity() > usable => SizeBin(bin.0.saturating_sub(1)).capacity(),
        _ => usable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_is_at_most_an_eighth_larger_than_a_request() {
        let mut last = SizeBin(0);
        for payload in 1..=(1 << 20) + WORD {
            let bin = SizeBin::of(payload).expect("bins reach to 1 MiB");
            assert!(bin.0 == last.0 || bin.0 == last.0 + 1, "{payload}");
            let spare = bin.capacity() - payload;
            assert!(payload < 24 || spare < (payload / STEPS).max(2 * WORD) + WORD, "{payload}");
            assert_eq!(SizeBin::of(bin.capacity()), Some(bin), "{payload}");
            last = bin;
        }
        assert_eq!(usize::from(last.0), BINS - 1);
        assert_eq!(SizeBin::of((1 << 20) + WORD + 1), None);
    }

    #[test]
    fn a_block_of_any_size_suits_the_bin_in_which_it_is_put() {
        for usable in (24..(1 << 20) + 100).step_by(16) {
            let size = within(usable);
            assert!(size <= usable && usable - size <= usable / STEPS, "{usable}");
            assert!(SizeBin::of(size).is_none_or(|bin| bin.capacity() <= usable), "{usable}");
        }
    }

    #[test]
    fn powers_of_two_cost_a_word_and_no_more() {
        for power in 10..=20 {
            assert_eq!(rounded(1 << power), (1 << power) + WORD);
        }
    }
}

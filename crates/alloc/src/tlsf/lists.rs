//! Free blocks by size, in two levels: a class is found, and a block in it, in a fixed number of steps.
//!
//! ```text
//!  levels  ..10110    one bit a level that has any block       2^level x LINEAR / 2 .. of sizes, twice as many a level
//!  rows[1] ..00100    one bit a class of the level that has any: level / 32 wide
//!  heads[1][2] ─> block <─> block <─> block
//! ```
//!
//! - A bit of `rows` is set where the list of its class is not empty, one of `levels` where a bit of its `rows` is.
//! - The first two levels hold one size a class. From there on a class is 1/32 of a power of two wide.

use super::block::{Block, GRANULE, LIMIT, Links};

/// Classes of a level, and bits of its row.
const ROW: usize = u32::BITS as usize;

/// Where sizes stop to be classes of their own: 1 KiB where addresses have 64 bits.
const EXACT: u32 = (EXACT_CLASSES * GRANULE).trailing_zeros();

/// Classes of one size each, which is their number x GRANULE.
const EXACT_CLASSES: usize = 2 * ROW;

const LEVELS: usize = (LIMIT.trailing_zeros() - EXACT + 2) as usize;

/// The lists of free blocks.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    levels: u32,
    rows: [u32; LEVELS],
    heads: [[Option<Block>; ROW]; LEVELS],
}

const _: () = assert!(LEVELS <= u32::BITS as usize);

/// The class of a size: its level x ROW and its place in the row.
#[inline]
const fn class(size: usize) -> usize {
    let shift = shift(size);
    (shift - GRANULE.trailing_zeros()) as usize * ROW + (size >> shift)
}

/// How wide a class around a size is, as a power of two.
#[inline]
const fn shift(size: usize) -> u32 {
    (size | 1 << (EXACT - 1)).ilog2() - ROW.trailing_zeros()
}

/// The bits from a place on; none from 32 on.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is meant")]
const fn from(place: usize) -> u32 {
    (u64::MAX << place) as u32
}

impl Lists {
    pub(super) const EMPTY: Lists =
        Lists { levels: 0, rows: [0; LEVELS], heads: [[None; ROW]; LEVELS] };

    /// Enters a free block.
    #[inline]
    pub(super) fn insert(&mut self, block: Block, size: usize) {
        let (level, place) = (class(size) / ROW, class(size) % ROW);
        let head = &mut self.heads[level][place];
        let next = head.replace(block);
        block.set_links(Links { next, previous: None });
        match next {
            Some(next) => next.set_previous_in_list(Some(block)),
            None => {
                self.rows[level] |= 1 << place;
                self.levels |= 1 << level;
            }
        }
    }

    /// Takes a block out, wherever it is in its list.
    #[inline]
    pub(super) fn remove(&mut self, block: Block, size: usize) {
        let Links { next, previous } = block.links();
        if let Some(next) = next {
            next.set_previous_in_list(previous);
        }
        match previous {
            Some(previous) => previous.set_next_in_list(next),
            None => self.set_head(class(size), next),
        }
    }

    /// Takes out a block of at least this size: of the exact size below EXACT, else of the next wider class, so that no
    /// list is searched.
    #[inline]
    pub(super) fn take(&mut self, size: usize) -> Option<Block> {
        let class = self.first_from(class(size + (1 << shift(size)) - 1))?;
        let block = self.heads[class / ROW][class % ROW]?;
        let next = block.links().next;
        if let Some(next) = next {
            next.set_previous_in_list(None);
        }
        self.set_head(class, next);
        Some(block)
    }

    #[inline]
    fn set_head(&mut self, class: usize, head: Option<Block>) {
        let (level, place) = (class / ROW, class % ROW);
        self.heads[level][place] = head;
        if let Some(head) = head {
            // It is the next of its class to be taken; then there shall be no waiting for it, nor for the block behind.
            if class < EXACT_CLASSES {
                head.split_at(class * GRANULE).prefetch();
            }
            return head.prefetch();
        }
        self.rows[level] &= !(1 << place);
        if self.rows[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// The first class from this one on that has a block.
    #[inline]
    fn first_from(&self, class: usize) -> Option<usize> {
        let level = class / ROW;
        let here = self.rows.get(level)? & from(class % ROW);
        if here != 0 {
            return Some(level * ROW + here.trailing_zeros() as usize);
        }
        let above = self.levels & from(level + 1);
        let level = (above != 0).then(|| above.trailing_zeros() as usize)?;
        Some(level * ROW + self.rows[level].trailing_zeros() as usize)
    }

    /// Walks all lists.
    ///
    /// # Panics
    /// Where a list, its bits or the class of a block are wrong.
    pub(super) fn check(&self, blocks: usize) {
        let mut found = 0;
        for class_of_list in 0..LEVELS * ROW {
            let (level, place) = (class_of_list / ROW, class_of_list % ROW);
            let bit = self.rows[level] >> place & 1 == 1;
            assert_eq!(self.heads[level][place].is_some(), bit, "the bit of class {class_of_list}");
            assert_eq!(self.rows[level] != 0, self.levels >> level & 1 == 1, "level {level}");
            let (mut at, mut before) = (self.heads[level][place], None);
            while let Some(block) = at {
                let links = block.links();
                assert!(block.is_free(), "a block in a list is in use");
                assert_eq!(class(block.size()), class_of_list, "a block is in the wrong list");
                assert_eq!(links.previous, before, "a list has come apart");
                (at, before, found) = (links.next, at, found + 1);
            }
        }
        assert_eq!(found, blocks, "free blocks in lists, and in regions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlsf::block::LEAST;

    #[test]
    fn classes_rise_with_sizes_and_are_a_thirtysecond_wide_at_most() {
        let mut last = class(LEAST);
        for size in (LEAST..1 << 20).step_by(GRANULE) {
            let class = class(size);
            assert!(class == last || class == last + 1, "{size}");
            assert!(size > 1 << EXACT || class == size / GRANULE, "{size}");
            assert!(1 << shift(size) <= GRANULE.max(size / ROW), "{size}");
            last = class;
        }
        assert_eq!(class(LIMIT - GRANULE), LEVELS * ROW - 1);
    }
}

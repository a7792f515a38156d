//! A bitmap of size classes: one word with a bit for each level, and one row of bits for each
//! level. The search for the next larger size class that is not empty takes a fixed number of
//! steps.
//!
//! ```text
//!  levels  ..10110    one bit a level with a class in use     each level covers twice the sizes of the one before
//!  rows[1] ..00100    one bit a size class of the level that is not empty: level / 32 wide
//! ```
//!
//! - A bit of `levels` is set if and only if a bit of its row is set.
//! - Sizes are numbers of granules: units of `GRANULE` bytes in TLSF pools, pages in pools of
//!   pages. Below [`EXACT`], in the first two levels, each size is a size class. From [`EXACT`] on,
//!   the width of a size class is 1/32 of a power of two.

/// Number of size classes of a level, and number of bits of its row.
pub(crate) const ROW: usize = u32::BITS as usize;

/// Number of size classes that contain exactly one size, and the limit of these sizes.
pub(crate) const EXACT: usize = 2 * ROW;

/// Number of levels for sizes below `limit`, which is a power of two.
pub(crate) const fn levels(limit: usize) -> usize {
    (limit.trailing_zeros() - EXACT.trailing_zeros() + 2) as usize
}

/// Returns the size class of a size: its level times `ROW`, plus its bit in the row.
#[inline(always)]
pub(crate) const fn class(size: usize) -> usize {
    let shift = shift(size);
    shift as usize * ROW + (size >> shift)
}

/// Returns the first size class whose sizes are all at least `size`.
#[inline(always)]
pub(crate) const fn class_above(size: usize) -> usize {
    class(size + (1 << shift(size)) - 1)
}

/// Returns the binary logarithm of the width of the size class of a size.
#[inline(always)]
const fn shift(size: usize) -> u32 {
    (size | ROW).ilog2() - ROW.trailing_zeros()
}

/// Returns a word in which the bits from number `place` on are set; 0 if `place` is 32 or more.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is meant")]
const fn from(place: usize) -> u32 {
    (u64::MAX << place) as u32
}

/// Set of the size classes that are not empty.
#[derive(Clone, Debug)]
pub(crate) struct SizeClassBitmap<const LEVELS: usize> {
    levels: u32,
    rows: [u32; LEVELS],
}

impl<const LEVELS: usize> SizeClassBitmap<LEVELS> {
    /// A bitmap in which all size classes are empty.
    pub(crate) const EMPTY: Self = {
        assert!(LEVELS <= u32::BITS as usize);
        SizeClassBitmap { levels: 0, rows: [0; LEVELS] }
    };

    /// Marks a size class as not empty.
    #[inline(always)]
    pub(crate) fn set(&mut self, class: usize) {
        self.rows[class / ROW] |= 1 << (class % ROW);
        self.levels |= 1 << (class / ROW);
    }

    /// Marks a size class as empty.
    #[inline(always)]
    pub(crate) fn clear(&mut self, class: usize) {
        let row = &mut self.rows[class / ROW];
        *row &= !(1 << (class % ROW));
        if *row == 0 {
            self.levels &= !(1 << (class / ROW));
        }
    }

    /// Returns the first size class, from `class` on, that is not empty.
    #[inline(always)]
    pub(crate) fn first_from(&self, class: usize) -> Option<usize> {
        let level = class / ROW;
        let here = self.rows.get(level)? & from(class % ROW);
        if here != 0 {
            return Some(level * ROW + here.trailing_zeros() as usize);
        }
        let above = self.levels & from(level + 1);
        let level = (above != 0).then(|| above.trailing_zeros() as usize)?;
        Some(level * ROW + self.rows[level].trailing_zeros() as usize)
    }

    /// Returns the last size class that is not empty.
    pub(crate) fn last(&self) -> Option<usize> {
        let level = self.levels.checked_ilog2()? as usize;
        Some(level * ROW + self.rows[level].checked_ilog2()? as usize)
    }

    /// Compares each bit with `has`, which returns true for a size class that is not empty.
    ///
    /// # Panics
    /// Panics if an invariant is violated.
    pub(crate) fn check(&self, has: impl Fn(usize) -> bool) {
        for (level, row) in self.rows.iter().enumerate() {
            assert_eq!(*row != 0, self.levels >> level & 1 == 1, "level {level}");
            for place in 0..ROW {
                let class = level * ROW + place;
                assert_eq!(has(class), row >> place & 1 == 1, "the bit of class {class}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_sizes_and_are_a_thirtysecond_wide_at_most() {
        let mut last = class(1);
        for size in 1..1 << 16 {
            let class = class(size);
            assert!(class == last || class == last + 1, "{size}");
            assert!(size >= EXACT || class == size, "{size}");
            assert!(1 << shift(size) <= 1.max(size / ROW), "{size}");
            last = class;
        }
        assert_eq!(class((1 << 36) - 1), levels(1 << 36) * ROW - 1);
    }

    #[test]
    fn every_size_of_the_class_above_fits() {
        for size in 1..1 << 14 {
            let found = class_above(size);
            assert!((1..size).rev().take(40).all(|smaller| class(smaller) < found), "{size}");
            assert!(found <= class(size) + 1, "{size}");
        }
    }

    #[test]
    fn the_next_class_that_has_something_is_found_across_levels() {
        let mut classes = SizeClassBitmap::<8>::EMPTY;
        for class in [3, 63, 64, 200] {
            assert_eq!(classes.first_from(class), None);
            classes.set(class);
        }
        assert_eq!([0, 4, 64, 65].map(|from| classes.first_from(from)), [3, 63, 64, 200].map(Some));
        assert_eq!(classes.first_from(201), None);
        assert_eq!(classes.last(), Some(200));
        classes.clear(200);
        assert_eq!(classes.last(), Some(64));
        classes.check(|class| [3, 63, 64].contains(&class));
    }
}

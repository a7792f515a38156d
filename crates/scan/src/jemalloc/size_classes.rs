//! Size classes of jemalloc, with its default quantum of 16 bytes and pages of 4 KiB.

/// Page size in bytes that is compiled into jemalloc.
pub(super) const PAGE: u64 = 1 << PAGE_SHIFT;
const PAGE_SHIFT: u32 = 12;
/// Number of size classes; also the class of a free extent (`SC_NSIZES`).
pub(super) const CLASSES: u64 = 232;
/// Number of size classes whose blocks are in slabs (`SC_NBINS`).
pub(super) const SMALL_CLASSES: u64 = 36;
/// Maximum number of slots of a slab.
pub(super) const MAX_SLOTS: usize = 512;

/// Number of bytes of the blocks of a class: 8, then four multiples of 16, then four classes for
/// each doubling. `None` if the class does not exist.
pub(super) const fn class_size(class: u64) -> Option<u64> {
    match class {
        0 => Some(8),
        1..=4 => Some(16 * class),
        5..CLASSES => {
            let group = (class - 1) / 4;
            let steps = (class - 1) % 4 + 1;
            Some((1 << (group + 5)) + (steps << (group + 3)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_sizes_that_malloc_usable_size_returns() {
        let known = [(0, 8), (4, 64), (5, 80), (8, 128), (9, 160), (35, 14336), (36, 16384)];
        for (class, size) in known {
            assert_eq!(class_size(class), Some(size), "{class}");
        }
        assert_eq!(class_size(41), Some(40 << 10));
        assert_eq!(class_size(CLASSES - 1), Some(7 << 60));
        assert_eq!(class_size(CLASSES), None);
    }
}

//! Thread caches of glibc's malloc: the layout of `tcache_perthread_struct` (malloc/malloc.c) of
//! glibc 2.26 to 2.44, on 64-bit machines. A cache contains a count for each bin, followed by the
//! first entry of each bin. The cache itself is a block of its arena.

use crate::glibc_chunk::{MIN_CHUNK, UNIT};

/// Number of bins whose chunks all have the same size.
pub const SMALL_BINS: usize = 64;

/// Layout of a cache, by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Versions of glibc with this layout.
    pub name: &'static str,
    /// Number of bins.
    pub bins: usize,
    /// Number of bytes of a count.
    pub width: usize,
    /// True if a count is the number of entries in the bin; false if it is the number of entries
    /// that may still be added.
    pub counts_entries: bool,
}

/// All layouts: glibc 2.26, 2.30 and 2.42 changed the structure.
pub const LAYOUTS: [CacheLayout; 3] = [
    CacheLayout {
        name: "64 bins, counts of 1 byte (glibc 2.26 to 2.29)",
        bins: SMALL_BINS,
        width: 1,
        counts_entries: true,
    },
    CacheLayout {
        name: "64 bins, counts of 2 bytes (glibc 2.30 to 2.41)",
        bins: SMALL_BINS,
        width: 2,
        counts_entries: true,
    },
    CacheLayout { name: "76 bins (since glibc 2.42)", bins: 76, width: 2, counts_entries: false },
];

impl CacheLayout {
    /// Determines the layout of a cache from the size of its chunk; `None` if no layout fits.
    #[must_use]
    pub fn of_chunk(size: u64) -> Option<CacheLayout> {
        LAYOUTS.into_iter().find(|layout| layout.has_chunk_of(size))
    }

    /// Offset of the first entries.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.bins * self.width
    }

    /// Number of bytes of a cache.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bins * (self.width + 8)
    }

    /// True if a chunk of `size` bytes may contain a cache. The chunk may be larger than needed:
    /// malloc does not split off a remainder that is smaller than the smallest chunk, and since
    /// glibc 2.43 it adds the header twice for some caches.
    fn has_chunk_of(self, size: u64) -> bool {
        let needed = (self.bytes() as u64 + 8).next_multiple_of(UNIT);
        (needed..needed + UNIT + MIN_CHUNK).contains(&size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_caches_have_the_sizes_that_glibc_allocates() {
        // The sizes were read from programs, except the first size, which follows from the layout.
        let bins = |size| CacheLayout::of_chunk(size).map(|layout| (layout.bins, layout.width));
        assert_eq!(bins(0x250), Some((64, 1)), "glibc 2.27");
        assert_eq!(bins(0x290), Some((64, 2)), "glibc 2.31 and 2.41");
        assert_eq!(bins(0x300), Some((76, 2)), "glibc 2.43");
        for size in [0, 32, 0x240, 0x1000, u64::MAX] {
            assert_eq!(bins(size), None, "{size:#x}");
        }
    }
}

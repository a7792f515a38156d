//! Thread caches of glibc's malloc: the layout of `tcache_perthread_struct` (malloc/malloc.c) of
//! glibc 2.26 to 2.44, on 64-bit machines. A cache has a count for each bin, then the first entry
//! of each bin, and is a block of its arena.

use crate::glibc_chunk::{MIN_CHUNK, UNIT};

/// Number of bins whose chunks have one size.
pub const SMALL_BINS: usize = 64;

/// Layout of a cache, by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Versions that have it.
    pub name: &'static str,
    /// Number of bins.
    pub bins: usize,
    /// Bytes of a count.
    pub width: usize,
    /// True if the counts are those of entries, false if of entries that are still permitted.
    pub counts_entries: bool,
}

/// glibc 2.26, 2.30 and 2.42 changed the structure.
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
    /// The layout of a cache in a chunk of this size.
    #[must_use]
    pub fn of_chunk(size: u64) -> Option<CacheLayout> {
        LAYOUTS.into_iter().find(|layout| layout.has_chunk_of(size))
    }

    /// Offset of the first entries.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.bins * self.width
    }

    /// Bytes of a cache.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bins * (self.width + 8)
    }

    /// True for the size of the chunk of a cache: malloc does not split a chunk if the remainder
    /// would be too small for one, and since glibc 2.43 adds the header twice for some caches.
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
        // Read from programs, but for the first, which the layout gives.
        let bins = |size| CacheLayout::of_chunk(size).map(|layout| (layout.bins, layout.width));
        assert_eq!(bins(0x250), Some((64, 1)), "glibc 2.27");
        assert_eq!(bins(0x290), Some((64, 2)), "glibc 2.31 and 2.41");
        assert_eq!(bins(0x300), Some((76, 2)), "glibc 2.43");
        for size in [0, 32, 0x240, 0x1000, u64::MAX] {
            assert_eq!(bins(size), None, "{size:#x}");
        }
    }
}

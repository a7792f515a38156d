//! Arenas of glibc's malloc: the layout of `malloc_state` (malloc/malloc.c) of glibc 2.27 to 2.44,
//! on 64-bit machines.
//!
//! ```text
//!  until 2.42, since 2.43
//!     0     0  lock
//!     4     4  flags
//!     8        has fastbin chunks
//!    16        fastbins[10]
//!    96     8  top
//!   104    16  last remainder
//!   112    24  bins[127]: first and last
//!  2160  2072  next arena
//!  2176  2088  threads
//!  2184  2096  bytes from the system
//!  2192  2104  most bytes from the system so far
//! ```

use crate::glibc_chunk::HEADER;

/// Structure layout of `malloc_state`, by version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateLayout {
    /// Until glibc 2.42.
    WithFastbins,
    /// Since glibc 2.43.
    WithoutFastbins,
}

/// Offset of the fastbins in [`StateLayout::WithFastbins`].
pub const FASTBINS: u64 = 16;
/// Number of fastbins.
pub const FASTBIN_COUNT: usize = 10;
/// Number of bins that are not fastbins.
pub const BIN_COUNT: usize = 127;
/// Maximum number of bytes from the start of a heap to the arena in it.
pub const MAX_HEAP_HEADER: u64 = 128;

impl StateLayout {
    /// All layouts.
    pub const ALL: [StateLayout; 2] = [StateLayout::WithFastbins, StateLayout::WithoutFastbins];

    /// Offset of `top`. The distances from `top` to the fields after it are the same in all
    /// versions.
    #[must_use]
    pub const fn top(self) -> u64 {
        match self {
            StateLayout::WithFastbins => 96,
            StateLayout::WithoutFastbins => 8,
        }
    }

    /// Offset of the bins.
    #[must_use]
    pub const fn bins(self) -> u64 {
        self.top() + 16
    }

    /// Offset of the link to the next arena.
    #[must_use]
    pub const fn next(self) -> u64 {
        self.top() + 2064
    }

    /// Offset of the number of threads that allocate from the arena.
    #[must_use]
    pub const fn threads(self) -> u64 {
        self.top() + 2080
    }

    /// Offset of the number of bytes that the arena has from the system.
    #[must_use]
    pub const fn system(self) -> u64 {
        self.top() + 2088
    }

    /// Offset of the maximum number of bytes that the arena had from the system.
    #[must_use]
    pub const fn max_system(self) -> u64 {
        self.top() + 2096
    }

    /// Number of bytes of an arena.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.top() + 2104
    }

    /// Address of a bin as a chunk: the two words of the bin are the links of that chunk.
    #[must_use]
    pub const fn bin(self, arena: u64, index: usize) -> u64 {
        let links = arena.wrapping_add(self.bins()).wrapping_add(16 * index as u64);
        links.wrapping_sub(HEADER)
    }

    /// Determines the layout of an arena from its address and its bytes. The links of an empty bin
    /// refer to the bin itself, and no program fills all bins: in the correct layout, at least one
    /// bin is empty. `None` if no layout fits.
    #[must_use]
    pub fn of_arena(arena: u64, bytes: &[u8]) -> Option<StateLayout> {
        let word = |at: u64| {
            let at = usize::try_from(at).ok()?;
            bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        StateLayout::ALL.into_iter().find(|layout| {
            (0..BIN_COUNT).any(|index| {
                let (bin, links) = (layout.bin(arena, index), layout.bins() + 16 * index as u64);
                [word(links), word(links + 8)] == [Some(bin); 2]
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(layout: StateLayout, address: u64, filled: usize) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(layout.bytes()).unwrap()];
        for index in 0..BIN_COUNT {
            let value = if index < filled { address + 0x4000 } else { layout.bin(address, index) };
            let at = usize::try_from(layout.bins()).unwrap() + 16 * index;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn empty_bins_tell_the_layouts_apart() {
        let address = 0x7000_0000_0030;
        for layout in StateLayout::ALL {
            for filled in [0, 1, 100, BIN_COUNT - 1] {
                let bytes = arena(layout, address, filled);
                assert_eq!(StateLayout::of_arena(address, &bytes), Some(layout), "{filled}");
            }
            let full = arena(layout, address, BIN_COUNT);
            assert_eq!(StateLayout::of_arena(address, &full), None);
            let other = arena(layout, address + 8, 0);
            assert_eq!(StateLayout::of_arena(address, &other), None);
        }
        assert_eq!(StateLayout::of_arena(address, &[]), None);
    }
}

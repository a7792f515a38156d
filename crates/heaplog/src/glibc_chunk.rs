//! Header of a block of glibc's malloc: the layout of `malloc_chunk` on 64-bit machines, the same
//! in all versions from 2.3 to 2.44.
//!
//! A chunk begins with two words: the size of the chunk before it, which is valid only while that
//! chunk is free, and its own size with [flags](FLAGS) in the low bits. The block that `malloc`
//! returns begins after these two words, and includes the first word of the next chunk.

/// Number of bytes of the two words before a block; chunks are aligned to this size.
pub const HEADER: u64 = 16;
/// Alignment of chunks in bytes; their sizes are multiples of it.
pub const UNIT: u64 = 16;
/// Size of the smallest chunk in bytes.
pub const MIN_CHUNK: u64 = 32;
/// The bits of the size word that are not part of the size.
pub const FLAGS: u64 = 7;
/// Flag: the chunk before this one is in use (`PREV_INUSE`).
pub const PREVIOUS_IN_USE: u64 = 1;
/// Flag: the chunk has a mapping of its own (`IS_MMAPPED`).
pub const MAPPED: u64 = 2;
/// Flag: the chunk does not belong to the main arena (`NON_MAIN_ARENA`).
pub const OTHER_ARENA: u64 = 4;

/// Size of a chunk in bytes, by its size word.
#[inline(always)]
pub const fn size(word: u64) -> u64 {
    word & !FLAGS
}

/// True if a chunk has a mapping of its own, by its size word.
#[inline(always)]
pub const fn is_mapped(word: u64) -> bool {
    word & MAPPED != 0
}

/// Number of bytes between the end of a chunk with a mapping of its own and the end of this
/// mapping: 0 until glibc 2.42. Since 2.43 this space contains a header. The block includes the
/// first word of this header, as other blocks include the first word of the next chunk. The mapping
/// ends at a page boundary, so the alignment of the chunk's end reveals the version.
#[inline(always)]
pub const fn behind_mapped(block: u64, word: u64) -> u64 {
    block.wrapping_sub(HEADER).wrapping_add(size(word)) & UNIT
}

/// Number of usable bytes of a block in use, by its address and the size word of its chunk. For any
/// other word the result is meaningless.
#[inline(always)]
pub const fn room(block: u64, word: u64) -> u64 {
    let outside = if is_mapped(word) { HEADER - behind_mapped(block, word) / 2 } else { 8 };
    size(word).wrapping_sub(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_bytes_of_mapped_blocks_depend_on_the_version() {
        let mapped = |bytes: u64| bytes | MAPPED;
        // malloc_usable_size of glibc 2.41 returned these values for malloc(150000) and
        // aligned_alloc(64, 150000).
        assert_eq!(room(0x7000_0010, mapped(0x25000)), 151_536);
        assert_eq!(behind_mapped(0x7000_0010, mapped(0x25000)), 0);
        assert_eq!(room(0x7000_0040, mapped(0x24fd0)), 151_488);
        // With glibc 2.43.
        assert_eq!(room(0x7000_0010, mapped(0x24ff0)), 151_528);
        assert_eq!(behind_mapped(0x7000_0010, mapped(0x24ff0)), 16);
        assert_eq!(room(0x7000_0040, mapped(0x24fc0)), 151_480);
        // A block in a heap.
        assert_eq!(room(0x7000_0010, 0x91), 0x88);
    }
}

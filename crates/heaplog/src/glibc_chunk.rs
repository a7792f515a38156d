//! Header of a block of glibc's malloc: the layout of `malloc_chunk` on 64-bit machines, the same
//! in all versions from 2.3 to 2.42.
//!
//! A chunk begins with two words: the size of the chunk before it, which is valid only while that
//! chunk is free, and its own size with [flags](FLAGS) in the low bits. The block that `malloc`
//! returns begins behind them, and reaches into the first word of the next chunk.

/// Bytes of the two words before a block; chunks are aligned to it.
pub const HEADER: u64 = 16;
/// Alignment of chunks, of which their sizes are multiples.
pub const UNIT: u64 = 16;
/// Size of the smallest chunk.
pub const MIN_CHUNK: u64 = 32;
/// The bits of the size word that are not part of the size.
pub const FLAGS: u64 = 7;
/// Flag: the chunk before this one is in use (`PREV_INUSE`).
pub const PREVIOUS_IN_USE: u64 = 1;
/// Flag: the chunk has a mapping of its own (`IS_MMAPPED`).
pub const MAPPED: u64 = 2;
/// Flag: the chunk is not of the main arena (`NON_MAIN_ARENA`).
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

/// Usable bytes of a block in use, by the size word of its chunk; the result means nothing for a
/// word that is not one.
#[inline(always)]
pub const fn room(word: u64) -> u64 {
    size(word).wrapping_sub(if is_mapped(word) { 16 } else { 8 })
}

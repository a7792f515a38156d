//! Blocks, into which the memory of a region is divided.
//!
//! ```text
//!            one block, `size` bytes, a multiple of GRANULE
//!        ┌─────────────────────────────────────────────────┐
//!  used  │ word │ payload: all the rest is the user's      │ word of the next ..
//!        └──────┴──────────────────────────────────────────┘
//!        ┌──────┬──────┬──────────┬────────────────┬───────┐
//!  free  │ word │ next │ previous │    not used    │ start │ word of the next ..
//!        └──────┴──────┴──────────┴────────────────┴───────┘
//!        word     size | FREE | AFTER_FREE | SPARE | WAITING, in debug builds a tag in upper bits
//!        next     the next free block of the same class, and the previous
//!        start    where this block starts: the next block finds its free neighbor here
//! ```
//!
//! - Payloads are aligned to GRANULE; the header word of a block lies just before its payload.
//! - `AFTER_FREE` is set if the block before is free. Only then the word before the header word is
//!   the `start` of that block.
//! - `SPARE` is set in a block in use that is a GRANULE larger than requested, because the rest
//!   would be too small for a block. So the header word determines the requested size.
//! - `WAITING` is set in a freed block that is in a bin and was not merged yet. The pool itself
//!   does not need this bit; programs that read the memory of the pool from another process do.
//! - Two neighbors are never both free. No block precedes the first block of a region. The last
//!   block of a region consists of a header word only, with size 0 and in use, so that no function
//!   accesses memory behind the region.
//!
//! A [`TlsfBlock`] always points to the word of a block, so that its methods may read and write it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size of a word in bytes.
pub(super) const WORD: usize = size_of::<usize>();

/// Granularity of block sizes and alignment of payloads, in bytes.
pub const GRANULE: usize = 2 * WORD;

/// Minimum size of a block in bytes: the four words of a free block.
pub(super) const MIN_BLOCK: usize = 4 * WORD;

/// Upper limit of block sizes in bytes: 1 TiB on 64-bit machines. Every block is smaller.
pub(super) const LIMIT: usize = 1 << if WORD == 8 { 40 } else { 30 };

const SIZE: usize = (LIMIT - 1) & !(GRANULE - 1);
const FREE: usize = 1;
const AFTER_FREE: usize = 2;
const SPARE: usize = 4;
/// Bit of a block in a bin; 0 on 32-bit machines, where the size leaves no free bit.
const WAITING: usize = if WORD == 8 { 8 } else { 0 };

/// Returns the size of a block for this number of payload bytes; `None` if no block can be that
/// large.
pub(super) const fn size_for(payload: usize) -> Option<usize> {
    if payload >= LIMIT - MIN_BLOCK {
        return None;
    }
    let size = (payload + WORD + GRANULE - 1) & !(GRANULE - 1);
    Some(if size < MIN_BLOCK { MIN_BLOCK } else { size })
}

/// Returns the `SPARE` bit of a block: set if `size` is larger than the size that the request
/// needs.
#[inline]
const fn spare(size: usize, asked: usize) -> usize {
    if size == asked { 0 } else { SPARE }
}

/// Reference to a block of a region, by the address of its header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct TlsfBlock(NonNull<usize>);

/// Links of a free block in the list of its size class.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct FreeLinks {
    pub(super) next: Option<TlsfBlock>,
    pub(super) previous: Option<TlsfBlock>,
}

impl TlsfBlock {
    /// Returns the block whose header word is, or will be, at an address.
    ///
    /// # Safety
    /// `word` is in a region, just before a multiple of GRANULE. The heap owns the memory from
    /// there to the next block.
    pub(super) const unsafe fn at(word: NonNull<usize>) -> TlsfBlock {
        TlsfBlock(word)
    }

    /// Returns the block of a payload.
    ///
    /// # Safety
    /// `payload` is the payload of a block.
    #[inline]
    pub(super) const unsafe fn from_payload(payload: NonNull<u8>) -> TlsfBlock {
        // SAFETY: the header word of a block lies just before its payload.
        TlsfBlock(unsafe { payload.cast::<usize>().sub(1) })
    }

    /// Returns the address of the payload.
    #[inline]
    pub(super) const fn payload(self) -> NonNull<u8> {
        // SAFETY: a block has at least `MIN_BLOCK` bytes. Callers do not pass the last word of a
        // region, which has size 0 and no payload.
        unsafe { self.0.add(1) }.cast()
    }

    /// Returns the address of the header word.
    pub(super) fn addr(self) -> usize {
        self.0.addr().get()
    }

    /// Usable size in bytes.
    #[inline]
    pub(super) fn capacity(self) -> usize {
        self.size() - WORD
    }

    /// Returns the requested size, rounded up to a possible payload size.
    #[inline]
    pub(super) fn rounded_asked(self) -> usize {
        let spare = if self.word() & SPARE == 0 { 0 } else { GRANULE };
        self.capacity() - spare
    }

    /// Returns the header word as an atomic number. The owner of a block may read its size while
    /// another thread frees the preceding block and sets [`AFTER_FREE`] in the same word. The
    /// atomic access costs no additional instruction.
    #[inline]
    fn cell(&self) -> &AtomicUsize {
        // SAFETY: a block starts with its header word, which is accessed only by these methods.
        unsafe { AtomicUsize::from_ptr(self.0.as_ptr()) }
    }

    #[inline]
    fn word(self) -> usize {
        self.cell().load(Ordering::Relaxed)
    }

    #[inline]
    fn set_word(self, word: usize) {
        self.cell().store(word | self.tag(), Ordering::Relaxed);
    }

    /// Returns the tag that a header word contains in debug builds, computed from its address, so
    /// that a wrong address is detected; 0 in release builds.
    #[inline]
    fn tag(self) -> usize {
        if cfg!(debug_assertions) && WORD == 8 {
            (self.addr() >> 3).wrapping_mul(usize::MAX / 11) & !(LIMIT - 1)
        } else {
            0
        }
    }

    /// True if the word can be the header word of a block. Release builds check less, since they
    /// have no tag.
    pub(super) fn is_genuine(self) -> bool {
        let word = self.word();
        word & !(LIMIT - 1) == self.tag()
            && word & (GRANULE - 1) & !(FREE | AFTER_FREE | SPARE | WAITING) == 0
    }

    /// Number of bytes from the header word to that of the next block; 0 for the last word of a
    /// region.
    #[inline]
    pub(super) fn size(self) -> usize {
        self.word() & SIZE
    }

    #[inline]
    pub(super) fn is_free(self) -> bool {
        self.word() & FREE != 0
    }

    #[inline]
    pub(super) fn is_after_free(self) -> bool {
        self.word() & AFTER_FREE != 0
    }

    /// Returns the block behind this one.
    #[inline]
    pub(super) fn next(self) -> TlsfBlock {
        self.split_at(self.size())
    }

    /// Returns the block that starts, or will start, `size` bytes after this one. Requires that
    /// `size` is at most the size of this block.
    #[inline]
    pub(super) fn split_at(self, size: usize) -> TlsfBlock {
        // SAFETY: callers pass at most the size of this block, and another block or the last word
        // of the region lies behind it.
        TlsfBlock(unsafe { self.0.byte_add(size) })
    }

    /// Returns the free block before this one. Requires that `AFTER_FREE` is set.
    #[inline]
    pub(super) fn before(self) -> TlsfBlock {
        debug_assert!(self.is_after_free());
        // SAFETY: the block before has at least `MIN_BLOCK` bytes, so its last word lies before
        // this header word.
        let start = unsafe { self.0.sub(1) };
        // SAFETY: the last word of a free block is the address of the block.
        unsafe { start.cast::<TlsfBlock>().read() }
    }

    /// Makes this a block in use, behind a block in use. `size` is the size that the request needs
    /// (`asked`), or a GRANULE more.
    #[inline]
    pub(super) fn set_used(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked));
    }

    /// Changes the size and the `SPARE` bit of a block in use.
    #[inline]
    pub(super) fn resize(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked) | self.word() & AFTER_FREE);
    }

    /// Makes this a free block of `size` bytes, behind a block in use. The caller updates the next
    /// block by [`TlsfBlock::set_after_free`].
    #[inline]
    pub(super) fn set_free(self, size: usize) {
        self.set_word(size | FREE);
        // SAFETY: the word before the next block is the last word of this block.
        let end = unsafe { self.split_at(size).0.sub(1) };
        // SAFETY: no other code uses the last word of a free block.
        unsafe { end.cast::<TlsfBlock>().write(self) };
    }

    #[inline]
    pub(super) fn set_after_free(self) {
        self.set_word(self.word() | AFTER_FREE);
    }

    #[inline]
    pub(super) fn set_after_used(self) {
        self.set_word(self.word() & !AFTER_FREE);
    }

    /// Marks a block that is put into a bin.
    #[inline]
    pub(super) fn set_waiting(self) {
        self.set_word(self.word() | WAITING);
    }

    /// Removes the mark of a block that leaves its bin.
    #[inline]
    pub(super) fn set_not_waiting(self) {
        self.set_word(self.word() & !WAITING);
    }

    /// Returns the links of a free block in the list of its size class.
    #[inline]
    pub(super) fn links(self) -> FreeLinks {
        // SAFETY: callers pass a free block in a list, which contains its links behind the header
        // word.
        unsafe { self.payload().cast::<FreeLinks>().read() }
    }

    #[inline]
    pub(super) fn set_links(self, links: FreeLinks) {
        // SAFETY: callers pass a free block, which has space for links and no other content.
        unsafe { self.payload().cast::<FreeLinks>().write(links) };
    }

    /// Returns the next block in the list.
    #[inline]
    pub(super) fn next_in_list(self) -> Option<TlsfBlock> {
        // SAFETY: callers pass a block in a list, which contains the link behind the header word.
        unsafe { self.payload().cast::<Option<TlsfBlock>>().read() }
    }

    #[inline]
    pub(super) fn set_next_in_list(self, next: Option<TlsfBlock>) {
        // SAFETY: a free block has at least four words, of which the second is `next`.
        unsafe { self.payload().cast::<Option<TlsfBlock>>().write(next) };
    }

    #[inline]
    pub(super) fn set_previous_in_list(self, previous: Option<TlsfBlock>) {
        // SAFETY: a free block has at least four words.
        let place = unsafe { self.payload().cast::<Option<TlsfBlock>>().add(1) };
        // SAFETY: a free block has at least four words, of which the third is `previous`.
        unsafe { place.write(previous) };
    }

    /// Overwrites the header word of a block that became part of another block, so that it is not
    /// valid any more.
    pub(super) fn erase(self) {
        self.cell().store(usize::MAX, Ordering::Relaxed);
    }

    /// True if header words have a tag, by which they are recognized: in debug builds.
    pub(super) const fn has_tag(self) -> bool {
        cfg!(debug_assertions) && WORD == 8
    }

    /// Prefetches the cache line of the header word.
    #[inline]
    pub(super) fn prefetch(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is a hint without an effect on memory or registers.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().cast()) };
        }
    }
}

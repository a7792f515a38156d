//! Blocks: how a region of memory is cut up.
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
//! - Payloads are aligned to GRANULE; words lie just before them.
//! - `AFTER_FREE` is set if the block before is free; only then `start` lies before the word.
//! - `SPARE` is set in a block in use that is a GRANULE larger than requested, since such a small
//!   rest cannot be a block: so the requested size is known without the user.
//! - `WAITING` is set in a freed block that is in a bin and not merged yet. The pool itself does
//!   not need the bit: it is for programs that read the pool from outside.
//! - No two free blocks are neighbors. The first block of a region has no block before; its last
//!   is a word of size 0 in use, so that nothing asks for a neighbor beyond.
//!
//! A [`TlsfBlock`] always points to the word of a block, so that its methods may read and write it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<usize>();

/// Granularity of block sizes, and alignment of payloads.
pub const GRANULE: usize = 2 * WORD;

/// The smallest block: what a free one needs.
pub(super) const MIN_BLOCK: usize = 4 * WORD;

/// The largest block and a GRANULE: 1 TiB where addresses have 64 bits.
pub(super) const LIMIT: usize = 1 << if WORD == 8 { 40 } else { 30 };

const SIZE: usize = (LIMIT - 1) & !(GRANULE - 1);
const FREE: usize = 1;
const AFTER_FREE: usize = 2;
const SPARE: usize = 4;
/// Sizes of 32-bit blocks leave no bit for it.
const WAITING: usize = if WORD == 8 { 8 } else { 0 };

/// The size of a block for this number of payload bytes; `None` if no block can be that large.
pub(super) const fn size_for(payload: usize) -> Option<usize> {
    if payload >= LIMIT - MIN_BLOCK {
        return None;
    }
    let size = (payload + WORD + GRANULE - 1) & !(GRANULE - 1);
    Some(if size < MIN_BLOCK { MIN_BLOCK } else { size })
}

/// The bit of a block that is larger than what was asked for.
#[inline]
const fn spare(size: usize, asked: usize) -> usize {
    if size == asked { 0 } else { SPARE }
}

/// A block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct TlsfBlock(NonNull<usize>);

/// Neighbors in the list of a class.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct FreeLinks {
    pub(super) next: Option<TlsfBlock>,
    pub(super) previous: Option<TlsfBlock>,
}

impl TlsfBlock {
    /// The block whose word is, or will be, at an address.
    ///
    /// # Safety
    /// `word` is in a region, just before a multiple of GRANULE, and the region owns the memory
    /// from there to the next block.
    pub(super) const unsafe fn at(word: NonNull<usize>) -> TlsfBlock {
        TlsfBlock(word)
    }

    /// The block of a payload.
    ///
    /// # Safety
    /// `payload` is the payload of a block.
    #[inline]
    pub(super) const unsafe fn from_payload(payload: NonNull<u8>) -> TlsfBlock {
        // SAFETY: the word of a block lies before its payload.
        TlsfBlock(unsafe { payload.cast::<usize>().sub(1) })
    }

    /// Memory of the user.
    #[inline]
    pub(super) const fn payload(self) -> NonNull<u8> {
        // SAFETY: a block has at least `MIN_BLOCK` bytes; the word of size 0 at the end has no
        // payload and is never asked for one.
        unsafe { self.0.add(1) }.cast()
    }

    /// Address of its header word.
    pub(super) fn addr(self) -> usize {
        self.0.addr().get()
    }

    /// Usable size in bytes.
    #[inline]
    pub(super) fn capacity(self) -> usize {
        self.size() - WORD
    }

    /// The requested size, rounded up to a possible size of blocks.
    #[inline]
    pub(super) fn rounded_asked(self) -> usize {
        let spare = if self.word() & SPARE == 0 { 0 } else { GRANULE };
        self.capacity() - spare
    }

    /// The word as an atomic number: the owner of a block may read its size while the pool sets
    /// [`AFTER_FREE`] for a neighbor. It costs no instruction.
    #[inline]
    fn cell(&self) -> &AtomicUsize {
        // SAFETY: a block starts with its word, which only these methods use.
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

    /// In debug builds a header word contains its address, so that a wrong address is detected.
    #[inline]
    fn tag(self) -> usize {
        if cfg!(debug_assertions) && WORD == 8 {
            (self.addr() >> 3).wrapping_mul(usize::MAX / 11) & !(LIMIT - 1)
        } else {
            0
        }
    }

    /// True if the word can be a header: release builds have no tag to decide it.
    pub(super) fn is_genuine(self) -> bool {
        let word = self.word();
        word & !(LIMIT - 1) == self.tag()
            && word & (GRANULE - 1) & !(FREE | AFTER_FREE | SPARE | WAITING) == 0
    }

    /// Bytes from its word to that of the next block; 0 at the end of a region.
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

    /// The block behind this one.
    #[inline]
    pub(super) fn next(self) -> TlsfBlock {
        self.split_at(self.size())
    }

    /// The block that starts, or will start, `size` bytes after this one, at most at the next one.
    #[inline]
    pub(super) fn split_at(self, size: usize) -> TlsfBlock {
        // SAFETY: callers pass no more than the size of this block, and behind it there is another,
        // if only the last.
        TlsfBlock(unsafe { self.0.byte_add(size) })
    }

    /// The free block before this one.
    #[inline]
    pub(super) fn before(self) -> TlsfBlock {
        debug_assert!(self.is_after_free());
        // SAFETY: the block before is at least `MIN_BLOCK` bytes long, so that its end is before
        // this word.
        let start = unsafe { self.0.sub(1) };
        // SAFETY: the last word of a free block is its own address.
        unsafe { start.cast::<TlsfBlock>().read() }
    }

    /// Makes it a block in use, behind a block in use. `size` is the requested size, or a GRANULE
    /// more.
    #[inline]
    pub(super) fn set_used(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked));
    }

    /// Changes the size of a block in use, and nothing else of it.
    #[inline]
    pub(super) fn resize(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked) | self.word() & AFTER_FREE);
    }

    /// Makes it a free block of a size, after a block in use. [`TlsfBlock::set_after_free`] updates
    /// the next block.
    #[inline]
    pub(super) fn set_free(self, size: usize) {
        self.set_word(size | FREE);
        // SAFETY: the last word of this block, which ends where the next starts.
        let end = unsafe { self.split_at(size).0.sub(1) };
        // SAFETY: the end of a free block is not used by other code.
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

    /// Its neighbors in the list of its class.
    #[inline]
    pub(super) fn links(self) -> FreeLinks {
        // SAFETY: only asked of free blocks in a list, which hold their links behind the word.
        unsafe { self.payload().cast::<FreeLinks>().read() }
    }

    #[inline]
    pub(super) fn set_links(self, links: FreeLinks) {
        // SAFETY: only done to free blocks, which have room for links and no other use for it.
        unsafe { self.payload().cast::<FreeLinks>().write(links) };
    }

    /// The next block of its list.
    #[inline]
    pub(super) fn next_in_list(self) -> Option<TlsfBlock> {
        // SAFETY: only asked of blocks in a list, which hold the link behind the word.
        unsafe { self.payload().cast::<Option<TlsfBlock>>().read() }
    }

    #[inline]
    pub(super) fn set_next_in_list(self, next: Option<TlsfBlock>) {
        // SAFETY: a free block has at least four words; `next` is the first of its payload.
        unsafe { self.payload().cast::<Option<TlsfBlock>>().write(next) };
    }

    #[inline]
    pub(super) fn set_previous_in_list(self, previous: Option<TlsfBlock>) {
        // SAFETY: a free block has at least four words.
        let place = unsafe { self.payload().cast::<Option<TlsfBlock>>().add(1) };
        // SAFETY: `previous` is the second of the links.
        unsafe { place.write(previous) };
    }

    /// Invalidates the word of a block that became part of another.
    pub(super) fn erase(self) {
        self.cell().store(usize::MAX, Ordering::Relaxed);
    }

    /// True if words have a tag by which they are recognized.
    pub(super) const fn has_tag(self) -> bool {
        cfg!(debug_assertions) && WORD == 8
    }

    /// Prefetches the cache line of the word.
    #[inline]
    pub(super) fn prefetch(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; it reads no memory that the program could see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().cast()) };
        }
    }
}

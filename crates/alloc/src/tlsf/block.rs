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
//!        word     size | FREE | AFTER_FREE | SPARE, and in debug builds a tag in the upper bits
//!        next     the next free block of the same class, and the previous
//!        start    where this block starts: the next block finds its free neighbour here
//! ```
//!
//! - Payloads are aligned to GRANULE; words lie just before them.
//! - `AFTER_FREE` is set where the block before is free, and only there is `start` to be found before the word.
//! - `SPARE` is set in a block in use that is a GRANULE larger than was asked for, since as little cannot be a block: so what
//!   was asked for can be told without its user.
//! - No two free blocks are neighbours. The first block of a region has no block before; its last is a word of size 0 in
//!   use, so that nothing asks for a neighbour beyond.
//!
//! A [`Block`] is only made of a place where there is one, so that its methods may read and write its word.

use core::ptr::NonNull;

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<usize>();

/// What sizes of blocks are multiples of, and payloads are aligned to.
pub const GRANULE: usize = 2 * WORD;

/// The smallest block: what a free one needs.
pub(super) const LEAST: usize = 4 * WORD;

/// The largest block and a GRANULE: 1 TiB where addresses have 64 bits.
pub(super) const LIMIT: usize = 1 << if WORD == 8 { 40 } else { 30 };

const SIZE: usize = (LIMIT - 1) & !(GRANULE - 1);
const FREE: usize = 1;
const AFTER_FREE: usize = 2;
const SPARE: usize = 4;

/// What freed memory is filled with in debug builds.
pub(super) const POISON: u8 = 0xdd;

/// The size of a block for this many bytes of payload; `None` where there is no such block.
pub(super) const fn size_for(payload: usize) -> Option<usize> {
    if payload >= LIMIT - LEAST {
        return None;
    }
    let size = (payload + WORD + GRANULE - 1) & !(GRANULE - 1);
    Some(if size < LEAST { LEAST } else { size })
}

/// The bit of a block that is larger than what was asked for.
#[inline]
const fn spare(size: usize, asked: usize) -> usize {
    if size == asked { 0 } else { SPARE }
}

/// A block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Block(NonNull<usize>);

/// Neighbours in the list of a class.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Links {
    pub(super) next: Option<Block>,
    pub(super) previous: Option<Block>,
}

impl Block {
    /// The block of which the word is to be, or is, at a place.
    ///
    /// # Safety
    /// `word` is in a region, just before a multiple of GRANULE, and from there to the next block the region's own.
    pub(super) const unsafe fn at(word: NonNull<usize>) -> Block {
        Block(word)
    }

    /// The block of a payload.
    ///
    /// # Safety
    /// `payload` is the payload of a block.
    #[inline]
    pub(super) const unsafe fn of(payload: NonNull<u8>) -> Block {
        // SAFETY: the word of a block lies before its payload.
        Block(unsafe { payload.cast::<usize>().sub(1) })
    }

    /// What the user gets.
    #[inline]
    pub(super) const fn payload(self) -> NonNull<u8> {
        // SAFETY: a block has at least LEAST bytes; behind the word of size 0, which has no payload, nobody asks for one.
        unsafe { self.0.add(1) }.cast()
    }

    /// Where its word is.
    pub(super) fn addr(self) -> usize {
        self.0.addr().get()
    }

    /// How many bytes the user may use.
    #[inline]
    pub(super) fn capacity(self) -> usize {
        self.size() - WORD
    }

    /// For how many bytes it was asked, rounded up to what blocks can have.
    #[inline]
    pub(super) fn rounded_asked(self) -> usize {
        let spare = if self.word() & SPARE == 0 { 0 } else { GRANULE };
        self.capacity() - spare
    }

    #[inline]
    fn word(self) -> usize {
        // SAFETY: a block starts with its word, which was written when the block was made.
        unsafe { self.0.read() }
    }

    #[inline]
    fn set_word(self, word: usize) {
        // SAFETY: a block starts with its word.
        unsafe { self.0.write(word | self.tag()) }
    }

    /// In debug builds a word knows its place, so that what is no block is seen not to be one.
    #[inline]
    fn tag(self) -> usize {
        if cfg!(debug_assertions) && WORD == 8 {
            (self.addr() >> 3).wrapping_mul(usize::MAX / 11) & !(LIMIT - 1)
        } else {
            0
        }
    }

    /// Whether the word can be one of a block: in release builds there is no tag that could tell.
    pub(super) fn is_genuine(self) -> bool {
        let word = self.word();
        word & !(LIMIT - 1) == self.tag()
            && word & (GRANULE - 1) & !(FREE | AFTER_FREE | SPARE) == 0
    }

    /// From its word to that of the next; 0 at the end of a region.
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
    pub(super) fn next(self) -> Block {
        self.split_at(self.size())
    }

    /// The block that starts, or is to start, so many bytes behind this one, no further than the next.
    #[inline]
    pub(super) fn split_at(self, size: usize) -> Block {
        // SAFETY: callers pass no more than the size of this block, and behind it there is another, if only the last.
        Block(unsafe { self.0.byte_add(size) })
    }

    /// The free block before this one.
    #[inline]
    pub(super) fn before(self) -> Block {
        debug_assert!(self.is_after_free());
        // SAFETY: the block before is at least LEAST bytes long, so that its end is before this word.
        let start = unsafe { self.0.sub(1) };
        // SAFETY: where the block before is free, it has written where it starts at its end.
        unsafe { start.cast::<Block>().read() }
    }

    /// Makes it a block in use, behind a block in use, of a size that is what was asked for, or a GRANULE more.
    #[inline]
    pub(super) fn set_used(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked));
    }

    /// Changes the size of a block in use, and nothing else of it.
    #[inline]
    pub(super) fn resize(self, size: usize, asked: usize) {
        self.set_word(size | spare(size, asked) | self.word() & AFTER_FREE);
    }

    /// Makes it a free block of a size, behind a block in use. The next block is told by [`Block::set_after_free`].
    #[inline]
    pub(super) fn set_free(self, size: usize) {
        self.set_word(size | FREE);
        // SAFETY: the last word of this block, which ends where the next starts.
        let end = unsafe { self.split_at(size).0.sub(1) };
        // SAFETY: as above: nobody else uses the end of a free block.
        unsafe { end.cast::<Block>().write(self) };
    }

    #[inline]
    pub(super) fn set_after_free(self) {
        self.set_word(self.word() | AFTER_FREE);
    }

    #[inline]
    pub(super) fn set_after_used(self) {
        self.set_word(self.word() & !AFTER_FREE);
    }

    /// Its neighbours in the list of its class.
    #[inline]
    pub(super) fn links(self) -> Links {
        // SAFETY: only asked of free blocks in a list, which hold their links behind the word.
        unsafe { self.payload().cast::<Links>().read() }
    }

    #[inline]
    pub(super) fn set_links(self, links: Links) {
        // SAFETY: only done to free blocks, which have room for links and no other use for it.
        unsafe { self.payload().cast::<Links>().write(links) };
    }

    #[inline]
    pub(super) fn set_next_in_list(self, next: Option<Block>) {
        // SAFETY: as for `set_links`; `next` is the first of them.
        unsafe { self.payload().cast::<Option<Block>>().write(next) };
    }

    #[inline]
    pub(super) fn set_previous_in_list(self, previous: Option<Block>) {
        // SAFETY: as for `set_links`: a free block has at least four words.
        let place = unsafe { self.payload().cast::<Option<Block>>().add(1) };
        // SAFETY: `previous` is the second of the links.
        unsafe { place.write(previous) };
    }

    /// How many bytes its user asked for, where somebody checks accesses: it is noted in the last word, behind them.
    pub(super) fn asked(self) -> usize {
        // SAFETY: the last word of this block, which is longer than what was asked for by a word and more.
        let place = unsafe { self.next().0.sub(1) };
        // SAFETY: it was written when the block was handed out.
        unsafe { place.read() }
    }

    pub(super) fn set_asked(self, size: usize) {
        // SAFETY: as for `asked`.
        let place = unsafe { self.next().0.sub(1) };
        // SAFETY: as above; it is not the user's.
        unsafe { place.write(size) };
    }

    /// Has the word, and what lies beside it, brought near.
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

//! The pools that all threads share, and the header word before each block. The pool of blocks
//! (TLSF) takes its memory from the pool of pages.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagewise_alloc::misuse::CallSite;
use pagewise_alloc::source::MappedSource;
use pagewise_alloc::{LockedTlsf, Pages, Tlsf};

/// Alignment of every block in bytes.
pub(crate) const ALIGN: usize = 16;
/// Maximum size in bytes of a block of the pool of blocks; larger blocks are runs of pages.
pub(crate) const LARGE: usize = 64 << 10;
/// Bit of the header word that marks a run of pages. TLSF uses the three bits below.
pub(crate) const LARGE_BIT: usize = 8;
/// Size of the header word in bytes.
pub(crate) const WORD: usize = size_of::<usize>();

pub(crate) static PAGES: Pages<MappedSource> = Pages::unguarded(MappedSource::ANONYMOUS);
static BLOCKS: LockedTlsf<&Pages<MappedSource>> = LockedTlsf::unguarded(&PAGES);

/// Calls `body` with the pool of blocks while its lock is held.
pub(crate) fn with_blocks<T>(body: impl FnOnce(&mut Tlsf<&'static Pages<MappedSource>>) -> T) -> T {
    begin();
    BLOCKS.with(body)
}

/// Called before each use of a pool. The first call names the pools, and disables the search for
/// memory checkers, since the search allocates.
pub(crate) fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.load(Ordering::Relaxed) {
        pagewise_alloc::watch::ignore_checkers();
        BEGUN.store(true, Ordering::Relaxed);
        PAGES.set_name("malloc");
        BLOCKS.with(|pool| pool.set_name("malloc"));
    }
}

/// Returns the header word of a block. Another thread may change its lowest bits at the same time.
pub(crate) fn word(block: NonNull<u8>) -> usize {
    // SAFETY: each block has an aligned header word before it.
    let word = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: every access to the word is atomic while the block is live.
    unsafe { AtomicUsize::from_ptr(word.as_ptr()) }.load(Ordering::Relaxed)
}

/// Mask of the size in a header word. TLSF blocks are smaller than 1 TiB; in debug builds the bits
/// above contain a tag.
pub(crate) const SIZE: usize = (1 << 40) - ALIGN;

/// Returns the number of usable bytes of a TLSF block with this header word.
pub(crate) const fn capacity(word: usize) -> usize {
    (word & SIZE) - WORD
}

/// Bit of the header word of a TLSF block that is 16 bytes longer than its size class.
const SPARE: usize = 4;

/// Returns the size with which a TLSF block with this header word may be freed.
pub(crate) const fn asked(word: usize) -> usize {
    capacity(word) - if word & SPARE == 0 { 0 } else { ALIGN }
}

/// Returns the layout of this size and alignment; `None` if the size is too large or the alignment
/// is not a power of two.
pub(crate) fn layout(size: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(size, align.max(ALIGN)).ok()
}

/// Allocates a TLSF block.
pub(crate) fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    with_blocks(|pool| pool.allocate(layout))
}

/// Frees a TLSF block.
///
/// # Safety
/// The block is live, and is not used any more.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: the caller passes a live block.
    with_blocks(|pool| unsafe { free_in(pool, block) });
}

/// As [`free`], for a caller that holds the lock of the pool.
///
/// # Safety
/// As for [`free`].
pub(crate) unsafe fn free_in(pool: &mut Tlsf<&'static Pages<MappedSource>>, block: NonNull<u8>) {
    // SAFETY: the caller passes a live block. The pool has no guards, so the call returns no error.
    _ = unsafe { pool.try_free_unsized(block, CallSite::NONE) };
}

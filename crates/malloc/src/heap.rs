//! The pools that all threads share, and the word before each block.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagewise_alloc::misuse::CallSite;
use pagewise_alloc::source::MappedSource;
use pagewise_alloc::{LockedTlsf, Pages, Tlsf};

/// Alignment of every block.
pub(crate) const ALIGN: usize = 16;
/// Blocks above this size are runs of pages.
pub(crate) const LARGE: usize = 64 << 10;
/// Bit of the word before a block that is a run of pages. TLSF uses the three bits below.
pub(crate) const LARGE_BIT: usize = 8;
/// Bytes of the word.
pub(crate) const WORD: usize = size_of::<usize>();

pub(crate) static PAGES: Pages<MappedSource> = Pages::unguarded(MappedSource::ANONYMOUS);
static BLOCKS: LockedTlsf<&Pages<MappedSource>> = LockedTlsf::unguarded(&PAGES);

/// Uses the pool of blocks, with its lock held.
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

/// The word before a block. Another thread may change its lowest bits at the same time.
pub(crate) fn word(block: NonNull<u8>) -> usize {
    // SAFETY: each block has a word before it, aligned as words are.
    let word = unsafe { block.cast::<usize>().sub(1) };
    // SAFETY: every access to the word is atomic while the block is live.
    unsafe { AtomicUsize::from_ptr(word.as_ptr()) }.load(Ordering::Relaxed)
}

/// Bits of the size in a word; TLSF has blocks up to 1 TiB, and a tag above in debug builds.
pub(crate) const SIZE: usize = (1 << 40) - ALIGN;

/// Usable bytes of a block of TLSF with this word.
pub(crate) const fn capacity(word: usize) -> usize {
    (word & SIZE) - WORD
}

/// Bit of the word of a block of TLSF that is 16 bytes longer than its size class.
const SPARE: usize = 4;

/// The size with which a block of TLSF with this word may be freed.
pub(crate) const fn asked(word: usize) -> usize {
    capacity(word) - if word & SPARE == 0 { 0 } else { ALIGN }
}

/// A layout; `None` if no memory can have it.
pub(crate) fn layout(size: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(size, align.max(ALIGN)).ok()
}

/// A block of TLSF.
pub(crate) fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    with_blocks(|pool| pool.allocate(layout))
}

/// Frees a block of TLSF.
///
/// # Safety
/// It is live, and not used any more.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: the caller passes a live block.
    with_blocks(|pool| unsafe { free_in(pool, block) });
}

/// As [`free`], with the lock held.
///
/// # Safety
/// As for [`free`].
pub(crate) unsafe fn free_in(pool: &mut Tlsf<&'static Pages<MappedSource>>, block: NonNull<u8>) {
    // SAFETY: the caller passes a live block. Without guards no error is found.
    _ = unsafe { pool.try_free_unsized(block, CallSite::NONE) };
}

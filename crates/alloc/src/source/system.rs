//! The operating system as a source. Blocks of less than 32 MiB come from one pool of pages for the
//! whole process, which keeps freed blocks according to recent needs. Larger blocks come from the
//! kernel directly.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::{Source, SourceBlock, discard, map_aligned, page_size, resident, unmap};
use crate::pages::PAGE;
use crate::pages::{Pages, PagesUsage};
use crate::watch;

/// Size in bytes from which on a block is a mapping of its own: 32 MiB.
const MAPPED: usize = 32 << 20;

/// The kernel as a source of private anonymous mappings, which keeps no freed blocks.
#[derive(Clone, Copy, Debug)]
struct Kernel;

/// Pool of pages that keeps memory which pools have released, for other pools.
static KEPT: Pages<Kernel> = Pages::system(Kernel);

// SAFETY: each block is a separate mapping, which is zero-filled and stays until it is unmapped.
unsafe impl Source for Kernel {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        map_aligned(layout, page_size(), 0)
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        unmap(block.start, block.size);
    }

    fn ahead(&self, _align: usize) -> usize {
        usize::MAX
    }

    fn discards(&self) -> bool {
        true
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a private anonymous mapping, which are not in use.
        unsafe { discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        resident(start, size)
    }
}

/// The operating system: private anonymous memory.
///
/// Blocks that pools release are kept for other pools, according to recent needs. Memory in use and
/// kept memory together are at most 1.2 times the high-water mark of the memory in use during the
/// last 16,384 to 32,768 allocations and frees of blocks, or 2 MiB more than that mark, whichever
/// is more. Blocks of 32 MiB and more are unmapped at once. Any thread may use this source, also in
/// a child of `fork`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

impl Os {
    /// Returns all kept memory to the kernel, except the caches of other threads.
    pub fn trim() {
        KEPT.trim();
    }

    /// Sets the amount of free memory that is kept, in percent of the recent high-water mark: see
    /// [`Pages::keep`]. The default is 20.
    pub fn keep(percent: u8) {
        KEPT.keep(percent);
    }

    /// Returns the numbers of used, idle and taken bytes of this source in the process, without
    /// blocks of 32 MiB and more.
    pub fn usage() -> PagesUsage {
        KEPT.usage()
    }
}

/// True if a block of this size is a mapping of its own, or if a memory checker must know each
/// block.
fn is_mapped(size: usize) -> bool {
    size.saturating_add(PAGE - 1) >= MAPPED || watch::checked()
}

// SAFETY: the kernel and the pool of pages have no two live blocks with a common byte, and a block
// stays until it is released.
unsafe impl Source for Os {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        if is_mapped(layout.size()) { Kernel.take(layout) } else { KEPT.take(layout) }
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        if is_mapped(block.size) {
            // SAFETY: `take` takes blocks of this size from the kernel, and the caller does not use
            // this block any more.
            unsafe { Kernel.give_back(block) }
        } else {
            // SAFETY: `take` takes blocks of this size from the pool, and the caller does not use
            // this block any more.
            unsafe { KEPT.give_back(block) }
        }
    }

    fn ahead(&self, align: usize) -> usize {
        Kernel.ahead(align)
    }

    fn discards(&self) -> bool {
        true
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a block, which is private anonymous memory.
        unsafe { Kernel.discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        resident(start, size)
    }
}

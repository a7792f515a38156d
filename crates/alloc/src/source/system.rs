//! The operating system as a source: one pool of pages for the whole process, which keeps freed
//! blocks by need, and the kernel for blocks that are as large as a region of such a pool.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::{Source, SourceBlock, discard, map_aligned, page_size, resident, unmap};
use crate::pages::PAGE;
use crate::pages::{Pages, PagesUsage};
use crate::watch;

/// Blocks of this size or more are mappings of their own: 32 MiB.
const MAPPED: usize = 32 << 20;

/// Private anonymous mappings: the kernel, which keeps no freed blocks.
#[derive(Clone, Copy, Debug)]
struct Kernel;

/// Memory that pools have released, for other pools.
static KEPT: Pages<Kernel> = Pages::system(Kernel);

// SAFETY: the kernel gives each mapping to one taker, zeroed, and it stays until it is unmapped.
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
/// Blocks that pools release are kept for other pools, by need: memory in use and kept memory
/// together are at most 1.2 times the high-water mark of the last 16,384 to 32,768 blocks that were
/// taken or released, or 2 MiB more than that mark. Blocks of 32 MiB and more are unmapped at once.
/// Any thread may use it, also in a child of `fork`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

impl Os {
    /// Returns all kept memory to the kernel. The caches of other threads stay.
    pub fn trim() {
        KEPT.trim();
    }

    /// Sets how much free memory is kept, in percent of the most in use at once lately:
    /// [`Pages::keep`]. Without a call it is 20.
    pub fn keep(percent: u8) {
        KEPT.keep(percent);
    }

    /// Memory of the process that is kept or handed out, without blocks of 32 MiB and more.
    pub fn usage() -> PagesUsage {
        KEPT.usage()
    }
}

/// True if a block of this size is a mapping of its own. Checkers know each such mapping by itself.
fn is_mapped(size: usize) -> bool {
    size.saturating_add(PAGE - 1) >= MAPPED || watch::checked()
}

// SAFETY: the kernel and the pool of pages give each block to one taker, and it stays until it is
// released.
unsafe impl Source for Os {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        if is_mapped(layout.size()) { Kernel.take(layout) } else { KEPT.take(layout) }
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        if is_mapped(block.size) {
            // SAFETY: blocks of this size came from the kernel, and the caller gives this one up.
            unsafe { Kernel.give_back(block) }
        } else {
            // SAFETY: blocks of this size came from the pool, and the caller gives this one up.
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

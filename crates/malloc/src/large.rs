//! Blocks that are runs of pages.
//!
//! ```text
//!  run                    block, aligned
//!  ├───── ··· ────┬───────┬──────┬──────────── ··· ─┤
//!  │  not used    │ start │ size │                  │
//!  │              │ of run│ | 8  │                  │
//! ```

use std::alloc::Layout;
use std::ptr::NonNull;

use pagewise_alloc::pages::{PAGE, run_size};

use crate::heap::{ALIGN, LARGE_BIT, PAGES, SIZE, WORD, begin, layout, word};

/// Words before a large block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct LargeHeader {
    start: NonNull<u8>,
    size_and_bit: usize,
}

const HEADER: usize = size_of::<LargeHeader>();
const _: () = assert!(HEADER == ALIGN && HEADER == 2 * WORD);

/// A run, and the position of the block in it.
#[derive(Clone, Copy, Debug)]
struct LargeRun {
    start: NonNull<u8>,
    size: usize,
    offset: usize,
}

impl LargeRun {
    /// The run of a block.
    ///
    /// # Safety
    /// The block is live and came from [`allocate`].
    unsafe fn of(block: NonNull<u8>) -> LargeRun {
        // SAFETY: there is a header before a large block.
        let header = unsafe { block.cast::<LargeHeader>().sub(1) };
        // SAFETY: it was written when the block was allocated.
        let LargeHeader { start, size_and_bit } = unsafe { header.read() };
        let offset = block.addr().get() - start.addr().get();
        LargeRun { start, size: size_and_bit & SIZE, offset }
    }

    /// Writes the header, and returns the block.
    ///
    /// # Safety
    /// The run has this size and is not used by other code.
    unsafe fn block(self) -> NonNull<u8> {
        // SAFETY: the offset is inside the run.
        let block = unsafe { self.start.add(self.offset) };
        // SAFETY: the offset is at least the size of the header.
        let header = unsafe { block.cast::<LargeHeader>().sub(1) };
        // SAFETY: the header is inside the run, aligned to 16.
        unsafe {
            header.write(LargeHeader { start: self.start, size_and_bit: self.size | LARGE_BIT });
        }
        block
    }
}

/// Offset of a block in its run, and size of the run, in bytes.
fn shape(layout: Layout) -> Option<(usize, usize)> {
    let before = layout.align().max(HEADER);
    Some((before, run_size(layout.size().checked_add(before)?)?))
}

/// Allocates a run for a block, zero-filled if `zeroed`.
pub(crate) fn allocate(wanted: Layout, zeroed: bool) -> Option<NonNull<u8>> {
    begin();
    let (offset, size) = shape(wanted)?;
    let run = layout(size, wanted.align().max(PAGE))?;
    let start = if zeroed { PAGES.allocate_zeroed(run) } else { PAGES.allocate(run) }?;
    // SAFETY: the run was allocated just now.
    Some(unsafe { LargeRun { start, size, offset }.block() })
}

/// True if a block is a run of pages.
pub(crate) fn is_large(block: NonNull<u8>) -> bool {
    word(block) & LARGE_BIT != 0
}

/// Usable bytes of a block.
///
/// # Safety
/// It is live and came from [`allocate`].
pub(crate) unsafe fn capacity(block: NonNull<u8>) -> usize {
    // SAFETY: the caller passes a live large block.
    let LargeRun { size, offset, .. } = unsafe { LargeRun::of(block) };
    size - offset
}

/// # Safety
/// The block is live, came from [`allocate`], and is not used any more.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: the caller passes a live large block.
    let LargeRun { start, size, .. } = unsafe { LargeRun::of(block) };
    // SAFETY: the run was allocated with this size.
    unsafe { PAGES.free(start, size) };
}

/// Resizes a block to another large size; with `None` the block is unchanged.
///
/// # Safety
/// As for [`free`], if a block is returned.
pub(crate) unsafe fn resize(block: NonNull<u8>, size: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller passes a live large block.
    let run = unsafe { LargeRun::of(block) };
    let new = run_size(size.checked_add(run.offset)?)?;
    if new == run.size {
        return Some(block);
    }
    let old = layout(run.size, PAGE)?;
    // SAFETY: the run was allocated with this size.
    let start = unsafe { PAGES.reallocate(run.start, old, new) }?;
    // SAFETY: the run has the new size, and the block keeps its offset.
    Some(unsafe { LargeRun { start, size: new, ..run }.block() })
}

//! Where pools get memory: the operating system, in several kinds, a file, a fixed buffer, or a source that fails on purpose.

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

#[cfg(feature = "os")]
mod file;
#[cfg(feature = "os")]
mod mapped;

#[cfg(feature = "os")]
pub use file::File;
#[cfg(feature = "os")]
pub use mapped::{Mapped, Refused};

/// Memory from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first byte, aligned as asked.
    pub start: NonNull<u8>,
    /// Its size in bytes: at least what was asked for.
    pub size: usize,
    /// Whether every byte is known to be 0.
    pub zeroed: bool,
}

/// Gives large blocks and takes them back.
///
/// # Safety
/// A block that was given belongs to its taker alone until it is given back: it is mapped for reading and writing, has
/// the size and alignment that it says, and is really zero where it says so.
pub unsafe trait Source {
    /// A block of at least this size and alignment; `None` where there is no more.
    fn take(&self, layout: Layout) -> Option<Block>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from [`Source::take`] of this source, and nobody uses it any more.
    unsafe fn give_back(&self, block: Block);

    /// How many bytes of this alignment may be taken in one piece ahead of need: they cost nothing before they are used. 0
    /// where all that is taken costs.
    fn ahead(&self, align: usize) -> usize {
        let _ = align;
        0
    }

    /// Whether [`Source::discard`] does anything.
    fn discards(&self) -> bool {
        false
    }

    /// Takes the memory behind a part of a block, and leaves the addresses: every byte is 0 from then on. `false` where the
    /// contents are as they were.
    ///
    /// # Safety
    /// The part is of whole pages of a block that this source gave, and nobody uses it meanwhile.
    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        let _ = (start, size);
        false
    }

    /// How many bytes of a part of a block are backed by memory, as far as the source can tell.
    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        let _ = start;
        size
    }
}

// SAFETY: whatever the source promises holds through a reference to it.
unsafe impl<S: Source + ?Sized> Source for &S {
    fn take(&self, layout: Layout) -> Option<Block> {
        (**self).take(layout)
    }

    unsafe fn give_back(&self, block: Block) {
        // SAFETY: the caller promises the same of the source behind the reference.
        unsafe { (**self).give_back(block) }
    }

    fn ahead(&self, align: usize) -> usize {
        (**self).ahead(align)
    }

    fn discards(&self) -> bool {
        (**self).discards()
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller promises the same of the source behind.
        unsafe { (**self).discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        (**self).resident(start, size)
    }
}

/// The operating system: private anonymous mappings.
#[cfg(feature = "os")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

#[cfg(feature = "os")]
// SAFETY: the kernel gives each mapping to one taker, zeroed, and it stays until it is unmapped.
unsafe impl Source for Os {
    fn take(&self, layout: Layout) -> Option<Block> {
        map_aligned(layout, page_size(), 0)
    }

    unsafe fn give_back(&self, block: Block) {
        unmap(block.start, block.size);
    }

    fn ahead(&self, _align: usize) -> usize {
        usize::MAX
    }

    fn discards(&self) -> bool {
        true
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a private anonymous mapping, which nobody uses.
        unsafe { discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        resident(start, size)
    }
}

/// A mapping of whole pages of this size, aligned, with more flags for `mmap`.
#[cfg(feature = "os")]
fn map_aligned(layout: Layout, page: usize, flags: libc::c_int) -> Option<Block> {
    let size = layout.size().max(1).checked_next_multiple_of(page)?;
    // What lies before the first aligned address and behind the end is given back at once. The kernel aligns small pages by
    // itself, and those of its reserve; for the others there must be room.
    let known = if flags & libc::MAP_HUGETLB == 0 { page_size() } else { page };
    let spare = layout.align().max(page).saturating_sub(known);
    let mapped = map(size.checked_add(spare)?, flags)?;
    let before = mapped.align_offset(layout.align().max(page));
    // SAFETY: `before` is at most `spare`, which was mapped beyond `size`.
    let start = unsafe { mapped.add(before) };
    unmap(mapped, before);
    // SAFETY: as above; `start + size` is at most the end of the mapping.
    unmap(unsafe { start.add(size) }, spare - before);
    Some(Block { start, size, zeroed: true })
}

/// Takes the memory behind whole pages; `false` where the kernel does not.
///
/// # Safety
/// They are pages of a private anonymous mapping, and nobody uses them.
#[cfg(feature = "os")]
unsafe fn discard(start: NonNull<u8>, size: usize) -> bool {
    // SAFETY: the caller promises the same.
    unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_DONTNEED) == 0 }
}

/// How many bytes of some pages are in memory; all where the kernel does not say.
#[cfg(feature = "os")]
fn resident(start: NonNull<u8>, size: usize) -> usize {
    const SEEN: usize = 256;
    let page = page_size();
    let mut seen = [1_u8; SEEN];
    let asked = size.min(SEEN * page);
    // SAFETY: the kernel writes a byte for each page of `asked`, which are SEEN at most.
    unsafe { libc::mincore(start.as_ptr().cast(), asked, seen.as_mut_ptr()) };
    seen[..asked.div_ceil(page)].iter().filter(|page| **page & 1 == 1).count() * page
}

#[cfg(feature = "os")]
fn page_size() -> usize {
    // SAFETY: the call takes a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the kernel's page size is positive")
}

#[cfg(feature = "os")]
fn map(size: usize, flags: libc::c_int) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping where the kernel likes touches no memory that there is.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)
}

/// Unmaps whole pages that were mapped here and that nobody uses; none for a size of 0.
#[cfg(feature = "os")]
fn unmap(start: NonNull<u8>, size: usize) {
    if size > 0 {
        // SAFETY: callers are in this file and pass mappings of their own, or the unused ends of one.
        unsafe { libc::munmap(start.as_ptr().cast(), size) };
    }
}

/// A buffer of the user's, handed out from front to back. What comes back is given again only where it was the last.
#[derive(Debug)]
pub struct Fixed<'a> {
    rest: Rest,
    _buffer: core::marker::PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> Fixed<'a> {
    /// A source of this memory.
    pub fn new(buffer: &'a mut [MaybeUninit<u8>]) -> Fixed<'a> {
        let left = Cell::new(buffer.len());
        let next = Cell::new(NonNull::from(buffer).cast().as_ptr());
        Fixed { rest: Rest { next, left }, _buffer: core::marker::PhantomData }
    }
}

// SAFETY: see `Rest`; the buffer is borrowed.
unsafe impl Source for Fixed<'_> {
    fn take(&self, layout: Layout) -> Option<Block> {
        self.rest.take(layout)
    }

    unsafe fn give_back(&self, block: Block) {
        self.rest.give_back(block);
    }

    fn ahead(&self, align: usize) -> usize {
        self.rest.ahead(align)
    }
}

/// What is left of a buffer. `next` only moves over memory that was not given, or back over the last that was, and never
/// past `left`.
#[repr(C)]
#[derive(Debug)]
struct Rest {
    next: Cell<*mut u8>,
    left: Cell<usize>,
}

// SAFETY: the buffer belongs to who has this, so it goes where it goes.
unsafe impl Send for Rest {}

impl Rest {
    fn take(&self, layout: Layout) -> Option<Block> {
        let next = NonNull::new(self.next.get())?;
        let before = next.align_offset(layout.align());
        let left = self.left.get().checked_sub(before)?.checked_sub(layout.size())?;
        // SAFETY: `before + size` is at most what is left of the buffer, by the two subtractions.
        let start = unsafe { next.add(before) };
        // SAFETY: as above.
        self.next.set(unsafe { start.add(layout.size()) }.as_ptr());
        self.left.set(left);
        Some(Block { start, size: layout.size(), zeroed: false })
    }

    /// `block` came from there.
    fn give_back(&self, block: Block) {
        if block.start.as_ptr().wrapping_add(block.size) == self.next.get() {
            self.next.set(block.start.as_ptr());
            self.left.set(self.left.get() + block.size);
        }
    }

    fn ahead(&self, align: usize) -> usize {
        self.left.get().saturating_sub(self.next.get().align_offset(align))
    }
}

/// The operating system, or a buffer: chosen when the program runs, as C programs do. All zero is the system.
#[cfg(feature = "os")]
#[repr(C)]
#[derive(Debug)]
pub struct Memory {
    /// Without an address where the system is meant.
    buffer: Rest,
}

#[cfg(feature = "os")]
// SAFETY: a buffer is this source's alone, and goes where it goes.
unsafe impl Send for Memory {}

#[cfg(feature = "os")]
impl Memory {
    /// The operating system, as [`Os`].
    pub const fn system() -> Memory {
        Memory { buffer: Rest { next: Cell::new(core::ptr::null_mut()), left: Cell::new(0) } }
    }

    /// A buffer, as [`Fixed`].
    ///
    /// # Safety
    /// Nobody else uses it while there are blocks of it.
    pub const unsafe fn buffer(start: NonNull<u8>, size: usize) -> Memory {
        Memory { buffer: Rest { next: Cell::new(start.as_ptr()), left: Cell::new(size) } }
    }

    /// Whether it is the operating system.
    pub fn is_system(&self) -> bool {
        self.buffer.next.get().is_null()
    }
}

#[cfg(feature = "os")]
// SAFETY: the system's, or see `Rest`; whoever chose a buffer promised that it is ours.
unsafe impl Source for Memory {
    fn take(&self, layout: Layout) -> Option<Block> {
        if self.is_system() { Os.take(layout) } else { self.buffer.take(layout) }
    }

    unsafe fn give_back(&self, block: Block) {
        if self.is_system() {
            // SAFETY: the caller promises the same of this source, which is the system.
            unsafe { Os.give_back(block) }
        } else {
            self.buffer.give_back(block);
        }
    }

    fn ahead(&self, align: usize) -> usize {
        if self.is_system() { Os.ahead(align) } else { self.buffer.ahead(align) }
    }

    fn discards(&self) -> bool {
        self.is_system()
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller promises the same of this source, which is the system where that is asked.
        self.is_system() && unsafe { Os.discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        if self.is_system() { Os.resident(start, size) } else { size }
    }
}

/// Another source that has no more after `n` blocks: what tests of running out of memory use.
#[derive(Debug)]
pub struct FailAfter<S> {
    source: S,
    left: Cell<usize>,
}

impl<S> FailAfter<S> {
    /// Gives `n` blocks of `source`.
    pub const fn new(source: S, n: usize) -> FailAfter<S> {
        FailAfter { source, left: Cell::new(n) }
    }
}

// SAFETY: what it gives is the source's.
unsafe impl<S: Source> Source for FailAfter<S> {
    fn take(&self, layout: Layout) -> Option<Block> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.source.take(layout)
    }

    unsafe fn give_back(&self, block: Block) {
        // SAFETY: the caller promises the same of the source behind.
        unsafe { self.source.give_back(block) }
    }

    fn ahead(&self, align: usize) -> usize {
        self.source.ahead(align)
    }

    fn discards(&self) -> bool {
        self.source.discards()
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller promises the same of the source behind.
        unsafe { self.source.discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        self.source.resident(start, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    #[cfg(feature = "os")]
    fn the_system_gives_zeroed_pages_of_any_alignment() {
        for (size, align) in [(1, 1), (100_000, 8), (1 << 16, 1 << 21), (3 << 20, 1 << 22)] {
            let block = Os.take(layout(size, align)).unwrap();
            assert!(
                block.start.addr().get().is_multiple_of(align)
                    && block.size >= size
                    && block.zeroed
            );
            // SAFETY: the block is mapped and ours.
            let bytes =
                unsafe { core::slice::from_raw_parts_mut(block.start.as_ptr(), block.size) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            // SAFETY: it came from there and is used no more.
            unsafe { Os.give_back(block) };
        }
        assert_eq!(Os.take(layout(isize::MAX as usize - (1 << 12), 1)), None);
    }

    #[test]
    fn a_buffer_is_handed_out_until_it_is_full_and_the_last_block_comes_back() {
        let mut buffer = [MaybeUninit::uninit(); 256];
        let fixed = Fixed::new(&mut buffer);
        let first = fixed.take(layout(100, 1)).unwrap();
        let second = fixed.take(layout(64, 32)).unwrap();
        assert!(second.start.addr().get().is_multiple_of(32));
        assert!(second.start.addr().get() - first.start.addr().get() >= 100);
        assert_eq!(fixed.take(layout(200, 1)), None);
        // SAFETY: it came from there and is used no more.
        unsafe { fixed.give_back(second) };
        assert_eq!(fixed.take(layout(64, 32)), Some(second));
    }

    #[test]
    fn a_source_fails_when_it_should() {
        let mut buffer = [MaybeUninit::uninit(); 256];
        let failing = FailAfter::new(Fixed::new(&mut buffer), 2);
        assert!(failing.take(layout(8, 8)).is_some() && failing.take(layout(8, 8)).is_some());
        assert_eq!(failing.take(layout(8, 8)), None);
    }
}

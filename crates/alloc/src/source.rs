//! Sources of memory for pools: the operating system, in several variants, a file, a fixed buffer,
//! or a source with injected failures.

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

#[cfg(feature = "os")]
mod file;
#[cfg(feature = "os")]
mod mapped;
#[cfg(feature = "os")]
mod system;

#[cfg(feature = "os")]
pub use file::UnnamedFile;
#[cfg(feature = "os")]
pub use mapped::{MapRefused, MappedSource};
#[cfg(feature = "os")]
pub use system::Os;

/// Memory from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceBlock {
    /// First byte of the block, with the requested alignment.
    pub start: NonNull<u8>,
    /// Size of the block in bytes: at least the requested size.
    pub size: usize,
    /// True if every byte is known to be 0.
    pub zeroed: bool,
}

/// Provides large blocks of memory to pools.
///
/// # Safety
/// A block belongs only to the caller of `take` until it is released. It is mapped for reading and
/// writing, has the stated size and alignment, and contains only zeros if `zeroed` is true.
pub unsafe trait Source {
    /// Allocates a block of at least this size and alignment; `None` if memory is exhausted.
    fn take(&self, layout: Layout) -> Option<SourceBlock>;

    /// Releases a block.
    ///
    /// # Safety
    /// `block` came from [`Source::take`] of this source, and is not used any more.
    unsafe fn give_back(&self, block: SourceBlock);

    /// Maximum size in bytes of a block with this alignment that a pool may take before it needs
    /// the memory, because unused memory of this source costs nothing. 0 if unused memory costs
    /// something.
    fn ahead(&self, align: usize) -> usize {
        let _ = align;
        0
    }

    /// True if [`Source::discard`] does anything.
    fn discards(&self) -> bool {
        false
    }

    /// Discards the memory of a part of a block, and keeps its addresses: every byte of the part is
    /// 0 afterwards. Returns `false` if the contents are unchanged.
    ///
    /// # Safety
    /// The part consists of whole pages of a block of this source, and no other code accesses it
    /// during the call.
    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        let _ = (start, size);
        false
    }

    /// Number of bytes of a part of a block that are backed by memory. A source that cannot
    /// determine it returns `size`.
    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        let _ = start;
        size
    }
}

// SAFETY: all calls go to the source behind the reference, which keeps the contract.
unsafe impl<S: Source + ?Sized> Source for &S {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        (**self).take(layout)
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: the caller passes a block of the source behind the reference.
        unsafe { (**self).give_back(block) }
    }

    fn ahead(&self, align: usize) -> usize {
        (**self).ahead(align)
    }

    fn discards(&self) -> bool {
        (**self).discards()
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a block of the source behind the reference.
        unsafe { (**self).discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        (**self).resident(start, size)
    }
}

/// Maps whole pages of `page` bytes with the size and alignment of `layout`. `flags` are added to
/// the flags of `mmap`.
#[cfg(feature = "os")]
fn map_aligned(layout: Layout, page: usize, flags: libc::c_int) -> Option<SourceBlock> {
    let size = layout.size().max(1).checked_next_multiple_of(page)?;
    // The kernel aligns a mapping to its page size, or to the size of reserved huge pages. For a
    // larger alignment the mapping is made longer, and the parts before the aligned address and
    // after the end of the block are unmapped at once.
    let known = if flags & libc::MAP_HUGETLB == 0 { page_size() } else { page };
    let spare = layout.align().max(page).saturating_sub(known);
    let mapped = map(size.checked_add(spare)?, flags)?;
    let before = mapped.align_offset(layout.align().max(page));
    // SAFETY: `before` is at most `spare`, which was mapped beyond `size`.
    let start = unsafe { mapped.add(before) };
    unmap(mapped, before);
    // SAFETY: `start + size` is at most the end of the mapping.
    unmap(unsafe { start.add(size) }, spare - before);
    Some(SourceBlock { start, size, zeroed: true })
}

/// Discards the memory of whole pages; returns `false` if the kernel refuses.
///
/// # Safety
/// The pages belong to a private anonymous mapping, and are not in use.
#[cfg(feature = "os")]
unsafe fn discard(start: NonNull<u8>, size: usize) -> bool {
    // SAFETY: the caller passes pages of a private anonymous mapping, which are not in use.
    unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_DONTNEED) == 0 }
}

/// Number of resident bytes in the first 256 pages of a range. Counts all of these pages as
/// resident if `mincore` fails.
#[cfg(feature = "os")]
fn resident(start: NonNull<u8>, size: usize) -> usize {
    const SEEN: usize = 256;
    let page = page_size();
    let mut seen = [1_u8; SEEN];
    let asked = size.min(SEEN * page);
    // SAFETY: the kernel writes one byte for each page of `asked`, at most SEEN bytes.
    unsafe { libc::mincore(start.as_ptr().cast(), asked, seen.as_mut_ptr()) };
    seen[..asked.div_ceil(page)].iter().filter(|page| **page & 1 == 1).count() * page
}

#[cfg(feature = "os")]
fn page_size() -> usize {
    // SAFETY: the call takes a number and accesses no memory of this process.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the kernel's page size is positive")
}

#[cfg(feature = "os")]
fn map(size: usize, flags: libc::c_int) -> Option<NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
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

/// Unmaps whole pages that this module has mapped and that are not in use; does nothing for a size
/// of 0.
#[cfg(feature = "os")]
fn unmap(start: NonNull<u8>, size: usize) {
    if size > 0 {
        // SAFETY: callers in this module pass a mapping of their own, or an unused end of such a
        // mapping.
        unsafe { libc::munmap(start.as_ptr().cast(), size) };
    }
}

/// A buffer that the user provides, allocated from front to back. A released block can be reused
/// only if it is the last one.
#[derive(Debug)]
pub struct FixedBuffer<'a> {
    rest: Rest,
    _buffer: core::marker::PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> FixedBuffer<'a> {
    /// Creates a source of the memory of a buffer.
    pub const fn new(buffer: &'a mut [MaybeUninit<u8>]) -> FixedBuffer<'a> {
        let left = Cell::new(buffer.len());
        let next = Cell::new(buffer.as_mut_ptr().cast());
        FixedBuffer { rest: Rest { next, left }, _buffer: core::marker::PhantomData }
    }
}

impl FixedBuffer<'static> {
    /// Creates a source of the memory of a static variable, for a static pool, such as a global
    /// allocator without an operating system.
    ///
    /// ```
    /// use core::mem::MaybeUninit;
    /// use pagewise_alloc::{LockedTlsf, source::FixedBuffer};
    ///
    /// static mut MEMORY: [MaybeUninit<u8>; 64 << 10] = [MaybeUninit::uninit(); 64 << 10];
    ///
    /// // SAFETY: no other code uses the variable.
    /// static POOL: LockedTlsf<FixedBuffer<'static>> =
    ///     LockedTlsf::new(unsafe { FixedBuffer::of_static(&raw mut MEMORY) });
    ///
    /// assert!(POOL.with(|pool| pool.allocate(core::alloc::Layout::new::<u64>())).is_some());
    /// ```
    ///
    /// # Safety
    /// The variable is not used by other code.
    pub const unsafe fn of_static<const SIZE: usize>(
        buffer: *mut [MaybeUninit<u8>; SIZE],
    ) -> FixedBuffer<'static> {
        let rest = Rest { next: Cell::new(buffer.cast()), left: Cell::new(SIZE) };
        FixedBuffer { rest, _buffer: core::marker::PhantomData }
    }
}

// SAFETY: `Rest` never has two live blocks with a common byte, and the buffer is borrowed
// exclusively.
unsafe impl Source for FixedBuffer<'_> {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        self.rest.take(layout)
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        self.rest.give_back(block);
    }

    fn ahead(&self, align: usize) -> usize {
        self.rest.ahead(align)
    }
}

/// Unused part of a buffer: `left` bytes from `next` on. Taking a block moves `next` forward;
/// releasing the last block moves `next` back to its start.
#[repr(C)]
#[derive(Debug)]
struct Rest {
    next: Cell<*mut u8>,
    left: Cell<usize>,
}

// SAFETY: the buffer is accessed only through this value, so value and buffer may move to another
// thread.
unsafe impl Send for Rest {}

impl Rest {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        let next = NonNull::new(self.next.get())?;
        let before = next.align_offset(layout.align());
        let left = self.left.get().checked_sub(before)?.checked_sub(layout.size())?;
        // SAFETY: the two subtractions checked that `before` and the block fit into the rest of the
        // buffer.
        let start = unsafe { next.add(before) };
        // SAFETY: the block ends inside the buffer.
        self.next.set(unsafe { start.add(layout.size()) }.as_ptr());
        self.left.set(left);
        Some(SourceBlock { start, size: layout.size(), zeroed: false })
    }

    /// Frees a block of this buffer, if it is the last one.
    fn give_back(&self, block: SourceBlock) {
        if block.start.as_ptr().wrapping_add(block.size) == self.next.get() {
            self.next.set(block.start.as_ptr());
            self.left.set(self.left.get() + block.size);
        }
    }

    fn ahead(&self, align: usize) -> usize {
        self.left.get().saturating_sub(self.next.get().align_offset(align))
    }
}

/// The operating system or a buffer, chosen at run time by C programs. A value of all zeros is the
/// operating system.
#[cfg(feature = "os")]
#[repr(C)]
#[derive(Debug)]
pub struct SystemOrBuffer {
    /// The buffer; its address is NULL if the source is the operating system.
    buffer: Rest,
}

#[cfg(feature = "os")]
// SAFETY: a buffer is accessed through this source only, so both may move to another thread.
unsafe impl Send for SystemOrBuffer {}

#[cfg(feature = "os")]
impl SystemOrBuffer {
    /// Selects the operating system, as [`Os`] does.
    pub const fn system() -> SystemOrBuffer {
        SystemOrBuffer {
            buffer: Rest { next: Cell::new(core::ptr::null_mut()), left: Cell::new(0) },
        }
    }

    /// Selects a buffer, as [`FixedBuffer`] does.
    ///
    /// # Safety
    /// The `size` bytes from `start` on are writable, and no other code uses them while blocks of
    /// this source exist.
    pub const unsafe fn buffer(start: NonNull<u8>, size: usize) -> SystemOrBuffer {
        SystemOrBuffer { buffer: Rest { next: Cell::new(start.as_ptr()), left: Cell::new(size) } }
    }

    /// True if this source is the operating system.
    pub fn is_system(&self) -> bool {
        self.buffer.next.get().is_null()
    }
}

#[cfg(feature = "os")]
// SAFETY: [`Os`] keeps the contract. `Rest` never has two live blocks with a common byte, and the
// caller of `buffer` guarantees that no other code uses the buffer.
unsafe impl Source for SystemOrBuffer {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        if self.is_system() { Os.take(layout) } else { self.buffer.take(layout) }
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        if self.is_system() {
            // SAFETY: the caller passes a block of this source, which is the system.
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
        // SAFETY: the caller passes pages of a block of this source, which is the system as was
        // checked.
        self.is_system() && unsafe { Os.discard(start, size) }
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        if self.is_system() { Os.resident(start, size) } else { size }
    }
}

/// A source that fails after `n` blocks of another source, for tests of exhausted memory.
#[derive(Debug)]
pub struct FailAfter<S> {
    source: S,
    left: Cell<usize>,
}

impl<S> FailAfter<S> {
    /// Creates a source that provides at most `n` blocks of `source`.
    pub const fn new(source: S, n: usize) -> FailAfter<S> {
        FailAfter { source, left: Cell::new(n) }
    }
}

// SAFETY: every block is one of the underlying source, which keeps the contract.
unsafe impl<S: Source> Source for FailAfter<S> {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.source.take(layout)
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        // SAFETY: the caller passes a block of the underlying source.
        unsafe { self.source.give_back(block) }
    }

    fn ahead(&self, align: usize) -> usize {
        self.source.ahead(align)
    }

    fn discards(&self) -> bool {
        self.source.discards()
    }

    unsafe fn discard(&self, start: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller passes pages of a block of the underlying source.
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
    fn the_system_gives_pages_of_any_alignment_and_says_which_are_zeroed() {
        for (size, align) in [(1, 1), (100_000, 8), (1 << 16, 1 << 21), (3 << 20, 1 << 22)] {
            let block = Os.take(layout(size, align)).unwrap();
            assert!(block.start.addr().get().is_multiple_of(align) && block.size >= size);
            // SAFETY: the block is mapped, and the test owns it.
            let bytes =
                unsafe { core::slice::from_raw_parts_mut(block.start.as_ptr(), block.size) };
            assert!(!block.zeroed || bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            // SAFETY: the block came from this source, and is not used any more.
            unsafe { Os.give_back(block) };
        }
        assert_eq!(Os.take(layout(isize::MAX as usize - (1 << 12), 1)), None);
    }

    #[test]
    fn a_buffer_is_handed_out_until_it_is_full_and_the_last_block_comes_back() {
        let mut buffer = [MaybeUninit::uninit(); 256];
        let fixed = FixedBuffer::new(&mut buffer);
        let first = fixed.take(layout(100, 1)).unwrap();
        let second = fixed.take(layout(64, 32)).unwrap();
        assert!(second.start.addr().get().is_multiple_of(32));
        assert!(second.start.addr().get() - first.start.addr().get() >= 100);
        assert_eq!(fixed.take(layout(200, 1)), None);
        // SAFETY: the block came from this source, and is not used any more.
        unsafe { fixed.give_back(second) };
        assert_eq!(fixed.take(layout(64, 32)), Some(second));
    }

    #[test]
    fn a_source_fails_when_it_should() {
        let mut buffer = [MaybeUninit::uninit(); 256];
        let failing = FailAfter::new(FixedBuffer::new(&mut buffer), 2);
        assert!(failing.take(layout(8, 8)).is_some() && failing.take(layout(8, 8)).is_some());
        assert_eq!(failing.take(layout(8, 8)), None);
    }
}

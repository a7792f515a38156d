//! A file as a source: the kernel can write this memory to the file when memory is scarce, without
//! swap.

use core::alloc::Layout;
use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};

use super::mapped::{MapRefused, MapStep};
use super::{Source, SourceBlock, page_size, unmap};

/// A source of mappings of a file without a name. The kernel deletes the file when the source is
/// dropped and all blocks are unmapped. Disk space is reserved for each block, so that no write to
/// a block can fail.
#[derive(Debug)]
pub struct UnnamedFile {
    descriptor: c_int,
    /// Offset in the file of the next block. The space of released blocks is returned to the file
    /// system and leaves holes in the file.
    end: AtomicU64,
}

impl UnnamedFile {
    /// Creates a file without a name in this folder. On a file system in memory, such as tmpfs, its
    /// blocks are ordinary memory.
    ///
    /// # Errors
    /// Returns the reason if the file cannot be created.
    pub fn unnamed(folder: &CStr) -> Result<UnnamedFile, MapRefused> {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let descriptor = unsafe { libc::open(folder.as_ptr(), flags, 0o600) };
        if descriptor == -1 {
            return Err(MapRefused::now(MapStep::Open));
        }
        let file = UnnamedFile { descriptor, end: AtomicU64::new(0) };
        let block = file.map(Layout::new::<u8>())?;
        file.unmap(block);
        Ok(file)
    }

    fn map(&self, layout: Layout) -> Result<SourceBlock, MapRefused> {
        let page = page_size();
        let size = layout.size().max(1).next_multiple_of(page);
        let offset = self.end.fetch_add(size as u64, Ordering::Relaxed);
        let (offset, length) = (offset.cast_signed(), (size as u64).cast_signed());
        // SAFETY: the descriptor belongs to this source, and the call accesses no memory of this
        // process.
        if unsafe { libc::fallocate(self.descriptor, 0, offset, length) } == -1 {
            return Err(MapRefused::now(MapStep::Reserve));
        }
        // An anonymous mapping with the requested alignment reserves the addresses; the file is
        // mapped over it.
        let place = super::map_aligned(layout, page, libc::MAP_NORESERVE);
        let place = place.ok_or_else(|| MapRefused::now(MapStep::Map))?;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let wanted = place.start.as_ptr().cast();
        // SAFETY: the range is an anonymous mapping of the same size, which no other code uses.
        let start = unsafe { libc::mmap(wanted, size, access, kind, self.descriptor, offset) };
        if ptr::eq(start, libc::MAP_FAILED) {
            let refused = MapRefused::now(MapStep::Map);
            unmap(place.start, place.size);
            return Err(refused);
        }
        Ok(place)
    }

    /// Unmaps a block, and returns its space to the file system.
    fn unmap(&self, block: SourceBlock) {
        // SAFETY: the block is a mapping of this file, and is not used any more.
        unsafe { libc::madvise(block.start.as_ptr().cast(), block.size, libc::MADV_REMOVE) };
        unmap(block.start, block.size);
    }
}

// SAFETY: each block is a separate part of the file. It is zero-filled, as new space of a file is,
// and stays mapped until it is released.
unsafe impl Source for UnnamedFile {
    fn take(&self, layout: Layout) -> Option<SourceBlock> {
        self.map(layout).ok()
    }

    unsafe fn give_back(&self, block: SourceBlock) {
        self.unmap(block);
    }

    fn resident(&self, start: NonNull<u8>, size: usize) -> usize {
        super::resident(start, size)
    }
}

impl Drop for UnnamedFile {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this source, and is not used any more; mappings keep
        // the file open.
        unsafe { libc::close(self.descriptor) };
    }
}

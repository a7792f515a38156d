//! The file in memory: every load, store and flush of the heap's own goes through here, checked to
//! lie in the mapping.
//!
//! Invariants: `base` is aligned to a chunk; `len` bytes from there map the file from its start,
//! shared, until the mapping is dropped; pages behind the file's end are mapped as well and touched
//! only once the file has grown there.

use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};

use super::PersistentError;
use super::file::LockedFile;
use super::format::{AREA, CHUNK};

/// Reserved address space. Mappings inside of it are unmapped with it.
#[derive(Debug)]
struct Reserved {
    start: NonNull<u8>,
    len: usize,
}

impl Reserved {
    /// Reserves this number of bytes from a multiple of [`CHUNK`].
    fn new(len: usize) -> Result<Reserved, PersistentError> {
        let len = len + CHUNK;
        let quiet = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, quiet, -1, 0) };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Reserved { start, len }),
            None => Err(PersistentError::last("mmap")),
        }
    }

    /// Maps a file there, shared. Returns the address of its first byte.
    fn map(&self, file: &LockedFile, len: usize) -> Result<NonNull<u8>, PersistentError> {
        // SAFETY: an aligned address is less than a chunk away, and a chunk more was reserved.
        let base = unsafe { self.start.add(self.start.align_offset(CHUNK)) };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the range is inside the reservation, which no other code uses.
        let found = unsafe { libc::mmap(base.as_ptr().cast(), len, prot, flags, file.number(), 0) };
        if found == libc::MAP_FAILED {
            return Err(PersistentError::last("mmap"));
        }
        // Two processes must not change the heap: a child that does is sent SIGSEGV.
        // SAFETY: the advice concerns children alone, and these pages.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        Ok(base)
    }

    fn unmap(&self) {
        // SAFETY: the range was mapped by `new`, and references into it do not outlive the heap.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn process() -> libc::pid_t {
    // SAFETY: `getpid` takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// The file, mapped.
#[derive(Debug)]
pub(super) struct HeapFileMapping {
    pub(super) base: NonNull<u8>,
    len: usize,
    /// Offset of the last word.
    last: usize,
    reserved: Reserved,
    /// The process that created the mapping. A child of `fork` does not have it.
    owner: libc::pid_t,
    pub(super) file: LockedFile,
    /// Every store and flush, in order, for tests that replay them.
    #[cfg(test)]
    pub(super) tape: Option<super::replay::Tape>,
}

impl HeapFileMapping {
    /// Maps a file with its maximum length; if the address space is too small, with less, but not
    /// less than it `has`.
    pub(super) fn new(
        file: LockedFile,
        has: usize,
        longest: usize,
    ) -> Result<HeapFileMapping, PersistentError> {
        let mut len = longest.max(has);
        let reserved = loop {
            match Reserved::new(len) {
                Err(PersistentError::Os { errno: libc::ENOMEM | libc::EINVAL, .. })
                    if len > has =>
                {
                    len = has + (len - has) / 2 / AREA * AREA;
                }
                reserved => break reserved?,
            }
        };
        let base = reserved.map(&file, len).inspect_err(|_| reserved.unmap())?;
        Ok(HeapFileMapping {
            base,
            len,
            last: len - 8,
            reserved,
            owner: process(),
            file,
            #[cfg(test)]
            tape: super::replay::new_tape(),
        })
    }

    /// True if this is the process that made it.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == process()
    }

    /// Number of mapped bytes of the file, including bytes beyond its present end.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of a range.
    #[inline]
    fn at(&self, offset: usize, size: usize) -> NonNull<u8> {
        assert!(offset <= self.len && size <= self.len - offset, "outside of the heap");
        // SAFETY: the range lies in the mapping, as was just checked.
        unsafe { self.base.add(offset) }
    }

    /// The address of a word.
    #[inline]
    fn word(&self, offset: usize) -> NonNull<u64> {
        assert!(offset <= self.last, "outside of the heap");
        // SAFETY: the last mapped word is not earlier, as was just checked.
        unsafe { self.base.add(offset) }.cast()
    }

    /// A word of the file, at a multiple of 8.
    #[inline]
    pub(super) fn load(&self, offset: usize) -> u64 {
        let place = self.word(offset);
        // SAFETY: `word` checked that it is mapped; callers pass multiples of 8 before the end of
        // the file.
        unsafe { place.read() }
    }

    /// Stores a word at a multiple of 8. If the process is killed, the file has all of the word or
    /// nothing of it. The store follows every earlier store of this function, and every store
    /// before a [`barrier`].
    #[inline]
    pub(super) fn store(&mut self, offset: usize, word: u64) {
        let place = self.word(offset);
        // SAFETY: `word` checked that it is mapped; callers pass multiples of 8 before the end of
        // the file.
        unsafe { place.write_volatile(word) };
        #[cfg(test)]
        self.record(offset, word);
    }

    /// Stores words from a place on, in any order.
    #[inline]
    pub(super) fn store_all<const N: usize>(&mut self, offset: usize, words: [u64; N]) {
        let place = self.at(offset, N * 8).cast::<[u64; N]>();
        // SAFETY: `at` checked that it is mapped; callers pass multiples of 8 before the end of the
        // file.
        unsafe { place.write_volatile(words) };
        #[cfg(test)]
        words.into_iter().zip(0..).for_each(|(word, at)| self.record(offset + at * 8, word));
    }

    /// Waits until a range, from a multiple of the page size, would survive a loss of power.
    pub(super) fn sync(&mut self, from: usize, to: usize) -> Result<(), PersistentError> {
        let place = self.at(from, to - from);
        // memcheck reports a flush of memory that is marked as inaccessible.
        let _quiet = crate::watch::quiet();
        barrier();
        // SAFETY: flushing changes no memory.
        let failed = unsafe { libc::msync(place.as_ptr().cast(), to - from, libc::MS_SYNC) } != 0;
        #[cfg(test)]
        self.record_sync(from, to);
        if failed { Err(PersistentError::last("msync")) } else { Ok(()) }
    }
}

/// Keeps the compiler from moving stores to blocks across it. The processor may move them: a
/// process that is killed has done all stores that came before, and none that come after.
#[inline]
pub(super) fn barrier() {
    compiler_fence(Ordering::SeqCst);
}

impl Drop for HeapFileMapping {
    fn drop(&mut self) {
        // In a child of `fork`, other mappings may have these addresses by now.
        if self.is_ours() {
            self.reserved.unmap();
            self.file.unlock();
        }
    }
}

// SAFETY: the mapping belongs to its owner alone, on whatever thread.
unsafe impl Send for HeapFileMapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for HeapFileMapping {}

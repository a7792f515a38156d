//! Mapping of the file. Every load, store and flush of the heap itself goes through this module,
//! which checks that the range lies in the mapping.
//!
//! Invariants: `base` is aligned to a chunk. The `len` bytes from `base` on map the file from its
//! start, shared, until the mapping is dropped. Pages behind the end of the file are mapped as
//! well, and are accessed only after the file has grown.

use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};

use super::PersistentError;
use super::file::LockedFile;
use super::format::{AREA, CHUNK};

/// Reserved address space. `unmap` also unmaps the file mapping inside it.
#[derive(Debug)]
struct Reserved {
    start: NonNull<u8>,
    len: usize,
}

impl Reserved {
    /// Reserves address space for `len` bytes that start at a multiple of [`CHUNK`].
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

    /// Maps a file into the reserved address space, shared. Returns the address of the first byte.
    fn map(&self, file: &LockedFile, len: usize) -> Result<NonNull<u8>, PersistentError> {
        // SAFETY: the aligned address is less than a chunk away, and one chunk more than `len` was
        // reserved.
        let base = unsafe { self.start.add(self.start.align_offset(CHUNK)) };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the range is inside the reservation, which no other code uses.
        let found = unsafe { libc::mmap(base.as_ptr().cast(), len, prot, flags, file.number(), 0) };
        if found == libc::MAP_FAILED {
            return Err(PersistentError::last("mmap"));
        }
        // Two processes must not change the heap: with this advice, an access in a child raises
        // SIGSEGV.
        // SAFETY: the advice changes only the address space of children.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        Ok(base)
    }

    fn unmap(&self) {
        // SAFETY: `new` mapped the range, and references into it do not outlive the heap.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn process() -> libc::pid_t {
    // SAFETY: `getpid` takes no arguments and cannot fail.
    unsafe { libc::getpid() }
}

/// Mapping of the file of a heap.
#[derive(Debug)]
pub(super) struct HeapFileMapping {
    pub(super) base: NonNull<u8>,
    len: usize,
    /// Offset of the last word of the mapping.
    last: usize,
    reserved: Reserved,
    /// PID of the process that created the mapping. A child of `fork` does not have the mapping.
    owner: libc::pid_t,
    pub(super) file: LockedFile,
    /// All stores and flushes in order, for tests that replay them.
    #[cfg(test)]
    pub(super) tape: Option<super::replay::Tape>,
}

impl HeapFileMapping {
    /// Maps a file with its maximum length. If the address space is too small for this length, maps
    /// less, but at least the present size of the file.
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

    /// True if this process created the mapping.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == process()
    }

    /// Number of mapped bytes of the file, including bytes beyond its present end.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of a range, after a check that the range is mapped.
    #[inline]
    fn at(&self, offset: usize, size: usize) -> NonNull<u8> {
        assert!(offset <= self.len && size <= self.len - offset, "outside of the heap");
        // SAFETY: the assertion above checked that the range lies in the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Returns the address of a word, after a check that the word is mapped.
    #[inline]
    fn word(&self, offset: usize) -> NonNull<u64> {
        assert!(offset <= self.last, "outside of the heap");
        // SAFETY: the assertion above checked that the word is not behind the last mapped word.
        unsafe { self.base.add(offset) }.cast()
    }

    /// Loads the word at an offset in the file, which is a multiple of 8.
    #[inline]
    pub(super) fn load(&self, offset: usize) -> u64 {
        let place = self.word(offset);
        // SAFETY: `word` checked that the word is mapped; callers pass multiples of 8 before the
        // end of the file.
        unsafe { place.read() }
    }

    /// Stores a word at an offset in the file, which is a multiple of 8. If the process is killed,
    /// the file contains either the whole word or nothing of it. The store comes after every
    /// earlier store by this function, and after every other store that precedes a call of
    /// [`barrier`].
    #[inline]
    pub(super) fn store(&mut self, offset: usize, word: u64) {
        let place = self.word(offset);
        // SAFETY: `word` checked that the word is mapped; callers pass multiples of 8 before the
        // end of the file.
        unsafe { place.write_volatile(word) };
        #[cfg(test)]
        self.record(offset, word);
    }

    /// Stores words from an offset in the file on. The order of the stores is not defined.
    #[inline]
    pub(super) fn store_all<const N: usize>(&mut self, offset: usize, words: [u64; N]) {
        let place = self.at(offset, N * 8).cast::<[u64; N]>();
        // SAFETY: `at` checked that the range is mapped; callers pass multiples of 8 before the end
        // of the file.
        unsafe { place.write_volatile(words) };
        #[cfg(test)]
        words.into_iter().zip(0..).for_each(|(word, at)| self.record(offset + at * 8, word));
    }

    /// Waits until a range of the file would survive a loss of power. Requires that `from` is a
    /// multiple of the page size.
    pub(super) fn sync(&mut self, from: usize, to: usize) -> Result<(), PersistentError> {
        let place = self.at(from, to - from);
        // memcheck reports a flush of memory that is marked as inaccessible.
        let _quiet = crate::watch::quiet();
        barrier();
        // SAFETY: `msync` changes no memory.
        let failed = unsafe { libc::msync(place.as_ptr().cast(), to - from, libc::MS_SYNC) } != 0;
        #[cfg(test)]
        self.record_sync(from, to);
        if failed { Err(PersistentError::last("msync")) } else { Ok(()) }
    }
}

/// Prevents the compiler from moving stores to blocks across this call. The processor may reorder
/// them. But if a process is killed, exactly its stores up to its last instruction in program order
/// have taken effect.
#[inline]
pub(super) fn barrier() {
    compiler_fence(Ordering::SeqCst);
}

impl Drop for HeapFileMapping {
    fn drop(&mut self) {
        // A child of `fork` does not have the mapping, and may have other mappings at these
        // addresses.
        if self.is_ours() {
            self.reserved.unmap();
            self.file.unlock();
        }
    }
}

// SAFETY: the memory belongs to this value alone, whichever thread uses it.
unsafe impl Send for HeapFileMapping {}
// SAFETY: functions with a shared reference only read the memory.
unsafe impl Sync for HeapFileMapping {}

//! Mappings for experiments: private or shared, anonymous or of a file, populated or not. Other
//! threads and processes may access the same bytes, so each access is an atomic access to a byte.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use pagewise_sys::madvise::Advice;

/// Parameters of a mapping.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRequest<'f> {
    /// Length in bytes, a multiple of the page size.
    pub length: usize,
    /// True for `MAP_SHARED`, false for `MAP_PRIVATE`.
    pub shared: bool,
    /// File that is mapped from its start; `None` for anonymous memory.
    pub file: Option<&'f File>,
    /// True for `MAP_POPULATE`: the kernel fills the page tables, and reads a file, before the call
    /// returns.
    pub populate: bool,
    /// True for `MAP_NORESERVE`: the mapping does not count against the commit limit.
    pub no_reserve: bool,
    /// True for `PROT_NONE`, until [`OwnedMapping::protect`] changes the access rights.
    pub no_access: bool,
}

/// A mapping. Dropping this value unmaps it.
#[derive(Debug)]
pub struct OwnedMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, so any thread may access and unmap it.
unsafe impl Send for OwnedMapping {}
// SAFETY: all accesses to the mapping through a shared reference are atomic.
unsafe impl Sync for OwnedMapping {}

/// Access rights of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// Neither reading nor writing: `PROT_NONE`.
    None,
    /// Reading: `PROT_READ`.
    Read,
    /// Reading and writing: `PROT_READ | PROT_WRITE`.
    Write,
}

impl PageAccess {
    const fn flags(self) -> i32 {
        match self {
            PageAccess::None => libc::PROT_NONE,
            PageAccess::Read => libc::PROT_READ,
            PageAccess::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl OwnedMapping {
    /// Creates a mapping with these parameters.
    ///
    /// # Errors
    /// `EINVAL` for a length of 0, `ENOMEM` if the commit limit or the address space is exhausted,
    /// and other errors as `mmap` returns them.
    pub fn map(wanted: &MapRequest<'_>) -> io::Result<OwnedMapping> {
        let flags = [
            (true, if wanted.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE }),
            (wanted.file.is_none(), libc::MAP_ANONYMOUS),
            (wanted.populate, libc::MAP_POPULATE),
            (wanted.no_reserve, libc::MAP_NORESERVE),
        ];
        let flags = flags.iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1);
        let file = wanted.file.map_or(-1, AsRawFd::as_raw_fd);
        let access = if wanted.no_access { PageAccess::None } else { PageAccess::Write };
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), wanted.length, access.flags(), flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0");
        Ok(OwnedMapping { start, length: wanted.length })
    }

    /// Maps a new System V shared memory segment. The segment has no key and is marked for removal
    /// at once, so that the kernel frees it when the last process that has attached it ends.
    ///
    /// # Errors
    /// `EINVAL` for a length of 0 or above `kernel.shmmax`, `ENOSPC`, `ENOMEM`.
    pub fn system_v(length: usize) -> io::Result<OwnedMapping> {
        // SAFETY: the call creates a segment and accesses no memory of this process.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, length, libc::IPC_CREAT | 0o600) };
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        let start = unsafe { libc::shmat(id, ptr::null(), 0) };
        let attached =
            if start.addr() == usize::MAX { Err(io::Error::last_os_error()) } else { Ok(()) };
        // SAFETY: `IPC_RMID` reads no argument. The segment exists until it is detached, which
        // `munmap` does.
        unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        attached?;
        let start = NonNull::new(start.cast()).expect("the kernel attaches nothing at 0");
        Ok(OwnedMapping { start, length })
    }

    /// Returns the mapping as words, without the bytes after the last whole word.
    ///
    /// The caller must not write the same memory as bytes and as words at the same time.
    pub fn as_words(&self) -> &[AtomicU64] {
        let words = self.length / size_of::<AtomicU64>();
        // SAFETY: a mapping begins at a page, so words are aligned. All accesses to the mapping are
        // atomic, and it exists while it is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), words) }
    }

    /// Start address of the mapping.
    pub fn start(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the byte at an offset in the mapping.
    ///
    /// # Panics
    /// Panics if the offset is not below the length of the mapping.
    #[inline(always)]
    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.length, "{at} is beyond the mapping");
        // SAFETY: the assertion above checked that `at` is below the length of the mapping.
        let byte = unsafe { self.start.add(at) };
        // SAFETY: every address is aligned for a byte, and all accesses to the mapping are atomic.
        // The kernel ends the process if an access violates the access rights.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }

    /// Reads the byte at an offset.
    #[inline(always)]
    pub fn read(&self, at: usize) -> u8 {
        self.byte(at).load(Relaxed)
    }

    /// Writes the byte at an offset.
    #[inline(always)]
    pub fn write(&self, at: usize, byte: u8) {
        self.byte(at).store(byte, Relaxed);
    }

    /// Writes 1 to every `step`-th byte of a range.
    pub fn touch(&self, range: Range<usize>, step: usize) {
        range.step_by(step).for_each(|at| self.write(at, 1));
    }

    /// Reads every `step`-th byte of a range, and returns the sum of these bytes.
    pub fn look(&self, range: Range<usize>, step: usize) -> u64 {
        range.step_by(step).map(|at| u64::from(self.read(at))).sum()
    }

    /// Fills the whole mapping with `byte`, by `memset`. Takes `&mut self`, since no other code may
    /// access the mapping at the same time.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the bytes are mapped, and `&mut self` excludes other accesses of this process.
        unsafe { self.start.write_bytes(byte, self.length) };
    }

    /// Fills a range of the mapping with `byte`, by `memset`.
    ///
    /// # Panics
    /// Panics if the range ends beyond the mapping.
    pub fn fill_part(&mut self, part: Range<usize>, byte: u8) {
        assert!(
            part.start <= part.end && part.end <= self.length,
            "{part:?} is beyond the mapping"
        );
        // SAFETY: the assertion above checked that `part.start` is at most the length of the
        // mapping.
        let start = unsafe { self.start.add(part.start) };
        // SAFETY: the assertion above checked that the range ends inside the mapping; `&mut self`
        // excludes other accesses of this process.
        unsafe { start.write_bytes(byte, part.len()) };
    }

    /// Calls `madvise` for a range of the mapping.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside the mapping, and other errors as `madvise` returns them.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let (start, length) = self.part(&range)?;
        // SAFETY: the range lies in this mapping. No advice of this type unmaps it, and atomic
        // loads permit that its bytes change.
        let done = unsafe { libc::madvise(start.cast(), length, advice as i32) };
        answer(done)
    }

    /// Changes the access rights of a range of the mapping.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside the mapping, and other errors as `mprotect` returns
    /// them.
    pub fn protect(&self, range: Range<usize>, access: PageAccess) -> io::Result<()> {
        let (start, length) = self.part(&range)?;
        // SAFETY: the range lies in this mapping. The kernel ends the process if an access violates
        // the new access rights.
        let done = unsafe { libc::mprotect(start.cast(), length, access.flags()) };
        answer(done)
    }

    /// Writes dirty pages to the file, and waits until they are written.
    ///
    /// # Errors
    /// As `msync` returns them.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping, whose contents do not change.
        let done = unsafe { libc::msync(self.start.as_ptr().cast(), self.length, libc::MS_SYNC) };
        answer(done)
    }

    /// Locks the whole mapping in memory.
    ///
    /// # Errors
    /// `ENOMEM`, `EPERM` or `EAGAIN` if the mapping exceeds `RLIMIT_MEMLOCK`, as `mlock` returns
    /// them.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping, whose contents do not change.
        let done = unsafe { libc::mlock(self.start.as_ptr().cast(), self.length) };
        answer(done)
    }

    /// Returns the address and length of a range for a system call; `EINVAL` if the range is not
    /// inside the mapping.
    fn part(&self, range: &Range<usize>) -> io::Result<(*mut u8, usize)> {
        if range.start > range.end || range.end > self.length {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the check above ensures that the start is at most the length of the mapping.
        let start = unsafe { self.start.add(range.start) };
        Ok((start.as_ptr(), range.len()))
    }
}

impl Drop for OwnedMapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and no borrow of it can outlive `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

fn answer(done: i32) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> usize {
        usize::try_from(pagewise_sys::system::page_size()).unwrap()
    }

    #[test]
    fn shared_memory_of_a_file_is_the_file_and_private_memory_is_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(page() as u64).unwrap();
        let map = |shared| {
            let wanted =
                MapRequest { length: page(), shared, file: Some(&file), ..MapRequest::default() };
            OwnedMapping::map(&wanted).unwrap()
        };
        let (one, two, private) = (map(true), map(true), map(false));
        private.write(0, 9);
        one.write(1, 7);
        one.sync().unwrap();
        assert_eq!((two.read(0), two.read(1), private.read(0)), (0, 7, 9));
    }

    #[test]
    fn words_are_made_of_bytes_in_memory_of_any_kind() {
        let system_v = OwnedMapping::system_v(page()).unwrap();
        let anonymous = MapRequest { length: page(), shared: true, ..MapRequest::default() };
        for mapping in [system_v, OwnedMapping::map(&anonymous).unwrap()] {
            mapping.write(9, 1);
            assert_eq!(
                mapping.as_words()[1].load(Relaxed),
                u64::from_ne_bytes([0, 1, 0, 0, 0, 0, 0, 0])
            );
            assert_eq!(mapping.as_words().len(), page() / 8);
        }
        assert!(OwnedMapping::system_v(0).is_err());
    }

    #[test]
    fn dropped_pages_are_zero_and_parts_beyond_the_end_are_errors() {
        let wanted = MapRequest { length: 2 * page(), ..MapRequest::default() };
        let mapping = OwnedMapping::map(&wanted).unwrap();
        mapping.touch(0..mapping.len(), page());
        assert_eq!(mapping.look(0..mapping.len(), page()), 2);
        mapping.advise(0..page(), Advice::DontNeed).unwrap();
        assert_eq!(mapping.look(0..mapping.len(), page()), 1);
        mapping.protect(0..page(), PageAccess::Read).unwrap();
        assert_eq!(mapping.read(0), 0);
        assert!(mapping.advise(0..3 * page(), Advice::DontNeed).is_err());
        let mut mapping = OwnedMapping::map(&wanted).unwrap();
        mapping.fill_part(page()..2 * page(), 1);
        assert_eq!(
            (mapping.look(0..page(), 1), mapping.look(page()..2 * page(), 1)),
            (0, page() as u64)
        );
        assert!(OwnedMapping::map(&MapRequest::default()).is_err());
    }
}

//! Mappings of any kind for experiments: private or shared, anonymous or of a file, populated or
//! not. Their bytes may be shared with other threads and processes, so that each access is an
//! atomic one of a byte.

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
    /// Bytes; a multiple of the page size.
    pub length: usize,
    /// `MAP_SHARED` rather than `MAP_PRIVATE`.
    pub shared: bool,
    /// File that is mapped from its start; `None`: anonymous memory.
    pub file: Option<&'f File>,
    /// `MAP_POPULATE`: page tables are filled, and a file is read, before the call returns.
    pub populate: bool,
    /// `MAP_NORESERVE`: not counted against the commit limit.
    pub no_reserve: bool,
    /// `PROT_NONE`, until [`OwnedMapping::protect`] changes the access rights.
    pub no_access: bool,
}

/// A mapping. It is unmapped when dropped.
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
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
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
    /// Creates the mapping.
    ///
    /// # Errors
    /// `EINVAL` for a length of 0, `ENOMEM` if the commit limit or the address space is exhausted,
    /// others as `mmap` returns them.
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

    /// Maps a new System V segment. It has no name and is marked for removal at once, so that the
    /// kernel frees it when the last process that has it attached ends.
    ///
    /// # Errors
    /// `EINVAL` for no bytes or more than `kernel.shmmax`, `ENOSPC`, `ENOMEM`.
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
        // SAFETY: `IPC_RMID` reads no argument; the segment stays until it is detached, which
        // `munmap` does too.
        unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
        attached?;
        let start = NonNull::new(start.cast()).expect("the kernel attaches nothing at 0");
        Ok(OwnedMapping { start, length })
    }

    /// The whole mapping as words, without the bytes after the last whole word.
    ///
    /// The same memory must not be written as bytes and as words at the same time.
    pub fn as_words(&self) -> &[AtomicU64] {
        let words = self.length / size_of::<AtomicU64>();
        // SAFETY: a mapping begins at a page, so that words are aligned; all accesses to it are
        // atomic, and it stays for as long as it is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), words) }
    }

    /// Start address.
    pub fn start(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// A byte of it.
    ///
    /// # Panics
    /// Panics if the offset is beyond the end.
    #[inline(always)]
    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.length, "{at} is beyond the mapping");
        // SAFETY: `at` is below the length of the mapping, as was just checked.
        let byte = unsafe { self.start.add(at) };
        // SAFETY: a byte is aligned, and all accesses to the mapping are atomic. Without the access
        // right, the kernel ends the process.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }

    /// Reads a byte.
    #[inline(always)]
    pub fn read(&self, at: usize) -> u8 {
        self.byte(at).load(Relaxed)
    }

    /// Writes a byte.
    #[inline(always)]
    pub fn write(&self, at: usize, byte: u8) {
        self.byte(at).store(byte, Relaxed);
    }

    /// Writes 1 to every `step`-th byte of a range.
    pub fn touch(&self, range: Range<usize>, step: usize) {
        range.step_by(step).for_each(|at| self.write(at, 1));
    }

    /// Reads every `step`-th byte of a range; returns their sum.
    pub fn look(&self, range: Range<usize>, step: usize) -> u64 {
        range.step_by(step).map(|at| u64::from(self.read(at))).sum()
    }

    /// Fills all of it, like `memset`. `&mut`, since no other code may read it at the same time.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the bytes are mapped, and no other code of this process accesses them.
        unsafe { self.start.write_bytes(byte, self.length) };
    }

    /// Fills a part, as `memset` does.
    ///
    /// # Panics
    /// Panics if the part ends beyond the mapping.
    pub fn fill_part(&mut self, part: Range<usize>, byte: u8) {
        assert!(
            part.start <= part.end && part.end <= self.length,
            "{part:?} is beyond the mapping"
        );
        // SAFETY: `part.start` is at most the length of the mapping, as was just checked.
        let start = unsafe { self.start.add(part.start) };
        // SAFETY: the part ends inside the mapping, as was checked above; no other code of this
        // process accesses it.
        unsafe { start.write_bytes(byte, part.len()) };
    }

    /// Gives the kernel advice on a part.
    ///
    /// # Errors
    /// As `madvise` gives them.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let (start, length) = self.part(&range)?;
        // SAFETY: the range lies in this mapping. No advice unmaps it, and atomic loads accept
        // bytes that changed.
        let done = unsafe { libc::madvise(start.cast(), length, advice as i32) };
        answer(done)
    }

    /// Changes what may be done with a part.
    ///
    /// # Errors
    /// As `mprotect` gives them.
    pub fn protect(&self, range: Range<usize>, access: PageAccess) -> io::Result<()> {
        let (start, length) = self.part(&range)?;
        // SAFETY: the range lies in this mapping. The kernel kills the process on an access that
        // the new rights forbid.
        let done = unsafe { libc::mprotect(start.cast(), length, access.flags()) };
        answer(done)
    }

    /// Writes dirty pages to the file, and waits for that.
    ///
    /// # Errors
    /// As `msync` gives them.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and stays as it is.
        let done = unsafe { libc::msync(self.start.as_ptr().cast(), self.length, libc::MS_SYNC) };
        answer(done)
    }

    /// Locks the whole mapping in memory.
    ///
    /// # Errors
    /// `ENOMEM`, `EPERM`, `EAGAIN` beyond `RLIMIT_MEMLOCK`.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and its bytes stay as they are.
        let done = unsafe { libc::mlock(self.start.as_ptr().cast(), self.length) };
        answer(done)
    }

    /// Address and length of a range for a system call; `EINVAL` if it is not inside the mapping.
    fn part(&self, range: &Range<usize>) -> io::Result<(*mut u8, usize)> {
        if range.start > range.end || range.end > self.length {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the start is at most the length.
        let start = unsafe { self.start.add(range.start) };
        Ok((start.as_ptr(), range.len()))
    }
}

impl Drop for OwnedMapping {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nothing borrowed from it can outlive `self`.
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

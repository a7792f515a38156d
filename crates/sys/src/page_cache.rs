//! Pages of a file in the page cache: `cachestat` (Linux 6.5), and `mincore` on older kernels.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The number of `cachestat` on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Counts of pages of a file in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPages {
    /// Number of pages in the page cache.
    pub cached: u64,
    /// Number of cached pages that are not yet written to the device; `None` if the kernel does not
    /// count them.
    pub dirty: Option<u64>,
}

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of `linux/mman.h`.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const _: () = assert!(size_of::<CachestatRange>() == 16 && size_of::<Cachestat>() == 40);

/// Counts the cached pages of a file by `cachestat`, or by `mincore` on older kernels. Reads
/// nothing from the device.
///
/// # Errors
/// `EPERM` for a file that the caller may not write and does not own (since 6.14), `EOPNOTSUPP` for
/// hugetlbfs.
pub fn cached_pages(file: impl AsFd, size: u64) -> io::Result<CachedPages> {
    match cachestat(file.as_fd()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let cached = resident(file.as_fd(), size)?;
            Ok(CachedPages { cached, dirty: None })
        }
        counted => counted,
    }
}

fn cachestat(file: BorrowedFd<'_>) -> io::Result<CachedPages> {
    // A length of 0 means the whole file.
    let range = CachestatRange { offset: 0, length: 0 };
    let mut stat = Cachestat::default();
    // SAFETY: both pointers are to structs of the kernel's layout, asserted above, which live until
    // the call returns.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let dirty = Some(stat.dirty.saturating_add(stat.writeback));
    Ok(CachedPages { cached: stat.cached, dirty })
}

/// Number of bytes of a file that are mapped at once.
const WINDOW: u64 = 256 << 20;

/// Counts the pages in the page cache with `mincore`, window by window.
fn resident(file: BorrowedFd<'_>, size: u64) -> io::Result<u64> {
    let mut cached = 0_u64;
    let mut offset = 0;
    while offset < size {
        let length = WINDOW.min(size - offset);
        let window = FileWindow::map(file, offset, length)?;
        cached += window.cached_pages()?.iter().filter(|is_cached| **is_cached).count() as u64;
        offset += length;
    }
    Ok(cached)
}

/// A part of a file, mapped for reading. This process never reads the mapped bytes, so it receives
/// no SIGBUS if the file is truncated meanwhile.
#[derive(Debug)]
pub struct FileWindow {
    start: *mut libc::c_void,
    length: usize,
    page_size: usize,
}

impl FileWindow {
    /// Maps a part of a file; `offset` is a multiple of the page size.
    ///
    /// # Errors
    /// Those of `mmap`: `EACCES` without the right to read, `ENODEV` for files that cannot be
    /// mapped.
    pub fn map(file: impl AsFd, offset: u64, length: u64) -> io::Result<FileWindow> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let page_size = usize::try_from(crate::system::page_size()).map_err(invalid)?;
        let length = usize::try_from(length).map_err(invalid)?.next_multiple_of(page_size);
        let offset = libc::off_t::try_from(offset).map_err(invalid)?;
        let file = file.as_fd().as_raw_fd();
        // SAFETY: the kernel chooses a free address, so the new mapping replaces no existing one.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file,
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let window = FileWindow { start, length, page_size };
        // Without this advice a fault reads ahead, and unmapping a page marks the page as accessed.
        window.advise(0, length, libc::MADV_RANDOM)?;
        Ok(window)
    }

    /// Returns one value for each page of the window: true if the page is in the page cache.
    ///
    /// # Errors
    /// Those of `mincore`.
    pub fn cached_pages(&self) -> io::Result<Vec<bool>> {
        let mut states = vec![0_u8; self.length / self.page_size];
        // SAFETY: the window is mapped, and `states` has one byte for each of its pages.
        let done = unsafe { libc::mincore(self.start, self.length, states.as_mut_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(states.iter().map(|state| state & 1 != 0).collect())
    }

    /// Fills the page-table entry of a page of the window, and returns the address of that page.
    /// `page` counts from the start of the window.
    ///
    /// # Errors
    /// `EFAULT` beyond the end of the file; `EINVAL` beyond the end of the window, and before Linux
    /// 5.14.
    pub fn populate(&self, page: usize) -> io::Result<u64> {
        let offset = page.saturating_mul(self.page_size);
        if offset >= self.length {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.advise(offset, self.page_size, crate::madvise::Advice::PopulateRead as libc::c_int)?;
        Ok((self.start.addr() + offset) as u64)
    }

    /// Gives advice on a part of the window.
    fn advise(&self, offset: usize, length: usize, advice: libc::c_int) -> io::Result<()> {
        debug_assert!(offset + length <= self.length, "a part of the window");
        // SAFETY: the part lies in the mapping, and the advice values of this module change no
        // bytes.
        let done = unsafe { libc::madvise(self.start.wrapping_byte_add(offset), length, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and no reference to its bytes exists.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_counts_of_a_written_file_are_all_its_pages() {
        let page = crate::system::page_size();
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![7; usize::try_from(page).unwrap() * 40];
        file.write_all(&bytes).unwrap();
        let size = bytes.len() as u64;
        assert_eq!(resident(file.as_fd(), size).unwrap(), 40);
        assert_eq!(cached_pages(&file, size).unwrap().cached, 40);
        let window = FileWindow::map(&file, page, page * 3).unwrap();
        assert_eq!(window.cached_pages().unwrap(), [true; 3]);
        assert!(window.populate(3).is_err());
    }
}

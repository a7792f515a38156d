//! Swap files: writes their header, switches them on and off. Needs CAP_SYS_ADMIN.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagewise_sys::system::page_size;

/// The last ten bytes of the first page, by which the kernel recognizes a swap area.
const MAGIC: &[u8] = b"SWAPSPACE2";

/// Writes a swap header into an existing file, and makes it a swap area.
///
/// # Errors
/// `EINVAL` for a file with holes or of less than two pages, `EPERM`, and others as `swapon`
/// returns them.
pub fn on(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).read(true).open(path)?;
    let page = page_size();
    let pages = file.metadata()?.len() / page;
    let last = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    // `union swap_header`: 1024 bytes for boot blocks, then version, last page and number of bad
    // pages.
    let mut header = vec![0; usize::try_from(page).unwrap_or(0)];
    for (at, word) in [(1024, 1), (1028, last), (1032, 0)] {
        header[at..at + 4].copy_from_slice(&u32::to_ne_bytes(word));
    }
    let magic = header.len() - MAGIC.len();
    header[magic..].copy_from_slice(MAGIC);
    // No `fsync`: the kernel reads the header from the page cache, and the file system writes the
    // blocks of the file to the disk before it activates the swap area.
    file.write_all_at(&header, 0)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with NUL.
    let done = unsafe { libc::swapon(path.as_ptr(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Switches a swap file off: the kernel reads the pages in it back into memory.
///
/// # Errors
/// `EINVAL` if it is not a swap area, `ENOENT`, `EPERM`, `ENOMEM` if memory cannot hold its
/// content.
pub fn off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with NUL.
    let done = unsafe { libc::swapoff(path.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

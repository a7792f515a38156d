//! Operations on the file of a heap: open, lock, lengthen, flush and link.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use super::PersistentError;
use super::format::FixedHeader;

/// Maximum length in bytes of the path of a folder, with its NUL: PATH_MAX.
const PATH: usize = libc::PATH_MAX as usize;

/// Calls `act` with the path of the folder that contains a file.
fn in_folder<T>(
    path: &CStr,
    act: impl FnOnce(&CStr) -> Result<T, PersistentError>,
) -> Result<T, PersistentError> {
    let bytes = path.to_bytes();
    let folder = bytes.iter().rposition(|byte| *byte == b'/').map(|slash| &bytes[..=slash]);
    let mut name = [0; PATH];
    let room = name.get_mut(..folder.map_or(1, <[u8]>::len));
    let too_long = PersistentError::Os { call: "open", errno: libc::ENAMETOOLONG };
    room.ok_or(too_long)?.copy_from_slice(folder.unwrap_or(b"."));
    act(CStr::from_bytes_until_nul(&name).map_err(|_| too_long)?)
}

/// An open file. Dropping this value closes the file and releases its lock.
#[derive(Debug)]
pub(super) struct LockedFile(libc::c_int);

impl LockedFile {
    /// Opens a file for reading and writing.
    pub(super) fn open(path: &CStr, flags: libc::c_int) -> Result<LockedFile, PersistentError> {
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path is a C string, and the call reads the mode only with O_CREAT and
        // O_TMPFILE.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
        if fd < 0 { Err(PersistentError::last("open")) } else { Ok(LockedFile(fd)) }
    }

    /// Locks the file until it is closed. If another process or thread has locked the file, waits
    /// (`wait` is true) or returns [`PersistentError::Busy`].
    pub(super) fn lock(&self, wait: bool) -> Result<(), PersistentError> {
        let flags = libc::LOCK_EX | if wait { 0 } else { libc::LOCK_NB };
        loop {
            // SAFETY: the call takes numbers and accesses no memory of this process.
            if unsafe { libc::flock(self.0, flags) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EINTR => {}
                libc::EWOULDBLOCK => return Err(PersistentError::Busy),
                errno => return Err(PersistentError::Os { call: "flock", errno }),
            }
        }
    }

    /// Returns the size of the file in bytes; [`PersistentError::Foreign`] if it is not a regular
    /// file.
    pub(super) fn size(&self) -> Result<usize, PersistentError> {
        // SAFETY: every field of `stat` is a number, for which all zeros are valid.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the call writes only to `stat`.
        if unsafe { libc::fstat(self.0, &raw mut stat) } != 0 {
            return Err(PersistentError::last("fstat"));
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(PersistentError::Foreign);
        }
        Ok(usize::try_from(stat.st_size).unwrap_or(0))
    }

    /// Allocates disk blocks for a range of the file, so that no store to its mapping fails because
    /// the disk is full.
    pub(super) fn allocate(&self, from: usize, to: usize) -> Result<(), PersistentError> {
        let call = "posix_fallocate";
        #[cfg(test)]
        super::replay::refuse(call)?;
        let offset = |at: usize| {
            libc::off_t::try_from(at).map_err(|_| PersistentError::Os { call, errno: libc::EFBIG })
        };
        let (start, len) = (offset(from)?, offset(to.saturating_sub(from))?);
        if to > longest() {
            return Err(PersistentError::Os { call, errno: libc::EFBIG });
        }
        loop {
            // SAFETY: the call takes numbers and accesses no memory of this process.
            match unsafe { libc::posix_fallocate(self.0, start, len) } {
                0 => return Ok(()),
                libc::EINTR => {}
                errno => return Err(PersistentError::Os { call, errno }),
            }
        }
    }

    /// Creates a file without a name in the folder that contains `path`.
    pub(super) fn open_nameless_beside(path: &CStr) -> Result<LockedFile, PersistentError> {
        in_folder(path, |folder| LockedFile::open(folder, libc::O_TMPFILE))
    }

    /// Makes the file longer without allocating disk blocks.
    pub(super) fn lengthen(&self, size: usize) -> Result<(), PersistentError> {
        let size = libc::off_t::try_from(size)
            .map_err(|_| PersistentError::Os { call: "ftruncate", errno: libc::EFBIG })?;
        if i64::try_from(longest()).is_ok_and(|longest| size > longest) {
            return Err(PersistentError::Os { call: "ftruncate", errno: libc::EFBIG });
        }
        // SAFETY: the call takes numbers and accesses no memory of this process.
        if unsafe { libc::ftruncate(self.0, size) } == 0 {
            Ok(())
        } else {
            Err(PersistentError::last("ftruncate"))
        }
    }

    /// Reads the fixed header of a heap; `None` if the file is shorter.
    pub(super) fn fixed(&self) -> Result<Option<FixedHeader>, PersistentError> {
        let mut fixed = MaybeUninit::<FixedHeader>::zeroed();
        let size = size_of::<FixedHeader>();
        // SAFETY: the buffer has this length and is writable.
        let read = unsafe { libc::pread(self.0, fixed.as_mut_ptr().cast(), size, 0) };
        // SAFETY: every bit pattern is a valid header, and bytes that were not read are 0.
        let fixed = unsafe { fixed.assume_init() };
        match usize::try_from(read) {
            Ok(read) => Ok((read == size).then_some(fixed)),
            Err(_) => Err(PersistentError::last("pread")),
        }
    }

    /// Links a file without a name to `path`; fails if `path` exists.
    pub(super) fn link(&self, path: &CStr) -> Result<(), PersistentError> {
        let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let digits = name.get_mut(14..24).into_iter().flatten();
        let (mut left, mut divisor) = (self.0, 1_000_000_000);
        for digit in digits {
            // Names in `/proc/self/fd` have no leading zeros. Slashes replace the leading zeros,
            // because the kernel treats several slashes as one.
            let figure = u8::try_from(left / divisor).unwrap_or(0);
            let leading = self.0 < divisor && divisor > 1;
            *digit = if leading { b'/' } else { b'0' + figure };
            (left, divisor) = (left % divisor, divisor / 10);
        }
        let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: both paths are strings that end in NUL.
        let linked =
            unsafe { libc::linkat(here, name.as_ptr().cast(), here, path.as_ptr(), follow) };
        if linked == 0 { Ok(()) } else { Err(PersistentError::last("linkat")) }
    }

    /// Waits until all data that was written to the file would survive a loss of power.
    pub(super) fn sync(&self) -> Result<(), PersistentError> {
        // SAFETY: the call takes a number and accesses no memory of this process.
        if unsafe { libc::fsync(self.0) } == 0 {
            Ok(())
        } else {
            Err(PersistentError::last("fsync"))
        }
    }

    /// Waits until the directory entry of a file would survive a loss of power.
    pub(super) fn sync_name(path: &CStr) -> Result<(), PersistentError> {
        in_folder(path, |folder| {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
            // SAFETY: the path is a C string.
            let fd = unsafe { libc::open(folder.as_ptr(), flags) };
            if fd < 0 { Err(PersistentError::last("open")) } else { LockedFile(fd).sync() }
        })
    }

    /// Returns the file descriptor, which is valid until this value is dropped.
    pub(super) fn number(&self) -> libc::c_int {
        self.0
    }

    /// Releases the lock at once: closing the file would not release it while a child of `fork` has
    /// the file open.
    pub(super) fn unlock(&self) {
        // SAFETY: the call takes numbers and accesses no memory of this process.
        unsafe { libc::flock(self.0, libc::LOCK_UN) };
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, which is not used any more.
        unsafe { libc::close(self.0) };
    }
}

/// Returns RLIMIT_FSIZE, the maximum size of a file in bytes. Callers check it first, because
/// SIGXFSZ kills a process that exceeds it.
fn longest() -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call writes only to `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

fn errno() -> i32 {
    // SAFETY: `__errno_location` takes no arguments, and returns an address that is valid in this
    // thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's `errno`, which lives as long as the thread.
    unsafe { *place }
}

impl PersistentError {
    pub(super) fn last(call: &'static str) -> PersistentError {
        PersistentError::Os { call, errno: errno() }
    }
}

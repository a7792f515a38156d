//! The file in memory: every load, store and flush of the heap's own goes through here, checked to lie in the mapping.
//!
//! Invariants: `base` is aligned to a chunk; `len` bytes from there map the file from its start, shared, until the
//! mapping is dropped; pages behind the file's end are mapped as well and touched only once the file has grown there.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};

use super::Error;
use super::format::{AREA, CHUNK, Fixed};

/// The longest path of a folder, as PATH_MAX, with its NUL.
const PATH: usize = libc::PATH_MAX as usize;

/// An open file that is closed, and with it unlocked, when dropped.
#[derive(Debug)]
pub(super) struct File(libc::c_int);

impl File {
    /// Opens a file for reading and writing.
    pub(super) fn open(path: &CStr, flags: libc::c_int) -> Result<File, Error> {
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path is a string, and the mode is what O_CREAT and O_TMPFILE read.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
        if fd < 0 { Err(Error::last("open")) } else { Ok(File(fd)) }
    }

    /// Keeps others out until it is closed.
    pub(super) fn lock(&self, wait: bool) -> Result<(), Error> {
        let flags = libc::LOCK_EX | if wait { 0 } else { libc::LOCK_NB };
        loop {
            // SAFETY: the call takes numbers.
            if unsafe { libc::flock(self.0, flags) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EINTR => {}
                libc::EWOULDBLOCK => return Err(Error::Busy),
                errno => return Err(Error::Os { call: "flock", errno }),
            }
        }
    }

    /// The file's size in bytes; an error where it is no plain file.
    pub(super) fn size(&self) -> Result<usize, Error> {
        // SAFETY: a stat of zeros is one.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is written by the call and lives longer.
        if unsafe { libc::fstat(self.0, &raw mut stat) } != 0 {
            return Err(Error::last("fstat"));
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Foreign);
        }
        Ok(usize::try_from(stat.st_size).unwrap_or(0))
    }

    /// Gives a range of the file its blocks, so that no store to it finds the disk full.
    pub(super) fn allocate(&self, from: usize, to: usize) -> Result<(), Error> {
        let call = "posix_fallocate";
        #[cfg(test)]
        super::replay::refuse(call)?;
        let offset = |at: usize| {
            libc::off_t::try_from(at).map_err(|_| Error::Os { call, errno: libc::EFBIG })
        };
        let (start, len) = (offset(from)?, offset(to.saturating_sub(from))?);
        if to > longest() {
            return Err(Error::Os { call, errno: libc::EFBIG });
        }
        loop {
            // SAFETY: the call takes numbers.
            match unsafe { libc::posix_fallocate(self.0, start, len) } {
                0 => return Ok(()),
                libc::EINTR => {}
                errno => return Err(Error::Os { call, errno }),
            }
        }
    }

    /// Makes a file without a name in the folder where `path` will be.
    pub(super) fn open_nameless_beside(path: &CStr) -> Result<File, Error> {
        let bytes = path.to_bytes();
        let folder = bytes.iter().rposition(|byte| *byte == b'/').map(|slash| &bytes[..=slash]);
        let mut name = [0; PATH];
        let room = name.get_mut(..folder.map_or(1, <[u8]>::len));
        let too_long = Error::Os { call: "open", errno: libc::ENAMETOOLONG };
        room.ok_or(too_long)?.copy_from_slice(folder.unwrap_or(b"."));
        let folder = CStr::from_bytes_until_nul(&name).map_err(|_| too_long)?;
        File::open(folder, libc::O_TMPFILE)
    }

    /// Makes the file longer without giving it blocks.
    pub(super) fn lengthen(&self, size: usize) -> Result<(), Error> {
        let size = libc::off_t::try_from(size)
            .map_err(|_| Error::Os { call: "ftruncate", errno: libc::EFBIG })?;
        if i64::try_from(longest()).is_ok_and(|longest| size > longest) {
            return Err(Error::Os { call: "ftruncate", errno: libc::EFBIG });
        }
        // SAFETY: the call takes numbers.
        if unsafe { libc::ftruncate(self.0, size) } == 0 {
            Ok(())
        } else {
            Err(Error::last("ftruncate"))
        }
    }

    /// The first bytes of a heap; `None` where the file has not so many.
    pub(super) fn fixed(&self) -> Result<Option<Fixed>, Error> {
        let mut fixed = MaybeUninit::<Fixed>::zeroed();
        let size = size_of::<Fixed>();
        // SAFETY: so many bytes may be written there.
        let read = unsafe { libc::pread(self.0, fixed.as_mut_ptr().cast(), size, 0) };
        // SAFETY: any bytes are numbers, and those that were not read are 0.
        let fixed = unsafe { fixed.assume_init() };
        match usize::try_from(read) {
            Ok(read) => Ok((read == size).then_some(fixed)),
            Err(_) => Err(Error::last("pread")),
        }
    }

    /// Gives a file without a name one; fails where there is such a name.
    pub(super) fn link(&self, path: &CStr) -> Result<(), Error> {
        let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let digits = name.get_mut(14..24).into_iter().flatten();
        let (mut left, mut divisor) = (self.0, 1_000_000_000);
        for digit in digits {
            // Leading zeros would name no file: they become slashes, which add up to one.
            let figure = u8::try_from(left / divisor).unwrap_or(0);
            let leading = self.0 < divisor && divisor > 1;
            *digit = if leading { b'/' } else { b'0' + figure };
            (left, divisor) = (left % divisor, divisor / 10);
        }
        let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: both are strings that end in NUL.
        let linked =
            unsafe { libc::linkat(here, name.as_ptr().cast(), here, path.as_ptr(), follow) };
        if linked == 0 { Ok(()) } else { Err(Error::last("linkat")) }
    }

    /// Waits until what was written, and that the file is there, would survive a loss of power.
    pub(super) fn sync(&self) -> Result<(), Error> {
        // SAFETY: the call takes a number.
        if unsafe { libc::fsync(self.0) } == 0 { Ok(()) } else { Err(Error::last("fsync")) }
    }
}

impl File {
    /// Lets others in, though a child of fork has the file open as well.
    fn unlock(&self) {
        // SAFETY: the call takes numbers.
        unsafe { libc::flock(self.0, libc::LOCK_UN) };
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and used no more.
        unsafe { libc::close(self.0) };
    }
}

/// How long a file may get: asked first, because who goes beyond it is sent SIGXFSZ, which kills.
fn longest() -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit may be written.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

fn errno() -> i32 {
    // SAFETY: the call has no condition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno is there for as long as the thread.
    unsafe { *place }
}

impl Error {
    fn last(call: &'static str) -> Error {
        Error::Os { call, errno: errno() }
    }
}

/// Address space: what is mapped there goes with it.
#[derive(Debug)]
struct Reserved {
    start: NonNull<u8>,
    len: usize,
}

impl Reserved {
    /// For so many bytes from a multiple of [`CHUNK`].
    fn new(len: usize) -> Result<Reserved, Error> {
        let len = len + CHUNK;
        let quiet = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes touches no memory that there is.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, quiet, -1, 0) };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Reserved { start, len }),
            None => Err(Error::last("mmap")),
        }
    }

    /// Maps a file there, shared. Returns the address of its first byte.
    fn map(&self, file: &File, len: usize) -> Result<NonNull<u8>, Error> {
        // SAFETY: an aligned address is less than a chunk away, and a chunk more was reserved.
        let base = unsafe { self.start.add(self.start.align_offset(CHUNK)) };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the range lies in what was reserved, which nobody else knows of.
        let found = unsafe { libc::mmap(base.as_ptr().cast(), len, prot, flags, file.0, 0) };
        if found == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
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
    // SAFETY: the call has no condition.
    unsafe { libc::getpid() }
}

/// The file, mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    len: usize,
    /// Where the last word is.
    last: usize,
    reserved: Reserved,
    /// The process that made it. In a child of fork nothing is there.
    owner: libc::pid_t,
    pub(super) file: File,
    /// Every store and flush, in order, for tests that replay them.
    #[cfg(test)]
    pub(super) tape: Option<super::replay::Tape>,
}

impl Mapping {
    /// Maps a file for as long as it may ever get; where there is not so much address space, for less, but not less than
    /// it `has`.
    pub(super) fn new(file: File, has: usize, longest: usize) -> Result<Mapping, Error> {
        let mut len = longest.max(has);
        let reserved = loop {
            match Reserved::new(len) {
                Err(Error::Os { errno: libc::ENOMEM | libc::EINVAL, .. }) if len > has => {
                    len = has + (len - has) / 2 / AREA * AREA;
                }
                reserved => break reserved?,
            }
        };
        let base = reserved.map(&file, len).inspect_err(|_| reserved.unmap())?;
        Ok(Mapping {
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

    /// Whether this is the process that made it.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == process()
    }

    /// How many bytes of the file are mapped, whether it has them yet or not.
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
        // SAFETY: the last word that is mapped is no earlier, as was just checked.
        unsafe { self.base.add(offset) }.cast()
    }

    /// A word of the file, at a multiple of 8.
    #[inline]
    pub(super) fn load(&self, offset: usize) -> u64 {
        let place = self.word(offset);
        // SAFETY: `word` checked that it is mapped; callers pass multiples of 8 before the end of the file.
        unsafe { place.read() }
    }

    /// Stores a word at a multiple of 8: all of it or, for who kills us, nothing; and after every store before it that
    /// came through here or lies before a [`barrier`].
    #[inline]
    pub(super) fn store(&mut self, offset: usize, word: u64) {
        let place = self.word(offset);
        // SAFETY: `word` checked that it is mapped; callers pass multiples of 8 before the end of the file.
        unsafe { place.write_volatile(word) };
        #[cfg(test)]
        self.record(offset, word);
    }

    /// Stores words from a place on, in any order.
    #[inline]
    pub(super) fn store_all<const N: usize>(&mut self, offset: usize, words: [u64; N]) {
        let place = self.at(offset, N * 8).cast::<[u64; N]>();
        // SAFETY: `at` checked that it is mapped; callers pass multiples of 8 before the end of the file.
        unsafe { place.write_volatile(words) };
        #[cfg(test)]
        words.into_iter().zip(0..).for_each(|(word, at)| self.record(offset + at * 8, word));
    }

    /// Waits until a range, from a multiple of the page size, would survive a loss of power.
    pub(super) fn sync(&mut self, from: usize, to: usize) -> Result<(), Error> {
        let place = self.at(from, to - from);
        // memcheck holds that what is flushed must be memory that may be touched.
        let _quiet = crate::watch::quiet();
        barrier();
        // SAFETY: flushing changes no memory.
        let failed = unsafe { libc::msync(place.as_ptr().cast(), to - from, libc::MS_SYNC) } != 0;
        #[cfg(test)]
        self.record_sync(from, to);
        if failed { Err(Error::last("msync")) } else { Ok(()) }
    }
}

/// Keeps the compiler from moving stores to blocks across it. A processor may: whoever is killed has stored all that
/// came before, and nothing of what comes after.
#[inline]
pub(super) fn barrier() {
    compiler_fence(Ordering::SeqCst);
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child others may have got the addresses by now.
        if self.is_ours() {
            self.reserved.unmap();
            self.file.unlock();
        }
    }
}

// SAFETY: the mapping belongs to its owner alone, on whatever thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Mapping {}

//! System calls without the C library. They do not change `errno`, and do not act on cancellation.

use std::arch::asm;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::shared;

/// Error number of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

/// Directory descriptor with which relative paths are resolved from the current directory.
const AT_FDCWD: usize = (libc::AT_FDCWD as isize).cast_unsigned();

/// Makes a system call with the given arguments.
///
/// # Safety
/// The call must not affect memory that is in use.
unsafe fn call(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the registers follow the kernel's calling convention, and the kernel preserves all
    // others.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) {
        Err(Errno(i32::try_from(-result).unwrap_or(libc::EINVAL)))
    } else {
        Ok(result.cast_unsigned())
    }
}

/// Nanoseconds during which a call is repeated if signals interrupt it.
const SIGNALS_LIMIT_NS: u64 = 5_000_000_000;

/// Makes a system call, and repeats it if a signal interrupts it. The kernel does not restart a
/// call on a socket with a timeout, and each repeated call starts the timeout anew.
///
/// # Safety
/// The conditions of [`call`].
unsafe fn call_through_signals(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let mut first = None;
    loop {
        // SAFETY: the caller guarantees that the call does not affect memory in use.
        match unsafe { call(number, arguments) } {
            Err(Errno(libc::EINTR)) => {
                let now = clock(libc::CLOCK_MONOTONIC);
                if now.wrapping_sub(*first.get_or_insert(now)) >= SIGNALS_LIMIT_NS {
                    return Err(Errno(libc::EINTR));
                }
            }
            other => return other,
        }
    }
}

/// A file descriptor that is closed on drop.
#[derive(Debug)]
pub(crate) struct OwnedFile(i32);

impl OwnedFile {
    fn new(number: usize) -> OwnedFile {
        OwnedFile(i32::try_from(number).unwrap_or(-1))
    }

    fn argument(&self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Opens a file for reading.
    pub(crate) fn open(path: &CStr) -> Result<OwnedFile, Errno> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned() as usize;
        // SAFETY: the path ends with a zero byte.
        unsafe { call(libc::SYS_openat, [AT_FDCWD, path.as_ptr().addr(), flags, 0, 0, 0]) }
            .map(OwnedFile::new)
    }

    /// Returns start and end of the mapping that contains an address. The file must be an open
    /// `/proc/self/maps`; requires Linux 6.11.
    pub(crate) fn mapping_at(&self, address: u64) -> Result<(u64, u64), Errno> {
        /// `struct procmap_query` of `linux/fs.h`.
        #[repr(C)]
        struct ProcmapArgs {
            size: u64,
            flags: u64,
            address: u64,
            start: u64,
            end: u64,
            others: [u64; 8],
        }
        const PROCMAP_QUERY: usize =
            3 << 30 | size_of::<ProcmapArgs>() << 16 | (b'f' as usize) << 8 | 17;
        let size = size_of::<ProcmapArgs>() as u64;
        let mut query = ProcmapArgs { size, flags: 0, address, start: 0, end: 0, others: [0; 8] };
        let to = (&raw mut query).addr();
        // SAFETY: the kernel writes only to the query, whose size is passed; the query requests no
        // name.
        unsafe { call(libc::SYS_ioctl, [self.argument(), PROCMAP_QUERY, to, 0, 0, 0]) }?;
        Ok((query.start, query.end))
    }

    /// Creates an unnamed file of `length` zero bytes.
    pub(crate) fn unnamed(name: &CStr, length: usize) -> Result<OwnedFile, Errno> {
        let flags = libc::MFD_CLOEXEC as usize;
        // SAFETY: the name ends with a zero byte.
        let file =
            unsafe { call(libc::SYS_memfd_create, [name.as_ptr().addr(), flags, 0, 0, 0, 0]) }
                .map(OwnedFile::new)?;
        if length > 0 {
            // SAFETY: the call changes only the length of this file, which is not mapped yet.
            unsafe { call(libc::SYS_ftruncate, [file.argument(), length, 0, 0, 0, 0]) }?;
        }
        Ok(file)
    }

    /// Creates a Unix socket and connects it to `path`. Connecting, sending and receiving wait for
    /// at most five seconds each.
    pub(crate) fn connect(path: &[u8]) -> Result<OwnedFile, Errno> {
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC).cast_unsigned() as usize;
        let unix = libc::AF_UNIX.cast_unsigned() as usize;
        // SAFETY: the call only creates a socket.
        let socket =
            unsafe { call(libc::SYS_socket, [unix, kind, 0, 0, 0, 0]) }.map(OwnedFile::new)?;
        let mut address =
            libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        if path.len() >= address.sun_path.len() {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        for (to, from) in address.sun_path.iter_mut().zip(path) {
            *to = from.cast_signed();
        }
        // The timeouts also apply to `connect`: the collector may be slow or stopped.
        let patience = libc::timeval { tv_sec: 5, tv_usec: 0 };
        for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
            let arguments = [
                socket.argument(),
                libc::SOL_SOCKET.cast_unsigned() as usize,
                option.cast_unsigned() as usize,
                (&raw const patience).addr(),
                size_of::<libc::timeval>(),
                0,
            ];
            // SAFETY: the kernel reads the timeout from the stack, and its length is passed.
            unsafe { call(libc::SYS_setsockopt, arguments) }?;
        }
        let length = size_of::<libc::sockaddr_un>();
        let at = (&raw const address).addr();
        // SAFETY: the kernel reads the address from the stack, and its length is passed.
        unsafe {
            call_through_signals(libc::SYS_connect, [socket.argument(), at, length, 0, 0, 0])
        }?;
        Ok(socket)
    }

    /// Sends bytes together with a file descriptor. Returns the number of bytes sent.
    pub(crate) fn send(&self, bytes: &[u8], file: &OwnedFile) -> Result<usize, Errno> {
        #[repr(C, align(8))]
        struct Control {
            length: usize,
            level: i32,
            kind: i32,
            file: i32,
        }
        let control = Control {
            length: size_of::<usize>() + 3 * size_of::<i32>(),
            level: libc::SOL_SOCKET,
            kind: libc::SCM_RIGHTS,
            file: file.0,
        };
        let piece = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(),
            iov_len: bytes.len(),
        };
        // SAFETY: all-zero bytes are a valid empty `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = (&raw const piece).cast_mut();
        message.msg_iovlen = 1;
        message.msg_control = (&raw const control).cast_mut().cast();
        message.msg_controllen = size_of::<Control>();
        let flags = libc::MSG_NOSIGNAL.cast_unsigned() as usize;
        let arguments = [self.argument(), (&raw const message).addr(), flags, 0, 0, 0];
        // SAFETY: all parts of the message are local variables that outlive the call.
        unsafe { call_through_signals(libc::SYS_sendmsg, arguments) }
    }

    /// Sends all bytes.
    pub(crate) fn say(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        let flags = libc::MSG_NOSIGNAL.cast_unsigned() as usize;
        while !bytes.is_empty() {
            let arguments = [self.argument(), bytes.as_ptr().addr(), bytes.len(), flags, 0, 0];
            // SAFETY: the kernel only reads `bytes`.
            let count = unsafe { call_through_signals(libc::SYS_sendto, arguments) }?;
            bytes = bytes.get(count..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Reads into `bytes`. Returns the number of bytes read.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let arguments = [self.argument(), bytes.as_mut_ptr().addr(), bytes.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most the length of `bytes` to `bytes`.
        unsafe { call_through_signals(libc::SYS_read, arguments) }
    }
}

/// Requests of `<linux/userfaultfd.h>`. `words` is the length of the argument in words of 8 bytes.
mod missing {
    const fn request(way: usize, number: usize, words: usize) -> usize {
        way << 30 | (words * 8) << 16 | 0xaa << 8 | number
    }
    pub(super) const API: usize = request(3, 0x3f, 3);
    pub(super) const REGISTER: usize = request(3, 0, 4);
    pub(super) const WAKE: usize = request(2, 2, 2);
    pub(super) const COPY: usize = request(3, 3, 5);
    pub(super) const MOVE: usize = request(3, 5, 5);
    /// Version of the interface, the feature that raises SIGBUS at missing pages, and the feature
    /// that moves pages.
    pub(super) const VERSION: u64 = 0xaa;
    pub(super) const SIGBUS: u64 = 1 << 7;
    pub(super) const MOVES: u64 = 1 << 16;
    /// Mode of a registration for missing pages. [`DO_NOT_WAKE`]: mode of a copy or move that wakes
    /// no thread, because none waits.
    pub(super) const MODE_MISSING: u64 = 1;
    pub(super) const DO_NOT_WAKE: u64 = 1;
    /// Flag of the system call: handle only faults in user mode, which requires no privilege.
    pub(super) const USER_MODE_ONLY: usize = 1;
}

/// Calls on a `userfaultfd`, a descriptor that controls the handling of missing pages.
impl OwnedFile {
    /// Creates a `userfaultfd` with which accesses to missing pages raise SIGBUS and pages can be
    /// moved.
    pub(crate) fn of_missing_pages() -> Result<OwnedFile, Errno> {
        let flags = libc::O_CLOEXEC.cast_unsigned() as usize | missing::USER_MODE_ONLY;
        // SAFETY: the call only creates a descriptor.
        let file =
            unsafe { call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) }.map(OwnedFile::new)?;
        let mut api = [missing::VERSION, missing::SIGBUS | missing::MOVES, 0];
        // SAFETY: the call only sets the features of the descriptor.
        unsafe { file.control(missing::API, &mut api) }?;
        Ok(file)
    }

    /// True if this is a `userfaultfd`. The check has no effect.
    pub(crate) fn is_of_missing_pages(&self) -> bool {
        // A range never begins in the middle of a page, so a `userfaultfd` rejects this one with
        // `EINVAL`. SAFETY: the request could only wake threads that wait for a page, and no thread
        // waits.
        let woken = unsafe { self.control(missing::WAKE, &mut [1, 1]) };
        woken == Err(Errno(libc::EINVAL))
    }

    /// Calls `ioctl` on the descriptor.
    ///
    /// # Safety
    /// The request must not affect memory in use.
    unsafe fn control<const N: usize>(
        &self,
        request: usize,
        words: &mut [u64; N],
    ) -> Result<usize, Errno> {
        let to = words.as_mut_ptr().addr();
        // SAFETY: the request encodes the length of `words`, and the caller guarantees that it
        // affects no memory in use.
        unsafe { call(libc::SYS_ioctl, [self.argument(), request, to, 0, 0, 0]) }
    }

    /// Makes accesses to missing pages of a range of private memory raise SIGBUS.
    ///
    /// # Safety
    /// The memory must belong to the recorder.
    pub(crate) unsafe fn refuse_missing(&self, at: usize, length: usize) -> Result<usize, Errno> {
        let mut words = [at as u64, length as u64, missing::MODE_MISSING, 0];
        // SAFETY: the caller passes a range of the recorder's own memory.
        unsafe { self.control(missing::REGISTER, &mut words) }
    }

    /// Copies a page to an address without a page.
    ///
    /// # Safety
    /// Both pages must belong to the recorder.
    pub(crate) unsafe fn put_page(
        &self,
        from: usize,
        to: usize,
        page: usize,
    ) -> Result<usize, Errno> {
        let mut words = [to as u64, from as u64, page as u64, missing::DO_NOT_WAKE, 0];
        // SAFETY: the caller passes addresses of the recorder's own pages, and an existing page
        // stays unchanged.
        unsafe { self.control(missing::COPY, &mut words) }
    }

    /// Moves a page to an address without a page.
    ///
    /// # Safety
    /// Both pages must belong to the guard, and no thread may access the first page from now on.
    pub(crate) unsafe fn move_page(
        &self,
        from: usize,
        to: usize,
        page: usize,
    ) -> Result<usize, Errno> {
        let mut words = [to as u64, from as u64, page as u64, missing::DO_NOT_WAKE, 0];
        // SAFETY: the caller passes pages of the guard, and guarantees that no thread accesses the
        // first page.
        unsafe { self.control(missing::MOVE, &mut words) }
    }

    /// Duplicates the descriptor. The duplicate has the lowest free number that is at least
    /// `least`.
    pub(crate) fn with_number(&self, least: usize) -> Result<OwnedFile, Errno> {
        let how = libc::F_DUPFD_CLOEXEC.cast_unsigned() as usize;
        // SAFETY: the call only creates a descriptor.
        unsafe { call(libc::SYS_fcntl, [self.argument(), how, least, 0, 0, 0]) }.map(OwnedFile::new)
    }

    /// Leaves the descriptor open and returns its number.
    pub(crate) fn keep(self) -> i32 {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Returns a file that [`OwnedFile::keep`] left open. Dropping the returned value does not
    /// close the file.
    pub(crate) fn kept(number: i32) -> std::mem::ManuallyDrop<OwnedFile> {
        std::mem::ManuallyDrop::new(OwnedFile(number))
    }
}

/// Maximum number of file descriptors of this process (`RLIMIT_NOFILE`).
pub(crate) fn most_files() -> usize {
    usize::try_from(limit(libc::RLIMIT_NOFILE, 0)).unwrap_or(usize::MAX)
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        // SAFETY: only this value owns the descriptor.
        let _ = unsafe { call(libc::SYS_close, [self.argument(), 0, 0, 0, 0, 0]) };
    }
}

/// Maps zero-filled memory that occupies no pages until it is touched. It stays mapped until
/// [`unmap_all`], and is zero-filled again in a child of `fork`.
pub(crate) fn memory(length: usize) -> Result<*mut u8, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned() as usize;
    let flags =
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE).cast_unsigned() as usize;
    // SAFETY: the kernel chooses an unused address for the new mapping.
    let at = unsafe { call(libc::SYS_mmap, [0, length, protection, flags, usize::MAX, 0]) }?;
    let wipe = libc::MADV_WIPEONFORK.cast_unsigned() as usize;
    // SAFETY: the mapping belongs to the recorder and contains no data yet.
    unsafe { call(libc::SYS_madvise, [at, length, wipe, 0, 0, 0]) }?;
    // Huge pages would waste memory, because the pages are touched sparsely.
    let small = libc::MADV_NOHUGEPAGE.cast_unsigned() as usize;
    // SAFETY: the range is a mapping of this module. A kernel without huge pages rejects the call
    // without any effect.
    let _ = unsafe { call(libc::SYS_madvise, [at, length, small, 0, 0, 0]) };
    shared::note_own(at, length);
    note_piece(at, length);
    Ok(ptr::with_exposed_provenance_mut(at))
}

/// Maps zero-filled memory at `address`. Fails if anything is mapped there.
pub(crate) fn memory_at(address: u64, length: usize) -> Result<u64, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned() as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE)
        .cast_unsigned() as usize;
    let arguments = [address as usize, length, protection, flags, usize::MAX, 0];
    // SAFETY: with these flags the kernel creates the mapping only at unused addresses.
    let at = unsafe { call(libc::SYS_mmap, arguments) }? as u64;
    if at == address {
        return Ok(at);
    }
    // Kernels before 4.17 treat the address as a hint. SAFETY: the mapping was just created, and no
    // pointer to it exists.
    let _ = unsafe { call(libc::SYS_munmap, [at as usize, length, 0, 0, 0, 0]) };
    Err(Errno(libc::EEXIST))
}

/// Changes the access rights of the pages that contain a range.
pub(crate) fn protect_code(address: u64, length: usize, protection: i32) -> Result<(), Errno> {
    // SAFETY: `getauxval` only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    let begin = address & !(page - 1);
    let length = (address - begin) as usize + length;
    let arguments = [begin as usize, length, protection.cast_unsigned() as usize, 0, 0, 0];
    // SAFETY: callers only add access rights to pages of code, and later remove the added rights.
    unsafe { call(libc::SYS_mprotect, arguments) }.map(drop)
}

/// Releases pages, which are zero-filled when they are next read.
///
/// # Safety
/// The range must belong to [`memory`], and its readers must treat zeros as empty entries.
pub(crate) unsafe fn forget(at: *mut u8, length: usize) {
    let advice = libc::MADV_DONTNEED.cast_unsigned() as usize;
    // SAFETY: the caller guarantees that the range belongs to `memory` and that its readers treat
    // zeros as empty entries.
    let _ = unsafe { call(libc::SYS_madvise, [at.addr(), length, advice, 0, 0, 0]) };
}

/// Maps zero-filled memory that occupies no pages until it is touched. A child of `fork` gets its
/// own copy.
pub(crate) fn private(length: usize) -> Result<*mut u8, Errno> {
    map_new(length, libc::PROT_READ | libc::PROT_WRITE)
}

/// Reserves unused addresses without access rights.
pub(crate) fn reserve(length: usize) -> Result<*mut u8, Errno> {
    map_new(length, libc::PROT_NONE)
}

fn map_new(length: usize, protection: i32) -> Result<*mut u8, Errno> {
    let flags =
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE).cast_unsigned() as usize;
    let arguments = [0, length, protection.cast_unsigned() as usize, flags, usize::MAX, 0];
    // SAFETY: the kernel chooses an unused address for the new mapping.
    let at = unsafe { call(libc::SYS_mmap, arguments) }?;
    let small = libc::MADV_NOHUGEPAGE.cast_unsigned() as usize;
    // SAFETY: the mapping belongs to the recorder. A kernel without huge pages rejects the call
    // without any effect.
    let _ = unsafe { call(libc::SYS_madvise, [at, length, small, 0, 0, 0]) };
    Ok(ptr::with_exposed_provenance_mut(at))
}

/// Unmaps a mapping of the recorder.
///
/// # Safety
/// This module must have mapped the whole range, and it must not be in use.
pub(crate) unsafe fn unmap(at: *mut u8, length: usize) {
    // SAFETY: the caller passes a mapping of this module that is not in use.
    let _ = unsafe { call(libc::SYS_munmap, [at.addr(), length, 0, 0, 0, 0]) };
}

/// Changes the access rights of pages.
///
/// # Safety
/// The pages must belong to [`reserve`], and no thread may depend on their access rights.
pub(crate) unsafe fn protect(at: usize, length: usize, protection: i32) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees that the pages belong to `reserve` and that no thread depends
    // on their access rights.
    unsafe { call(libc::SYS_mprotect, [at, length, protection.cast_unsigned() as usize, 0, 0, 0]) }
}

/// Calls `madvise` on pages, which may discard their contents.
///
/// # Safety
/// The pages must belong to [`reserve`], and no thread may depend on their contents.
pub(crate) unsafe fn advise(at: usize, length: usize, advice: i32) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees that the pages belong to `reserve` and that no thread depends
    // on their contents.
    unsafe { call(libc::SYS_madvise, [at, length, advice.cast_unsigned() as usize, 0, 0, 0]) }
}

/// Sends a signal to this thread.
pub(crate) fn raise(signal: i32) {
    let arguments = [process() as usize, thread() as usize, signal.cast_unsigned() as usize];
    let [process, thread, signal] = arguments;
    // SAFETY: the call sends the signal to this thread only, which is its purpose.
    let _ = unsafe { call(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]) };
}

/// Writes a message to standard error.
pub(crate) fn complain(bytes: &[u8]) {
    let error = libc::STDERR_FILENO.cast_unsigned() as usize;
    // SAFETY: the kernel only reads `bytes`.
    let _ = unsafe { call(libc::SYS_write, [error, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]) };
}

/// True if the page at `at` is mapped.
pub(crate) fn is_mapped(at: usize, length: usize) -> bool {
    let mut answer = 0_u8;
    let arguments = [at, length, (&raw mut answer).addr(), 0, 0, 0];
    // SAFETY: the kernel writes one byte for the single page.
    unsafe { call(libc::SYS_mincore, arguments) }.is_ok()
}

/// Copies memory of this process that may be unmapped. Returns `EFAULT` if a part of it cannot be
/// read.
pub(crate) fn read_own(at: usize, into: &mut [u8]) -> Result<(), Errno> {
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let from = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: into.len() };
    let (to, from) = ((&raw const to).addr(), (&raw const from).addr());
    // SAFETY: the kernel writes only to `into`, whose length is passed.
    let read =
        unsafe { call(libc::SYS_process_vm_readv, [process() as usize, to, 1, from, 1, 0]) }?;
    if read == into.len() { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// Yields the CPU to other threads.
pub(crate) fn give_way() {
    // SAFETY: `sched_yield` has no arguments and changes no memory.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Maps a file as shared memory for reading and writing.
pub(crate) fn map(file: &OwnedFile, length: usize) -> Result<*mut u8, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE).cast_unsigned() as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE).cast_unsigned() as usize;
    let arguments = [0, length, protection, flags, file.argument(), 0];
    // SAFETY: the kernel chooses an unused address for the new mapping.
    let at = unsafe { call(libc::SYS_mmap, arguments) }?;
    Ok(ptr::with_exposed_provenance_mut(at))
}

/// Maximum size in bytes of files that this process writes (`RLIMIT_FSIZE`). A write beyond it
/// raises a signal that kills the process.
pub(crate) fn longest_file() -> u64 {
    limit(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY)
}

/// Returns a soft limit of this process, or `unknown` if it cannot be read.
fn limit(which: u32, unknown: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: unknown, rlim_max: 0 };
    let to = (&raw mut limit).addr();
    // SAFETY: the kernel writes the limit to `limit`, and changes no limit.
    let _ = unsafe { call(libc::SYS_prlimit64, [0, which as usize, 0, to, 0, 0]) };
    limit.rlim_cur
}

/// A mapping that [`memory`] has created and [`unmap_all`] unmaps.
struct MappedPiece {
    at: AtomicUsize,
    length: AtomicUsize,
}

const PIECES: usize = 4000;
static PIECES_USED: AtomicUsize = AtomicUsize::new(0);
static ALL: [MappedPiece; PIECES] =
    [const { MappedPiece { at: AtomicUsize::new(0), length: AtomicUsize::new(0) } }; PIECES];

fn note_piece(at: usize, length: usize) {
    let index = PIECES_USED.fetch_add(1, Ordering::Relaxed);
    if let Some(piece) = ALL.get(index) {
        piece.at.store(at, Ordering::Relaxed);
        piece.length.store(length, Ordering::Release);
    }
}

/// Unmaps all memory that [`memory`] has mapped.
///
/// # Safety
/// No part of this memory may be in use any more.
pub(crate) unsafe fn unmap_all() {
    for piece in &ALL[..PIECES_USED.swap(0, Ordering::Acquire).min(PIECES)] {
        let at = ptr::with_exposed_provenance_mut(piece.at.load(Ordering::Relaxed));
        // SAFETY: the piece was mapped with this length, and the caller guarantees that it is not
        // in use.
        unsafe { unmap(at, piece.length.swap(0, Ordering::Relaxed)) };
    }
}

/// Waits on a futex as long as `word` is `value`.
pub(crate) fn wait(word: &std::sync::atomic::AtomicU32, value: u32) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG).cast_unsigned() as usize;
    // SAFETY: the kernel only reads the word, which outlives the call.
    let _ = unsafe {
        call(libc::SYS_futex, [word.as_ptr().addr(), operation, value as usize, 0, 0, 0])
    };
}

/// Wakes one thread that waits for `word`.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG).cast_unsigned() as usize;
    // SAFETY: the kernel only searches its queue of threads that wait at this address.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr().addr(), operation, 1, 0, 0, 0]) };
}

/// ID of this process.
pub(crate) fn process() -> u32 {
    number(libc::SYS_getpid)
}

pub(crate) fn parent() -> u32 {
    number(libc::SYS_getppid)
}

pub(crate) fn thread() -> u32 {
    number(libc::SYS_gettid)
}

fn number(which: i64) -> u32 {
    // SAFETY: these calls have no arguments and only return a number.
    unsafe { call(which, [0; 6]) }.ok().and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// Name of this thread, with a terminating zero byte.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    let get = libc::PR_GET_NAME.cast_unsigned() as usize;
    // SAFETY: the kernel writes 16 bytes, the length of `name`.
    let _ = unsafe { call(libc::SYS_prctl, [get, name.as_mut_ptr().addr(), 0, 0, 0, 0]) };
    name
}

/// Time of a clock in nanoseconds.
pub(crate) fn clock(which: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the C library writes the time to `time`. The call cannot fail for clocks that exist,
    // so it does not change `errno`.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec.cast_unsigned())
}

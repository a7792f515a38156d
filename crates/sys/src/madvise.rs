//! `madvise` and `process_madvise` (Linux 5.10): advice on our own memory and on another process's.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

/// Advice on a range. The numbers are those of every supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Drop what is there: private anonymous memory reads as zeros afterwards.
    DontNeed = libc::MADV_DONTNEED,
    /// May be mapped by huge pages.
    HugePage = libc::MADV_HUGEPAGE,
    /// Must not be mapped by huge pages from now on.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// Read in any order: nothing is read ahead.
    Random = libc::MADV_RANDOM,
    /// Read from front to back: more is read ahead.
    Sequential = libc::MADV_SEQUENTIAL,
    /// Used soon: a file is read ahead now.
    WillNeed = libc::MADV_WILLNEED,
    /// May be merged with pages alike (KSM).
    Mergeable = libc::MADV_MERGEABLE,
    /// May be freed when memory is short; keeps its bytes until then, or until it is written (Linux
    /// 4.5).
    Free = libc::MADV_FREE,
    /// Fill page tables as reading would: a file is read (Linux 5.14).
    PopulateRead = 22,
    /// Fill page tables as writing would (Linux 5.14).
    PopulateWrite = 23,
    /// Not used soon (Linux 5.4). For a part of a huge page, the kernel splits the page.
    Cold = 20,
    /// Reclaim now (Linux 5.4).
    PageOut = 21,
    /// Collapse into huge pages now, regardless of the settings (Linux 6.1).
    Collapse = 25,
}

/// The most ranges that one call takes (`UIO_MAXIOV`).
pub const MAX_RANGES: usize = 1024;

/// A process by its pidfd, which never refers to another process, even if the kernel reuses the
/// PID.
#[derive(Debug)]
pub struct PidfdProcess(OwnedFd);

/// Calls `madvise` of the C library with a length of 0, to measure the cost of the call itself.
pub fn nothing() {
    // SAFETY: a length of 0 affects no memory.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
}

impl PidfdProcess {
    /// Opens the pidfd of a process.
    ///
    /// # Errors
    /// `EINVAL` for the own process, `ESRCH` where it is gone, `ENOSYS` before Linux 5.3.
    pub fn open(pid: u32) -> io::Result<PidfdProcess> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        // From Linux 6.13 on, `process_madvise` discards memory of the caller.
        if pid == getpid() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(PidfdProcess(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Gives advice on up to [`MAX_RANGES`] ranges. Returns the number of advised bytes: the kernel
    /// stops at the first range that it cannot serve.
    ///
    /// # Errors
    /// `EINVAL` for advice that the kernel does not take for another process, `EPERM` without
    /// CAP_SYS_NICE or the right to trace it, `ESRCH` where it is gone; others where the first
    /// range cannot be served.
    pub fn advise(&self, ranges: &[Range<u64>], advice: Advice) -> io::Result<u64> {
        let pieces: Vec<libc::iovec> = ranges
            .iter()
            .map(|range| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(size(range.start)),
                iov_len: size(range.end.saturating_sub(range.start)),
            })
            .collect();
        // SAFETY: the kernel reads `pieces`, which outlives the call. The addresses in it are those
        // of another process, for which the kernel refuses any advice that loses data.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.0.as_raw_fd(),
                pieces.as_ptr(),
                pieces.len(),
                advice as i32,
                0,
            )
        };
        u64::try_from(advised).map_err(|_| io::Error::last_os_error())
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Gives advice on memory of our own that no other code uses.
///
/// # Errors
/// `EINVAL` for advice that the kernel does not know; others as `madvise` returns them.
pub fn advise_own(bytes: &mut [u8], advice: Advice) -> io::Result<()> {
    // SAFETY: the range is borrowed mutably, so no one else looks at it; every advice leaves it
    // mapped and its bytes valid numbers.
    let done = unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), advice as i32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_that_is_not_for_other_processes_is_refused() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidfdProcess::open(child.id()).unwrap();
        let range = 0x1000..0x2000;
        for advice in [Advice::DontNeed, Advice::HugePage, Advice::NoHugePage] {
            let error = process.advise(std::slice::from_ref(&range), advice).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{advice:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_own_process_and_a_missing_one_are_errors() {
        let own = PidfdProcess::open(std::process::id()).unwrap_err();
        assert_eq!(own.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(PidfdProcess::open(0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(PidfdProcess::open(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}

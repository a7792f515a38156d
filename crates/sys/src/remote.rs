//! Reads the memory of another process by `/proc/PID/mem`, or, if no third process maps the pages,
//! by `process_vm_readv`.
//!
//! If a process shares a page with a forked child, `process_vm_readv` makes the kernel copy the
//! page for the process before the read (since Linux 5.19, `gup_must_unshare`). Reading all pages
//! of such a process would double its memory. `/proc/PID/mem` reads the shared page without a copy.
//! For one thread both methods are equally fast; several threads read faster by `process_vm_readv`,
//! since the memory file takes the mmap lock for each page.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Reads the `N` bytes at each of `addresses` in the process; `None` for an address if not all `N`
/// bytes are readable.
///
/// Reading an untouched page makes the kernel map it, so ask only for pages known to be present.
///
/// # Errors
/// `EPERM` without permission to trace the process, `ESRCH` if the process has ended.
pub fn read_each<const N: usize>(pid: u32, addresses: &[u64]) -> io::Result<Vec<Option<[u8; N]>>> {
    let memory = OpenMemory::open(pid)?;
    let piece = |address: &u64| {
        let mut bytes = [0; N];
        let read = memory.read_one(*address, &mut bytes)?;
        Ok((read == N).then_some(bytes))
    };
    addresses.iter().map(piece).collect()
}

/// Open memory file of a process, for many reads of large ranges.
#[derive(Debug)]
pub struct OpenMemory(File);

impl OpenMemory {
    /// Opens the memory file of a process or thread.
    ///
    /// # Errors
    /// `EPERM` without permission to trace the process, `ESRCH` if the process has ended.
    pub fn open(pid: u32) -> io::Result<OpenMemory> {
        File::open(format!("/proc/{pid}/mem")).map(OpenMemory).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOENT) => io::Error::from_raw_os_error(libc::ESRCH),
                Some(libc::EACCES) => io::Error::from_raw_os_error(libc::EPERM),
                _ => error,
            }
        })
    }

    /// Reads `ranges` one after the other into `buffer`. Returns the number of bytes read: fewer
    /// than requested if the buffer is too small or a page cannot be read, and 0 after the process
    /// has ended or executed another program.
    ///
    /// Reading an untouched page makes the kernel map it, so ask only for pages known to be
    /// present.
    ///
    /// # Errors
    /// Those of `pread`, except the error for a page that cannot be read.
    pub fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        for range in ranges {
            let length = usize::try_from(range.end.saturating_sub(range.start));
            let rest = &mut buffer[filled..];
            let wanted = length.unwrap_or(usize::MAX).min(rest.len());
            let read = self.read_one(range.start, &mut rest[..wanted])?;
            filled += read;
            if read < wanted {
                break;
            }
        }
        Ok(filled)
    }

    /// Reads from `address` on. Returns the number of bytes before the first page that cannot be
    /// read.
    fn read_one(&self, address: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.0.read_at(&mut into[filled..], address.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EINVAL: `pread` rejects `address` as an offset, because it lies outside every
                // address space.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EIO | libc::EFAULT | libc::EINVAL)
                    ) =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Reads at most 1024 `ranges` by `process_vm_readv`, with the results of [`OpenMemory::read`]. Use
/// this function only for pages that the process shares with no other process.
///
/// # Errors
/// `EPERM` without permission to trace the process, `ESRCH` if the process has ended, `EINVAL` for
/// too many ranges.
pub fn read_exclusive(pid: u32, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
    let length = |range: &Range<u64>| usize::try_from(range.end.saturating_sub(range.start));
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: pointer(range.start),
            iov_len: length(range).unwrap_or(0),
        })
        .collect();
    read_pieces(pid, &remote, buffer)
}

/// Opens the memory of a process, and reads `ranges` as [`OpenMemory::read`] does.
///
/// # Errors
/// As [`OpenMemory::open`] and [`OpenMemory::read`].
pub fn read(pid: u32, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
    OpenMemory::open(pid)?.read(ranges, buffer)
}

/// Returns the number of bytes that were read before the first piece that cannot be read; 0 if the
/// first piece cannot be read.
fn read_pieces(pid: u32, remote: &[libc::iovec], buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: `local` is the whole of `buffer`, which is borrowed mutably until after the call. The
    // kernel uses remote addresses only in the other process.
    let got = unsafe {
        libc::process_vm_readv(
            pid,
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(got).or_else(|_| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        error => Err(error),
    })
}

/// Converts an address of another process to the pointer type of an `iovec`. Returns null, which no
/// process can read, if the address does not fit a pointer of this process.
fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::slice;

    use super::*;

    #[test]
    fn pieces_that_cannot_be_read_leave_the_others_in_place() {
        let words = [[1_u8, 2, 3, 4], [5, 6, 7, 8]];
        let at = |i: usize| (&raw const words[i]).addr() as u64;
        let read = read_each::<4>(std::process::id(), &[at(0), 0, at(1), 0]).unwrap();
        assert_eq!(read, [Some(words[0]), None, Some(words[1]), None]);
    }

    #[test]
    fn ranges_are_read_one_after_the_other_up_to_one_that_cannot_be() {
        let words = [[1_u8, 2, 3, 4], [5, 6, 7, 8]];
        let at = |i: usize| (&raw const words[i]).addr() as u64;
        let ranges = [at(1)..at(1) + 4, at(0)..at(0) + 2, 0..4];
        let mut buffer = [0; 10];
        assert_eq!(read(std::process::id(), &ranges, &mut buffer).unwrap(), 6);
        assert_eq!(buffer[..6], [5, 6, 7, 8, 1, 2]);
        let mut small = [0; 3];
        assert_eq!(read(std::process::id(), &ranges, &mut small).unwrap(), 3);
    }

    /// Number of resident bytes that only the process `pid` maps.
    fn exclusive(pid: u32) -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("Private_")?.split_once(':'));
        let numbers = lines.map(|(_, rest)| rest.trim().trim_end_matches(" kB").parse::<u64>());
        numbers.map(|number| number.unwrap() << 10).sum()
    }

    const FORKED: &str = "import os, signal
block = bytearray(b'x') * (8 << 20)
if os.fork():
    print('ready', flush=True)
signal.pause()";

    #[test]
    fn pages_that_a_process_shares_with_a_forked_child_stay_shared() {
        const SIZE: u64 = 8 << 20;
        let mut python = Command::new("python3");
        python.args(["-c", FORKED]).stdout(Stdio::piped()).process_group(0);
        let Ok(mut child) = python.spawn() else {
            return pagewise_skip::skip(&pagewise_skip::Lack::Tool("python3"));
        };
        let pid = child.id();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let large = maps.lines().filter_map(|line| {
            let (start, rest) = line.split_once('-')?;
            let (end, _) = rest.split_once(" rw-p 00000000 00:00 0")?;
            let [start, end] = [start, end].map(|word| u64::from_str_radix(word, 16).unwrap());
            (end - start > SIZE).then_some(end - SIZE..end)
        });
        let before = exclusive(pid);
        let mut buffer = vec![0; 8 << 20];
        let large: Vec<Range<u64>> = large.collect();
        let pages = large.iter().flat_map(|range| range.clone().step_by(4 << 10));
        let words = read_each::<8>(pid, &pages.collect::<Vec<u64>>()).unwrap();
        let read: usize =
            large.iter().map(|range| read(pid, slice::from_ref(range), &mut buffer).unwrap()).sum();
        let after = exclusive(pid);
        let group = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(read as u64 >= SIZE, "{read} bytes were read");
        assert!(words.iter().all(Option::is_some), "{words:?}");
        assert!(after < before + (1 << 20), "{before} bytes were exclusive, then {after}");
    }

    #[test]
    fn many_pieces_are_read() {
        let word = [9_u8; 4];
        let addresses = vec![(&raw const word).addr() as u64; 3000];
        let read = read_each::<4>(std::process::id(), &addresses).unwrap();
        assert_eq!(read, vec![Some(word); 3000]);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = read_each::<4>(u32::MAX, &[0x1000]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}

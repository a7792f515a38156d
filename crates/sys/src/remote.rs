//! `process_vm_readv`: another process's memory, in small pieces or large ones, many a call.

use std::io;
use std::ops::Range;

/// The most pieces the kernel takes in one call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// The `N` bytes at each of `addresses` in the process, or `None` where they are not all readable.
///
/// Reading an untouched page makes the kernel map it, so ask only for pages known to be present.
///
/// # Errors
/// `EPERM` where we may not trace the process, `ESRCH` where it is gone.
pub fn read_each<const N: usize>(pid: u32, addresses: &[u64]) -> io::Result<Vec<Option<[u8; N]>>> {
    let mut read = Vec::with_capacity(addresses.len());
    while let Some(rest) = addresses.get(read.len()..).filter(|rest| !rest.is_empty()) {
        let batch = &rest[..rest.len().min(MAX_PIECES)];
        let whole = read_batch(pid, batch)?;
        let stopped_early = whole.len() < batch.len();
        read.extend(whole.into_iter().map(Some));
        if stopped_early {
            // The kernel stops at the first piece it cannot read: that one is a `None`.
            read.push(None);
        }
    }
    Ok(read)
}

/// The leading pieces that could be read whole; none where the first is not readable.
fn read_batch<const N: usize>(pid: u32, addresses: &[u64]) -> io::Result<Vec<[u8; N]>> {
    let mut bytes = vec![[0; N]; addresses.len()];
    let remote: Vec<libc::iovec> = addresses
        .iter()
        .map(|&address| libc::iovec { iov_base: pointer(address), iov_len: N })
        .collect();
    let got = read_pieces(pid, &remote, bytes.as_flattened_mut())?;
    bytes.truncate(got.checked_div(N).unwrap_or(0));
    Ok(bytes)
}

/// Reads `ranges`, no more than 1024 of them, one after the other into `buffer`. Returns how many
/// bytes that was: fewer than asked for where the buffer is too small or a page cannot be read.
///
/// Reading an untouched page makes the kernel map it, so ask only for pages known to be present.
///
/// # Errors
/// `EPERM` where we may not trace the process, `ESRCH` where it is gone, `EINVAL` for too many
/// ranges.
pub fn read(pid: u32, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
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

/// Number of bytes that were read before a piece that cannot be read; 0 if that is the first.
fn read_pieces(pid: u32, remote: &[libc::iovec], buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: `local` is the whole of `buffer`, which is borrowed mutably until after the call;
    // remote addresses are only ever looked up in the other process.
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

/// An address of another process as the pointer that an `iovec` wants; null, which no process
/// can read, where it does not fit ours.
fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn more_pieces_than_one_call_takes_are_read() {
        let word = [9_u8; 4];
        let addresses = vec![(&raw const word).addr() as u64; 2 * MAX_PIECES + 1];
        let read = read_each::<4>(std::process::id(), &addresses).unwrap();
        assert_eq!(read, vec![Some(word); 2 * MAX_PIECES + 1]);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = read_each::<4>(u32::MAX, &[0x1000]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}

//! `process_vm_readv`: small pieces of another process's memory, many a call.

use std::io;

/// The most pieces the kernel takes in one call (`UIO_MAXIOV`).
const MOST: usize = 1024;

/// The `N` bytes at each of `addresses` in the process, or `None` where they are not all readable.
///
/// Reading an untouched page makes the kernel map it, so ask only for pages known to be present.
///
/// # Errors
/// `EPERM` where we may not trace the process, `ESRCH` where it is gone.
pub fn read_each<const N: usize>(pid: u32, addresses: &[u64]) -> io::Result<Vec<Option<[u8; N]>>> {
    let mut read = Vec::with_capacity(addresses.len());
    while let Some(rest) = addresses.get(read.len()..).filter(|rest| !rest.is_empty()) {
        let batch = &rest[..rest.len().min(MOST)];
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
    let local =
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size_of_val(bytes.as_slice()) };
    let remote: Vec<libc::iovec> = addresses
        .iter()
        .map(|&address| libc::iovec { iov_base: pointer(address), iov_len: N })
        .collect();
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: `local` is the whole of `bytes`, which outlives the call and is not used during it;
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
    match usize::try_from(got) {
        Ok(got) => bytes.truncate(got.checked_div(N).unwrap_or(0)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => bytes.clear(),
            error => return Err(error),
        },
    }
    Ok(bytes)
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
    fn more_pieces_than_one_call_takes_are_read() {
        let word = [9_u8; 4];
        let addresses = vec![(&raw const word).addr() as u64; 2 * MOST + 1];
        let read = read_each::<4>(std::process::id(), &addresses).unwrap();
        assert_eq!(read, vec![Some(word); 2 * MOST + 1]);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = read_each::<4>(u32::MAX, &[0x1000]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}

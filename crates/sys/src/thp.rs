//! `PR_SET_THP_DISABLE`: permission of a process to get transparent huge pages. The kernel keeps it
//! across `fork` and `exec`.

use std::io;

/// Transparent huge pages that a process may get, of those that the system's settings allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedHugePages {
    /// No huge pages.
    None,
    /// Only in ranges for which the process calls `MADV_HUGEPAGE` or `MADV_COLLAPSE` (Linux 6.18).
    Advised,
    /// All huge pages.
    All,
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of `linux/prctl.h`.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

/// Sets the permission of this process, which its children and later programs inherit.
///
/// # Errors
/// `EINVAL` if the kernel does not support the value of `allowed`.
pub fn allow(allowed: AllowedHugePages) -> io::Result<()> {
    let (disable, flags): (libc::c_ulong, libc::c_ulong) = match allowed {
        AllowedHugePages::None => (1, 0),
        AllowedHugePages::Advised => (1, EXCEPT_ADVISED),
        AllowedHugePages::All => (0, 0),
    };
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: this option takes numbers only. It changes the page sizes of mappings, not the
    // contents of memory.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, flags, UNUSED, UNUSED) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the permission of this process.
///
/// # Errors
/// Returns no error on kernels since 3.15.
pub fn allowed() -> io::Result<AllowedHugePages> {
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: this option takes no argument and changes nothing.
    match unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, UNUSED, UNUSED, UNUSED, UNUSED) } {
        0 => Ok(AllowedHugePages::All),
        1 => Ok(AllowedHugePages::None),
        3 => Ok(AllowedHugePages::Advised),
        _ => Err(io::Error::last_os_error()),
    }
}

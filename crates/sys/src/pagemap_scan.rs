//! `PAGEMAP_SCAN` (Linux 6.7): runs of pages with the same properties in a range.

use std::fs::File;
use std::io;
use std::ops::{BitOr, Range};
use std::os::fd::AsRawFd;

use rustix::ioctl::opcode;

/// A set of page properties, as `PAGEMAP_SCAN` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Categories(u64);

impl Categories {
    /// The page is in a range with asynchronous write protection (userfaultfd).
    pub const WPALLOWED: Categories = Categories(1 << 0);
    /// The page was written since it was last write-protected.
    pub const WRITTEN: Categories = Categories(1 << 1);
    /// A page-cache page: of a file or of tmpfs.
    pub const FILE: Categories = Categories(1 << 2);
    /// The page is in memory.
    pub const PRESENT: Categories = Categories(1 << 3);
    /// The page-table entry is a swap entry. Guard regions and other markers are stored as swap
    /// entries too.
    pub const SWAPPED: Categories = Categories(1 << 4);
    /// The kernel's zero page.
    pub const PFNZERO: Categories = Categories(1 << 5);
    /// The page is mapped by a page-table entry of a huge page.
    pub const HUGE: Categories = Categories(1 << 6);
    /// The page was written since `clear_refs`, if the kernel tracks such writes.
    pub const SOFT_DIRTY: Categories = Categories(1 << 7);
    /// A guard region (`MADV_GUARD_INSTALL`). Kernels that lack this property reject the request.
    pub const GUARD: Categories = Categories(1 << 8);

    /// True if every property of `other` is in `self`.
    pub const fn contains(self, other: Categories) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Categories {
    type Output = Categories;
    fn bitor(self, other: Categories) -> Categories {
        Categories(self.0 | other.0)
    }
}

/// Properties that pages must have, and properties to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanRequest {
    /// Properties that a page must have.
    pub all_of: Categories,
    /// Properties of which a page must have at least one; ignored if empty.
    pub any_of: Categories,
    /// Properties that are reported for a matching page; a run ends where they change.
    pub report: Categories,
    /// Number of matching pages after which the scan stops; 0 for no limit.
    pub max_pages: u64,
}

/// A run of matching pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ScanRegion {
    /// The first address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Reported properties that the pages of the run have.
    pub categories: Categories,
}

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Number of regions that were filled in.
    pub regions: usize,
    /// Address at which the walk ended: below the end of the range if all regions or `max_pages`
    /// were used.
    pub walk_end: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArgument>() == 96 && size_of::<ScanRegion>() == 24);

/// Walks `range` of the process whose `/proc/<pid>/pagemap` is open, and writes the runs of
/// matching pages to the regions. The walk holds the process's mmap lock.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; `EINVAL` for a start that is not a multiple of the page size, or a
/// property that the kernel does not know; `EFAULT` for a range outside the address space; `ESRCH`
/// if the process has ended.
///
/// # Complexity
/// Linear in the number of page-table entries; empty page tables of all levels are skipped.
pub fn scan(
    pagemap: &File,
    range: Range<u64>,
    request: &ScanRequest,
    regions: &mut [ScanRegion],
) -> io::Result<Scan> {
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().addr() as u64,
        vec_len: regions.len() as u64,
        max_pages: request.max_pages,
        category_mask: request.all_of.0,
        category_anyof_mask: request.any_of.0,
        return_mask: request.report.0,
        ..ScanArgument::default()
    };
    let opcode = opcode::read_write::<ScanArgument>(b'f', 16);
    // SAFETY: `argument` is the struct that this opcode expects, and contains its own size; `vec`
    // and `vec_len` are the pointer and length of a slice borrowed mutably until after the call.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), opcode as _, &raw mut argument) };
    match usize::try_from(found) {
        Ok(regions) => Ok(Scan { regions, walk_end: argument.walk_end }),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

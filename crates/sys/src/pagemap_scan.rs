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
    /// Asynchronous write-protection tracks the page.
    pub const WPALLOWED: Categories = Categories(1 << 0);
    /// Written since it was last write-protected.
    pub const WRITTEN: Categories = Categories(1 << 1);
    /// A page-cache page: of a file or of tmpfs.
    pub const FILE: Categories = Categories(1 << 2);
    /// In memory.
    pub const PRESENT: Categories = Categories(1 << 3);
    /// A swap entry; guard regions and other markers are stored as such too.
    pub const SWAPPED: Categories = Categories(1 << 4);
    /// The kernel's zero page.
    pub const PFNZERO: Categories = Categories(1 << 5);
    /// Mapped by a huge page-table entry.
    pub const HUGE: Categories = Categories(1 << 6);
    /// Written since `clear_refs`, where the kernel tracks it.
    pub const SOFT_DIRTY: Categories = Categories(1 << 7);
    /// A guard region (`MADV_GUARD_INSTALL`); older kernels reject the request.
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
    /// A page must have all of these.
    pub all_of: Categories,
    /// A page must also have at least one of these, unless this is empty.
    pub any_of: Categories,
    /// The properties to report of a page that matches; runs that differ in them are separate.
    pub report: Categories,
    /// Stop after this number of pages; 0 for no limit.
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
    /// Reported properties that its pages have.
    pub categories: Categories,
}

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Number of regions that were filled in.
    pub regions: usize,
    /// End of the walk: below the end of the range if the regions or `max_pages` were used up.
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

/// Walks `range` of the process whose `/proc/<pid>/pagemap` is open, and fills in the runs of
/// pages that match. The walk holds the process's mmap lock.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; `EINVAL` for a start off page bounds, or a property that the kernel
/// does not know; `EFAULT` for a range outside the address space; `ESRCH` where the process is
/// gone.
///
/// # Complexity
/// One step a page-table entry; empty page-table levels are skipped whole.
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
    // SAFETY: `argument` is the struct this opcode names and states its own size; `vec` and
    // `vec_len` are the pointer and length of a slice borrowed mutably until after the call.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), opcode as _, &raw mut argument) };
    match usize::try_from(found) {
        Ok(regions) => Ok(Scan { regions, walk_end: argument.walk_end }),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

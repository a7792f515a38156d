//! Abilities of the running kernel and permissions of this process: each interface is tried once,
//! on this process.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::pagemap_scan::{self, Categories, ScanRegion, ScanRequest};
use crate::region::AlignedRegion as Memory;
use crate::system::page_size;

/// Availability of page interfaces to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `PAGEMAP_SCAN` (Linux 6.7).
    pub pagemap_scan: bool,
    /// `pagemap` shows page-frame numbers and `kpagecount` can be read: CAP_SYS_ADMIN in the
    /// initial user namespace.
    pub frames: bool,
}

impl Features {
    /// Tries each interface.
    pub fn detect() -> Features {
        let pagemap = File::open("/proc/self/pagemap").ok();
        Features {
            pagemap_scan: pagemap.as_ref().is_some_and(can_scan),
            frames: pagemap.as_ref().is_some_and(shows_frames) && counts_mappers(),
        }
    }
}

/// Start of the page that contains `here`, a variable on the stack, so the page is resident.
fn page_of(here: &u8) -> u64 {
    (&raw const *here).addr() as u64 & !(page_size() - 1)
}

fn can_scan(pagemap: &File) -> bool {
    let on_stack = 0;
    let start = page_of(&on_stack);
    let request = ScanRequest {
        any_of: Categories::PRESENT,
        report: Categories::PRESENT,
        ..ScanRequest::default()
    };
    pagemap_scan::scan(pagemap, start..start + page_size(), &request, &mut [ScanRegion::default()])
        .is_ok()
}

/// True if a scan distinguishes guard regions (`MADV_GUARD_INSTALL`) from swapped pages.
pub fn scans_guards() -> bool {
    let on_stack = 0;
    let start = page_of(&on_stack);
    let request = ScanRequest {
        any_of: Categories::PRESENT,
        report: Categories::GUARD,
        ..ScanRequest::default()
    };
    File::open("/proc/self/pagemap").is_ok_and(|pagemap| {
        let page = start..start + page_size();
        pagemap_scan::scan(&pagemap, page, &request, &mut [ScanRegion::default()]).is_ok()
    })
}

/// True if the kernel tracks which pages were written since `clear_refs`. The function tests this
/// on a page of this process, since kernels without `CONFIG_MEM_SOFT_DIRTY` accept the write to
/// `clear_refs` too.
pub fn tracks_soft_dirty() -> bool {
    /// Bit 55 of a word of `pagemap`.
    const SOFT_DIRTY: u64 = 1 << 55;
    let size = usize::try_from(page_size()).unwrap_or(usize::MAX);
    let (Ok(mut region), Ok(pagemap)) = (Memory::map(size, size), File::open("/proc/self/pagemap"))
    else {
        return false;
    };
    let offset = region.start() / page_size() * 8;
    let is_set = || {
        let mut word = [0; 8];
        pagemap.read_exact_at(&mut word, offset).is_ok()
            && u64::from_ne_bytes(word) & SOFT_DIRTY != 0
    };
    region.bytes()[0] = 1;
    let cleared = std::fs::write("/proc/self/clear_refs", "4").is_ok() && !is_set();
    region.bytes()[0] = 2;
    cleared && is_set()
}

fn shows_frames(pagemap: &File) -> bool {
    let on_stack = 0;
    let mut entry = [0; 8];
    let offset = page_of(&on_stack) / page_size() * 8;
    let read = pagemap.read_exact_at(&mut entry, offset);
    // Bits 0-54 are the page-frame number, or 0 if it is hidden: admin-guide/mm/pagemap.rst.
    read.is_ok() && u64::from_ne_bytes(entry) & ((1 << 55) - 1) != 0
}

fn counts_mappers() -> bool {
    File::open("/proc/kpagecount").is_ok_and(|file| file.read_exact_at(&mut [0; 8], 0).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{CapabilitySet, has_capability};

    #[test]
    fn frames_are_never_visible_without_the_capability() {
        assert!(!Features::detect().frames || has_capability(CapabilitySet::SYS_ADMIN));
    }
}

//! Copies of the read-only pages of this process's shared libraries.
//!
//! The kernel divides a page of a file among the processes that map it (`Pss`). If this process and
//! one other process map the same C library, the other process's `Pss` contains only half of each
//! page that both use. A private copy of a page is not shared, so it does not change the `Pss` of
//! other processes.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

use crate::system;

fn page_size() -> usize {
    address(system::page_size())
}

fn address(number: u64) -> usize {
    usize::try_from(number).expect("what is mapped lies in the address space")
}

/// A read-only segment of a library, in whole pages.
#[derive(Clone, Debug)]
struct ReadOnlySegment {
    pages: Range<usize>,
    executable: bool,
}

/// At the first call, replaces the read-only pages of all shared libraries with private copies.
/// Returns true if all of these pages are private copies now.
///
/// The mappings keep their names and permissions. Each copied page takes about 1 us and one page of
/// memory.
pub fn copy_libraries() -> bool {
    static COPIED: OnceLock<bool> = OnceLock::new();
    *COPIED.get_or_init(|| segments().iter().filter(|segment| !segment.copy()).count() == 0)
}

fn segments() -> Vec<ReadOnlySegment> {
    let mut segments = Vec::new();
    // SAFETY: the callback casts the pointer to its true type: a vector that outlives the call and
    // that nothing else uses.
    unsafe { libc::dl_iterate_phdr(Some(of_library), (&raw mut segments).cast()) };
    segments
}

/// Adds the read-only segments of a library to the vector at `found`.
///
/// # Safety
/// `info` is from `dl_iterate_phdr`, and `found` is a `Vec<ReadOnlySegment>` that nothing else
/// uses.
unsafe extern "C" fn of_library(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that `info` is from `dl_iterate_phdr`.
    let info = unsafe { &*info };
    // SAFETY: the caller passes a vector of segments that nothing else uses during the call.
    let found = unsafe { &mut *found.cast::<Vec<ReadOnlySegment>>() };
    // SAFETY: the names of the loader end with NUL. The name of the program itself is empty.
    let is_program = info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0;
    // SAFETY: the call returns a number and takes no pointer.
    let kernels = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if is_program || info.dlpi_phdr.is_null() || info.dlpi_addr == kernels {
        return 0;
    }
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` headers, which stay mapped while the library is
    // loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let start = address(info.dlpi_addr + header.p_vaddr);
        let end = address(info.dlpi_addr + header.p_vaddr + header.p_filesz);
        let pages = start & !(page_size() - 1)..end.next_multiple_of(page_size());
        found.push(ReadOnlySegment { pages, executable: header.p_flags & libc::PF_X != 0 });
    }
    0
}

impl ReadOnlySegment {
    /// Replaces the pages with private copies; false if this failed. SELinux and `PR_SET_MDWE`
    /// forbid the replacement of code pages.
    fn copy(&self) -> bool {
        let usual =
            libc::PROT_READ | if self.executable { libc::PROT_EXEC } else { libc::PROT_NONE };
        if !self.protect(usual | libc::PROT_WRITE) {
            return false;
        }
        if !self.populate() {
            self.write_each();
        }
        self.protect(usual)
    }

    /// Copies all pages with one call (Linux 5.14), in half the time of a page fault for each page.
    fn populate(&self) -> bool {
        let start = std::ptr::with_exposed_provenance_mut(self.pages.start);
        // SAFETY: the mapping is private and can be written now; each page keeps its contents.
        unsafe { libc::madvise(start, self.pages.len(), libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Writes the first byte of each page back into the page, so that a page fault copies the page.
    fn write_each(&self) {
        for page in self.pages.clone().step_by(page_size()) {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(page);
            // SAFETY: the loader mapped the page, and it can be read.
            let value = unsafe { byte.read_volatile() };
            // SAFETY: the mapping is private, and the caller has made it writable. Nothing else
            // writes to a read-only segment, so threads that read or run the byte meanwhile find it
            // unchanged.
            unsafe { byte.write_volatile(value) };
        }
    }

    fn protect(&self, flags: c_int) -> bool {
        let start = std::ptr::with_exposed_provenance_mut(self.pages.start);
        // SAFETY: the flags always allow reading, and execution of code pages, so code that uses
        // the pages continues to run.
        unsafe { libc::mprotect(start, self.pages.len(), flags) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    /// Resident size of these segments, and size of the private copies that it includes, in KiB.
    fn resident(segments: &[ReadOnlySegment]) -> (u64, u64) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("this process has one");
        let (mut sums, mut counts) = ((0, 0), false);
        for line in smaps.lines() {
            let mut words = line.split_ascii_whitespace();
            let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let size = || second.parse::<u64>().unwrap_or(0);
            let start = first.split_once('-').map(|(start, _)| usize::from_str_radix(start, 16));
            match (first, start) {
                ("Rss:", _) if counts => sums.0 += size(),
                ("Anonymous:", _) if counts => sums.1 += size(),
                (_, Some(Ok(start))) => {
                    counts = segments.iter().any(|it| it.pages.contains(&start))
                }
                _ => {}
            }
        }
        sums
    }

    #[test]
    fn copied_libraries_are_not_mapped_from_files_any_more() {
        let pages = &crate::own_memory::CODE_PAGES;
        let _alone = pages.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let segments = segments();
        if segments.is_empty() {
            return skip(&Lack::Machine("the test program is linked statically"));
        }
        let before = resident(&segments);
        if !copy_libraries() {
            return skip(&Lack::Machine("code pages may not be made writable"));
        }
        // `after` includes pages that were written before, for example by relocations.
        let after = resident(&segments);
        assert!(after.0 > 0 && after.0 - after.1 == 0, "{before:?} to {after:?}");
        assert!(before.0 - before.1 > 0, "{before:?}");
        // Functions of the copied libraries still return correct results.
        assert_eq!(format!("{:.3}", 2.0_f64.powf(0.5)), "1.414");
    }
}

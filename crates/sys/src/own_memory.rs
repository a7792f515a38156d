//! Releases memory of this process that it does not need again soon.

use std::ffi::{c_int, c_void};
use std::ptr;

/// Returns the free pages of malloc to the kernel (glibc), and unmaps the pages of code and
/// read-only data of the program and its libraries. The page cache keeps the unmapped pages, and
/// the next access maps a page again, so only pages that are still used become resident again.
pub fn release_unused() {
    trim_heap();
    // SAFETY: `release_object` has the type of the callback, and does not use the null data
    // pointer.
    unsafe { libc::dl_iterate_phdr(Some(release_object), ptr::null_mut()) };
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: the call takes a number and changes only free memory.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

/// Unmaps the pages of the read-only segments of an object: the program or a library.
unsafe extern "C" fn release_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid object description, which lives through the call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` headers, which stay mapped while the object is
    // loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        let is_constant = header.p_flags & libc::PF_R != 0 && header.p_flags & libc::PF_W == 0;
        if header.p_type == libc::PT_LOAD && is_constant {
            release_segment(info.dlpi_addr.wrapping_add(header.p_vaddr), header.p_memsz);
        }
    }
    0
}

/// Unmaps the whole pages of a read-only segment.
fn release_segment(start: u64, size: u64) {
    let page = crate::system::page_size();
    let (first, end) = (start.next_multiple_of(page), start.saturating_add(size) / page * page);
    let (Ok(first), Ok(length)) =
        (usize::try_from(first), usize::try_from(end.saturating_sub(first)))
    else {
        return;
    };
    // SAFETY: the pages are a private mapping of a file. The segment is not writable, so a private
    // copy of a page has the same bytes as the file, from which the next access maps the page
    // again.
    unsafe {
        libc::madvise(ptr::without_provenance_mut(first), length, libc::MADV_DONTNEED);
    }
}

/// Lock of the tests that replace the code pages of this process or compare the pages before and
/// after a replacement.
#[cfg(test)]
pub(crate) static CODE_PAGES: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Resident memory in KiB, of the type that a line of `/proc/self/status` counts.
    fn resident(line: &str) -> u64 {
        let text = fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|it| it.strip_prefix(line)?.strip_suffix(" kB"));
        line.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn code_is_unmapped_and_still_runs() {
        let _alone = CODE_PAGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Other tests run at the same time and also map code pages, so the check is repeated.
        let shrinks = || {
            let before = resident("RssFile:");
            release_unused();
            resident("RssFile:") < before
        };
        assert!((0..20).any(|_| shrinks()));
    }
}

//! `PROCMAP_QUERY` (Linux 6.11): the mapping at one address. For single look-ups: reading
//! `/proc/<pid>/maps` is faster for all of them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::ioctl::opcode;

/// A mapping, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueriedMapping {
    /// The first address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Page size of the mapping in bytes: larger than the base page only for hugetlb.
    pub page_size: u64,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// The mapping that holds `address` in the process whose `/proc/<pid>/maps` is open, or `None`
/// where nothing is mapped there.
///
/// # Errors
/// `ENOTTY` before Linux 6.11; `ESRCH` where the process is gone.
pub fn at(maps: &File, address: u64) -> io::Result<Option<QueriedMapping>> {
    let mut query =
        ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, address, ..ProcmapQuery::default() };
    let opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
    // SAFETY: `query` is the struct this opcode names and states its own size; both buffer
    // sizes in it are 0, so the kernel writes nothing outside it.
    match unsafe { libc::ioctl(maps.as_raw_fd(), opcode as _, &raw mut query) } {
        0 => Ok(Some(QueriedMapping {
            start: query.vma_start,
            end: query.vma_end,
            page_size: query.vma_page_size,
        })),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_a_local_variable_holds_it() {
        let here = 0_u8;
        let address = (&raw const here).addr() as u64;
        let maps = File::open("/proc/self/maps").unwrap();
        match at(&maps, address) {
            Ok(found) => {
                let found = found.unwrap();
                assert!(found.start <= address && address < found.end, "{found:x?}");
                assert_eq!(found.page_size, crate::system::page_size());
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
        }
    }

    #[test]
    fn nothing_is_mapped_at_address_zero() {
        let maps = File::open("/proc/self/maps").unwrap();
        let found = at(&maps, 0);
        assert!(
            matches!(found, Ok(None))
                || found.is_err_and(|e| e.raw_os_error() == Some(libc::ENOTTY))
        );
    }
}
